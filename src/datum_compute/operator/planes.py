"""How a kubeconfig becomes a plane. Entry points: `Endpoints`, `Planes`."""

import asyncio
import os
import random
from collections.abc import Iterable, Mapping
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
        discovery = settings.config.discovery
        quota_path = discovery.quota_kubeconfig_path or discovery.project_kubeconfig_path
        milo = settings.projects and discovery.mode == MILO

        def host() -> Endpoint:
            if settings.kubeconfig:
                return _load("--kubeconfig", settings.kubeconfig)
            try:
                return in_cluster(environment)
            except KubeconfigError as error:
                raise Refused(f"--kubeconfig: {error}") from None

        def configured(field: str, path: str) -> Endpoint:
            return _load(f"discovery.{field}", path) if path else host()

        if settings.config.discovery.mode == KUBECONFIGS and not Path(discovery.kubeconfig_dir).is_dir():
            raise Refused(f"discovery.kubeconfigDir: {discovery.kubeconfig_dir} is not a directory")
        endpoints = cls(
            host=host() if settings.needs_host else None,
            hub=_load("--federation-kubeconfig", settings.federation_kubeconfig, settings.federation_context)
            if settings.federation_kubeconfig
            else None,
            root=configured("discoveryKubeconfigPath", discovery.discovery_kubeconfig_path) if milo else None,
            project=configured("projectKubeconfigPath", discovery.project_kubeconfig_path) if milo else None,
            quota=_load(f"discovery.{_quota_field(settings)}", quota_path) if quota_path else None,
            project_url=_INTERNAL_URL if discovery.internal_service_discovery else discovery.project_url_template,
        )
        endpoints.refuse_template()
        return endpoints

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


def _quota_field(settings: Settings) -> str:
    return "quotaKubeconfigPath" if settings.config.discovery.quota_kubeconfig_path else "projectKubeconfigPath"


def _load(field: str, path: str, context: str = "") -> Endpoint:
    try:
        return load([Path(part) for part in path.split(os.pathsep)], context)
    except KubeconfigError as error:
        raise Refused(f"{field}: {error}") from None


class _Connection(Struct, frozen=True):
    """A client of a plane, and its transport, which has to be closed."""

    http: HttpTransport
    client: Client


class Planes:
    """Creates planes and closes their connections when they leave; a member of the fleet, to be notified of that."""

    def __init__(self, writes: Writes, generator: random.Random) -> None:
        self._writes = writes
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
        retrying = Retrying(transport, self._generator.random, policy=_PATIENCE)
        plane = Plane(name, role, retrying, writes=self._writes, generator=self._generator, also=also)
        self._connections[name] = _Connection(transport, plane.unguarded)
        return plane

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
