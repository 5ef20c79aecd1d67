"""Servers over TLS: what they show, when they show something new, and whom they let in."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from datum_compute.embedded.certificates import Credentials
from datum_compute.operator import serving
from datum_compute.operator.serving import Certificates, Serving, ServingError, from_files, self_signed
from datum_compute.operator.settings import Address

ANYWHERE = Address("127.0.0.1", 0)


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def _shown(port: int) -> bytes:
    """The certificate that the server shows to whoever connects now."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(True)
    writer.transport.abort()
    return shown


def _while_serving(certificates: Certificates, look: Callable[[Serving], Awaitable[None]]) -> None:
    async def run() -> None:
        server = Serving("test", _hello, ANYWHERE, certificates)
        await server.start()
        try:
            async with asyncio.timeout(60):
                await look(server)
        finally:
            await server.stop()

    asyncio.run(run())


def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "RELOAD_SECONDS", 0.01)
    first, second = Credentials.ensure(tmp_path / "first"), Credentials.ensure(tmp_path / "second")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(first.certificate.read_bytes())
    key.write_bytes(first.key.read_bytes())

    async def look(server: Serving) -> None:
        before = await _shown(server.port)
        certificate.write_bytes(second.certificate.read_bytes())  # half of a rotation: it does not fit its key yet
        await asyncio.sleep(0.05)
        assert await _shown(server.port) == before
        key.write_bytes(second.key.read_bytes())
        while await _shown(server.port) == before:
            pass

    _while_serving(Certificates(from_files(certificate, key)), look)


def test_only_clients_signed_by_the_authority_are_let_in(tmp_path: Path) -> None:
    ours = Credentials.ensure(tmp_path / "ours")
    authority = tmp_path / "ca.crt"
    authority.write_text(ours.authority_pem)

    async def look(server: Serving) -> None:
        context = ssl.create_default_context(cadata=ours.authority_pem)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await _hear(server.port, context)
        context.load_cert_chain(_client_of(tmp_path / "ours"))
        assert b"hello" in await _hear(server.port, context)

    _while_serving(Certificates(from_files(ours.certificate, ours.key, authority)), look)


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
    async def look(server: Serving) -> None:
        assert await _shown(server.port)

    _while_serving(Certificates(self_signed()), look)


@pytest.mark.parametrize("content", [b"", b"not a certificate"])
def test_files_that_are_no_certificate_are_told(tmp_path: Path, content: bytes) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(content)
    key.write_bytes(content)
    with pytest.raises(ServingError, match="do not fit, or are none"):
        asyncio.run(Certificates(from_files(certificate, key)).load())


def test_a_port_that_is_taken_is_told() -> None:
    async def run() -> None:
        first = Serving("first", _hello, ANYWHERE)
        await first.start()
        try:
            with pytest.raises(ServingError, match=rf"second cannot listen on 127.0.0.1:{first.port}: Address already"):
                await Serving("second", _hello, Address("127.0.0.1", first.port)).start()
        finally:
            await first.stop()

    asyncio.run(run())
