"""What compute-manager serves beside its work: probes, metrics, admission. Entry point: `Servers`."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import structlog

from datum_compute.admission.webhook import PATHS, Webhook, parent_of
from datum_compute.api.accounts import Accounts
from datum_compute.federation.metrics import CERTIFICATE_EXPIRY
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError
from datum_compute.kube.reviews import Caller, authenticate, may
from datum_compute.operator.assembly import Assembly
from datum_compute.operator.certificates import (
    RELOAD_SECONDS,
    Certificates,
    ServingError,
    Source,
    from_files,
    from_secret,
    self_signed,
    with_authority,
)
from datum_compute.operator.config import SINGLE, LogsServer, Tls, WebhookTls
from datum_compute.operator.issuer import Issuer
from datum_compute.operator.planes import ROOT_PLANE, refuse_homeless_certificate
from datum_compute.operator.settings import Address, Settings
from datum_compute.runtime import Probes
from datum_compute.runtime.serving.asgi import AsgiServer
from datum_compute.runtime.serving.connections import Limits
from datum_compute.runtime.serving.measured import Measured

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]

# Where the certificate of a webhook server is mounted by default; nothing is written there.
_MOUNTED = Path(os.environ.get("TMPDIR") or "/tmp") / "k8s-webhook-server" / "serving-certs"

_log = structlog.get_logger(__name__)

_HEALTH_LIMITS = Limits(connections=1024)  # cheap without TLS, and a probe must not be crowded out
_LOGS_LIMITS = Limits(connections=2048)  # most of them stay open for readers who follow
_WEBHOOK_LIMITS = Limits(connections=1024)  # API servers open one connection per review in progress


class Guarded:
    """An ASGI application behind the cluster's authentication and authorization, as kubelets and Prometheus expect.

    The bearer of the token must be allowed to `get` the path. None of the shipped roles allows it, so that each scraper
    has to be granted it by name.
    """

    def __init__(self, application: Application, client: Client) -> None:
        self._application = application
        self._client = client

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        code = await self._refusal(scope)
        if code is None:
            await self._application(scope, receive, send)
            return
        texts = {401: b"Unauthorized", 403: b"Forbidden", 503: b"the cluster cannot be asked who you are"}
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(texts[code])).encode())]
        if code == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": texts[code]})

    async def _refusal(self, scope: Mapping[str, Any]) -> int | None:
        """The status code to refuse the call with, or None to let it in."""
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"").decode("latin-1")
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return 401
        attributes = {"path": scope["path"], "verb": scope["method"].lower()}
        try:
            caller = await authenticate(self._client, token.strip())
            if caller is None:
                return 401
            return None if await may(self._client, caller, {"nonResourceAttributes": attributes}) else 403
        except ApiError as error:
            _log.warning("access to metrics cannot be reviewed", error=str(error))
            return 503


class Server:
    """One ASGI application on one address. `start` returns when it answers, `stop` when no call is in progress."""

    def __init__(
        self,
        name: str,
        application: Any,
        address: Address,
        certificates: Certificates | None = None,
        limits: Limits | None = None,
        *,
        websockets: Callable[[str], bool] = lambda path: False,
        beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._beside = beside  # what runs as long as the server
        self._stopping = stopping
        self._address = address
        self.certificates = certificates
        tls = certificates.context if certificates is not None else None
        self._server = AsgiServer(application, limits=limits, tls=tls, websockets=websockets)
        self._tasks: list[asyncio.Task[None]] = []
        self.port = address.port  # once started, the actual one in place of 0

    async def start(self) -> None:
        if self.certificates is not None:
            await self.certificates.load()
        listening = listen(self.name, self._address)
        self.port = listening.getsockname()[1]
        self._tasks = [await self._server.start(listening, self.name)]
        if self.certificates is not None:
            self._tasks.append(asyncio.create_task(self.certificates.follow(), name=f"{self.name} certificates"))
        if self._beside is not None:
            self._tasks.append(asyncio.create_task(self._beside(), name=f"{self.name} files"))
        _log.info("listening", server=self.name, port=self.port)

    def drain(self) -> None:
        self._server.drain()

    async def stop(self) -> None:
        self._stopping()
        self._server.should_exit = True
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def listen(name: str, address: Address) -> socket.socket:
    """Raises `ServingError` when the address cannot be used."""
    # An empty host means every address, of both families where the machine has both.
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
        raise ServingError(f"{name} cannot listen on {place}: {error.strerror}; choose another address") from None
    return listening


class Servers:
    """Started before the controllers, so that a process that waits does not look dead; stopped after them."""

    def __init__(self, settings: Settings, assembly: Assembly) -> None:
        self._servers: list[Server] = []
        webhook = settings.config.webhook_server
        self._is_open = webhook is not None and not webhook.client_ca_name and not settings.webhook_client_ca
        if settings.health is not None:
            self._servers.append(Server("health", assembly.probes(), settings.health, limits=_HEALTH_LIMITS))
        if settings.metrics is not None:
            self._servers.append(_metrics(settings, assembly, settings.metrics))
        if settings.config.webhook_server is not None:
            self._servers.append(_webhook(settings, assembly))
        if settings.config.logs_server is not None:
            self._servers.append(_logs(settings, assembly, settings.config.logs_server))
        expiry = CERTIFICATE_EXPIRY.gauge(assembly.registry)
        for server in self._servers:
            if server.certificates is not None:
                expiry.labels(server.name).set_function(server.certificates.expiry)

    async def start(self) -> None:
        for server in self._servers:
            await server.start()
        if self._is_open:
            _log.warning(
                "admission answers anybody who reaches its port; name the authority of the API servers' certificates "
                "with --webhook-client-ca, or let nobody else reach it"
            )

    def drain(self) -> None:
        """Lets clients go elsewhere: a request sent while its connection is closed would fail."""
        for server in self._servers:
            server.drain()

    async def stop(self) -> None:
        for server in reversed(self._servers):
            await server.stop()


def _metrics(settings: Settings, assembly: Assembly, address: Address) -> Server:
    metrics: Application = Probes({}, {}, assembly.registry)
    config = settings.config.metrics_server
    if not config.secure_serving:
        return Server("metrics", metrics, address)
    source = (
        pair_source(config.tls, lambda: assembly.host)
        if config.tls.cert_dir or config.tls.secret_ref
        else self_signed()
    )
    return Server("metrics", Guarded(metrics, assembly.host), address, Certificates(source))


def _logs(settings: Settings, assembly: Assembly, config: LogsServer) -> Server:
    from datum_compute.operator.logs import Logs, LogsApplication  # only where logs are served

    mode = settings.config.discovery.mode

    def passes_on() -> Client:
        return assembly.host if mode == SINGLE else assembly.planes.client(ROOT_PLANE)

    logs = Logs(config, mode, assembly.fleet, assembly.planes, assembly.clock, passes_on)
    application = LogsApplication(logs.rules, logs.extensions)
    source = pair_source(config.tls, lambda: assembly.host)
    if logs.front_proxy is not None:
        source = logs.front_proxy.beside(source)
    return Server(
        "logs",
        application,
        Address(config.host, config.port),
        Certificates(source),
        _LOGS_LIMITS,
        websockets=application.has_websocket,
        beside=logs.run,
        stopping=application.stop,
    )


def _webhook(settings: Settings, assembly: Assembly) -> Server:
    config = settings.config.webhook_server
    assert config is not None
    project_of: Callable[[Caller], str] = parent_of
    if settings.config.discovery.mode == SINGLE:
        project_of = lambda caller: SINGLE  # noqa: E731
    accounts = Accounts(
        (*Accounts().users, *config.controllers.users), (*Accounts().groups, *config.controllers.groups)
    )
    webhook = Webhook(assembly.fleet, assembly.planes, project_of, accounts, registry=assembly.registry)
    refuse_homeless_certificate(settings, assembly.own_namespace)
    source, every = _webhook_source(config.tls, assembly, config.client_ca_name)
    if settings.webhook_client_ca:
        source = with_authority(source, Path(settings.webhook_client_ca))
    certificates = Certificates(source, every)
    measured = Measured(webhook, PATHS, assembly.registry)
    return Server("webhook", measured, Address(config.host, config.port), certificates, _WEBHOOK_LIMITS)


def _webhook_source(tls: WebhookTls, assembly: Assembly, authority: str) -> tuple[Source, float]:
    """The source of certificates, and how often to read it."""
    if tls.self_signed is None:
        return pair_source(tls, lambda: assembly.host, authority), RELOAD_SECONDS
    issuer = Issuer(assembly.host, assembly.own_namespace, tls.self_signed, assembly.clock, assembly.registry)
    return issuer.read, issuer.seconds_between_reads


def pair_place(tls: Tls) -> str:
    """Where the certificate of a server comes from, as a sentence names it."""
    reference = tls.secret_ref
    return f"Secret {reference.namespace}/{reference.name}" if reference is not None else str(_folder(tls))


def _folder(tls: Tls) -> Path:
    return Path(tls.cert_dir) if tls.cert_dir else _MOUNTED


def pair_source(tls: Tls, host: Callable[[], Client], authority: str = "") -> Source:
    """Where the certificate of a server is read from; `host` is called only when that is a Secret."""
    folder = _folder(tls)
    if tls.secret_ref is not None:
        return from_secret(host(), tls.secret_ref.namespace, tls.secret_ref.name, authority)
    return from_files(folder / tls.cert_name, folder / tls.key_name, folder / authority if authority else None)
