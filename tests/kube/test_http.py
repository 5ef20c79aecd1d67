"""Calls over HTTP: what comes back, and what is raised when nothing does."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import structs

from datum_compute.embedded.certificates import Credentials
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Forbidden, NotFound, Timeout, Unauthorized, Unavailable
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.kubeconfig import Endpoint
from datum_compute.kube.transport import Answer, Call
from tests.https import Background

TOKEN = "secret-token"
GET = Call("GET", "/api/v1/namespaces")
WATCH = Call("GET", "/api/v1/namespaces", {"watch": "true", "timeoutSeconds": "5"})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Scripted:
    """A server on a free port that does what a test says with each connection."""

    def __init__(self, handle: Handle, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._handle = handle
        self._tls = tls

    @asynccontextmanager
    async def serving(self, **options: float) -> AsyncIterator[HttpTransport]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        scheme = "https" if self._tls else "http"
        transport = HttpTransport(Endpoint(f"{scheme}://127.0.0.1:{self.port}/below", token=TOKEN), **options)  # type: ignore[arg-type]
        try:
            yield transport
        finally:
            await transport.close()
            server.close()
            await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                await self._handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answering(body: bytes, code: int = 200, headers: str = "") -> Handle:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {code} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return handle


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def chunked(*pieces: bytes, ending: bytes = b"0\r\n\r\n") -> Handle:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        if ending:
            writer.write(ending)
        else:
            writer.close()

    return handle


async def streamed(transport: HttpTransport) -> list[bytes]:
    async with transport.stream(WATCH) as lines:
        return [line async for line in lines]


def no_secret(error: BaseException) -> None:
    seen: BaseException | None = error
    while seen is not None:
        assert TOKEN not in f"{seen} {seen!r}"
        seen = seen.__cause__


# Answers


def test_a_call_carries_everything_and_brings_back_the_answer() -> None:
    server = Scripted(answering(b'{"a":1}', 201, 'Warning: 299 - "un\\"known"\r\nWarning: odd\r\n'))

    async def scenario() -> None:
        async with server.serving() as transport:
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
        async with server.serving() as transport:
            assert await transport.call(GET) == Answer(code, b"{}")

    asyncio.run(scenario())


def test_connections_are_used_again() -> None:
    server = Scripted(answering(b"{}"))

    async def scenario() -> None:
        async with server.serving() as transport:
            for _ in range(5):
                await transport.call(GET)
        assert (len(server.requests), server.connections) == (5, 1)

    asyncio.run(scenario())


def test_no_more_calls_than_allowed_are_under_way() -> None:
    server = Scripted(answering(b"{}"))

    async def scenario() -> None:
        async with server.serving(calls=3) as transport:
            await asyncio.gather(*(transport.call(GET) for _ in range(20)))
        assert server.connections <= 3

    asyncio.run(scenario())


def test_a_call_after_close_opens_a_new_connection() -> None:
    server = Scripted(answering(b"{}"))

    async def scenario() -> None:
        async with server.serving() as transport:
            await transport.call(GET)
            await transport.close()
            await transport.close()
            assert (await transport.call(GET)).code == 200

    asyncio.run(scenario())


def test_a_token_from_a_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datum_compute.kube import http as module

    monkeypatch.setattr(module, "_TOKEN_SECONDS", -1.0)
    file = tmp_path / "token"
    server = Scripted(answering(b"{}"))

    async def scenario() -> None:
        async with server.serving() as plain:
            transport = HttpTransport(structs.replace(plain._endpoint, token_file=str(file)))
            for token in ("one", "two"):
                file.write_text(token)
                await transport.call(GET)
            file.unlink()
            with pytest.raises(Unavailable, match="token file"):
                await transport.call(GET)
            await transport.close()
        sent = [line for head in server.requests for line in head.decode().split("\r\n") if "Authorization" in line]
        assert sent == ["Authorization: Bearer one", "Authorization: Bearer two"]

    asyncio.run(scenario())


# No answer


@pytest.mark.parametrize(
    ("handle", "kind", "sentence"),
    [
        (hang_up, Unavailable, "ended the connection"),
        (say_nothing, Timeout, "no answer from 127.0.0.1:[0-9]+ in time"),
        (chunked(b"{", ending=b""), Unavailable, "ended the connection"),
        (answering(b"", 200, "Content-Encoding: gzip\r\nContent-Length: 10\r\n"), Unavailable, "ended the connection"),
    ],
    ids=["hangs up", "says nothing", "ends in the middle", "makes no sense"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_answer_is_an_error_that_says_why(handle: Handle, kind: type[ApiError], sentence: str, method: str) -> None:
    async def scenario() -> None:
        async with Scripted(handle).serving(answer_seconds=0.3) as transport:
            with pytest.raises(kind, match=sentence) as error:
                await transport.call(Call(method, "/x"))
            no_secret(error.value)

    asyncio.run(scenario())


def test_nobody_listening_is_unavailable() -> None:
    async def scenario() -> None:
        async with Scripted(hang_up).serving() as transport:
            port = transport._root.port
        transport = HttpTransport(Endpoint(f"http://127.0.0.1:{port}", token=TOKEN))
        for attempt in (transport.call(GET), streamed(transport)):
            with pytest.raises(Unavailable, match="cannot be reached") as error:
                await attempt
            no_secret(error.value)
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
        async with Scripted(chunked(*pieces)).serving() as transport:
            assert await streamed(transport) == [b'{"a":1}', b'{"b":2}']

    asyncio.run(scenario())


def test_a_line_may_be_as_long_as_it_likes() -> None:
    line = b"x" * 5_000_000

    async def scenario() -> None:
        async with Scripted(chunked(line[:100], line[100:] + b"\nshort\n")).serving() as transport:
            assert await streamed(transport) == [line, b"short"]

    asyncio.run(scenario())


def test_a_stream_that_breaks_gives_what_came_and_then_fails() -> None:
    async def scenario() -> None:
        server = Scripted(chunked(b'{"a":1}\n', ending=b""))
        async with server.serving() as transport, transport.stream(WATCH) as lines:
            assert await anext(lines) == b'{"a":1}'
            with pytest.raises(Unavailable, match="ended the connection") as error:
                await anext(lines)
            no_secret(error.value)

    asyncio.run(scenario())


@pytest.mark.parametrize(("code", "kind"), [(401, Unauthorized), (403, Forbidden), (404, NotFound)])
def test_a_stream_that_is_refused_raises_on_entering(code: int, kind: type[ApiError]) -> None:
    async def scenario() -> None:
        async with Scripted(answering(b'{"message":"because"}', code)).serving() as transport:
            with pytest.raises(kind, match="because"):
                await streamed(transport)

    asyncio.run(scenario())


def test_a_stream_that_does_not_begin_is_a_timeout() -> None:
    async def scenario() -> None:
        async with Scripted(say_nothing).serving(answer_seconds=0.2, connect_seconds=0.1) as transport:
            with pytest.raises(Timeout) as error:
                await streamed(transport)
            no_secret(error.value)

    asyncio.run(scenario())


def test_an_error_of_the_reader_is_not_taken_for_one_of_the_stream() -> None:
    async def scenario() -> None:
        async with Scripted(chunked(b"{}\n")).serving() as transport:
            with pytest.raises(TimeoutError, match="mine"):
                async with transport.stream(WATCH):
                    raise TimeoutError("mine")

    asyncio.run(scenario())


def test_leaving_a_stream_ends_its_connection() -> None:
    async def scenario() -> None:
        left = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n")
            with suppress(ConnectionError):
                await reader.read()
            left.set()

        async with Scripted(handle).serving() as transport:
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


def test_a_server_is_verified_by_the_authority_that_is_given(api: Background) -> None:
    assert listed(api.server.endpoint("demo")) == ["default"]


def test_a_server_that_is_not_trusted_is_not_talked_to(api: Background, tmp_path: Path) -> None:
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


def client_certificate() -> tuple[str, str]:
    """One that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(key, SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode(), pem.decode()


def test_a_client_certificate_says_who_calls(tmp_path: Path) -> None:
    credentials = Credentials.ensure(tmp_path, datetime.now(UTC))
    certificate, key = client_certificate()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(credentials.certificate, credentials.key)
    tls.load_verify_locations(cadata=certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    shown: list[Any] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown.append(writer.get_extra_info("peercert")["subject"])
        await answering(b"{}")(reader, writer)

    async def scenario() -> None:
        server = Scripted(handle, tls)
        async with server.serving():
            transport = HttpTransport(
                Endpoint(
                    f"https://127.0.0.1:{server.port}",
                    ca_pem=credentials.authority_pem,
                    client_cert=certificate,
                    client_key=key,
                )
            )
            assert (await transport.call(GET)).code == 200
            await transport.close()

    asyncio.run(scenario())
    assert shown == [((("commonName", "somebody"),),)]
