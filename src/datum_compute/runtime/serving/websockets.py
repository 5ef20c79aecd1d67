"""WebSocket connections of unknown clients, within limits. Entry point: `WebSocket`."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import Request

from datum_compute.kube.errors import BadRequest, Forbidden
from datum_compute.kube.meta import encode
from datum_compute.runtime.serving.peers import client_certificate

PING_SECONDS = 20.0
"""Between two signs of life for clients and whatever is between, which close connections that seem dead. A client that
does not answer is not disconnected: it may have stopped reading for a while, which holds up only itself."""

_LOOK_SECONDS = 0.05


class WebSocket(WSProtocol):
    """One client that has left HTTP. It keeps its place among the connections of the server until it is `gone`. If the
    application ends without closing it, it has `grace` seconds to read what was sent.

    An application refuses a client with the same messages as for HTTP. Browsers are refused here: they would let any
    page connect with what the user can reach.
    """

    def __init__(
        self,
        gone: Callable[[], None],
        abort: Callable[[], None],
        unsent: Callable[[], int],
        grace: float,
        **of_server: Any,
    ):
        super().__init__(**of_server)
        self._gone = gone
        self._abort = abort
        self._unsent = unsent
        self._grace = grace

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except UnicodeError:  # in the header fields; wsproto expects them to be names
            self._refuse(BadRequest("a header field of the request is not valid"))

    def handle_connect(self, event: Request) -> None:
        if any(name.lower() == b"origin" for name, _ in event.extra_headers):
            self._refuse(Forbidden("requests of browsers are refused: this one has an Origin"))
        else:
            super().handle_connect(event)
            self.scope["extensions"] |= client_certificate(self.transport)

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if self.close_timer is None and not self.disconnected:  # it may never read what is left
            self.close_timer = self.loop.call_later(self._grace, self._abort)

    async def send(self, message: Any) -> None:
        kind = message["type"]
        if kind.startswith("http.response."):
            message = {"body": b"", **message, "type": f"websocket.{kind}"}
        if kind != "websocket.close":
            await super().send(message)
            return
        await self._drained()
        await super().send(message)
        if self.close_timer is not None:  # until the client confirms; uvicorn would wait for one that does not read
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(self.close_timeout, self._abort)

    async def _drained(self) -> None:
        """Waits for a slow client, because what has not been sent when the connection is closed may be lost. For how
        long is up to the application, which may cancel it."""
        pause = 0.0  # usually all is on its way after one step of the loop
        while self._unsent() and not self.disconnected and not self.transport.is_closing():
            await asyncio.sleep(pause)
            pause = _LOOK_SECONDS

    def _refuse(self, error: BadRequest | Forbidden) -> None:
        body = encode(error.status())
        head = (
            f"HTTP/1.1 {error.code} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
