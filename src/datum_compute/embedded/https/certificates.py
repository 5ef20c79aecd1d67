"""The certificate authority, server certificate and token of an engine. Entry point: `Credentials`."""

import ipaddress
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from msgspec import Struct

from datum_compute import PRODUCT
from datum_compute.kube.authority import SERVER, Pair, issue, new_authority
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
    """The credentials of a server; its clients need the authority and the token."""

    directory: Path
    authority_pem: str
    certificate: Path
    key: Path
    token: str

    def __repr__(self) -> str:  # the token must not reach a log
        return f"Credentials({str(self.directory)!r})"

    @classmethod
    def ensure(cls, directory: Path, now: datetime | None = None) -> "Credentials":
        """Creates what is missing, unreadable or about to expire. Clients need a new authority when there is one."""
        _private(directory)
        authority = _ensure_certificates(directory, now or datetime.now(UTC))
        return cls(directory, authority, directory / "server.crt", directory / "server.key", _ensure_token(directory))


def _ensure_certificates(directory: Path, now: datetime) -> str:
    authority = _read(directory / "ca.crt", directory / "ca.key")
    # An authority has to outlive the certificates it signs.
    if authority is None or not _lasts(authority, now, _SERVER_DAYS + _RENEW_DAYS):
        # A new name each time, so that a client that trusts an older authority does not confuse the two.
        authority = new_authority(f"{PRODUCT} local authority {secrets.token_hex(4)}", now, _AUTHORITY_DAYS)
        _store(authority, directory / "ca.crt", directory / "ca.key")
    server = _read(directory / "server.crt", directory / "server.key")
    if server is None or not _lasts(server, now, _RENEW_DAYS) or not _signed(server, authority):
        server = issue(authority, "localhost", now, _SERVER_DAYS, purposes=[SERVER], names=_NAMES)
        _store(server, directory / "server.crt", directory / "server.key")
    return authority.certificate_pem.decode()


def _lasts(pair: Pair, now: datetime, days: int) -> bool:
    certificate = pair.certificate
    return certificate.not_valid_before_utc <= now and now + timedelta(days=days) < certificate.not_valid_after_utc


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


def _read(certificate: Path, key: Path) -> Pair | None:
    try:
        loaded = load_pem_private_key(key.read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            return None
        pair = Pair(x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    certificate.chmod(0o600)
    key.chmod(0o600)
    return pair if pair.certificate.public_key() == pair.key.public_key() else None


def _store(pair: Pair, certificate: Path, key: Path) -> None:
    write_private(key, pair.key_pem)
    write_private(certificate, pair.certificate_pem)


def _signed(server: Pair, authority: Pair) -> bool:
    try:
        server.certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
