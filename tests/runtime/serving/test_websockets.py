"""WebSockets on a server: which requests become one, what a client is granted, and what is refused."""

import asyncio
import gc
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import msgspec
import pytest

from datum_compute.runtime.serving.asgi import AsgiServer
from datum_compute.runtime.serving.connections import Limits
from tests.https import client_certificate

GUARD_SECONDS = 60.0
UPGRADE = (
    b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class Server:
    """Has WebSockets below `/ws`: `/ws/echo` sends messages back, `/ws/large` sends much and closes, `/ws/endless`
    sends until its client does not read, `/ws/no` refuses. Every other request is answered with its type."""

    def __init__(self, limits: Limits, tls: ssl.SSLContext | None) -> None:
        self._asgi = AsgiServer(self._answer, limits=limits, tls=tls, websockets=lambda path: path.startswith("/ws/"))
        self._scheme = "http" if tls is None else "https"
        self.scopes: list[Any] = []
        self.messages: list[Any] = []
        self.ended = 0

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        try:
            if scope["type"] == "websocket" and scope["path"] != "/ws/no":
                await self._talk(scope["path"], receive, send)
                return
            body = scope["type"].encode()
            headers = [(b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200 if body == b"http" else 429, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        finally:
            self.ended += 1

    async def _talk(self, path: str, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept", "subprotocol": None})
        if path == "/ws/large":
            for _ in range(20):
                await send({"type": "websocket.send", "bytes": b"x" * 1_000_000})
            await send({"type": "websocket.close", "code": 1000})
            return
        if path == "/ws/endless":
            with suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(0.2):
                        await send({"type": "websocket.send", "bytes": b"x" * 1_000_000})
            return
        while (message := await receive())["type"] == "websocket.receive":
            self.messages.append(message)
            await send({"type": "websocket.send", "bytes": message["bytes"]})
        self.messages.append(message)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        self._serving = await self._asgi.start(listening, "under test")
        try:
            async with asyncio.timeout(GUARD_SECONDS), aiohttp.ClientSession() as self.client:
                yield
        finally:
            await self.stop()

    async def stop(self) -> None:
        self._asgi.should_exit = True
        await self._serving

    def url(self, path: str) -> str:
        return f"{self._scheme}://localhost:{self.port}{path}"

    def connect(self, path: str, **options: Any) -> Any:
        return self.client.ws_connect(self.url(path), ssl=False, **options)

    async def raw(self, sent: bytes) -> bytes:
        """Everything that the server sends to a client that sends this and then reads."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        received = await reader.read()
        writer.close()
        return received

    def connections(self) -> int:
        return len(self._asgi._connections)

    def alive(self) -> list[weakref.ref[Any]]:
        return [weakref.ref(connection) for connection in self._asgi.server_state.connections]


SHORT = Limits(
    connections=6,
    head_seconds=0.1,
    body_seconds=0.1,
    idle_seconds=0.1,
    stall_seconds=0.1,
    grace_seconds=0.1,
)


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.005)


def run(
    look: Callable[[Server], Awaitable[None]], limits: Limits | None = None, tls: ssl.SSLContext | None = None
) -> None:
    async def serve() -> None:
        server = Server(limits or Limits(), tls)
        async with server.serving():
            await look(server)

    asyncio.run(serve())


@pytest.fixture(params=["http", "https"])
def tls(request: Any, tmp_path: Any) -> ssl.SSLContext | None:
    if request.param == "http":
        return None
    pair = tmp_path / "pair.pem"
    pair.write_text("".join(client_certificate("localhost")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    return context


def test_messages_go_both_ways(tls: ssl.SSLContext | None) -> None:
    async def look(server: Server) -> None:
        async with server.connect("/ws/echo?a=b%20c", protocols=["one", "two"]) as peer:
            for size in (0, 1, 200_000):
                await peer.send_bytes(b"x" * size)
                assert await peer.receive_bytes() == b"x" * size
            assert server.connections() == 1
        await until(lambda: server.connections() == 0 and server.ended == 1)
        (scope,) = server.scopes
        assert (scope["type"], scope["path"], scope["query_string"]) == ("websocket", "/ws/echo", b"a=b%20c")
        assert scope["subprotocols"] == ["one", "two"]

    run(look, tls=tls)


@pytest.mark.parametrize("path", ["/", "/other", "/ws"])
def test_a_request_for_a_websocket_elsewhere_is_answered_like_any_other(path: str) -> None:
    async def look(server: Server) -> None:
        async with server.client.get(
            server.url(path), headers={"Connection": "Upgrade", "Upgrade": "websocket"}
        ) as answer:
            assert (answer.status, await answer.text()) == (200, "http")

    run(look)


def test_a_request_without_upgrade_is_answered_like_any_other() -> None:
    async def look(server: Server) -> None:
        async with server.client.get(server.url("/ws/echo")) as answer:
            assert (answer.status, await answer.text()) == (200, "http")

    run(look)


def test_an_application_refuses_as_it_does_for_http(tls: ssl.SSLContext | None) -> None:
    async def look(server: Server) -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await server.connect("/ws/no")
        assert refused.value.status == 429
        await until(lambda: server.connections() == 0)

    run(look, tls=tls)


def test_a_browser_is_refused() -> None:
    async def look(server: Server) -> None:
        head = b"GET /ws/echo HTTP/1.1\r\n" + UPGRADE + b"Origin: https://example.com\r\n\r\n"
        answer = await server.raw(head)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["kind"] == "Status"
        assert server.scopes == []

    run(look)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /ws/echo HTTP/1.1\r\n" + UPGRADE.replace(b"Host: localhost", b"Host: \xff\xfe") + b"\r\n",
        b"GET /ws/echo HTTP/1.1\r\n" + UPGRADE.replace(b"13", b"12") + b"\r\n",
        b"GET /ws/echo HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /ws/echo?\xff HTTP/1.1\r\n" + UPGRADE + b"\r\n",
        b"GET /ws/\xff HTTP/1.1\r\n" + UPGRADE + b"\r\n",
    ],
    ids=["host", "version", "no key", "query", "path"],
)
def test_a_broken_request_for_a_websocket_is_refused(head: bytes) -> None:
    async def look(server: Server) -> None:
        assert (await server.raw(head)).startswith(b"HTTP/1.1 4")
        assert server.scopes == []
        await until(lambda: server.connections() == 0)

    run(look)


def test_a_long_query_fits_into_the_header() -> None:
    async def look(server: Server) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        query = b"command=" + b"%20" * 18_000
        writer.write(b"GET /ws/echo?" + query + b" HTTP/1.1\r\n" + UPGRADE + b"\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
        assert server.scopes[0]["query_string"] == query
        writer.close()

    run(look)


def test_a_message_that_is_too_large_ends_the_connection() -> None:
    async def look(server: Server) -> None:
        async with server.connect("/ws/echo") as peer:
            await peer.send_bytes(b"x" * 300_000)
            message = await peer.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1009)
        await until(lambda: server.connections() == 0 and server.ended == 1)

    run(look)


def test_an_open_websocket_is_not_displaced_and_needs_no_messages() -> None:
    async def look(server: Server) -> None:
        async with server.connect("/ws/echo") as peer:
            assert await asyncio.gather(*(server.raw(b"") for _ in range(12))) == [b""] * 12
            await peer.send_bytes(b"still here")
            assert await peer.receive_bytes() == b"still here"

    run(look, SHORT)


def test_all_is_sent_to_a_slow_client_before_the_connection_is_closed(tls: ssl.SSLContext | None) -> None:
    async def look(server: Server) -> None:
        async with server.connect("/ws/large", max_msg_size=0) as peer:
            for _ in range(3):
                await server.raw(b"")  # as long as a silent client is tolerated
            assert server.ended == 0
            received = 0
            async for message in peer:
                received += len(message.data)
            assert (received, peer.close_code) == (20_000_000, 1000)

    run(look, SHORT, tls)


def test_a_client_that_does_not_read_is_disconnected_when_the_application_has_ended(
    tls: ssl.SSLContext | None,
) -> None:
    async def look(server: Server) -> None:
        peer = await server.connect("/ws/endless", max_msg_size=0)
        peer._response.connection.transport.pause_reading()
        await until(lambda: server.ended == 1)
        async with asyncio.timeout(10):
            await until(lambda: server.connections() == 0)
        peer._response.connection.transport.abort()

    run(look, SHORT, tls)


def test_a_client_that_disappears_is_noticed() -> None:
    async def look(server: Server) -> None:
        peer = await server.connect("/ws/echo")
        peer._response.connection.transport.abort()
        await until(lambda: server.ended == 1 and server.connections() == 0)
        assert server.messages[-1]["type"] == "websocket.disconnect"

    run(look)


def test_a_server_that_stops_ends_its_websockets() -> None:
    async def look(server: Server) -> None:
        async with server.connect("/ws/echo") as peer:
            await server.stop()
            message = await peer.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1012)
        assert server.ended == 1

    run(look)


def test_a_websocket_that_has_ended_costs_nothing() -> None:
    async def look(server: Server) -> None:
        peer = await server.connect("/ws/echo")
        (connection,) = server.alive()
        await peer.close()
        await until(lambda: connection() is None)

    gc.disable()
    try:
        run(look)
    finally:
        gc.enable()
