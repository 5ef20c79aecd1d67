"""How a kubeconfig becomes a plane. Entry points: `Endpoints`, `sources`, `Planes`."""

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct

from datum_compute import __version__
from datum_compute.kube.access.credentials import EndpointCredentials
from datum_compute.kube.access.incluster import in_cluster
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError, load
from datum_compute.kube.client import Client
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.retries import Policy, Retrying
from datum_compute.operator.config import KUBECONFIGS, MILO
from datum_compute.operator.settings import Refused, Settings
from datum_compute.runtime import Plane, Writes
from datum_compute.runtime.telemetry.calls import Calls, Counted

# No project can have these names, so none is ever mistaken for another plane.
HUB_PLANE = "@hub"
ROOT_PLANE = "@root"
CELL_PLANE = "@cell"

_AGENT = f"compute-manager/{__version__}"
# For failures that pass in a moment. A plane that hangs must not hold a worker, which has other planes to serve: a pass
# that fails is queued again with growing delays. Shorter than any `Retry-After`, which concerns more than one call.
_PATIENCE = Policy(tries=3, first_pause=0.05, deadline=0.9)
_ANSWER_SECONDS = 10.0
_INTERNAL_URL = "https://milo-apiserver.project-{project}.svc.cluster.local:6443"

_log = structlog.get_logger(__name__)


class Unusable(Refused):
    """A kubeconfig that cannot be used, with the flag or field that names it."""

    def __init__(self, field: str, error: KubeconfigError) -> None:
        super().__init__(f"{field}: {error}")
        self.field = field
        self.error = error


class Endpoints(Struct, frozen=True):
    """The endpoint of every plane, None where none is needed. Reading them proves that each file is usable."""

    host: Endpoint | None = None  # the cluster this process works for
    hub: Endpoint | None = None
    root: Endpoint | None = None  # where projects are listed
    project: Endpoint | None = None  # from which the endpoint of each project is derived
    quota: Endpoint | None = None  # the same, for claims
    project_url: str = ""

    @classmethod
    def read(cls, settings: Settings, environment: Mapping[str, str]) -> "Endpoints":
        """Raises `Refused` with the flag or field that names an unusable file."""
        refuse_directory(settings)
        return cls.of(settings, {name: read() for name, (_, read) in sources(settings, environment).items()})

    @classmethod
    def of(cls, settings: Settings, endpoints: Mapping[str, Endpoint]) -> "Endpoints":
        """Raises `Refused` for a bad template of URLs."""
        discovery = settings.config.discovery
        url = _INTERNAL_URL if discovery.internal_service_discovery else discovery.project_url_template
        whole = cls(**endpoints, project_url=url)
        whole.refuse_template()
        return whole

    def refuse_template(self) -> None:
        """Tries the template with any name, so that a bad one is reported at the start and not once per project."""
        base = self.project or self.quota
        if base is None or not self.project_url:
            return
        try:
            base.at(self.project_url, project="any")
        except KubeconfigError as error:
            raise Refused(f"discovery.projectURLTemplate: {error}") from None
        if "{project}" not in self.project_url:
            raise Refused(
                f"discovery.projectURLTemplate: {self.project_url} has no {{project}}: all would be one plane"
            )

    def of_project(self, name: str) -> Endpoint:
        assert self.project is not None
        return self.project.at(self.project_url, project=name)

    def of_quota(self, name: str) -> Endpoint:
        assert self.quota is not None
        return self.quota.at(self.project_url, project=name)


def sources(settings: Settings, environment: Mapping[str, str]) -> dict[str, tuple[str, Callable[[], Endpoint]]]:
    """For each endpoint that the settings need: the flag or field that names it, and what reads it.

    Reading raises `Unusable`.
    """
    discovery = settings.config.discovery
    milo = settings.projects and discovery.mode == MILO
    needed: dict[str, tuple[str, Callable[[], Endpoint]]] = {}

    def configured(name: str, field: str, path: str, context: str = "") -> None:
        """Without a path it is the process's own cluster."""
        if path:
            needed[name] = (field, partial(_load, field, path, context))
        else:
            needed[name] = ("--kubeconfig", partial(_host, settings.kubeconfig, environment))

    if settings.needs_host:
        configured("host", "--kubeconfig", settings.kubeconfig)
    if settings.federation_kubeconfig:
        configured("hub", "--federation-kubeconfig", settings.federation_kubeconfig, settings.federation_context)
    if milo:
        configured("root", "discovery.discoveryKubeconfigPath", discovery.discovery_kubeconfig_path)
        configured("project", "discovery.projectKubeconfigPath", discovery.project_kubeconfig_path)
    if discovery.quota_kubeconfig_path:
        configured("quota", "discovery.quotaKubeconfigPath", discovery.quota_kubeconfig_path)
    elif discovery.project_kubeconfig_path:
        configured("quota", "discovery.projectKubeconfigPath", discovery.project_kubeconfig_path)
    return needed


def own_namespace(settings: Settings, host: Endpoint | None) -> str:
    """The namespace for this process's own objects; empty when nothing names one."""
    return settings.leader_elect_namespace or (host.namespace if host is not None else "")


def refuse_homeless_lease(settings: Settings, namespace: str) -> None:
    """`namespace` is the process's own."""
    if settings.leader_elect and not namespace:
        raise Refused("--leader-elect needs to know where the lease lives: add --leader-elect-namespace")


def refuse_homeless_certificate(settings: Settings, namespace: str) -> None:
    """`namespace` is the process's own."""
    webhook = settings.config.webhook_server
    if webhook is not None and webhook.tls.self_signed is not None and not namespace:
        raise Refused(
            "webhookServer.tls.selfSigned needs to know the namespace of its Secret and Service: "
            "add --leader-elect-namespace"
        )


def refuse_directory(settings: Settings) -> None:
    discovery = settings.config.discovery
    if discovery.mode == KUBECONFIGS and not Path(discovery.kubeconfig_dir).is_dir():
        raise Refused(f"discovery.kubeconfigDir: {discovery.kubeconfig_dir} is not a directory")
    logs = settings.config.logs_server
    if logs is not None and logs.cell_kubeconfig_dir and not Path(logs.cell_kubeconfig_dir).is_dir():
        raise Refused(f"logsServer.cellKubeconfigDir: {logs.cell_kubeconfig_dir} is not a directory")


def _host(kubeconfig: str, environment: Mapping[str, str]) -> Endpoint:
    if kubeconfig:
        return _load("--kubeconfig", kubeconfig)
    try:
        return in_cluster(environment)
    except KubeconfigError as error:
        raise Unusable("--kubeconfig", error) from None


def _load(field: str, path: str, context: str = "") -> Endpoint:
    try:
        return load([Path(part) for part in path.split(os.pathsep)], context)
    except KubeconfigError as error:
        raise Unusable(field, error) from None


class _Connection(Struct, frozen=True):
    """A client of a plane, and its transport, which has to be closed."""

    http: HttpTransport
    client: Client


class Planes:
    """Creates planes and closes their connections when they leave; a member of the fleet, to be notified of that."""

    def __init__(self, writes: Writes, calls: Calls, generator: random.Random) -> None:
        self._writes = writes
        self._calls = calls
        self._generator = generator
        self._connections: dict[str, _Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def plane(
        self,
        name: str,
        role: str,
        endpoint: Endpoint,
        also: Iterable[str] = (),
        *,
        credentials: EndpointCredentials | None = None,
    ) -> Plane:
        """`credentials` are shared by planes derived from one kubeconfig, so that its plugin runs once for all."""
        transport = HttpTransport(endpoint, credentials=credentials, agent=_AGENT, answer_seconds=_ANSWER_SECONDS)
        counted = Counted(transport, self._calls, role)
        retrying = Retrying(counted, self._generator.random, policy=_PATIENCE)
        plane = Plane(name, role, retrying, writes=self._writes, generator=self._generator, also=also)
        self._connections[name] = _Connection(transport, plane.unguarded)
        return plane

    def transport(self, name: str) -> HttpTransport:
        """For answers that are not objects; `KeyError` for an unknown plane."""
        return self._connections[name].http

    def client(self, name: str) -> Client:
        """For calls that every replica makes, whether it leads or not; `KeyError` for an unknown plane."""
        return self._connections[name].client

    async def close(self) -> None:
        for name in list(self._connections):
            self._leave(name)
        await asyncio.gather(*self._closing)

    def _leave(self, name: str) -> None:
        connection = self._connections.pop(name, None)
        if connection is not None:
            closing = asyncio.get_running_loop().create_task(
                connection.http.close(for_good=True), name=f"leaving {name}"
            )
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    # As a member of the fleet

    def prepare(self, plane: Plane) -> None: ...

    def engaged(self, plane: Plane) -> None:
        _log.info("engaged", plane=plane.name, roles=plane.roles)

    def disengaged(self, plane: Plane) -> None:
        _log.info("left", plane=plane.name)
        self._leave(plane.name)
