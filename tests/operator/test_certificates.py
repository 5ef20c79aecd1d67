"""Servers over TLS: what they show, when they show something new, and whom they let in."""

import asyncio
import base64
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from datum_compute.embedded.https.certificates import Credentials
from datum_compute.kube.client import Client
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.operator import certificates
from datum_compute.operator.certificates import (
    SECRET,
    Certificates,
    Pair,
    ServingError,
    from_files,
    from_secret,
    self_signed,
)
from datum_compute.operator.serving import Server
from datum_compute.operator.settings import Address

ANYWHERE = Address("127.0.0.1", 0)


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def _presented(port: int) -> bytes:
    """The certificate that the server shows to whoever connects now."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    presented: bytes = writer.get_extra_info("ssl_object").getpeercert(True)
    writer.transport.abort()
    return presented


def _while_serving(certificates: Certificates, look: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        server = Server("test", _hello, ANYWHERE, certificates)
        await server.start()
        try:
            async with asyncio.timeout(60):
                await look(server)
        finally:
            await server.stop()

    asyncio.run(run())


def test_a_new_certificate_is_presented_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "RELOAD_SECONDS", 0.01)
    first, second = Credentials.ensure(tmp_path / "first"), Credentials.ensure(tmp_path / "second")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(first.certificate.read_bytes())
    key.write_bytes(first.key.read_bytes())

    async def look(server: Server) -> None:
        before = await _presented(server.port)
        certificate.write_bytes(second.certificate.read_bytes())  # half of a rotation: it does not fit its key yet
        await asyncio.sleep(0.05)
        assert await _presented(server.port) == before
        key.write_bytes(second.key.read_bytes())
        while await _presented(server.port) == before:
            pass

    _while_serving(Certificates(from_files(certificate, key)), look)


def test_an_error_while_reloading_does_not_end_reloading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "RELOAD_SECONDS", 0.01)
    pairs = [self_signed(), self_signed()]
    looks = 0

    async def source() -> Pair:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return await pairs[looks > 2]()

    async def look(server: Server) -> None:
        before = await _presented(server.port)
        while await _presented(server.port) == before:
            pass

    with structlog.testing.capture_logs() as lines:
        _while_serving(Certificates(source), look)
    assert [line["error"] for line in lines if line["log_level"] == "warning"] == ["[Errno 24] Too many open files"]


def test_only_clients_signed_by_the_authority_are_let_in(tmp_path: Path) -> None:
    ours = Credentials.ensure(tmp_path / "ours")
    authority = tmp_path / "ca.crt"
    authority.write_text(ours.authority_pem)

    async def look(server: Server) -> None:
        context = ssl.create_default_context(cadata=ours.authority_pem)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await _hear(server.port, context)
        context.load_cert_chain(_client_of(tmp_path / "ours"))
        assert b"hello" in await _hear(server.port, context)

    _while_serving(Certificates(from_files(ours.certificate, ours.key, authority)), look)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", [None, "localhost"])
def test_clients_of_a_replaced_authority_are_refused(tmp_path: Path, name: str | None, version: ssl.TLSVersion) -> None:
    """With a server name and without, and with a session of former times."""
    ours, other = Credentials.ensure(tmp_path / "ours"), Credentials.ensure(tmp_path / "other")
    authority = tmp_path / "ca.crt"
    authority.write_text(ours.authority_pem)
    certificates = Certificates(from_files(ours.certificate, ours.key, authority))

    def client(signer: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=ours.authority_pem)
        context.check_hostname = name is not None
        context.maximum_version = version
        context.load_cert_chain(_client_of(tmp_path / signer))
        return context

    async def look(server: Server) -> None:
        former, later = client("ours"), client("other")
        session = await asyncio.to_thread(_session, server.port, former, name)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(_session, server.port, later, name)
        authority.write_text(other.authority_pem)
        await certificates.load()
        await asyncio.to_thread(_session, server.port, later, name)
        for resumed in (None, session):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(_session, server.port, former, name, resumed)

    _while_serving(certificates, look)


def _session(
    port: int, context: ssl.SSLContext, name: str | None, session: ssl.SSLSession | None = None
) -> ssl.SSLSession:
    """That of a client that was answered."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=name, session=session) as speaking,
    ):
        speaking.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        if not speaking.recv(1024):
            raise ConnectionError("the server hung up")
        assert speaking.session is not None
        return speaking.session


def _client_of(authority: Path) -> Path:
    """A certificate and key for a client, signed by an authority."""
    issuer = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    signer = load_pem_private_key((authority / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(signer, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = authority / "client.pem"
    path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    return path


async def _hear(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        if not answer:
            raise ConnectionError("the server hung up")
        return answer
    finally:
        writer.transport.abort()


def test_without_a_certificate_of_its_own_it_signs_one(tmp_path: Path) -> None:
    async def look(server: Server) -> None:
        assert await _presented(server.port)

    _while_serving(Certificates(self_signed()), look)


@pytest.mark.parametrize("content", [b"", b"not a certificate"])
def test_files_without_a_certificate_are_reported(tmp_path: Path, content: bytes) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(content)
    key.write_bytes(content)
    with pytest.raises(ServingError, match="do not fit, or are none"):
        asyncio.run(Certificates(from_files(certificate, key)).load())


@pytest.mark.parametrize("content", [b"", b"not a certificate"])
def test_an_invalid_authority_admits_nobody(tmp_path: Path, content: bytes) -> None:
    ours = Credentials.ensure(tmp_path / "ours")
    authority = tmp_path / "ca.crt"
    authority.write_bytes(content)
    with pytest.raises(ServingError, match="clientCAName or --webhook-client-ca names is no certificate"):
        asyncio.run(Certificates(from_files(ours.certificate, ours.key, authority)).load())


class _Cluster:
    """Has one Secret, `compute-system/webhook`."""

    def __init__(self, data: dict[str, bytes]) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        self._secret = encode(SECRET.body("webhook", "compute-system") | {"data": encoded})

    async def call(self, call: Call) -> Answer:
        assert (call.method, call.path) == ("GET", "/api/v1/namespaces/compute-system/secrets/webhook")
        return Answer(200, self._secret)

    def stream(self, call: Call) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


def _from_secret(ours: Credentials, authority: str = "", **more: bytes) -> Certificates:
    data = {"tls.crt": ours.certificate.read_bytes(), "tls.key": ours.key.read_bytes(), **more}
    return Certificates(from_secret(Client("host", _Cluster(data)), "compute-system", "webhook", authority))


def test_the_client_authority_is_read_from_the_secret_too(tmp_path: Path) -> None:
    ours = Credentials.ensure(tmp_path / "ours")

    async def look(server: Server) -> None:
        context = ssl.create_default_context(cadata=ours.authority_pem)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await _hear(server.port, context)
        context.load_cert_chain(_client_of(tmp_path / "ours"))
        assert b"hello" in await _hear(server.port, context)

    _while_serving(_from_secret(ours, "clients", clients=ours.authority_pem.encode()), look)


def test_a_secret_without_the_client_authority_is_refused(tmp_path: Path) -> None:
    ours = Credentials.ensure(tmp_path / "ours")
    asyncio.run(_from_secret(ours).load())
    sentence = r'webhookServer.tls.secretRef has no "ca.crt", which webhookServer.clientCAName says'
    with pytest.raises(ServingError, match=sentence):
        asyncio.run(_from_secret(ours, "ca.crt").load())


def test_a_port_in_use_is_reported() -> None:
    async def run() -> None:
        first = Server("first", _hello, ANYWHERE)
        await first.start()
        try:
            with pytest.raises(ServingError, match=rf"second cannot listen on 127.0.0.1:{first.port}: Address already"):
                await Server("second", _hello, Address("127.0.0.1", first.port)).start()
        finally:
            await first.stop()

    asyncio.run(run())
