"""The program: from words to an exit code. Entry point: `main`."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from datum_compute import __version__
from datum_compute.cli.shell.environment import Environment, program_name, put
from datum_compute.cli.shell.failures import Exit, Failure, usage

if TYPE_CHECKING:
    import click


def main(argv: Sequence[str] | None = None, environment: Environment | None = None) -> int:
    """Runs one command line and returns its exit code; errors are reported on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    if environment is None:
        # Even if it was started with interrupts ignored, as nohup and many job runners do: a Ctrl-C typed here is meant
        # for us.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)  # what was changed in the terminal is restored on the way out
    environment = environment or _process_environment()
    try:
        if "--plugin-manifest" in words[: words.index("--") if "--" in words else None]:
            put(environment.stdout, _manifest() + "\n")
            return 0
        if words[:1] == ["__complete"]:
            return _complete(words[1:], environment)
        return _run(words, environment)
    except BrokenPipeError:  # the reader has seen enough
        return 0
    except Failure as failure:
        with suppress(Failure, BrokenPipeError):  # stderr itself may be what failed
            put(environment.stderr, f"{failure.prefix}{failure.message}\n")
        return failure.code
    finally:
        _finish(environment.stdout)
        _finish(environment.stderr)


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _process_environment() -> Environment:
    """The environment of this process. Closed streams are replaced, in this order, so that no other file gets their
    numbers. Reading returns nothing then, and notes are lost; but a result that cannot be written is an error."""
    stdin = sys.stdin or open(os.devnull)  # noqa: SIM115  (open as long as we run)
    stdout = sys.stdout or open(os.devnull)  # noqa: SIM115  (refuses writes)
    stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    columns = os.get_terminal_size(stdout.fileno()).columns if stdout.isatty() else 0
    return Environment(
        program=program_name(sys.argv[0], os.environ),
        environ=os.environ,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        columns=columns or None,
    )


def _complete(words: Sequence[str], environment: Environment) -> int:
    """Never fails: a shell that waits for completions has no use for an error."""
    try:
        from datum_compute.cli.shell.completion import answer

        text = answer(words, environment)
    except Exception:
        text = ":4\n"
    with suppress(Failure):
        put(environment.stdout, text)
    return 0


def _finish(stream: TextIO) -> None:
    """Flushes a stream. One that fails is redirected: Python would try again when it exits, and complain."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _manifest() -> str:
    """The manifest for datumctl, which gives us little time: nothing is loaded for it."""
    description = "Deploy and manage containerized workloads on Datum Cloud"
    return (
        f'{{"name": "compute", "version": "{__version__}", "description": "{description}", '
        '"api_version": 1, "min_api_version": 1}'
    )


def _run(words: Sequence[str], environment: Environment) -> int:
    import click

    from datum_compute.cli.shell.flags import GLOBAL_FLAGS
    from datum_compute.cli.shell.tree import Root

    root = Root()
    flags: Mapping[str, Any] = {}
    try:
        _check_text(words)
        width = _help_width(environment)
        with root.make_context(environment.program, list(words), obj=environment, terminal_width=width) as ctx:
            flags = ctx.meta[GLOBAL_FLAGS]
            return int(root.invoke(ctx) or Exit.OK)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.UsageError as error:
        return _report(environment, _usage_failure(error, environment.program))
    except Failure as failure:
        return _report(environment, failure, flags)
    except KeyboardInterrupt:
        put(environment.stderr, "\n")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        return _report_bug(environment, words, error)


def _help_width(environment: Environment) -> int:
    """As click would choose it, which loads a lot to find out how wide the terminal is."""
    columns = environment.environ.get("COLUMNS", "")
    return max(min(int(columns) if columns.isdecimal() else environment.columns or 80, 80) - 2, 50)


def _check_text(words: Sequence[str]) -> None:
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise usage(f"argument {number} is not UTF-8 text") from None


def _usage_failure(error: "click.UsageError", program: str) -> Failure:
    """An error that click found, in our words."""
    import click

    from datum_compute.cli.shell.flags import Choice, one_of

    path = error.ctx.command_path if error.ctx else program
    advice = ""
    match error:
        case click.NoSuchOption():
            message = f"unknown flag: {error.option_name}"
            if suggestion := _suggested_flag(error):
                advice = f"Did you mean: {suggestion}"
        case click.MissingParameter(param=click.Argument(type=Choice(words=words), name=name)):
            message = f"{name} is required: {one_of(words)}"
        case click.MissingParameter(param=click.Parameter() as param):
            message = f"{param.make_metavar(error.ctx) if error.ctx else param.name} is required"
        case _:
            text = error.format_message().rstrip(".")
            message = text[:1].lower() + text[1:]
    help_ = f"{path.removeprefix(program).strip()} --help".strip()
    return Failure(message, Exit.USAGE, advice=advice, next_command="" if advice else help_)


def _suggested_flag(error: "click.NoSuchOption") -> str:
    """The flag that was probably meant: ours for one of kubectl, or a similar one."""
    from datum_compute.cli.shell.habits import KUBECTL_FLAGS, closest

    params = error.ctx.command.params if error.ctx else []
    flags = [flag for param in params for flag in (*param.opts, *param.secondary_opts) if flag.startswith("--")]
    ours = KUBECTL_FLAGS.get(error.option_name, "")
    return ours if ours in flags else closest(error.option_name, flags)


def _report(environment: Environment, failure: Failure, flags: Mapping[str, Any] | None = None) -> int:
    """`flags` are the global flags: the suggested command uses the same target."""
    from datum_compute.cli.shell.flags import with_target_flags
    from datum_compute.cli.show.terminal import Style, Terminal
    from datum_compute.cli.talk.redaction import masked

    terminal = Terminal(environment, Style())
    terminal.warn(f"{failure.prefix}{masked(failure.message)}")
    for detail in failure.details:
        terminal.warn(f"  {masked(detail)}")
    next_command = with_target_flags(failure.next_command, flags or {}) if failure.next_command else ""
    advice = failure.advice or (f"{environment.program} {next_command}" if next_command else "")
    if advice:
        terminal.warn("")
        terminal.warn(advice)
    return int(failure.code)


def _report_bug(environment: Environment, words: Sequence[str], error: Exception) -> int:
    """Reports an exception that this program should have handled; its traceback only with -v."""
    import traceback

    from datum_compute.cli.show.escapes import visible
    from datum_compute.cli.talk.redaction import masked

    if environment.environ.get("DATUM_COMPUTE_VERBOSE") or any(word in ("-v", "-vv", "--verbose") for word in words):
        put(environment.stderr, masked("".join(traceback.format_exception(error))))
    message = f"this should not happen: {type(error).__name__}: {error} (-v shows where)"
    put(environment.stderr, f"Error: {visible(masked(message))}\n")
    return Exit.FAILED


if __name__ == "__main__":
    sys.exit(main())
