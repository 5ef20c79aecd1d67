"""The program: from words to an exit code. Entry point: `main`."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from datum_compute import __version__
from datum_compute.cli.surroundings import Surroundings, program_name

if TYPE_CHECKING:
    import click

    from datum_compute.cli.failures import Failure


def main(argv: Sequence[str] | None = None, surroundings: Surroundings | None = None) -> int:
    """Runs one command line and returns its exit code; every error is told in words, on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    around = surroundings or _of_this_process()
    if "--plugin-manifest" in words:
        around.stdout.write(_manifest() + "\n")
        return 0
    if words[:1] == ["__complete"]:
        from datum_compute.cli.completion import answer

        around.stdout.write(answer(words[1:], around))
        return 0
    try:
        code = _run(words, around)
        around.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has seen enough. Python would complain once more when it closes stdout at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), around.stdout.fileno())
        return 0
    return code


def _of_this_process() -> Surroundings:
    columns = None
    if sys.stdout.isatty():
        columns = os.get_terminal_size(sys.stdout.fileno()).columns or None
    return Surroundings(program=program_name(sys.argv[0], os.environ), environ=os.environ, columns=columns)


def _manifest() -> str:
    """What datumctl wants to know of a plugin; asked with a short deadline, so nothing is loaded for it."""
    description = "Deploy and manage containerized workloads on Datum Cloud"
    return (
        f'{{"name": "compute", "version": "{__version__}", "description": "{description}", '
        '"api_version": 1, "min_api_version": 1}'
    )


def _run(words: Sequence[str], around: Surroundings) -> int:
    import click

    from datum_compute.cli.failures import Exit, Failure
    from datum_compute.cli.tree import Root

    root = Root()
    try:
        with root.make_context(around.program, list(words), obj=around) as ctx:
            return int(root.invoke(ctx) or Exit.OK)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.UsageError as error:
        return _tell(around, _in_words(error, around.program))
    except Failure as failure:
        return _tell(around, failure)
    except KeyboardInterrupt:
        around.stderr.write("\n")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        return _tell_defect(around, words, error)


def _in_words(error: "click.UsageError", program: str) -> "Failure":
    """What click found wrong with the words, told as we tell everything."""
    import click

    from datum_compute.cli.failures import Exit, Failure

    path = error.ctx.command_path if error.ctx else program
    advice = ""
    match error:
        case click.NoSuchOption():
            message = f"unknown flag: {error.option_name}"
            if error.possibilities:
                advice = f"Did you mean: {error.possibilities[0]}"
        case click.MissingParameter(param=click.Parameter() as param):
            message = f"{param.make_metavar(error.ctx) if error.ctx else param.name} is required"
        case _:
            text = error.format_message().rstrip(".")
            message = text[:1].lower() + text[1:]
    help_ = f"{path.removeprefix(program).strip()} --help".strip()
    return Failure(message, Exit.USAGE, advice=advice, next_command="" if advice else help_)


def _tell(around: Surroundings, failure: "Failure") -> int:
    from datum_compute.cli.masks import masked
    from datum_compute.cli.terminal import Style, Terminal

    terminal = Terminal(around, Style())
    terminal.warn(f"{failure.prefix}{masked(failure.message)}")
    for detail in failure.details:
        terminal.warn(f"  {masked(detail)}")
    advice = failure.advice or (f"{around.program} {failure.next_command}" if failure.next_command else "")
    if advice:
        terminal.warn("")
        terminal.warn(advice)
    return int(failure.code)


def _tell_defect(around: Surroundings, words: Sequence[str], error: Exception) -> int:
    """Something this program should have foreseen; where it happened is told on request."""
    import traceback

    from datum_compute.cli.failures import Exit

    if around.environ.get("DATUM_COMPUTE_VERBOSE") or any(word in ("-v", "-vv", "--verbose") for word in words):
        around.stderr.write("".join(traceback.format_exception(error)))
    around.stderr.write(f"Error: this should not happen: {type(error).__name__}: {error} (-v shows where)\n")
    return Exit.FAILED


if __name__ == "__main__":
    sys.exit(main())
