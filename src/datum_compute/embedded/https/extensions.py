"""API groups that handlers answer instead of stored objects. Entry points: `Extension`, `Handler`, `handle`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

import structlog
from msgspec import Struct

from datum_compute.kube.errors import ApiError

Scope = Mapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_GOING_AWAY = 1001  # the close code of a WebSocket whose server stops

_log = structlog.get_logger(__name__)


class Handler(Protocol):
    def __call__(self, plane: str, path: str, scope: Scope, receive: Receive, send: Send, /) -> Awaitable[None]:
        """Answers an authenticated request on a plane; `path` is below the API root of that plane.

        The scope is of type `http` or `websocket`. An `ApiError` that is raised before anything was sent becomes the
        answer. When the server stops, `receive` reports that the client has gone.
        """
        ...


class Extension(Struct, frozen=True):
    """An API group on the planes of a role. Discovery shows it without resources.

    Without `websockets`, a request for a WebSocket reaches the handler as any other GET.
    """

    group: str
    version: str
    role: str
    handler: Handler
    websockets: bool = False

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}"

    def serves(self, path: str) -> bool:
        """Whether a path is one of the handler: all below the root, which itself is discovery."""
        return path.startswith(f"{self.root}/") and path != f"{self.root}/"


async def handle(
    handler: Handler, plane: str, path: str, scope: Scope, receive: Receive, send: Send, stopping: asyncio.Event
) -> None:
    """Lets a handler answer. What it raises after its answer began can only be logged; the connection then breaks."""
    began = False

    async def noted(message: Message) -> None:
        nonlocal began
        began = True
        await send(message)

    try:
        await handler(plane, path, scope, _until(stopping, scope["type"], receive), noted)
    except Exception as error:
        if not began:
            raise
        if not isinstance(error, ApiError):
            _log.error("answer failed", plane=plane, path=path, error=repr(error), exc_info=error)


def _until(stopping: asyncio.Event, type_: str, receive: Receive) -> Receive:
    """Receives from a client until the server stops; from then on the client counts as gone."""

    async def received() -> Message:
        message, stop = asyncio.ensure_future(receive()), asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait({message, stop}, return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return message.result()
            if type_ == "websocket":
                return {"type": "websocket.disconnect", "code": _GOING_AWAY}
            return {"type": "http.disconnect"}
        finally:
            for task in (message, stop):
                task.cancel()
            await asyncio.gather(message, stop, return_exceptions=True)

    return received
