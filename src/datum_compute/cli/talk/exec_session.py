"""A command that runs elsewhere, with the streams of this process. Entry points: `open_session`, `converse`."""

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from msgspec import Struct

from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.talk.project import NAMESPACE, Project
from datum_compute.cli.talk.raw_terminal import size
from datum_compute.federation.sessions import Command
from datum_compute.kube.access.kubeconfig import KubeconfigError
from datum_compute.kube.errors import ApiError, BadRequest, MethodNotAllowed, NotFound, Unsupported
from datum_compute.telemetry.exec import channels
from datum_compute.telemetry.exec.channels import Ended, Exited, Output
from datum_compute.telemetry.exec.request import path_of, query_of

if TYPE_CHECKING:
    from datum_compute.kube.websocket import WebSocket

_PIECE = 32 * 1024
_UNSENT = 256 * 1024  # no more is read from stdin while the server takes nothing
_SILENCE_SECONDS = 90.0  # servers give a sign of life every 20 seconds
_LOST = "the connection was lost; the command may go on"


def open_session(project: Project, instance: str, command: Command) -> "WebSocket":
    """Starts a command in an instance. Raises a `Failure`."""
    action = f'running a command in instance "{instance}"'
    try:
        return project.transport.websocket(path_of(NAMESPACE, instance), query_of(command), channels.SUBPROTOCOL)
    except (ApiError, KubeconfigError) as error:
        raise _failure(project, error, action, instance) from error


def _failure(project: Project, error: ApiError | KubeconfigError, action: str, instance: str) -> Failure:
    if isinstance(error, KubeconfigError) or not (error.answered or isinstance(error, MethodNotAllowed)):
        return project.unanswered(error, action)
    match error:
        case NotFound() if error.about is not None and error.about.kind in ("Instance", "instances", "containers"):
            return Failure(error.message, Exit.NOT_FOUND, next_command=f"instances describe {instance}")
        case NotFound() | MethodNotAllowed():
            text = f"commands cannot be run in project {project.name}: the server does not offer that"
            return Failure(text, Exit.UNAVAILABLE)
        case BadRequest():
            return usage(error.message)
        case Unsupported():
            return Failure(error.message, Exit.UNAVAILABLE)
    if error.code in (409, 429):
        return Failure(error.message, next_command=f"instances describe {instance}" if error.code == 409 else "")
    return project.refused(error, action, "run commands in", "instances")


class Streams(Struct, frozen=True):
    """What a command is connected to. `stdin` and `resizes` are file descriptors, -1 for none; with a `terminal`, the
    command is told its size."""

    stdin: int
    stdout: IO[bytes]
    stderr: IO[bytes]
    terminal: int = -1
    resizes: int = -1


def converse(link: "WebSocket", streams: Streams, monotonic: Callable[[], float]) -> Exited | Ended:
    """Passes on input and output until the command has ended."""
    stdin = streams.stdin
    heard, received, tail = monotonic(), 0, b""
    if streams.terminal >= 0:
        _send_size(link, streams.terminal)
    while True:
        reads = stdin >= 0 and link.unsent < _UNSENT
        ready = link.wait([*([stdin] if reads else []), *([streams.resizes] if streams.resizes >= 0 else [])], 5.0)
        for data in link.receive():
            match channels.from_server(data):
                case Output(channel, text):
                    _write(streams.stderr if channel == channels.STDERR else streams.stdout, text)
                    tail = (tail + text)[-2:]
                case Exited() | Ended() as end:
                    if streams.terminal >= 0 and tail.endswith(b"\n") and tail != b"\r\n":
                        _write(streams.stdout, b"\r")  # engines put their errors there without one
                    return end
        if link.received != received:
            heard, received = monotonic(), link.received
        if link.closed:
            return Ended(f"{_LOST} ({link.reason})" if link.reason else _LOST)
        if monotonic() - heard > _SILENCE_SECONDS:
            return Ended(_LOST)
        if streams.resizes in ready:
            with suppress(BlockingIOError):
                os.read(streams.resizes, _PIECE)
            _send_size(link, streams.terminal)
        if stdin in ready:
            data = _read(stdin)
            if data:
                link.send(channels.message(channels.STDIN, data))
            else:
                link.send(channels.end_of(channels.STDIN))
                stdin = -1


def _send_size(link: "WebSocket", terminal: int) -> None:
    if (known := size(terminal)) is not None:
        link.send(channels.resize(*known))


def _read(stdin: int) -> bytes:
    """A terminal that was closed is the end of the input, too."""
    try:
        return os.read(stdin, _PIECE)
    except OSError:
        return b""


def _write(stream: IO[bytes], data: bytes) -> None:
    """Waits for a reader that is slow, also where the stream itself does not."""
    left = memoryview(data)
    try:
        while left:
            try:
                written = stream.write(left)
                left = left[written if written is not None else 0 :]
                stream.flush()
            except BlockingIOError as error:
                left = left[error.characters_written :]
                select.select([], [stream], [])
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"the output cannot be written: {(error.strerror or 'it is closed').lower()}") from None
