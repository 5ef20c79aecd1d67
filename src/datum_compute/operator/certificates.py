"""The certificates that servers present, and the authorities of their clients. Entry point: `Certificates`."""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from cryptography import x509
from msgspec import Struct, field, structs

from datum_compute.kube.access.pairs import NoFolder, load_pair
from datum_compute.kube.authority import SERVER, issue, new_authority
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject

RELOAD_SECONDS = 10.0
_SELF_SIGNED_DAYS = 3650

_log = structlog.get_logger(__name__)


class Secret(KubeObject, frozen=True):
    data: dict[str, str] = field(default_factory=dict)


SECRET = Kind("", "v1", "Secret", "secrets", Secret)


class ServingError(Exception):
    """One sentence on why a server cannot listen, and what to change."""


class Pair(Struct, frozen=True):
    """A certificate and its key, and the `authority` that must have signed the certificates of clients, if any.

    With `optional`, clients need no certificate.
    """

    certificate: bytes
    key: bytes
    authority: bytes | None = None
    optional: bool = False

    def __repr__(self) -> str:  # a key has no place in a log
        return "Pair()"


Source = Callable[[], Awaitable[Pair]]
"""Reads the current pair; raises `ServingError` when there is none."""


class _Latest(ssl.SSLContext):
    """Gives each new connection the current context.

    Changing a single context instead would keep former authorities trusted, and let their clients resume sessions.
    """

    current: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*arguments, **named)


class Certificates:
    """The TLS context of a server, reloaded for new connections when its pair changes."""

    def __init__(self, source: Source, every: float = RELOAD_SECONDS) -> None:
        self._source = source
        self._every = every
        self._pair: Pair | None = None
        self.context = _Latest(ssl.PROTOCOL_TLS_SERVER)

    async def load(self) -> None:
        """Raises `ServingError` when there is no pair, or certificate and key do not match."""
        pair = await self._source()
        if pair == self._pair:
            return
        self.context.current = server_context(pair)
        self._pair = pair

    def expiry(self) -> float:
        """When the certificate that is served expires, in seconds since 1970; 0 if there is none."""
        try:
            certificate = x509.load_pem_x509_certificate(self._pair.certificate if self._pair is not None else b"")
        except ValueError:
            return 0.0
        return certificate.not_valid_after_utc.timestamp()

    async def follow(self) -> None:
        """Reloads regularly until cancelled. A pair that does not match is half of a rotation, and ignored.

        Any failure is retried: the pair in use stays valid for a while.
        """
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.load()
            except Exception as error:
                _log.warning("certificates not reloaded", error=str(error))


def server_context(pair: Pair) -> ssl.SSLContext:
    """Raises `ServingError` when certificate and key do not match, or the authority is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        load_pair(context, pair.certificate, pair.key)
    except (OSError, ValueError):
        raise ServingError("the certificate and the key of a server do not fit, or are none") from None
    except NoFolder as error:
        raise ServingError(str(error)) from None
    if pair.authority is not None:
        try:
            context.load_verify_locations(cadata=pair.authority.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError):
            raise ServingError(
                "what webhookServer.clientCAName or --webhook-client-ca names is no certificate in PEM"
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL if pair.optional else ssl.CERT_REQUIRED
    return context


def from_files(certificate: Path, key: Path, authority: Path | None = None) -> Source:
    async def read() -> Pair:
        return Pair(_read(certificate), _read(key), _read(authority) if authority else None)

    return read


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ServingError(f"certificate file {path} cannot be read: {error.strerror}") from None


def with_authority(source: Source, authority: Path) -> Source:
    """The same pair, with the authority of clients from a file."""

    async def read() -> Pair:
        return structs.replace(await source(), authority=_read(authority))

    return read


def from_secret(client: Client, namespace: str, name: str, authority: str = "") -> Source:
    """`authority` is a key of the Secret, or empty for a server that admits any client."""

    async def read() -> Pair:
        try:
            data = (await client.get(SECRET, name, namespace)).data
        except ApiError as error:
            raise ServingError(f"Secret {namespace}/{name} cannot be read: {error}") from None
        if authority and authority not in data:
            raise ServingError(
                f'Secret {namespace}/{name} of webhookServer.tls.secretRef has no "{authority}", which '
                "webhookServer.clientCAName says clients are signed by: add it to the Secret, or use certDir"
            )
        try:
            certificate, key = base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"])
            return Pair(certificate, key, base64.b64decode(data[authority]) if authority else None)
        except (KeyError, ValueError):
            raise ServingError(f"Secret {namespace}/{name} has no tls.crt and tls.key") from None

    return read


def self_signed() -> Source:
    """A pair that nobody can verify, but that still keeps others from listening in.

    Its authority is known to nobody else.
    """
    now, names = datetime.now(UTC), [x509.DNSName("localhost")]
    authority = new_authority("compute-manager", now, _SELF_SIGNED_DAYS)
    issued = issue(authority, "compute-manager", now, _SELF_SIGNED_DAYS, purposes=[SERVER], names=names)
    pair = Pair(issued.certificate_pem, issued.key_pem)

    async def read() -> Pair:
        return pair

    return read
