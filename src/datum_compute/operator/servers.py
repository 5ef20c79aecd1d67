"""What compute-manager serves beside its work: probes, figures, admission. Entry point: `Servers`."""

import os
from collections.abc import Callable
from pathlib import Path

import structlog

from datum_compute.admission.reviews import Caller
from datum_compute.admission.webhook import Webhook, parent_of
from datum_compute.api.accounts import Accounts
from datum_compute.operator.access import Application, Guarded
from datum_compute.operator.assembly import Assembly
from datum_compute.operator.config import SINGLE, Tls
from datum_compute.operator.serving import (
    Certificates,
    Serving,
    Source,
    from_files,
    from_secret,
    self_signed,
    with_authority,
)
from datum_compute.operator.settings import Address, Settings
from datum_compute.runtime import Probes
from datum_compute.runtime.serving.connections import Limits

# Where the certificate of a webhook server is mounted unless the config file says otherwise; nothing is written there.
_MOUNTED = Path(os.environ.get("TMPDIR") or "/tmp") / "k8s-webhook-server" / "serving-certs"

_log = structlog.get_logger(__name__)

_HEALTH_LIMITS = Limits(connections=1024)  # they cost little without TLS, and a probe must not be displaced
_WEBHOOK_LIMITS = Limits(connections=1024)  # API servers call with one connection per review that is under way


class Servers:
    """Started before the work, so that a process that waits can be told from one that is dead; stopped after it."""

    def __init__(self, settings: Settings, assembly: Assembly) -> None:
        self._servers: list[Serving] = []
        webhook = settings.config.webhook_server
        self._is_open = webhook is not None and not webhook.client_ca_name and not settings.webhook_client_ca
        if settings.health is not None:
            self._servers.append(Serving("health", assembly.probes(), settings.health, limits=_HEALTH_LIMITS))
        if settings.metrics is not None:
            self._servers.append(_metrics(settings, assembly, settings.metrics))
        if settings.config.webhook_server is not None:
            self._servers.append(_webhook(settings, assembly))

    async def start(self) -> None:
        for server in self._servers:
            await server.start()
        if self._is_open:
            _log.warning(
                "admission answers anybody who reaches its port; name the authority of the API servers' certificates "
                "with --webhook-client-ca, or let nobody else reach it"
            )

    async def stop(self) -> None:
        for server in reversed(self._servers):
            await server.stop()


def _metrics(settings: Settings, assembly: Assembly, address: Address) -> Serving:
    figures: Application = Probes({}, {}, assembly.registry)
    asked = settings.config.metrics_server
    if not asked.secure_serving:
        return Serving("metrics", figures, address)
    source = _source(asked.tls, assembly) if asked.tls.cert_dir or asked.tls.secret_ref else self_signed()
    return Serving("metrics", Guarded(figures, assembly.host), address, Certificates(source))


def _webhook(settings: Settings, assembly: Assembly) -> Serving:
    asked = settings.config.webhook_server
    assert asked is not None
    project_of: Callable[[Caller], str] = parent_of
    if settings.config.discovery.mode == SINGLE:
        project_of = lambda caller: SINGLE  # noqa: E731
    accounts = Accounts((*Accounts().users, *asked.controllers.users), (*Accounts().groups, *asked.controllers.groups))
    webhook = Webhook(assembly.fleet, assembly.planes, project_of, accounts)
    source = _source(asked.tls, assembly, asked.client_ca_name)
    if settings.webhook_client_ca:
        source = with_authority(source, Path(settings.webhook_client_ca))
    certificates = Certificates(source)
    return Serving("webhook", webhook, Address(asked.host, asked.port), certificates, _WEBHOOK_LIMITS)


def _source(tls: Tls, assembly: Assembly, authority: str = "") -> Source:
    folder = Path(tls.cert_dir) if tls.cert_dir else _MOUNTED
    if tls.secret_ref is not None:
        return from_secret(assembly.host, tls.secret_ref.namespace, tls.secret_ref.name, authority)
    return from_files(folder / tls.cert_name, folder / tls.key_name, folder / authority if authority else None)
