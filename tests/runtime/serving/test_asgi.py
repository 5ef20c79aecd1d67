"""A server with slow, silent and hostile clients: what each is granted, and who is disconnected first."""

import asyncio
import gc
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from datum_compute.runtime.serving.asgi import AsgiServer
from datum_compute.runtime.serving.connections import Limits
from tests.https import client_certificate

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
GUARD_SECONDS = 60.0

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """Answers `/` at once, `/body` when it has the body, `/forever` with a stream that ends when the test says so, and
    `/large` with more than any buffer holds."""

    def __init__(self, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        self._asgi = AsgiServer(self._answer, limits=limits, tls=tls)
        self.end = asyncio.Event()
        self.streams = 0
        self.ended: list[str] = []  # the paths of requests that are over
        self._peers: list[asyncio.StreamWriter] = []

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        try:
            body = b"ok"
            if path == "/body":
                while (message := await receive()).get("more_body"):
                    pass
                if message["type"] == "http.disconnect":
                    return
            if path == "/large":
                body = b"x" * 20_000_000
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if path == "/forever":
                await send({"type": "http.response.body", "body": b"begun", "more_body": True})
                self.streams += 1
                await self.end.wait()
            await send({"type": "http.response.body", "body": body})
        finally:
            self.ended.append(path)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        serving = await self._asgi.start(listening, "under test")
        try:
            async with asyncio.timeout(GUARD_SECONDS):
                yield
        finally:
            self.end.set()
            self._asgi.should_exit = True
            await serving
            for writer in self._peers:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in self._peers), return_exceptions=True)

    def drain(self) -> None:
        self._asgi.drain()

    async def connect(self, sent: bytes = b"", **options: Any) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self._peers.append(writer)
        writer.write(sent)
        await writer.drain()
        return reader, writer

    async def answers(self) -> bool:
        reader, writer = await self.connect(GET)
        answer = await _answer(reader)
        writer.close()
        return answer.startswith(b"HTTP/1.1 200 ")

    async def watch(self) -> Peer:
        """A client whose answer has begun and does not end."""
        before = self.streams
        peer = await self.connect(GET.replace(b"/ ", b"/forever "))
        await _until(lambda: self.streams > before)
        return peer

    def alive(self) -> list[weakref.ref[Any]]:
        return [weakref.ref(connection) for connection in self._asgi.server_state.connections]


async def _until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.005)


async def _answer(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"0\r\n\r\n")


async def _all(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server hangs up, however it does that."""
    received = b""
    try:
        while piece := await reader.read(65536):
            received += piece
    except ConnectionError:
        pass
    return received


def _run(limits: Limits, look: Callable[[Server], Awaitable[None]], tls: ssl.SSLContext | None = None) -> None:
    async def run() -> None:
        server = Server(limits, tls)
        async with server.serving():
            await look(server)

    asyncio.run(run())


@pytest.fixture
def tls(tmp_path: Any) -> ssl.SSLContext:
    pair = tmp_path / "pair.pem"
    pair.write_text("".join(client_certificate("localhost")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    return context


# Headers


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /?" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 201 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
    ],
    ids=["a long field", "a long address", "many fields", "fields without end"],
)
def test_a_header_that_is_too_large_is_refused_however_it_arrives(head: bytes) -> None:
    async def look(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(head)  # in one piece
        assert (await _all(reader)).startswith(b"HTTP/1.1 431 ")
        assert server.ended == []

    _run(Limits(), look)


def test_a_header_at_the_limit_is_accepted() -> None:
    async def look(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 60_000 + b"\r\n" + b"a: b\r\n" * 150 + b"\r\n")
        assert (await _answer(reader)).startswith(b"HTTP/1.1 200 ")

    _run(Limits(), look)


def test_a_large_body_in_one_piece_with_its_header_is_not_a_large_header() -> None:
    async def look(server: Server) -> None:
        body = b"a" * 1_000_000
        head = b"POST /body HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        reader, writer = await server.connect()
        writer.write(head + body)
        assert (await _answer(reader)).startswith(b"HTTP/1.1 200 ")
        writer.write(GET)
        assert (await _answer(reader)).startswith(b"HTTP/1.1 200 "), "and the connection is good for another request"

    _run(Limits(), look)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"\r\n", b"GET / HTTP/1.1\r\nHost: loc", GET + GET[:10]])
def test_a_client_that_does_not_complete_its_header_in_time_is_disconnected(sent: bytes) -> None:
    async def look(server: Server) -> None:
        reader, _ = await server.connect(sent)
        await _all(reader)

    _run(Limits(head_seconds=0.2), look)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["nothing", "half a handshake"])
def test_a_tls_handshake_counts_as_part_of_the_header(tls: ssl.SSLContext, sent: bytes) -> None:
    async def look(server: Server) -> None:
        reader, _ = await server.connect(sent)
        await _all(reader)

    _run(Limits(head_seconds=0.2), look, tls)


def test_empty_lines_between_two_requests_gain_no_time() -> None:
    async def look(server: Server) -> None:
        reader, writer = await server.connect(GET)
        await _answer(reader)
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)

    _run(Limits(idle_seconds=0.2), look)


# Bodies


def test_a_client_that_does_not_complete_its_body_in_time_is_disconnected() -> None:
    async def look(server: Server) -> None:
        reader, _ = await server.connect(b"POST /body HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
        assert await _all(reader) == b""
        await _until(lambda: server.ended == ["/body"])  # the application knows

    _run(Limits(body_seconds=0.1, grace_seconds=0.1), look)


def test_an_unread_body_is_not_waited_for_and_its_connection_stays_usable() -> None:
    async def look(server: Server) -> None:
        reader, writer = await server.connect(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
        assert (await _answer(reader)).startswith(b"HTTP/1.1 200 ")
        writer.write(b"a" * 9 + GET)
        assert (await _answer(reader)).startswith(b"HTTP/1.1 200 ")

    _run(Limits(), look)


@pytest.mark.parametrize("head", [b"Content-Length: 100000000", b"Transfer-Encoding: chunked"])
def test_an_unread_body_is_not_drained_without_end(head: bytes) -> None:
    async def look(server: Server) -> None:
        reader, writer = await server.connect(b"POST / HTTP/1.1\r\n" + head + b"\r\n\r\n")
        assert (await _answer(reader)).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"400\r\n" + b"a" * 1024 + b"\r\n")
                await writer.drain()

    _run(Limits(grace_seconds=0.1), look)


def test_an_unread_body_has_a_deadline_too() -> None:
    async def look(server: Server) -> None:
        reader, _ = await server.connect(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
        assert (await _all(reader)).startswith(b"HTTP/1.1 200 ")

    _run(Limits(body_seconds=0.1, grace_seconds=0.1), look)


# Answers


def test_a_server_that_drains_ends_each_connection_with_its_next_answer() -> None:
    async def look(server: Server) -> None:
        reader, writer = await server.connect(GET)
        assert b"connection: close" not in await _answer(reader)
        server.drain()
        writer.write(GET)
        assert b"\r\nconnection: close\r\n" in await _all(reader), "it is answered, and the connection is over"
        newcomer, _ = await server.connect(GET)
        assert b"\r\nconnection: close\r\n" in await _all(newcomer)

    _run(Limits(), look)


def test_a_long_answer_is_not_cut_off() -> None:
    async def look(server: Server) -> None:
        reader, _ = await server.watch()
        silent, _ = await server.connect()
        await _all(silent)  # all deadlines have passed
        server.end.set()
        assert (await _answer(reader)).endswith(b"begun\r\n2\r\nok\r\n0\r\n\r\n")

    _run(Limits(head_seconds=0.2, body_seconds=0.1, idle_seconds=0.1, stall_seconds=0.1, grace_seconds=0), look)


def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    async def look(server: Server) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as deaf:
            deaf.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await _until(lambda: bool(server.alive()))
            await _until(lambda: not server.alive())

    _run(Limits(stall_seconds=0.2), look)


# Too many


def test_new_connections_displace_the_oldest_silent_ones() -> None:
    async def look(server: Server) -> None:
        reader, _ = await server.watch()
        silent = [await server.connect(b"GET / HT") for _ in range(30)]
        assert await server.answers()
        gone = [await asyncio.wait_for(_all(each), GUARD_SECONDS) for each, _ in silent[:20]]
        assert gone == [b""] * 20
        _, writer = silent[-1]
        writer.write(GET[8:])
        assert (await _answer(silent[-1][0])).startswith(b"HTTP/1.1 200 ")
        server.end.set()
        assert (await _answer(reader)).endswith(b"ok\r\n0\r\n\r\n")

    _run(Limits(connections=24), look)


@pytest.mark.parametrize(
    "sent", [b"POST /body HTTP/1.1\r\nContent-Length: 10\r\n\r\n{", GET], ids=["bodies", "idle connections"]
)
def test_new_connections_are_accepted_whatever_the_others_do(sent: bytes) -> None:
    async def look(server: Server) -> None:
        peers = []
        for _ in range(40):
            peers.append(await server.connect(sent))
            assert await server.answers()

    _run(Limits(connections=24), look)


def test_a_connection_with_an_answer_under_way_is_not_displaced() -> None:
    async def look(server: Server) -> None:
        watchers = [await server.watch() for _ in range(5)]
        refused, _ = await server.connect(GET)
        assert await _all(refused) == b""
        _, writer = watchers.pop()
        writer.close()
        await _until(lambda: len(server.alive()) < 5)
        assert await server.answers()
        server.end.set()
        for reader, _ in watchers:
            assert (await _answer(reader)).endswith(b"ok\r\n0\r\n\r\n")

    _run(Limits(connections=5), look)


def test_an_answer_arrives_whole_even_when_its_connection_is_displaced() -> None:
    async def look(server: Server) -> None:
        watchers = [await server.watch() for _ in range(12)]
        server.end.set()  # all of them are idle at once, which is too many
        for reader, _ in watchers:
            assert (await _answer(reader)).endswith(b"ok\r\n0\r\n\r\n")

    _run(Limits(connections=12), look)


@pytest.mark.parametrize("abrupt", [False, True])
def test_a_closed_connection_costs_nothing(abrupt: bool) -> None:
    """Without waiting for a timer or a garbage collection: both come too late when there are very many."""

    async def look(server: Server) -> None:
        reader, writer = await server.connect(GET)
        await _answer(reader)
        (connection,) = server.alive()
        if abrupt:
            client = writer.get_extra_info("socket")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()
        await _until(lambda: connection() is None)

    gc.disable()
    try:
        _run(Limits(), look)
    finally:
        gc.enable()
