"""Examples of every command, stored as terminal sessions in `examples.txt`. Entry points: `examples`, `Example`.

Help shows the command lines, the manual also their output; a test runs each of them and compares.
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
    line: str  # the arguments of the program
    output: str = ""
    code: int = 0


def examples(path: str = "") -> list[Example]:
    """All examples, or those of one command."""
    return [example for example in parse(FILE.read_text("utf-8")) if path in ("", example.path)]


def parse(text: str) -> Iterator[Example]:
    for section in text.split(f"\n{_COMMAND}")[1:]:
        path, _, rest = section.partition("\n")
        for block in rest.split(f"\n{_TITLE}")[1:]:
            title, prompt, *output = block.rstrip("\n").split("\n")
            code = int(output.pop().removeprefix(_CODE).rstrip("]")) if output and output[-1].startswith(_CODE) else 0
            yield Example(path, title, prompt.removeprefix(_PROMPT), "".join(f"{line}\n" for line in output), code)


def text_of(introduction: str, found: Iterable[Example]) -> str:
    """The text of a file with these examples, as `parse` reads it."""
    lines, path = [introduction.rstrip("\n")], ""
    for example in found:
        if example.path != path:
            lines += ["", f"{_COMMAND}{example.path}"]
            path = example.path
        lines += ["", f"{_TITLE}{example.title}", f"{_PROMPT}{example.line}", *example.output.splitlines()]
        lines += [f"{_CODE}{example.code}]"] if example.code else []
    return "\n".join(lines) + "\n"
