"""The proxy in front of instances: what it passes on, to whom, and what it says when nobody answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from io import BytesIO
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from datum_compute.local.endpoints import Endpoint, Port
from datum_compute.local.proxy import Proxy, ProxyServer
from tests.https import Scripted, hang_up, say_nothing

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def on_a_real_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Sockets are real here, so the loop has to be."""

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **named), 30))

    return run


class Places:
    """A directory that a test fills."""

    def __init__(self, *endpoints: Endpoint, simulated: bool = False) -> None:
        self.endpoints = list(endpoints)
        self.simulated = simulated

    def cities(self, workload: str) -> Sequence[str] | None:
        return ["DFW", "AMS"] if workload == "api" else None

    def of(self, workload: str) -> Sequence[Endpoint]:
        return self.endpoints


def endpoint(city: str, port: int, number: int = 0, state: str = "Available") -> Endpoint:
    name = f"api-default-{city.lower()}-{number}"
    ports = [Port(8080, "TCP", f"127.0.0.1:{port}" if port else "")]
    return Endpoint("demo", "default", "api", "default", city, name, state, state == "Available", ports)


class Client:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session = session
        self.port = port

    def ask(
        self, path: str = "/", method: str = "GET", host: str = "api.localhost", **options: Any
    ) -> "aiohttp.client._RequestContextManager":
        headers = {"Host": f"{host}:{self.port}", **options.pop("headers", {})}
        return self.session.request(method, f"http://127.0.0.1:{self.port}{path}", headers=headers, **options)

    async def read(self, *words: str, **options: Any) -> tuple[aiohttp.ClientResponse, str]:
        """The head and the text of an answer."""
        async with self.ask(*words, **options) as response:
            return response, await response.text()


@asynccontextmanager
async def proxied(places: Places, answer_seconds: float = 20.0) -> AsyncIterator[Client]:
    server = ProxyServer(Proxy(places, answer_seconds))
    port = await server.start([0])
    try:
        async with aiohttp.ClientSession() as session:
            yield Client(session, port)
    finally:
        await server.stop()


@asynccontextmanager
async def instance(answer: Answer) -> AsyncIterator[int]:
    """A web server as it may run in a container; its port."""
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def free_port() -> int:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


@on_a_real_loop
async def test_a_request_and_its_answer_are_passed_on_as_they_are() -> None:
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        body = await request.read()
        headers = {"X-Own": "yes", "Connection": "X-Private", "X-Private": "secret", "X-Datum-City": "forged"}
        response = web.Response(status=201, body=body[::-1], headers=headers)
        response.headers.add("Set-Cookie", "a=1")
        response.headers.add("Set-Cookie", "b=2")
        return response

    async with instance(answer) as port, proxied(Places(endpoint("DFW", port))) as client:
        headers = {
            "X-Mine": "1",
            "X-Forwarded-For": "203.0.113.9",
            "Connection": "X-Hop",
            "X-Hop": "1",
            "Proxy-Authorization": "Basic x",
            "Upgrade": "websocket",
        }
        async with client.ask("/a%2Fb/c?d=e%20f&g", "POST", data=b"abc", headers=headers) as response:
            assert response.status == 201
            assert await response.read() == b"cba"
            assert response.headers["X-Own"] == "yes"
            assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
            assert "X-Private" not in response.headers
            assert len(response.headers.getall("Date")) == 1
            assert response.headers.getall("X-Datum-City") == ["DFW"]
            assert response.headers["X-Datum-Instance"] == "api-default-dfw-0"
        (request,) = seen
        assert request.raw_path == "/a%2Fb/c?d=e%20f&g"
        assert request.headers["Host"] == f"api.localhost:{client.port}"
        assert request.headers["X-Mine"] == "1"
        assert request.headers.getall("X-Forwarded-For") == ["127.0.0.1"], "nobody is believed about that"
        assert request.headers["X-Forwarded-Host"] == f"api.localhost:{client.port}"
        assert request.headers["X-Forwarded-Proto"] == "http"
        assert {"X-Hop", "Proxy-Authorization", "Upgrade"} & set(request.headers) == set()


@on_a_real_loop
async def test_bodies_stream_in_both_directions() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for piece in request.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response

    async with instance(answer) as port, proxied(Places(endpoint("DFW", port))) as client:
        echoed = asyncio.Event()

        async def conversation() -> AsyncIterator[bytes]:
            yield b"first"
            await echoed.wait()  # the rest is sent only after the beginning has come back
            yield b"second"

        async with client.ask("/", "POST", data=conversation()) as response:
            assert await response.content.readexactly(5) == b"first"
            echoed.set()
            assert await response.read() == b"second"
        large = bytes(range(256)) * 32 * 1024
        async with client.ask("/", "PUT", data=BytesIO(large)) as response:
            assert await response.read() == large


@on_a_real_loop
async def test_a_head_request_gets_the_head_alone() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async with instance(answer) as port, proxied(Places(endpoint("DFW", port))) as client:
        response, text = await client.read("/", "HEAD")
        assert (response.status, response.headers["Content-Length"], text) == (200, "5", "")


@on_a_real_loop
async def test_an_instance_that_refuses_or_breaks_off_is_passed_over() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=await request.text() or "hello")

    async with AsyncExitStack() as stack:
        broken = Scripted(hang_up)
        await stack.enter_async_context(broken.listening())
        good = await stack.enter_async_context(instance(answer))
        refusing = await free_port()
        places = Places(endpoint("DFW", refusing, 0), endpoint("DFW", broken.port, 1), endpoint("AMS", good))
        client = await stack.enter_async_context(proxied(places))
        for _ in range(4):
            async with client.ask() as response:
                assert (response.status, await response.text()) == (200, "hello")
                assert response.headers["X-Datum-City"] == "AMS"
        places.endpoints = [endpoint("DFW", refusing), endpoint("AMS", good)]
        async with client.ask("/", "POST", data=b"kept") as response:
            assert (response.status, await response.text()) == (200, "kept"), "it had not been sent yet"


@on_a_real_loop
async def test_a_request_that_may_have_happened_is_not_repeated() -> None:
    requests = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        return web.Response()

    broken = Scripted(hang_up)
    async with broken.listening(), instance(answer) as good:
        places = Places(endpoint("DFW", broken.port), endpoint("AMS", good))
        async with proxied(places) as client:
            response, text = await client.read("/", "POST", data=b"order")
    assert response.status == 503
    assert "DFW: api-default-dfw-0 broke off before it answered" in text
    assert requests == 0


@on_a_real_loop
async def test_an_answer_that_breaks_off_later_has_no_end() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    scripted = Scripted(half)
    async with scripted.listening(), proxied(Places(endpoint("DFW", scripted.port))) as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.read()


@on_a_real_loop
async def test_a_client_that_leaves_ends_the_request_to_the_instance() -> None:
    gone = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 1000)
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.CancelledError):
            gone.set()
            raise

    async with instance(answer) as port, proxied(Places(endpoint("DFW", port))) as client:
        async with client.ask() as response:
            await response.content.readany()
            response.close()
        await gone.wait()


@pytest.mark.parametrize("body", [None, b"a question"])
@on_a_real_loop
async def test_a_client_that_leaves_before_the_answer_begins_ends_the_request_to_the_instance(
    body: bytes | None,
) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()
    requests = []

    async def think(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(body or b"\r\n\r\n"))
        arrived.set()
        await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(think, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, proxied(Places(endpoint("DFW", port), endpoint("AMS", port))) as client:
        method = "POST" if body else "GET"
        request = asyncio.create_task(client.read("/", method, data=body))
        await arrived.wait()
        request.cancel()
        async with asyncio.timeout(5):
            await gone.wait()
    assert len(requests) == 1, "nobody waits for another instance either"


@on_a_real_loop
async def test_an_instance_that_says_nothing_is_given_up() -> None:
    silent = Scripted(say_nothing)
    async with silent.listening():
        places = Places(endpoint("DFW", silent.port))
        async with proxied(places, answer_seconds=0.05) as client:
            response, text = await client.read()
    assert response.status == 504
    assert "DFW: api-default-dfw-0 did not answer in time" in text


@on_a_real_loop
async def test_any_other_host_is_refused_without_naming_what_there_is() -> None:
    async with proxied(Places(endpoint("DFW", 0), simulated=True)) as client:
        for host in ("localhost", "evil.example", "other.localhost", "sin.api.localhost"):
            async with client.ask(host=host) as response:
                assert response.status == 421
                text = await response.text()
                assert "dfw" not in text.lower()
                assert ("api" in text) is (host == "sin.api.localhost"), "which the client named itself"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: api.localhost\r\nHost: other.localhost", 421),
        ("GET / HTTP/1.1", 421),
        ("OPTIONS * HTTP/1.1\r\nHost: api.localhost", 400),
        ("CONNECT api.localhost:80 HTTP/1.1\r\nHost: api.localhost", 400),
        ("GET /%zz?a=%zz&b=^` HTTP/1.1\r\nHost: api.localhost", 200),
        ("GET //other.localhost/x HTTP/1.1\r\nHost: api.localhost", 200),
        ("GET / HTTP/1.1\r\nHost: api.localhost\r\nX-Name: \xff", 200),
        ("GET / HTTP/1.1\r\nHost: api.localhost\r\nConnection: Upgrade\r\nUpgrade: websocket", 200),
    ],
)
@on_a_real_loop
async def test_a_strange_request_is_refused_or_passed_on_but_breaks_nothing(head: str, status: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    async with instance(answer) as port, proxied(Places(endpoint("DFW", port))) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(f"{head}\r\n\r\n".encode("latin-1"))
        assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()


@on_a_real_loop
async def test_nobody_to_answer_is_explained_city_by_city() -> None:
    async with proxied(Places(endpoint("DFW", 0, state="Failed (crashing)"))) as client:
        response, text = await client.read()
    assert response.status == 503
    assert text.splitlines() == [
        "api does not answer.",
        "  DFW: api-default-dfw-0 is not available: Failed (crashing)",
        "  AMS: there is no instance",
    ]


@on_a_real_loop
async def test_simulated_instances_say_who_they_are_in_turn() -> None:
    places = Places(endpoint("DFW", 0, 0), endpoint("DFW", 0, 1), endpoint("AMS", 0), simulated=True)
    async with proxied(places) as client:
        texts = []
        for host in ("api.localhost", "api.localhost", "ams.api.localhost"):
            async with client.ask(host=host) as response:
                texts.append(await response.text())
        assert texts == [
            "hello from api-default-dfw-0 in DFW (simulated)\n",
            "hello from api-default-dfw-1 in DFW (simulated)\n",
            "hello from api-default-ams-0 in AMS (simulated)\n",
        ]


@on_a_real_loop
async def test_a_head_that_is_too_large_is_refused_on_either_side() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(headers={"X-Large": "x" * 100_000})

    async with instance(answer) as port, proxied(Places(endpoint("DFW", port))) as client:
        async with client.ask(headers={"X-Large": "x" * 100_000}) as response:
            assert response.status == 431
        async with client.ask() as response:
            assert response.status == 503


@on_a_real_loop
async def test_a_port_that_is_taken_is_replaced_by_a_free_one() -> None:
    first, second = ProxyServer(Proxy(Places())), ProxyServer(Proxy(Places()))
    taken = await first.start([0])
    try:
        assert await second.start([taken, 0]) != taken
    finally:
        await second.stop()
        await first.stop()
