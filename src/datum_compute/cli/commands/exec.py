"""Runs a command in an instance. Entry point: `command`."""

import io
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import IO, Any, NoReturn, TextIO, cast

import click

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.flags import INSTANCE_NAME, option, verb
from datum_compute.cli.shell.run import Run
from datum_compute.cli.shell.tree import Leaf
from datum_compute.cli.show.specs import container_names
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.project import of_workload

_WORDS = "words"
_MOST_NAMES = 10


class Passing(Leaf):
    """A verb that passes on all words after `--`."""

    passes_words = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        ctx.params[_WORDS] = tuple(args[end + 1 :])
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [ARG]..."]

    def _unexpected(self, ctx: click.Context, args: list[str], rest: list[str]) -> NoReturn:
        raise usage(f"put -- before the command: ... -- {rest[0]}", "exec --help")


def _check(instance: str, words: Sequence[str], **flags: Any) -> None:
    if not words:
        raise usage(f"name the command to run: ... {instance} -- COMMAND", "exec --help")
    from datum_compute.kube.errors import BadRequest
    from datum_compute.telemetry.exec.request import refuse

    try:
        refuse(words)
    except BadRequest as error:
        raise usage(error.message) from None


@verb("exec", needs=ENTITLED_PROJECT, check=_check, leaf=Passing)
@click.argument("instance", type=INSTANCE_NAME, metavar="INSTANCE")
@option("-c", "--container", default="", metavar="NAME", help="Container to run it in, if there are several.")
@option("-i", "--stdin", is_flag=True, help="Pass on what is typed or piped.")
@option("-t", "--tty", is_flag=True, help="Run it in a terminal, for programs such as a shell; implies -i.")
def command(run: Run, instance: str, words: Sequence[str], container: str, stdin: bool, tty: bool) -> int:
    """Run a command in an instance.

    The exit code is that of the command. In a terminal, Ctrl-C goes to the command; otherwise it ends only the
    connection, and the command may go on. Who runs which program is recorded in the events of the instance.
    """
    from datum_compute.cli.talk.exec_session import Streams, converse, open_session
    from datum_compute.cli.talk.raw_terminal import raw, resizes
    from datum_compute.federation.sessions import Command
    from datum_compute.telemetry.exec.channels import Exited

    name = _container(_instance(run, instance), container)
    streams = run.environment
    if tty and not streams.stdin.isatty():
        run.terminal.warn("stdin is not a terminal; going on without -t")
        tty = False
    wanted = Command(tuple(words), name, stdin=stdin or tty, tty=tty)
    with closing(open_session(run.target.logs, instance, wanted)) as link:
        number = _number(streams.stdin) if wanted.stdin else -1
        try:
            with ExitStack() as stack:
                changes = stack.enter_context(resizes()) if tty else -1
                if tty:
                    stack.enter_context(raw(number))
                out, err = _bytes(streams.stdout), _bytes(streams.stderr)
                end = converse(link, Streams(number, out, err, number if tty else -1, changes), run.clock.monotonic)
        except KeyboardInterrupt:
            run.terminal.warn(f"Interrupted. {words[0]} may go on in {instance}.")
            return Exit.INTERRUPTED
    if isinstance(end, Exited):
        return end.code
    raise Failure(end.message)


def _instance(run: Run, name: str) -> Instance:
    """People also name a workload, as they do elsewhere."""
    try:
        return run.project.get(INSTANCE, name).object
    except Failure as failure:
        workload = run.project.find(WORKLOAD, name) if failure.code is Exit.NOT_FOUND else None
        if workload is None:
            raise
        names = sorted(found.name for found in run.project.list(INSTANCE, of_workload(workload.object)).items)
        raise Failure(
            failure.message,
            failure.code,
            details=[f"it is a workload; its instances: {_few(names) or 'none'}"],
            next_command=f"instances --workload={name}",
        ) from None


def _few(names: Sequence[str]) -> str:
    hidden = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {hidden} more" if hidden > 0 else "")


def _container(instance: Instance, name: str) -> str:
    names = container_names(instance.spec)
    if not names:
        text = f'instance "{instance.name}" is a virtual machine; commands run only in containers'
        raise Failure(text, Exit.UNAVAILABLE)
    if name and name not in names:
        text = f'instance "{instance.name}" has no container "{name}"; it has {", ".join(names)}'
        raise Failure(text, Exit.NOT_FOUND)
    if not name and len(names) > 1:
        raise usage(f'instance "{instance.name}" has several containers; choose one with -c: {", ".join(names)}')
    return name or names[0]


def _number(stream: TextIO) -> int:
    """The file descriptor of a stream; -1 where it has none, as in tests."""
    try:
        return stream.fileno()
    except io.UnsupportedOperation:
        return -1


def _bytes(stream: TextIO) -> IO[bytes]:
    """A stream for what is not text."""
    stream.flush()
    buffer: IO[bytes] | None = getattr(stream, "buffer", None)
    return buffer if buffer is not None else cast("IO[bytes]", _Decoded(stream))


class _Decoded:
    """A stream that takes only text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, data: bytes | memoryview) -> int:
        text = bytes(data)
        self._stream.write(text.decode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
