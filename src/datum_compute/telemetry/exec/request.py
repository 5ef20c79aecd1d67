"""What a request to run a command asks for. Entry points: `request_of`, `path_of`, `query_of`,
`refuse`."""

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct

from datum_compute.federation.sessions import Command
from datum_compute.kube.errors import BadRequest, NotFound

GROUP, VERSION = "run.compute.datumapis.com", "v1alpha1"

LARGEST_ARGUMENTS = 16 * 1024  # bytes together
MOST_ARGUMENTS = 512
_MOST_FIELDS = MOST_ARGUMENTS + 16
_LONGEST_PROGRAM = 64

_PATH = re.compile(
    rf"/apis/{re.escape(GROUP)}/{VERSION}/namespaces/(?P<namespace>[^/]+)/instances/(?P<instance>[^/]+)/exec"
)


class Request(Struct, frozen=True):
    namespace: str
    instance: str
    command: Command


def path_of(namespace: str, instance: str) -> str:
    """Below the API root of a plane."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/instances/{instance}/exec"


def query_of(command: Command) -> str:
    """The query of a request, which may become more than three times as long as the arguments."""
    fields = [("command", argument) for argument in command.arguments]
    if command.container:
        fields.append(("container", command.container))
    flags = {"stdin": command.stdin, "stdout": True, "stderr": not command.tty, "tty": command.tty}
    return urlencode([*fields, *((name, "true") for name, is_set in flags.items() if is_set)])


def place_of(path: str) -> tuple[str, str]:
    """The namespace and the name of the Instance that a path names; raises `NotFound` for any other path."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise NotFound("the server could not find the requested resource")
    return match["namespace"], match["instance"]


def request_of(path: str, query: bytes) -> Request:
    """Raises `NotFound` for any other path, and `BadRequest` for a command that cannot be run."""
    namespace, instance = place_of(path)
    try:
        text = query.decode("ascii")
        fields = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except UnicodeDecodeError:
        raise BadRequest("the command is not UTF-8 text") from None
    except ValueError:
        raise BadRequest(f"the command has more than {MOST_ARGUMENTS} arguments") from None
    arguments = tuple(value for name, value in fields if name == "command")
    refuse(arguments)
    others = dict(fields)
    return Request(
        namespace,
        instance,
        Command(
            arguments,
            container=others.get("container", ""),
            stdin=_is_set(others.get("stdin", "")),
            tty=_is_set(others.get("tty", "")),
        ),
    )


def refuse(arguments: Sequence[str]) -> None:
    """Raises `BadRequest` for arguments that cannot be run."""
    if not arguments or not arguments[0]:
        raise BadRequest("name the command to run")
    if len(arguments) > MOST_ARGUMENTS:
        raise BadRequest(f"the command has {len(arguments)} arguments; {MOST_ARGUMENTS} are the most")
    size = sum(len(argument.encode()) for argument in arguments)
    if size > LARGEST_ARGUMENTS:
        raise BadRequest(f"the command has {size} bytes; {LARGEST_ARGUMENTS} are the most")
    if any("\0" in argument for argument in arguments):
        raise BadRequest("the command contains a null character, which no argument can have")


def _is_set(text: str) -> bool:
    return text.lower() in ("1", "t", "true")


def program(command: Command) -> str:
    """The program that a command runs, for logs and events. Never an argument: it may be a secret, also one that was
    written into the same word."""
    word = (command.arguments[0].split() or ["?"])[0]
    printable = "".join(character if character.isprintable() else "?" for character in word)
    return printable if len(printable) <= _LONGEST_PROGRAM else f"{printable[:_LONGEST_PROGRAM]}…"
