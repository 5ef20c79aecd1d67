"""Leads requests for `http://WORKLOAD.localhost` to the instances of a workload. Entry points: `Proxy`, `ProxyServer`.

It listens on loopback only. A request with any other Host is refused, so that no web page can reach instances under a
name of its own.
"""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import aiohttp
from yarl import URL

from datum_compute.local.endpoints import LOOPBACK, Endpoint
from datum_compute.local.routing import (
    Outcome,
    Turns,
    candidates,
    explanation,
    goes_on,
    ordered_cities,
    parse_host,
)
from datum_compute.runtime.serving.asgi import AsgiServer
from datum_compute.runtime.serving.connections import Limits
from datum_compute.runtime.tasks import first

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]

PORT = 8088
CONNECT_SECONDS = 1.0
ANSWER_SECONDS = 60.0
_HEAD_BYTES = 64 * 1024
_LIMITS = Limits(head_bytes=_HEAD_BYTES, body_seconds=3600.0)  # a body may be a long upload

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port")
_OURS = (b"x-datum-city", b"x-datum-instance")
# What aiohttp would add to a request that does not have it.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Directory(Protocol):
    @property
    def simulated(self) -> bool: ...

    def cities(self, workload: str) -> Sequence[str] | None: ...

    def of(self, workload: str) -> Sequence[Endpoint]: ...


class Proxy:
    """An ASGI application. `close` ends its connections to instances."""

    def __init__(self, directory: Directory, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._directory = directory
        self._answer_seconds = answer_seconds
        self._turns = Turns()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        wanted = parse_host(hosts[0]) if len(hosts) == 1 else None
        cities = self._directory.cities(wanted.workload) if wanted is not None else None
        if wanted is None or cities is None:
            return await _say(send, scope, 421, "No workload is served under this name.\n")
        if wanted.city and wanted.city not in cities:
            return await _say(send, scope, 421, f"{wanted.workload} does not run in {wanted.city}.\n")
        if not scope["raw_path"].startswith(b"/"):
            return await _say(send, scope, 400, "Ask for a path that begins with a slash.\n")
        cities = ordered_cities(cities, wanted.city)
        endpoints = self._directory.of(wanted.workload)
        failures: dict[str, Outcome] = {}
        body = _Body(scope, receive)
        for endpoint in candidates(endpoints, cities, lambda city: self._turns.take(wanted.workload, city)):
            if self._directory.simulated:
                text = f"hello from {endpoint.instance} in {endpoint.city} (simulated)\n"
                return await _say(send, scope, 200, text, _place(endpoint))
            outcome = await self._ask(endpoint, scope, body, send)
            if outcome is None:
                return None
            failures[endpoint.instance] = outcome
            if not goes_on(outcome, scope["method"], body_sent=body.begun):
                break
        code = 504 if Outcome.SILENT in failures.values() else 503
        return await _say(send, scope, code, explanation(wanted.workload, cities, endpoints, failures))

    async def _ask(self, endpoint: Endpoint, scope: Mapping[str, Any], body: "_Body", send: Send) -> Outcome | None:
        """Passes a request on, and the answer back, for as long as the client waits; returns why there is none."""
        outcome: Outcome | None = None

        async def exchange() -> None:
            nonlocal outcome
            outcome = await self._exchange(endpoint, scope, body, send)

        await first(exchange(), body.client_gone())
        return outcome

    async def _exchange(
        self, endpoint: Endpoint, scope: Mapping[str, Any], body: "_Body", send: Send
    ) -> Outcome | None:
        port = endpoint.web
        if port is None or not port.address:
            return Outcome.UNREACHED
        query = scope["query_string"].decode("latin-1")
        target = f"http://{port.address}{scope['raw_path'].decode('latin-1')}{'?' if query else ''}{query}"
        try:
            async with asyncio.timeout(self._answer_seconds):
                response = await self._opened().request(
                    scope["method"],
                    URL(target, encoded=True),
                    headers=_request_headers(scope),
                    data=body.pieces() if body.expected else None,
                    allow_redirects=False,
                )
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError):
            return Outcome.UNREACHED
        except TimeoutError:
            return Outcome.SILENT
        except aiohttp.ClientError:
            return Outcome.BROKEN
        try:
            await _copy(response, endpoint, send)
        finally:
            response.close()
        return None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A connection for each request: one that was left open may be the container's of before.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                max_field_size=_HEAD_BYTES,
                max_line_size=_HEAD_BYTES,
                skip_auto_headers=_NOT_ADDED,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )
        return self._session


class _Body:
    """The body of a request, passed on as it arrives."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive) -> None:
        length = _value(scope["headers"], b"content-length")
        self.expected = bool(_value(scope["headers"], b"transfer-encoding")) or length not in ("", "0")
        self.begun = False
        self._receive = receive
        self._ended = asyncio.Event()
        if not self.expected:
            self._ended.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        self.begun = True
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client has gone")
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                self._ended.set()
                return

    async def client_gone(self) -> None:
        await self._ended.wait()  # until then, the reader of the pieces notices
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _copy(response: aiohttp.ClientResponse, endpoint: Endpoint, send: Send) -> None:
    """Sends an answer on as it comes, dated by our server. One that breaks off has no end: the client should notice."""
    fields = [field for field in _end_to_end(response.raw_headers) if field[0].lower() not in (*_OURS, b"date")]
    await send({"type": "http.response.start", "status": response.status, "headers": [*fields, *_place(endpoint)]})
    try:
        async for piece in response.content.iter_any():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except (aiohttp.ClientError, OSError):
        return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _request_headers(scope: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fields for an instance: those of the client, and who asks for what. The Host stays that of the client."""
    left_out = (*_FORWARDED, b"expect")
    fields = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in _end_to_end(scope["headers"])
        if name.lower() not in left_out
    ]
    client = scope.get("client")
    return [
        *fields,
        ("X-Forwarded-For", client[0] if client else LOOPBACK),
        ("X-Forwarded-Host", _value(scope["headers"], b"host")),
        ("X-Forwarded-Proto", "http"),
    ]


def _end_to_end(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    """The fields that concern more than one connection."""
    fields = list(fields)
    named = {
        word.strip().lower() for name, value in fields if name.lower() == b"connection" for word in value.split(b",")
    }
    return [(name, value) for name, value in fields if name.lower() not in _HOP_BY_HOP | named]


def _place(endpoint: Endpoint) -> Fields:
    return [(b"x-datum-city", endpoint.city.encode()), (b"x-datum-instance", endpoint.instance.encode())]


def _value(fields: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in fields if key == name), "")


async def _say(send: Send, scope: Mapping[str, Any], code: int, text: str, fields: Fields = []) -> None:  # noqa: B006
    body = text.encode()
    head = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": code, "headers": [*head, *fields]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class ProxyServer:
    """Serves a proxy on loopback: `start` returns once requests are answered, `stop` once the last one has ended."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._server: AsgiServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, ports: Sequence[int]) -> int:
        """Listens on the first of these ports that is free; 0 is any."""
        listening = _listening(ports)
        self.port = listening.getsockname()[1]
        self._server = AsgiServer(self._proxy, limits=_LIMITS)
        self._serving = await self._server.start(listening, "proxy")
        return self.port

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
            self._server = None
        await self._proxy.close()


def _listening(ports: Sequence[int]) -> socket.socket:
    for port in ports:
        # With an explicit protocol, because asyncio disables Nagle's delay, 40 ms per write, only then.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((LOOPBACK, port))
            listening.listen()  # two may have bound it at the same time
        except OSError as error:
            listening.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        else:
            return listening
    raise OSError(errno.EADDRINUSE, "no port is free")
