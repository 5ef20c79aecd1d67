"""Examples of every command, kept as the sessions they are in `examples.txt`. Entry points: `examples`, `Example`.

Help shows the command lines, the manual also what they print; a test runs each of them and compares.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("examples.txt")
PROGRAM = "compute"

_COMMAND, _TITLE, _PROMPT, _CODE = "== ", "-- ", f"$ {PROGRAM} ", "[exit "


class Example(NamedTuple):
    path: str  # the command it belongs to: `rollout undo`
    title: str  # what it is for, in one sentence
    line: str  # what is typed after the name of the program
    shown: str = ""
    code: int = 0


def examples(path: str = "") -> list[Example]:
    """All of them, or those of one command."""
    found = parse(FILE.read_text("utf-8"))
    return [one for one in found if path in ("", one.path)]


def parse(text: str) -> Iterator[Example]:
    for section in text.split(f"\n{_COMMAND}")[1:]:
        path, _, rest = section.partition("\n")
        for block in rest.split(f"\n{_TITLE}")[1:]:
            title, prompt, *shown = block.rstrip("\n").split("\n")
            code = int(shown.pop().removeprefix(_CODE).rstrip("]")) if shown and shown[-1].startswith(_CODE) else 0
            yield Example(path, title, prompt.removeprefix(_PROMPT), "".join(f"{line}\n" for line in shown), code)


def text_of(introduction: str, found: Iterable[Example]) -> str:
    """The file that holds these, as `parse` reads it."""
    lines, path = [introduction.rstrip("\n")], ""
    for one in found:
        if one.path != path:
            lines += ["", f"{_COMMAND}{one.path}"]
            path = one.path
        lines += ["", f"{_TITLE}{one.title}", f"{_PROMPT}{one.line}", *one.shown.splitlines()]
        lines += [f"{_CODE}{one.code}]"] if one.code else []
    return "\n".join(lines) + "\n"
