"""The certificate authority, server certificate and token of one machine's federation. Entry point: `Credentials`."""

import ipaddress
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from datum_compute.kube.files import write_private

_AUTHORITY_DAYS = 3650
_SERVER_DAYS = 365
_RENEW_DAYS = 30
_NAMES = [
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")),
    x509.IPAddress(ipaddress.IPv6Address("::1")),
]


class Credentials(Struct, frozen=True):
    """What a server shows and asks for. Clients need the authority and the token."""

    directory: Path
    authority_pem: str
    certificate: Path
    key: Path
    token: str

    def __repr__(self) -> str:  # a token has no place in a log
        return f"Credentials({str(self.directory)!r})"

    @classmethod
    def ensure(cls, directory: Path, now: datetime | None = None) -> "Credentials":
        """Makes what is missing, unreadable or about to expire; after a new authority clients need it again."""
        _private(directory)
        authority = _ensure_certificates(directory, now or datetime.now(UTC))
        return cls(directory, authority, directory / "server.crt", directory / "server.key", _ensure_token(directory))


class _Pair(Struct, frozen=True):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def fits(self) -> bool:
        return self.certificate.public_key() == self.key.public_key()

    def lasts(self, now: datetime, days: int) -> bool:
        return (
            self.certificate.not_valid_before_utc <= now
            and now + timedelta(days=days) < self.certificate.not_valid_after_utc
        )


def _ensure_certificates(directory: Path, now: datetime) -> str:
    authority = _read(directory / "ca.crt", directory / "ca.key")
    # An authority has to outlive the certificates it signs.
    if authority is None or not authority.lasts(now, _SERVER_DAYS + _RENEW_DAYS):
        authority = _new_authority(now)
        _store(authority, directory / "ca.crt", directory / "ca.key")
    server = _read(directory / "server.crt", directory / "server.key")
    if server is None or not server.lasts(now, _RENEW_DAYS) or not _signed(server, authority):
        _store(_new_server(authority, now), directory / "server.crt", directory / "server.key")
    return authority.certificate.public_bytes(Encoding.PEM).decode()


def _ensure_token(directory: Path) -> str:
    path = directory / "token"
    if path.exists() and (token := path.read_text("ascii").strip()):
        path.chmod(0o600)
        return token
    token = secrets.token_urlsafe(32)
    write_private(path, f"{token}\n".encode())
    return token


def _private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)


def _read(certificate: Path, key: Path) -> _Pair | None:
    try:
        loaded = load_pem_private_key(key.read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            return None
        pair = _Pair(x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    certificate.chmod(0o600)
    key.chmod(0o600)
    return pair if pair.fits() else None


def _store(pair: _Pair, certificate: Path, key: Path) -> None:
    pem = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(key, pem)
    write_private(certificate, pair.certificate.public_bytes(Encoding.PEM))


def _signed(server: _Pair, authority: _Pair) -> bool:
    try:
        server.certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _new_authority(now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # Its own name each time: a client that still trusts an older one must not take the two for the same.
    name = _name(f"datum-compute local authority {secrets.token_hex(4)}")
    certificate = (
        _certificate(name, name, key, now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return _Pair(certificate, key)


def _new_server(authority: _Pair, now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _certificate(_name("localhost"), authority.certificate.subject, key, now, _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_NAMES), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority.key, SHA256())
    )
    return _Pair(certificate, key)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
