"""WebSockets of long-running programs: how they are asked for, and how they end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import WSMsgType, web

from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.errors import ApiError, Forbidden, NotFound, ServerError, Unavailable
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.transport import Broken

SUBPROTOCOL = "v5.channel.k8s.io"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def calling(handler: Handler) -> AsyncIterator[HttpTransport]:
    application = web.Application()
    application.router.add_get("/base/{path:.*}", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (host, port), *_ = runner.addresses
    transport = HttpTransport(Endpoint(f"http://{host}:{port}/base", token="secret"))
    try:
        async with asyncio.timeout(30):
            yield transport
    finally:
        await transport.close(for_good=True)
        await runner.cleanup()


async def echo(request: web.Request) -> web.StreamResponse:
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.rel_url.raw_query_string == "command=a%20b&command=%2B"
    link = web.WebSocketResponse(protocols=[SUBPROTOCOL])
    await link.prepare(request)
    await link.send_str("not for us")
    async for message in link:
        if message.type is WSMsgType.BINARY:
            if message.data == b"end":
                break
            await link.send_bytes(message.data)
    return link


def test_messages_go_both_ways_until_the_server_ends_it() -> None:
    async def look() -> None:
        async with calling(echo) as transport:
            link = await transport.websocket("/exec", "command=a%20b&command=%2B", SUBPROTOCOL)
            for data in (b"", b"one", b"x" * 1_000_000):
                await link.send(data)
                assert await link.receive() == data
            await link.send(b"end")
            assert await link.receive() is None
            with pytest.raises(Broken):
                await link.send(b"too late")
            await link.close()

    asyncio.run(look())


@pytest.mark.parametrize(("code", "error"), [(403, Forbidden), (404, NotFound), (500, ServerError), (503, Unavailable)])
def test_a_refusal_is_an_error_of_its_code(code: int, error: type[ApiError]) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code)

    async def look() -> None:
        async with calling(refuse) as transport:
            with pytest.raises(error):
                await transport.websocket("/exec", "command=a", SUBPROTOCOL)

    asyncio.run(look())


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_refusal_and_nothing_is_sent_to_where_it_leads(code: int) -> None:
    """A site could otherwise have a command run elsewhere, with credentials that are not its own."""
    paths: list[str] = []

    async def redirect(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        if request.path == "/base/exec":
            return web.Response(status=code, headers={"Location": "/base/elsewhere"})
        link = web.WebSocketResponse(protocols=[SUBPROTOCOL])
        await link.prepare(request)
        return link

    async def look() -> None:
        async with calling(redirect) as transport:
            with pytest.raises(ApiError, match=f"the server answered {code}"):
                await transport.websocket("/exec", "command=a", SUBPROTOCOL)

    asyncio.run(look())
    assert paths == ["/base/exec"]


def test_another_subprotocol_is_not_spoken() -> None:
    async def accept(request: web.Request) -> web.StreamResponse:
        link = web.WebSocketResponse()
        await link.prepare(request)
        await link.receive()
        return link

    async def look() -> None:
        async with calling(accept) as transport:
            with pytest.raises(Broken, match="does not speak"):
                await transport.websocket("/exec", "command=a", SUBPROTOCOL)

    asyncio.run(look())


def test_a_server_that_goes_on_sending_is_closed_all_the_same() -> None:
    async def flood(request: web.Request) -> web.StreamResponse:
        link = web.WebSocketResponse(protocols=[SUBPROTOCOL])
        await link.prepare(request)
        with suppress(OSError):
            while True:
                await link.send_bytes(b"more")
                await asyncio.sleep(0.01)
        return link

    async def look() -> None:
        async with calling(flood) as transport:
            link = await transport.websocket("/exec", "command=yes", SUBPROTOCOL)
            async with asyncio.timeout(5):
                await link.close()

    asyncio.run(look())


def test_a_server_that_is_not_there_is_unavailable() -> None:
    async def look() -> None:
        transport = HttpTransport(Endpoint("http://127.0.0.1:1"))
        with pytest.raises(Unavailable):
            await transport.websocket("/exec", "command=a", SUBPROTOCOL)
        await transport.close(for_good=True)

    asyncio.run(look())
