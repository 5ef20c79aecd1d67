"""How the logs of an Instance are read at its site. Entry points: `Door`, `Sites`, `Site`, `Trouble`, `trouble_of`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from enum import Enum
from typing import Protocol

from msgspec import Struct

from datum_compute.kube.errors import ApiError, BadRequest, Forbidden, NotFound, TooManyRequests, Unauthorized
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject, ObjectMeta
from datum_compute.kube.transport import Call, Link
from datum_compute.telemetry.cells.site_lines import Splitter, parsed, written
from datum_compute.telemetry.cells.targets import Target

ANSWER_SECONDS = 10.0  # without a byte, after which a site counts as silent


class Door(Protocol):
    """Calls to the API of one cell."""

    def pieces(self, call: Call, silence: float | None = None) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """As `HttpTransport.pieces`."""
        ...

    async def websocket(self, path: str, query: str, subprotocol: str) -> Link:
        """As `HttpTransport.websocket`."""
        ...


class Sites(Protocol):
    def door(self, cell: str) -> Door | None:
        """None for a cell that cannot be called: it has neither a Cluster of its name nor a kubeconfig."""
        ...

    def ready(self, cell: str) -> bool:
        """Whether nothing is known that keeps the cell from answering."""
        ...


class _Pod(KubeObject, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_POD = Kind("", "v1", "Pod", "pods", _Pod)


class Trouble(Enum):
    """Why something cannot be read. A site's own words are for operators; these are for users."""

    ABSENT = "the site has no log of it yet"  # only this container
    AWAY = "the site does not answer"
    REFUSED = "the site cannot be read"

    @property
    def of_site(self) -> bool:
        """Whether it concerns everything at the site."""
        return self is not Trouble.ABSENT


def trouble_of(error: ApiError) -> Trouble:
    match error:
        case NotFound() | BadRequest():
            return Trouble.ABSENT  # gone, or not started
        case Unauthorized() | Forbidden():
            return Trouble.REFUSED
        case TooManyRequests():
            return Trouble.ABSENT
    return Trouble.AWAY


class Question(Struct, frozen=True):
    """Which lines of a container are wanted; `since` in nanoseconds is cut to seconds, `tail` is the newest lines."""

    since: int | None = None
    tail: int | None = None
    previous: bool = False
    follow: bool = False
    limit_bytes: int | None = None


def log_call(target: Target, container: str, question: Question) -> Call:
    query = {
        "container": container,
        "timestamps": "true",
        **({"follow": "true"} if question.follow else {}),
        **({"previous": "true"} if question.previous else {}),
        **({"sinceTime": written(question.since)} if question.since is not None else {}),
        **({"tailLines": str(question.tail)} if question.tail is not None else {}),
        **({"limitBytes": str(question.limit_bytes)} if question.limit_bytes is not None else {}),
    }
    return Call("GET", _POD.path(target.place, target.instance, "log"), query, accept="*/*")


async def answered_lines(
    door: Door, target: Target, container: str, question: Question
) -> AsyncGenerator[tuple[int, str, int], None]:
    """Lines of an answer that ends: time, text, and how many bytes it took. Raises `ApiError`."""
    splitter = Splitter()
    async with door.pieces(log_call(target, container, question), ANSWER_SECONDS) as pieces:
        async for piece in pieces:
            for line in splitter.feed(piece):
                if (entry := parsed(line)) is not None:
                    yield *entry, len(line) + 1
    for line in splitter.end():
        if (entry := parsed(line)) is not None:
            yield *entry, len(line)


async def first_line(door: Door, target: Target, container: str) -> None:
    """Finds out whether a site answers. Raises `ApiError`."""
    question = Question(tail=1, limit_bytes=64)
    async with aclosing(answered_lines(door, target, container, question)) as lines:
        async for _ in lines:
            break
