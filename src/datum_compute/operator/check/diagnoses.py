"""The results of a check and how they are printed. Entry points: `Diagnosis`, `table`, `document`."""

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec
from msgspec import Struct


class Result(Enum):
    FINE = "fine"
    WARNING = "warning"  # the process works, but not everything will
    FAILED = "failed"  # the process does not start, or cannot do its work


class Diagnosis(Struct, frozen=True):
    """What was found out about one thing, and what to do unless it is fine."""

    check: str
    plane: str  # empty where it concerns no plane
    result: Result
    found: str
    advice: str = ""


def fine(check: str, plane: str, found: str) -> Diagnosis:
    return Diagnosis(check, plane, Result.FINE, found)


def warning(check: str, plane: str, found: str, advice: str) -> Diagnosis:
    return Diagnosis(check, plane, Result.WARNING, found, advice)


def failed(check: str, plane: str, found: str, advice: str) -> Diagnosis:
    return Diagnosis(check, plane, Result.FAILED, found, advice)


def counts(diagnoses: Iterable[Diagnosis]) -> dict[str, int]:
    """The number of diagnoses by result."""
    results = [diagnosis.result for diagnosis in diagnoses]
    return {result.value: results.count(result) for result in Result}


_HEAD = ("CHECK", "PLANE", "RESULT", "FOUND, AND WHAT TO DO")


def table(diagnoses: Sequence[Diagnosis]) -> str:
    rows = [(diagnosis.check, diagnosis.plane or "-", diagnosis.result.value) for diagnosis in diagnoses]
    widths = [max(map(len, column)) for column in zip(_HEAD[:-1], *rows, strict=True)]

    def line(cells: Sequence[str], text: str) -> str:
        return "   ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), text]).rstrip()

    lines = [line(_HEAD[:-1], _HEAD[-1])]
    for row, diagnosis in zip(rows, diagnoses, strict=True):
        lines.append(line(row, diagnosis.found))
        if diagnosis.advice:
            lines.append(line(("",) * len(row), f"-> {diagnosis.advice}"))
    numbers = counts(diagnoses)
    warnings = f"{numbers['warning']} warning{'' if numbers['warning'] == 1 else 's'}"
    lines += ["", f"{numbers['failed']} failed, {warnings}, {numbers['fine']} fine."]
    return "\n".join(lines)


def document(diagnoses: Sequence[Diagnosis]) -> str:
    """As JSON, for programs."""
    content = {"diagnoses": msgspec.to_builtins(diagnoses), "counts": counts(diagnoses)}
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
