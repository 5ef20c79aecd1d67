"""Small HTTP servers beside the controllers. Entry points: `Serving`, `Certificates`."""

import asyncio
import base64
import socket
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
from datum_compute.operator.settings import Address
from datum_compute.runtime.serving.asgi import AsgiServer
from datum_compute.runtime.serving.connections import Limits

RELOAD_SECONDS = 10.0
_SELF_SIGNED_DAYS = 3650

_log = structlog.get_logger(__name__)


class _Secret(KubeObject, frozen=True):
    data: dict[str, str] = field(default_factory=dict)


SECRET = Kind("", "v1", "Secret", "secrets", _Secret)


class ServingError(Exception):
    """One sentence why a server cannot listen, with what to change."""


class Pair(Struct, frozen=True):
    """A certificate and its key; `authority` is whom the certificates of clients are signed by, None for anybody."""

    certificate: bytes
    key: bytes
    authority: bytes | None = None

    def __repr__(self) -> str:  # a key has no place in a log
        return "Pair()"


Source = Callable[[], Awaitable[Pair]]
"""Where a pair comes from now; raises `ServingError` when it cannot be had."""


class _Latest(ssl.SSLContext):
    """Hands each connection the context that is current when it comes.

    To change the one context instead would leave former authorities trusted, and sessions of their clients resumed.
    """

    current: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*arguments, **named)


class Certificates:
    """What a server shows and whom it lets in, taken up anew when it changes, for connections that come later."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._shown: Pair | None = None
        self.context = _Latest(ssl.PROTOCOL_TLS_SERVER)

    async def load(self) -> None:
        """Raises `ServingError` when there is no pair, or one that does not fit."""
        pair = await self._source()
        if pair == self._shown:
            return
        self.context.current = _context(pair)
        self._shown = pair

    async def follow(self) -> None:
        """Looks for a new pair until it is cancelled. One that does not fit, half of a rotation, is left alone.

        Whatever goes wrong is tried again: the pair that is shown stays good for a while.
        """
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                await self.load()
            except Exception as error:
                _log.warning("certificates not reloaded", error=str(error))


def _context(pair: Pair) -> ssl.SSLContext:
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
        context.verify_mode = ssl.CERT_REQUIRED
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
    """The same pair, and whom clients are signed by from a file of its own."""

    async def read() -> Pair:
        return structs.replace(await source(), authority=_read(authority))

    return read


def from_secret(client: Client, namespace: str, name: str, authority: str = "") -> Source:
    """`authority` is a key of the Secret; empty for a server that lets in anybody."""

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
            shown = base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"])
            return Pair(*shown, base64.b64decode(data[authority]) if authority else None)
        except (KeyError, ValueError):
            raise ServingError(f"Secret {namespace}/{name} has no tls.crt and tls.key") from None

    return read


def self_signed() -> Source:
    """For who has none: nobody can verify it, but nobody can listen in either."""
    pair = _self_signed()

    async def read() -> Pair:
        return pair

    return read


class Serving:
    """One ASGI application on one address. `start` returns when calls are answered, `stop` when none is under way."""

    def __init__(
        self,
        what: str,
        application: Any,
        address: Address,
        certificates: Certificates | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._what = what
        self._address = address
        self._certificates = certificates
        tls = certificates.context if certificates is not None else None
        self._server = AsgiServer(application, limits=limits, tls=tls)
        self._tasks: list[asyncio.Task[None]] = []
        self.port = address.port  # the one that was found free, once started with 0

    async def start(self) -> None:
        if self._certificates is not None:
            await self._certificates.load()
        listening = _listen(self._what, self._address)
        self.port = listening.getsockname()[1]
        self._tasks = [await self._server.start(listening, self._what)]
        if self._certificates is not None:
            self._tasks.append(asyncio.create_task(self._certificates.follow(), name=f"{self._what} certificates"))
        _log.info("listening", server=self._what, port=self.port)

    async def stop(self) -> None:
        self._server.should_exit = True
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _listen(what: str, address: Address) -> socket.socket:
    # An empty host is every address, of both families where the machine has both.
    every = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in address.host else socket.AF_INET
    try:
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not address.host else 1)
            listening.bind((address.host, address.port))
        except OSError:
            listening.close()
            raise
    except OSError as error:
        place = f"{address.host or '*'}:{address.port}"
        raise ServingError(f"{what} cannot listen on {place}: {error.strerror}; choose another address") from None
    return listening


def _self_signed() -> Pair:
    """By an authority that nobody else ever sees."""
    now, names = datetime.now(UTC), [x509.DNSName("localhost")]
    authority = new_authority("compute-manager", now, _SELF_SIGNED_DAYS)
    made = issue(authority, "compute-manager", now, _SELF_SIGNED_DAYS, purposes=[SERVER], names=names)
    return Pair(made.certificate_pem, made.key_pem)
