"""Man pages as text in roff. Entry points: `overview`, `page`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from datum_compute import __version__
from datum_compute.cli.shell.examples import PROGRAM, Example

if TYPE_CHECKING:
    from tools.manual import Command, Row


def overview(
    summary: str,
    commands: "Sequence[Command]",
    everywhere: "Sequence[Row]",
    places: Sequence[str],
    variables: "Sequence[Row]",
    exit_codes: "Sequence[Row]",
    secrets: str,
) -> str:
    lines = [
        _title(PROGRAM),
        *_section("NAME", f"{PROGRAM} \\- deploy and manage workloads in cities"),
        *_section("SYNOPSIS", f"\\fB{PROGRAM}\\fR [OPTIONS] COMMAND [ARGS]..."),
        *_section("DESCRIPTION", _text(summary)),
        ".SH COMMANDS",
        *(
            line
            for command in commands
            if " " not in command.path
            for line in _item(f"\\fB{_text(PROGRAM)}\\-{_text(command.path)}\\fR(1)", _text(command.help[0]))
        ),
        ".SH OPTIONS",
        *_items(everywhere),
        ".SH WHERE IT TALKS TO",
        "In this order:",
        *(line for number, place in enumerate(places, 1) for line in _item(f"{number}.", _text(place))),
        *_section("SECRETS", _text(secrets)),
        ".SH ENVIRONMENT",
        *_items(variables),
        ".SH EXIT STATUS",
        *_items(exit_codes),
    ]
    return "\n".join(lines) + "\n"


def page(first: "Command", below: "Sequence[Command]") -> str:
    """One command of the top level; the verbs of a group are sections of its page."""
    lines = [
        _title(f"{PROGRAM}-{first.path}"),
        *_section(
            "NAME", f"{PROGRAM}\\-{_text(first.path)} \\- {_text(first.help[0][:1].lower() + first.help[0][1:-1])}"
        ),
        ".SH SYNOPSIS",
        *(line for command in (first, *below) if not command.verbs for line in (_text(command.usage), ".br")),
        ".SH DESCRIPTION",
        *_paragraphs(first.help),
        *_details(first),
    ]
    for command in below:
        lines += [f".SH {_text(command.title.upper())}", *_paragraphs(command.help), *_details(command)]
    lines += [
        *_section("SEE ALSO", f"\\fB{PROGRAM}\\fR(1) for options of every command, the environment and exit codes")
    ]
    return "\n".join(lines) + "\n"


def _details(command: "Command") -> Iterator[str]:
    if command.bare:
        yield from (".PP", _text(f"{command.title} alone is {command.title} {command.bare}."))
    if command.options:
        yield from (".SS Options", *_items(command.options))
    if len(command.outputs) > 1:
        yield from (".SS Output formats", _text(", ".join(command.outputs)))
    if command.examples:
        yield from (".SS Examples", *(line for example in command.examples for line in _example(example)))


def _example(example: Example) -> Iterator[str]:
    yield from (".PP", _text(example.title), ".PP", ".nf", ".RS 4")
    yield _text(f"$ {PROGRAM} {example.line}")
    yield from (_text(line) for line in example.output.splitlines())
    yield from (".RE", ".fi")


def _title(name: str) -> str:
    return f'.TH "{_text(name.upper())}" "1" "" "{PROGRAM} {__version__}" "User commands"'


def _section(title: str, *lines: str) -> Iterator[str]:
    yield from (f".SH {title}", *lines)


def _paragraphs(paragraphs: Sequence[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        yield from (".PP", _text(paragraph))


def _items(rows: "Sequence[Row]") -> Iterator[str]:
    for left, right in rows:
        yield from _item(f"\\fB{_text(left)}\\fR", _text(right))


def _item(left: str, right: str) -> Iterator[str]:
    yield from (".TP", left, right)


def _text(text: str) -> str:
    """Escaped, so that roff prints it unchanged."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
