"""The answers of calls over HTTP, and the errors when there is none."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from msgspec import structs

from datum_compute.embedded.https.certificates import Credentials
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Forbidden, NotFound, Timeout, TooManyRequests, Unauthorized, Unavailable
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.retries import Retrying
from datum_compute.kube.transport import Answer, Call, Untrusted
from tests.https import (
    Background,
    Handle,
    Scripted,
    answering,
    chunked,
    hang_up,
    open_stream,
    say_nothing,
    send_piece,
)

TOKEN = "secret-token"
GET = Call("GET", "/api/v1/namespaces")
WATCH = Call("GET", "/api/v1/namespaces", {"watch": "true", "timeoutSeconds": "5"})


async def streamed(transport: HttpTransport) -> list[bytes]:
    async with transport.stream(WATCH) as lines:
        return [line async for line in lines]


def no_secret(error: BaseException) -> None:
    seen: BaseException | None = error
    while seen is not None:
        assert TOKEN not in f"{seen} {seen!r}"
        seen = seen.__cause__


# Answers


def test_a_call_carries_all_its_parts_and_returns_the_answer() -> None:
    server = Scripted(answering(b'{"a":1}', 201, 'Warning: 299 - "un\\"known"\r\nWarning: odd\r\n'))

    async def scenario() -> None:
        async with server.serving({"token": TOKEN}) as transport:
            query = {"labelSelector": "a in (b,c),d!=e", "limit": "5"}
            answer = await transport.call(Call("POST", "/api/v1/x", query, b"{}", "application/yaml"))
            assert answer == Answer(201, b'{"a":1}', ('un"known', "odd"))
        head = server.requests[0].decode()
        assert head.startswith("POST /below/api/v1/x?labelSelector=a+in+(b,c),d!%3De&limit=5 HTTP/1.1\r\n")
        assert f"Authorization: Bearer {TOKEN}\r\n" in head
        assert "Content-Type: application/yaml\r\n" in head
        assert "Accept: application/json\r\n" in head

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [200, 301, 404, 409, 500, 503])
def test_every_answer_is_returned_good_or_bad(code: int) -> None:
    server = Scripted(answering(b"{}", code, "Location: http://127.0.0.1:1/\r\n"))

    async def scenario() -> None:
        async with server.serving({"token": TOKEN}) as transport:
            assert await transport.call(GET) == Answer(code, b"{}")

    asyncio.run(scenario())


def test_connections_are_reused() -> None:
    server = Scripted(answering(b"{}"))

    async def scenario() -> None:
        async with server.serving({"token": TOKEN}) as transport:
            for _ in range(5):
                await transport.call(GET)
        assert (len(server.requests), server.connections) == (5, 1)

    asyncio.run(scenario())


def test_no_more_calls_than_allowed_are_under_way() -> None:
    server = Scripted(answering(b"{}"))

    async def scenario() -> None:
        async with server.serving({"token": TOKEN}, calls=3) as transport:
            await asyncio.gather(*(transport.call(GET) for _ in range(20)))
        assert server.connections <= 3

    asyncio.run(scenario())


def test_watches_do_not_take_the_place_of_calls() -> None:
    async def scenario() -> None:
        under_way, most, enough, go = 0, 0, asyncio.Event(), asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal under_way, most
            if b"watch=true" in server.requests[-1]:
                open_stream(writer)
                send_piece(writer, b"{}\n")
                return
            under_way += 1
            most = max(most, under_way)
            if under_way == 2:
                enough.set()
            await go.wait()
            under_way -= 1
            await answering(b"{}")(reader, writer)

        server = Scripted(handle)
        async with server.serving(calls=2) as transport, AsyncExitStack() as watches:
            for _ in range(3):
                lines = await watches.enter_async_context(transport.stream(WATCH))
                assert await anext(lines) == b"{}"
            calls = [asyncio.create_task(transport.call(GET)) for _ in range(8)]
            await asyncio.wait_for(enough.wait(), 10)
            go.set()
            assert {answer.code for answer in await asyncio.gather(*calls)} == {200}
        assert most == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("-1", 0)])
def test_retry_after_is_part_of_the_answer(header: str, seconds: int) -> None:
    async def scenario() -> None:
        server = Scripted(answering(b"{}", 429, f"Retry-After: {header}\r\n"))
        async with server.serving() as transport:
            assert (await transport.call(GET)).retry_after == seconds
            with pytest.raises(TooManyRequests) as error:
                await streamed(transport)
            assert error.value.retry_after == seconds

    asyncio.run(scenario())


def test_a_retry_waits_as_long_as_a_busy_server_asked_for() -> None:
    slept: list[float] = []

    async def scenario() -> None:
        server = Scripted(answering(b"{}", 429, "Retry-After: 9\r\n"))

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            server.handle = answering(b'{"now":"well"}')

        async with server.serving() as transport:
            answer = await Retrying(transport, lambda: 0.5, sleep=sleep).call(GET)
        assert answer == Answer(200, b'{"now":"well"}')

    asyncio.run(scenario())
    assert slept == [9]


def test_a_call_after_close_opens_a_new_connection() -> None:
    server = Scripted(answering(b"{}"))

    async def scenario() -> None:
        async with server.serving({"token": TOKEN}) as transport:
            await transport.call(GET)
            await transport.close()
            await transport.close()
            assert (await transport.call(GET)).code == 200

    asyncio.run(scenario())


# No answer


async def half_a_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
    writer.close()


async def half_a_body_and_silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
    await reader.read()


@pytest.mark.parametrize(
    ("handle", "kind", "sentence"),
    [
        (hang_up, Unavailable, "ended the connection"),
        (say_nothing, Timeout, "no answer from 127.0.0.1:[0-9]+ in time"),
        (chunked(b"{", ending=b""), Unavailable, "ended the connection"),
        (half_a_body, Unavailable, "ended the connection"),
        (half_a_body_and_silence, Timeout, "no answer from 127.0.0.1:[0-9]+ in time"),
        (answering(b"", 200, "Content-Encoding: gzip\r\nContent-Length: 10\r\n"), Unavailable, "ended the connection"),
    ],
    ids=["hangs up", "says nothing", "ends in the middle", "half a body", "falls silent", "makes no sense"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_answer_is_an_error_that_says_why(handle: Handle, kind: type[ApiError], sentence: str, method: str) -> None:
    async def scenario() -> None:
        async with Scripted(handle).serving({"token": TOKEN}, answer_seconds=0.3) as transport:
            with pytest.raises(kind, match=sentence) as error:
                await transport.call(Call(method, "/x"))
            no_secret(error.value)

    asyncio.run(scenario())


def test_a_closed_port_is_unavailable() -> None:
    async def scenario() -> None:
        async with Scripted(hang_up).serving({"token": TOKEN}) as transport:
            port = transport._root.port
        transport = HttpTransport(Endpoint(f"http://127.0.0.1:{port}", token=TOKEN))
        for attempt in (transport.call(GET), streamed(transport)):
            with pytest.raises(Unavailable, match="cannot be reached") as error:
                await attempt
            no_secret(error.value)
        await transport.close()

    asyncio.run(scenario())


def test_a_server_without_tls_is_reported_as_such() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            transport = HttpTransport(Endpoint(f"https://127.0.0.1:{port}", token=TOKEN))
            try:
                for attempt in (transport.call, lambda call: streamed(transport)):
                    with pytest.raises(Untrusted, match=r"TLS with .* failed") as error:
                        await attempt(GET)
                    no_secret(error.value)
            finally:
                await transport.close()

    asyncio.run(scenario())


# Streams


@pytest.mark.parametrize(
    "pieces",
    [
        [b'{"a":1}\n{"b":2}\n'],
        [b'{"a"', b":1}", b'\n{"b"', b":2}\n"],
        [b'{"a":1}\n', b'{"b":2}\n'],
        [b'{"a":1}\n\n\n{"b":2}'],
        [bytes([byte]) for byte in b'{"a":1}\n{"b":2}\n'],
    ],
)
def test_lines_are_whole_however_they_arrive(pieces: list[bytes]) -> None:
    async def scenario() -> None:
        async with Scripted(chunked(*pieces)).serving({"token": TOKEN}) as transport:
            assert await streamed(transport) == [b'{"a":1}', b'{"b":2}']

    asyncio.run(scenario())


def test_a_line_may_have_any_length() -> None:
    line = b"x" * 5_000_000

    async def scenario() -> None:
        async with Scripted(chunked(line[:100], line[100:] + b"\nshort\n")).serving({"token": TOKEN}) as transport:
            assert await streamed(transport) == [line, b"short"]

    asyncio.run(scenario())


def test_a_broken_stream_delivers_what_arrived_and_then_fails() -> None:
    async def scenario() -> None:
        server = Scripted(chunked(b'{"a":1}\n', ending=b""))
        async with server.serving({"token": TOKEN}) as transport, transport.stream(WATCH) as lines:
            assert await anext(lines) == b'{"a":1}'
            with pytest.raises(Unavailable, match="ended the connection") as error:
                await anext(lines)
            no_secret(error.value)

    asyncio.run(scenario())


def test_a_stream_that_breaks_in_the_moment_it_is_read_fails_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the connection ends between two looks of aiohttp, it says so with an error that is none of its own."""

    async def closed(reader: aiohttp.StreamReader, function: str) -> None:
        raise RuntimeError("Connection closed.")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_stream(writer)
        send_piece(writer, b"{}\n")
        await reader.read()

    async def scenario() -> None:
        async with Scripted(handle).serving({"token": TOKEN}) as transport, transport.stream(WATCH) as lines:
            assert await anext(lines) == b"{}"
            monkeypatch.setattr(aiohttp.StreamReader, "_wait", closed)
            with pytest.raises(Unavailable, match="ended the connection"):
                await anext(lines)

    asyncio.run(scenario())


@pytest.mark.parametrize(("code", "kind"), [(401, Unauthorized), (403, Forbidden), (404, NotFound)])
def test_a_stream_that_is_refused_raises_on_entering(code: int, kind: type[ApiError]) -> None:
    async def scenario() -> None:
        async with Scripted(answering(b'{"message":"because"}', code)).serving({"token": TOKEN}) as transport:
            with pytest.raises(kind, match="because"):
                await streamed(transport)

    asyncio.run(scenario())


def test_a_stream_whose_connection_falls_silent_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datum_compute.kube.http._WATCH_GRACE_SECONDS", 0.2)
    quick = Call("GET", "/x", {"watch": "true", "timeoutSeconds": "0"})

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_stream(writer)
        send_piece(writer, b"{}\n")
        await reader.read()

    async def scenario() -> None:
        async with Scripted(handle).serving() as transport, transport.stream(quick) as lines:
            assert await anext(lines) == b"{}"
            with pytest.raises(Timeout, match="no answer from"):
                await anext(lines)

    asyncio.run(scenario())


def test_a_stream_that_does_not_begin_is_a_timeout() -> None:
    async def scenario() -> None:
        async with Scripted(say_nothing).serving({"token": TOKEN}, answer_seconds=0.2) as transport:
            with pytest.raises(Timeout) as error:
                await streamed(transport)
            no_secret(error.value)

    asyncio.run(scenario())


def test_an_error_of_the_reader_is_not_taken_for_one_of_the_stream() -> None:
    async def scenario() -> None:
        async with Scripted(chunked(b"{}\n")).serving({"token": TOKEN}) as transport:
            with pytest.raises(TimeoutError, match="mine"):
                async with transport.stream(WATCH):
                    raise TimeoutError("mine")

    asyncio.run(scenario())


def test_leaving_a_stream_ends_its_connection() -> None:
    async def scenario() -> None:
        left = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            open_stream(writer)
            send_piece(writer, b"{}\n")
            with suppress(ConnectionError):
                await reader.read()
            left.set()

        async with Scripted(handle).serving({"token": TOKEN}) as transport:
            async with transport.stream(WATCH) as lines:
                assert await anext(lines) == b"{}"
            await asyncio.wait_for(left.wait(), 5)

    asyncio.run(scenario())


# TLS


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    background = Background(tmp_path_factory.mktemp("https"))
    yield background
    background.close()


def listed(endpoint: Endpoint) -> list[str]:
    async def scenario() -> list[str]:
        transport = HttpTransport(endpoint)
        try:
            return [item.name for item in (await Client("demo", transport).list(NAMESPACE)).items]
        finally:
            await transport.close()

    return asyncio.run(scenario())


def test_a_server_is_verified_against_the_configured_authority(api: Background) -> None:
    assert listed(api.server.endpoint("demo")) == ["default"]


def test_an_untrusted_server_is_not_called(api: Background, tmp_path: Path) -> None:
    endpoint = api.server.endpoint("demo")
    other = Credentials.ensure(tmp_path, datetime.now(UTC)).authority_pem
    for untrusted in (structs.replace(endpoint, ca_pem=""), structs.replace(endpoint, ca_pem=other)):
        with pytest.raises(Unavailable, match=r"certificate of .* is not trusted") as error:
            listed(untrusted)
        assert endpoint.token not in f"{error.value} {error.value!r}"
    assert listed(structs.replace(endpoint, ca_pem="", insecure=True)) == ["default"]


def test_a_server_may_be_known_under_another_name(api: Background) -> None:
    endpoint = api.server.endpoint("demo")
    assert listed(structs.replace(endpoint, server_name="localhost")) == ["default"]
    with pytest.raises(Unavailable, match="not trusted"):
        listed(structs.replace(endpoint, server_name="elsewhere.test"))


def test_a_wrong_token_is_refused_and_not_repeated(api: Background) -> None:
    with pytest.raises(Unauthorized) as error:
        listed(structs.replace(api.server.endpoint("demo"), token=TOKEN))
    no_secret(error.value)
