"""Servers on loopback for tests: `Background` is a real one on a thread of its own, `Scripted` answers as scripted."""

import asyncio
import http.client
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import Struct

from datum_compute.embedded.https.certificates import Credentials
from datum_compute.embedded.https.extensions import Extension
from datum_compute.embedded.https.server import HttpsServer
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.writer import WriterThread
from datum_compute.federation.roles import CELL, HUB, PROJECT, ROOT
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.serving.connections import Limits

T = TypeVar("T")

PLANES = {"root": ROOT, "demo": PROJECT, "hub": HUB, "cell-dfw": CELL}
DEMO = "/apis/resourcemanager.miloapis.com/v1alpha1/projects/demo/control-plane"


class Reply(Struct, frozen=True):
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        value: Json = msgspec.json.decode(self.body)
        return value


class Background:
    """An engine with one plane of each role, its background work, and the server; `close` ends all three."""

    def __init__(
        self,
        directory: Path,
        limits: Limits | None = None,
        extensions: Sequence[Extension] = (),
        documents: Mapping[str, Callable[[], Any]] = {},
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self._limits = limits
        self._extensions = extensions
        self._documents = documents
        self._thread = threading.Thread(target=self.loop.run_forever, name="https-under-test")
        self._thread.start()
        self.credentials = Credentials.ensure(directory / "credentials")
        self.do(self._start(directory))

    async def _start(self, directory: Path) -> None:
        self.engine = compute_engine(Log(directory / "log.db"), writer=WriterThread)
        for plane, role in PLANES.items():
            self.engine.serve(plane, role)
        self._work = asyncio.create_task(self.engine.run())
        self.server = HttpsServer(
            self.engine,
            self.credentials,
            limits=self._limits,
            extensions=self._extensions,
            documents=self._documents,
        )
        await self.server.start()
        await self.engine.client("demo").create(NAMESPACE, NAMESPACE.body("default"))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something on the loop of the server."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=30)

    def read(self, look: Callable[[], T]) -> T:
        """Looks at something of the engine, where nothing else runs meanwhile."""

        async def looked() -> T:
            return look()

        return self.do(looked())

    def until(self, condition: Callable[[], bool], within: float = 10.0) -> None:
        deadline = time.monotonic() + within
        while not self.read(condition):
            assert time.monotonic() < deadline, "it did not come true in time"

    @property
    def revision(self) -> int:
        return self.read(lambda: self.engine.store.revision)

    def watches(self) -> int:
        """How many watches the planes have; only to be called on the loop."""
        servers = [self.engine.plane(plane) for plane in PLANES]
        return sum(len(server._watches) for server in servers if server)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Json = b"",
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> Reply:
        """One request as any client would make it; `token` replaces the right one, "" sends none."""
        sent = {"Authorization": f"Bearer {self.credentials.token if token is None else token}"}
        if token == "":
            sent = {}
        if isinstance(body, dict):
            body, sent["Content-Type"] = msgspec.json.encode(body), "application/json"
        tls = self.server.endpoint("root").tls()
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, context=tls, timeout=20)
        try:
            connection.request(method, path, body=body or None, headers=sent | dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def close(self) -> None:
        self.do(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _stop(self) -> None:
        await self.server.stop()
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        self.engine.close()


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Scripted:
    """A server on a free port that does what a test says with each request; `handle` may be changed at any time."""

    def __init__(self, handle: Handle, tls: ssl.SSLContext | None = None) -> None:
        self.handle = handle
        self.requests: list[bytes] = []  # their heads
        self.connections = 0
        self._tls = tls
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/below"

    def sent(self, header: str) -> list[str]:
        """The values of a header, of all requests that had it."""
        lines = [line for head in self.requests for line in head.decode().split("\r\n")]
        return [line.partition(": ")[2] for line in lines if line.lower().startswith(f"{header.lower()}: ")]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            self.cut()
            await server.wait_closed()

    @asynccontextmanager
    async def serving(self, endpoint: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[HttpTransport]:
        """A transport to it; `endpoint` are further fields of its endpoint, `options` those of the transport."""
        async with self.listening():
            transport = HttpTransport(Endpoint(self.url, **(endpoint or {})), **options)
            try:
                yield transport
            finally:
                await transport.close()

    def cut(self) -> None:
        """Ends every connection at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                await self.handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answering(body: bytes, code: int = 200, headers: str = "") -> Handle:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {code} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return handle


def chunked(*pieces: bytes, ending: bytes = b"0\r\n\r\n") -> Handle:
    """A stream; with an empty `ending` the connection ends in the middle of it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_stream(writer)
        for piece in pieces:
            send_piece(writer, piece)
            await writer.drain()
        if ending:
            writer.write(ending)
        else:
            writer.close()

    return handle


def open_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")


def send_piece(writer: asyncio.StreamWriter, piece: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


class Proxy:
    """A CONNECT proxy; with `authorization` it leads only those who send that."""

    def __init__(self, authorization: str = "") -> None:
        self.tunnels: list[str] = []
        self._authorization = authorization
        self._pumps: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        assert method == "CONNECT", head
        if self._authorization and f"Proxy-Authorization: {self._authorization}\r\n" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        self.tunnels.append(target)
        host, _, port = target.rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for source, sink in ((reader, back), (there, writer)):
            self._pumps.add(asyncio.create_task(pump(source, sink)))


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while piece := await source.read(65536):
            sink.write(piece)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()


def server_tls(credentials: Credentials, client_authority: str = "") -> ssl.SSLContext:
    """As a server shows `credentials`; with `client_authority` (PEM) its clients have to show a certificate."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(credentials.certificate, credentials.key)
    if client_authority:
        tls.load_verify_locations(cadata=client_authority)
        tls.verify_mode = ssl.CERT_REQUIRED
    return tls


def client_certificate(name: str) -> tuple[str, str]:
    """One that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(key, SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode(), pem.decode()
