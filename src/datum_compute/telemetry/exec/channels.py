"""The messages between a command that runs in a container and its user, as Kubernetes has them. Entry points:
`from_client`, `from_server`, `outcome`.

A message is the number of its channel in one byte, then the data. The last message of a server is a Status.
"""

import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

SUBPROTOCOL = "v5.channel.k8s.io"

STDIN, STDOUT, STDERR, STATUS, RESIZE = range(5)
END = 255  # of the channel that the next byte names

NON_ZERO = "NonZeroExitCode"
_EXIT_CODE = "ExitCode"
_EXIT_CODES = re.compile("[0-9]{1,3}")
_LARGEST_SIZE = 65535


class Input(Struct, frozen=True):
    data: bytes


class EndOfInput(Struct, frozen=True):
    pass


class Resize(Struct, frozen=True):
    width: int
    height: int


class Output(Struct, frozen=True):
    channel: int  # STDOUT or STDERR
    data: bytes


class Exited(Struct, frozen=True):
    """The command ended by itself."""

    code: int


class Ended(Struct, frozen=True):
    """The command could not be started, or nobody knows how it went on; `message` is one sentence."""

    message: str
    reason: str = "InternalError"
    code: int = 500


class _Size(Struct, frozen=True):
    width: int = msgspec.field(name="Width", default=0)
    height: int = msgspec.field(name="Height", default=0)


class _Cause(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Details(Struct, frozen=True):
    causes: tuple[_Cause, ...] = ()


class _Status(Struct, frozen=True):
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


def message(channel: int, data: bytes = b"") -> bytes:
    return bytes((channel,)) + data


def end_of(channel: int) -> bytes:
    return bytes((END, channel))


def resize(width: int, height: int) -> bytes:
    return message(RESIZE, msgspec.json.encode(_Size(width, height)))


def from_client(data: bytes) -> Input | EndOfInput | Resize | None:
    """What a client sent; None for a message that means nothing, which is ignored."""
    if not data:
        return None
    match data[0]:
        case 0:
            return Input(data[1:])
        case 4:
            return _resize(data[1:])
        case 255 if data[1:] == bytes((STDIN,)):
            return EndOfInput()
    return None


def _resize(data: bytes) -> Resize | None:
    try:
        size = msgspec.json.decode(data, type=_Size)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not (0 < size.width <= _LARGEST_SIZE and 0 < size.height <= _LARGEST_SIZE):
        return None
    return Resize(size.width, size.height)


def from_server(data: bytes) -> Output | Exited | Ended | None:
    """What a server sent; None for a message that means nothing."""
    if not data:
        return None
    match data[0]:
        case 1 | 2:
            return Output(data[0], data[1:])
        case 3:
            return outcome(data[1:])
    return None


def outcome(status: bytes) -> Exited | Ended:
    """How a command ended, by the Status that a server sent last."""
    try:
        found = msgspec.json.decode(status, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Ended("the server did not say how the command ended")
    if found.status == "Success":
        return Exited(0)
    if found.reason == NON_ZERO:
        causes = found.details.causes if found.details is not None else ()
        codes = [cause.message for cause in causes if cause.reason == _EXIT_CODE]
        if codes and _EXIT_CODES.fullmatch(codes[0]) and int(codes[0]) <= 255:
            return Exited(int(codes[0]))
    return Ended(found.message or "the server did not say why the command failed", found.reason, found.code or 500)


def closing(end: Exited | Ended) -> bytes:
    """The last message of a server."""
    return message(STATUS, msgspec.json.encode(_status(end)))


def _status(end: Exited | Ended) -> Mapping[str, object]:
    common: dict[str, object] = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
    match end:
        case Exited(0):
            return common | {"status": "Success"}
        case Exited(code):
            return common | {
                "status": "Failure",
                "message": f"command terminated with non-zero exit code: exit code {code}",
                "reason": NON_ZERO,
                "details": {"causes": [{"reason": _EXIT_CODE, "message": str(code)}]},
            }
        case Ended(text, reason, code):
            return common | {"status": "Failure", "message": text, "reason": reason, "code": code}
