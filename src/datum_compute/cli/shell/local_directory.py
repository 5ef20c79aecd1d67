"""The directory of a local federation in flags and printed commands. Entry points: `directory_option`, `call`."""

import re
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import option

if TYPE_CHECKING:
    from datum_compute.cli.shell.run import Run

directory_option = option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="PATH",
    help="Directory of its state (DATUM_COMPUTE_LOCAL_DIR).",
)


def state_directory(directory: Path | None) -> Path:
    from datum_compute.local import state

    return directory.absolute() if directory else state.default_directory()


def directory_flag(directory: Path | None) -> str:
    """The flag for printed commands; absolute, so that they work from any directory."""
    return f" --dir={quote(str(directory.absolute()))}" if directory else ""


def call(run: "Run", directory: Path | None, action: Any, *arguments: Any) -> Any:
    """Calls a function of `local`, and adapts commands in its errors to the program and directory in use."""
    from datum_compute.local.state import LocalError

    try:
        return action(*arguments)
    except LocalError as error:
        sentence, *details = adapted(run, directory, str(error)).split("\n")
        raise Failure(sentence, Exit.FAILED, details=[line.strip() for line in details]) from None


def adapted(run: "Run", directory: Path | None, text: str) -> str:
    """The text with commands as the user has to type them."""

    def command(match: "re.Match[str]") -> str:
        return f"'{run.program} {match[1]}{directory_flag(directory)}'"

    return re.sub(r"'compute (local \w+(?: --[\w=-]+)*)'", command, text)
