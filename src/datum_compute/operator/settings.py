"""The settings that flags and config file amount to, or why they conflict. Entry points: `settled`, `Settings`."""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from msgspec import Struct

from datum_compute.api.permissions import CELL_LEASE, MANAGEMENT_LEASE
from datum_compute.operator.config import CELLS, KUBECONFIGS, LOKI, SINGLE, WorkloadOperator
from datum_compute.operator.flags import Flags

PODS = "pods"
PROVIDERS = ("none", "simulated", PODS)
QUOTA, NETWORK, ENTITLEMENT, LOCATIONS = "quota", "network", "entitlement", "locations"
BUILTINS = (QUOTA, NETWORK, ENTITLEMENT, LOCATIONS)
NETWORKING_INTEGRATION = "NetworkingIntegration"
GATES = {NETWORKING_INTEGRATION: False}  # feature gates and their defaults
_OF_PROJECTS = (QUOTA, ENTITLEMENT)  # built-ins that work in projects only, so where management runs
_LONGEST_DELAY = 3600
_LONGEST_WAIT = 30 * 24 * 3600


class Refused(Exception):
    """One sentence on why the process does not start, and what to change."""


class Address(Struct, frozen=True):
    host: str
    port: int


class Settings(Struct, frozen=True):
    """Everything that is decided before anything starts."""

    config: WorkloadOperator
    kubeconfig: str
    federation_kubeconfig: str
    federation_context: str
    management: bool
    cell: bool
    provider: str
    builtins: frozenset[str]
    recreate_denied_claims: bool
    abandon_claims_after: float  # seconds; 0 means never
    remove_leftovers: bool
    leftover_grace: float  # seconds
    networking: bool
    quota: bool  # whether there is a credential to claim it with
    cluster_name: str  # of this cell on claims and hub copies
    trust_project_kubeconfigs: bool
    leader_elect: bool
    leader_elect_namespace: str
    health: Address | None
    metrics: Address | None
    webhook_client_ca: str  # a file
    shutdown_delay: float  # seconds

    @property
    def lease(self) -> str:
        """A process that does both stands for management: two that manage the same projects must never both lead."""
        return MANAGEMENT_LEASE if self.management else CELL_LEASE

    @property
    def projects(self) -> bool:
        """Whether this process works in projects."""
        served = (self.config.webhook_server, self.config.logs_server)
        return self.management or any(server is not None for server in served)

    @property
    def needs_host(self) -> bool:
        """Whether the process calls the cluster it works for."""
        webhook, metrics, logs = self.config.webhook_server, self.config.metrics_server, self.config.logs_server
        secrets = (
            metrics.tls.secret_ref if self.metrics else None,
            webhook.tls.secret_ref if webhook else None,
            logs.tls.secret_ref if logs else None,
        )
        issued = webhook is not None and webhook.tls.self_signed is not None
        in_place = self.projects and self.config.discovery.mode == SINGLE
        secured = self.metrics is not None and metrics.secure_serving
        return self.cell or in_place or self.leader_elect or secured or issued or any(secrets)

    @property
    def shared(self) -> bool:
        """Whether one API server is the project and the cell."""
        return self.management and self.cell and self.config.discovery.mode == SINGLE


def settled(flags: Flags, config: WorkloadOperator) -> Settings:
    """Raises `Refused` for everything that would only half work."""
    discovery = config.discovery
    quota = bool(discovery.quota_kubeconfig_path or discovery.project_kubeconfig_path or discovery.mode == KUBECONFIGS)
    cluster_name = discovery.cluster_name or (SINGLE if discovery.mode == SINGLE else "")
    builtins = frozenset(filter(None, (name.strip() for name in flags.builtins.split(","))))
    if flags.enable_management_controllers and discovery.mode == SINGLE and QUOTA in builtins:
        quota = True  # the cluster's own credential is the one for claims
    _refuse_names(flags, builtins)
    _refuse_half(flags, builtins)
    if discovery.mode == KUBECONFIGS and not discovery.kubeconfig_dir:
        raise Refused("discovery.mode kubeconfigs needs discovery.kubeconfigDir, a directory with one file per project")
    if discovery.mode != KUBECONFIGS and discovery.kubeconfig_dir:
        raise Refused(f"discovery.kubeconfigDir is only for mode kubeconfigs, and the mode is {discovery.mode}")
    if flags.enable_cell_controllers and not flags.enable_management_controllers and config.webhook_server is not None:
        raise Refused("webhookServer admits the Workloads of projects, and a cell alone has none: leave it out")
    if config.webhook_server is not None and not 0 <= config.webhook_server.port <= 65535:
        raise Refused(f"webhookServer.port is {config.webhook_server.port}; it must be from 0 to 65535")
    _refuse_certificates(config)
    _refuse_logs(flags, config)
    if flags.enable_cell_controllers and not cluster_name:
        raise Refused(
            f"discovery.clusterName is needed for a cell in mode {discovery.mode}: "
            "claims and hub copies carry it, and it must be this cell's alone"
        )
    if config.default_grants is not None and ENTITLEMENT not in builtins:
        raise Refused(f"defaultGrants is what --builtins={ENTITLEMENT} grants, and that is not switched on")
    if config.pods is not None and flags.provider != PODS:
        raise Refused(f"pods is only for --provider={PODS}, and the provider is {flags.provider}")
    networking = _gates(flags.feature_gates)[NETWORKING_INTEGRATION]
    if NETWORK in builtins and not networking:
        raise Refused(f"--builtins={NETWORK} does nothing without --feature-gates={NETWORKING_INTEGRATION}=true")
    return Settings(
        config=config,
        kubeconfig=flags.kubeconfig,
        federation_kubeconfig=flags.federation_kubeconfig,
        federation_context=flags.federation_context,
        management=flags.enable_management_controllers,
        cell=flags.enable_cell_controllers,
        provider=flags.provider,
        builtins=builtins,
        recreate_denied_claims=flags.recreate_denied_claims,
        abandon_claims_after=_seconds(
            "--abandon-claims-after-seconds", flags.abandon_claims_after_seconds, _LONGEST_WAIT
        ),
        remove_leftovers=flags.remove_leftovers,
        leftover_grace=_seconds("--leftover-grace-seconds", flags.leftover_grace_seconds, _LONGEST_WAIT),
        networking=networking,
        quota=quota,
        cluster_name=cluster_name,
        trust_project_kubeconfigs=flags.trust_project_kubeconfigs,
        leader_elect=flags.leader_elect,
        leader_elect_namespace=flags.leader_elect_namespace,
        health=address("--health-probe-bind-address", flags.health_probe_bind_address),
        metrics=address("metricsServer.bindAddress", config.metrics_server.bind_address),
        webhook_client_ca=_webhook_client_ca(flags, config),
        shutdown_delay=_shutdown_delay(flags, config),
    )


def _refuse_logs(flags: Flags, config: WorkloadOperator) -> None:
    logs = config.logs_server
    if logs is None:
        return
    if flags.enable_cell_controllers and not flags.enable_management_controllers:
        raise Refused("logsServer serves the users of projects, and a cell alone has none: leave it out")
    if not flags.federation_kubeconfig:
        raise Refused(
            "logsServer finds the instances of a project on the hub: name its kubeconfig with --federation-kubeconfig"
        )
    if not 0 <= logs.port <= 65535:
        raise Refused(f"logsServer.port is {logs.port}; it must be from 0 to 65535")
    if (logs.source == LOKI) != (logs.loki is not None):
        raise Refused("logsServer.loki says where Loki is: it is needed for source loki, and for no other")
    if logs.loki is not None:
        url = urlsplit(logs.loki.url)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise Refused("logsServer.loki.url must be an address such as https://loki.example:3100, without a query")
        if url.username or url.password:
            raise Refused("logsServer.loki.url must not contain a password: name a file with loki.tokenFile")
        if not _LABEL.fullmatch(logs.loki.project_label):
            raise Refused(f'logsServer.loki.projectLabel is "{logs.loki.project_label}", which is no name of a label')
    if logs.cell_kubeconfig_dir and logs.source != CELLS and not logs.exec:
        raise Refused("logsServer.cellKubeconfigDir is for source cells and for exec, and neither is on")


_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*")


def _refuse_certificates(config: WorkloadOperator) -> None:
    webhook = config.webhook_server
    if webhook is None or webhook.tls.self_signed is None:
        return
    if webhook.tls.secret_ref is not None or webhook.tls.cert_dir:
        other = "certDir" if webhook.tls.cert_dir else "secretRef"
        raise Refused(f"webhookServer.tls.selfSigned and {other} both say where the certificate comes from: drop one")
    if webhook.client_ca_name:
        raise Refused(
            "webhookServer.clientCAName is in certDir or in the Secret of secretRef, and selfSigned has neither: "
            "name the authority of clients with --webhook-client-ca"
        )
    for host in webhook.tls.self_signed.hosts:
        if not _is_address(host) and not _HOST.fullmatch(host):
            raise Refused(
                f'webhookServer.tls.selfSigned.hosts has "{host}"; each must be the name or address of a host, '
                "without scheme and port"
            )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _webhook_client_ca(flags: Flags, config: WorkloadOperator) -> str:
    if flags.webhook_client_ca and config.webhook_server is None:
        raise Refused("--webhook-client-ca says who may ask for admission, and none is served: add webhookServer")
    if flags.webhook_client_ca and config.webhook_server and config.webhook_server.client_ca_name:
        raise Refused("--webhook-client-ca and webhookServer.clientCAName both name an authority of clients: drop one")
    return flags.webhook_client_ca


def _shutdown_delay(flags: Flags, config: WorkloadOperator) -> float:
    if flags.shutdown_delay_seconds:
        return _seconds("--shutdown-delay-seconds", flags.shutdown_delay_seconds, _LONGEST_DELAY)
    return _seconds("shutdownDelaySeconds", str(config.shutdown_delay_seconds), _LONGEST_DELAY)


def _seconds(name: str, text: str, longest: int) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= longest:
        raise Refused(f'{name} is "{text}"; it must be a number of seconds from 0 to {longest}')
    return seconds


def _gates(text: str) -> dict[str, bool]:
    """All feature gates: the defaults, overridden by `Name=true,Other=false`. The last value of a name wins."""
    gates = dict(GATES)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = part.partition("=")
        if name not in GATES:
            raise Refused(f'--feature-gates: feature gate "{name}" is not known; there is {", ".join(GATES)}')
        if not separator or value.lower() not in ("true", "false"):
            raise Refused(f'--feature-gates: feature gate "{part}" needs a value: {name}=true or {name}=false')
        gates[name] = value.lower() == "true"
    return gates


def _refuse_names(flags: Flags, builtins: frozenset[str]) -> None:
    if flags.provider not in PROVIDERS:
        raise Refused(f'--provider: "{flags.provider}" is not known; choose one of {", ".join(PROVIDERS)}')
    if unknown := sorted(builtins.difference(BUILTINS)):
        raise Refused(f'--builtins: "{unknown[0]}" is not known; choose of {", ".join(BUILTINS)}')


def _refuse_half(flags: Flags, builtins: frozenset[str]) -> None:
    management, cell = flags.enable_management_controllers, flags.enable_cell_controllers
    hub = flags.federation_kubeconfig
    if management and not hub:
        raise Refused("the management controllers need the hub: name its kubeconfig with --federation-kubeconfig")
    if flags.stand_alone_cell and hub:
        raise Refused("--stand-alone-cell is for a cell without a hub, and --federation-kubeconfig names one: drop one")
    if cell and not hub and not flags.stand_alone_cell:
        raise Refused(
            "the cell controllers need the hub: name its kubeconfig with --federation-kubeconfig, "
            "or say --stand-alone-cell if there is none"
        )
    if flags.federation_context and not hub:
        raise Refused("--federation-context names a context, but no --federation-kubeconfig that would have it")
    if flags.provider != "none" and not cell:
        raise Refused(f"--provider={flags.provider} runs Instances of a cell: add --enable-cell-controllers")
    if (homeless := sorted(builtins.intersection(_OF_PROJECTS))) and not management:
        raise Refused(f"--builtins={homeless[0]} works in projects: add --enable-management-controllers")
    if LOCATIONS in builtins and not management and not cell:
        raise Refused(f"--builtins={LOCATIONS} works in projects and cells: add the controllers of either")
    if NETWORK in builtins and not cell:
        raise Refused(f"--builtins={NETWORK} works in a cell: add --enable-cell-controllers")


def address(name: str, text: str) -> Address | None:
    """`:8081`, `127.0.0.1:8081` or `[::1]:8081`; None for `0`. An empty host means every address."""
    if text == "0":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or ("[" in host) != ("]" in host):
        raise Refused(f'{name} is "{text}"; it must be host:port, :port, or 0 for nowhere')
    return Address(host.strip("[]"), int(port))
