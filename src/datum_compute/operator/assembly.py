"""Everything that one compute-manager runs, put together. Entry point: `Assembly`."""

import asyncio
import platform
import random
import socket
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from datum_compute import __version__
from datum_compute.cell.claims import never_gone
from datum_compute.cell.ledger import Ledger
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.name_lease import NameLease
from datum_compute.cell.quota_gate import NAME as QUOTA_GATE
from datum_compute.federation.metrics import BUILD_INFO
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT, ROOT
from datum_compute.kube.access.credentials import EndpointCredentials
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.client import Client
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.tracing import Tracer
from datum_compute.operator.builtins import in_cell, in_projects, provider
from datum_compute.operator.config import KUBECONFIGS, MILO, SINGLE
from datum_compute.operator.controllers import cell_controllers, management_controllers
from datum_compute.operator.directory import DirectoryDiscovery, KubeconfigDirectory
from datum_compute.operator.discovery import ClaimDiscovery, ProjectDiscovery
from datum_compute.operator.metrics import HOST as HOST_ROLE
from datum_compute.operator.metrics import PREFIX
from datum_compute.operator.planes import (
    CELL_PLANE,
    HUB_PLANE,
    ROOT_PLANE,
    Endpoints,
    Planes,
    own_namespace,
    refuse_homeless_lease,
)
from datum_compute.operator.settings import NETWORK, Settings
from datum_compute.runtime import (
    Clock,
    Controller,
    Election,
    Fleet,
    Manager,
    Plane,
    Probes,
    Reconciler,
    Request,
    Writes,
    all_tried,
    away,
    engaged,
    latched,
)
from datum_compute.runtime.tasks import first
from datum_compute.runtime.telemetry.calls import Calls, Counted
from datum_compute.runtime.telemetry.health import Check, Note, Unhealthy
from datum_compute.runtime.telemetry.metrics import process_registry

HOST = "@host"


class Assembly:
    """Built on a running loop. `run` works until `stop` or a lost lease; then `close` ends the connections.

    Every replica finds and engages projects, whether it leads or not: its caches are warm when its turn comes, and any
    replica may be called for admission.
    """

    def __init__(
        self,
        settings: Settings,
        endpoints: Endpoints,
        *,
        clock: Clock,
        generator: random.Random,
        tracer: Tracer | None = None,
    ) -> None:
        self._settings = settings
        self._endpoints = endpoints
        self.clock = clock
        self._generator = generator
        self._writes = Writes(clock)
        self._calls = Calls()
        self.registry = process_registry()
        BUILD_INFO.gauge(self.registry).labels(__version__, platform.python_version()).set(1)
        self.fleet = Fleet()
        self.planes = Planes(self._writes, self._calls, generator)
        self.fleet.join(self.planes)
        self._leaving = False
        self._background: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._own: list[str] = []  # planes without which this process can do nothing
        self._discovery: ProjectDiscovery | DirectoryDiscovery | None = None
        self._name_lease = self._exclusive_name()
        self._ledger = Ledger(self.own_namespace or "default", QUOTA_GATE) if settings.abandon_claims_after else None
        # Shared by all planes reached with them: a plugin runs once, not once per project.
        self._host_credentials = _credentials(endpoints.host)
        self._project_credentials = _credentials(endpoints.project)
        self._claim_credentials = _credentials(endpoints.quota)
        self._host = (
            HttpTransport(endpoints.host, credentials=self._host_credentials) if endpoints.host is not None else None
        )
        self._add_fixed_planes()
        self._find_projects()
        self.manager = Manager(
            self.fleet,
            self._controllers(),
            clock,
            election=self._election() if settings.leader_elect else None,
            registry=self.registry,
            writes=self._writes,
            calls=self._calls,
            prefix=PREFIX,
            tracer=tracer,
        )

    @property
    def host(self) -> Client:
        """The cluster that the process works for, for calls that every replica makes."""
        assert self._host is not None
        return Client(HOST, Counted(self._host, self._calls, HOST_ROLE))

    async def run(self) -> None:
        """Raises `LeaseLost` when another replica may be at work."""
        await first(self.manager.run(), *(run() for run in self._background))

    def leave(self) -> None:
        """Stops after a delay in which work continues but this replica is not ready, so that it gets no more calls.

        A second call stops it at once.
        """
        if self._leaving:
            self.stop()
            return
        self._leaving = True
        asyncio.get_running_loop().call_later(self._settings.shutdown_delay, self.stop)

    def stop(self) -> None:
        """Lets running passes finish; then `run` returns."""
        self._leaving = True
        self.manager.stop()

    async def close(self) -> None:
        await self.planes.close()
        if self._host is not None:
            await self._host.close()

    def probes(self) -> Probes:
        """Alive while the loop and the caches keep up; ready when this replica could take over, and admit.

        Once ready it stays ready until it stops: a project that appears or fails later says nothing about this replica.
        """
        ready: dict[str, Check] = {
            "shutdown": self._stays,
            "caches-synced": latched(engaged(self.fleet, *self._own)),
            "planes-tried": latched(all_tried(self.fleet)),
        }
        match discovery := self._discovery:
            case ProjectDiscovery():
                ready["project-discovery-synced"] = latched(discovery.synced)
                ready["projects-engaged"] = latched(partial(_all_tried, discovery))
            case DirectoryDiscovery():
                ready["projects-engaged"] = latched(partial(_all_tried, discovery))
        notes: dict[str, Note] = {"planes": away(self.fleet)}
        if (lease := self._name_lease) is not None:
            notes["cell-name"] = lambda: lease.obstacle if self.manager.working else ""  # only the leader takes it
        return Probes(self.manager.live_checks(), ready, notes=notes)

    def _stays(self) -> bool:
        if self._leaving:
            raise Unhealthy("the process is stopping")
        return True

    # Planes

    def _add_fixed_planes(self) -> None:
        settings, endpoints = self._settings, self._endpoints
        if endpoints.hub is not None:
            self.fleet.add(self.planes.plane(HUB_PLANE, HUB, endpoints.hub))
        if settings.projects and settings.config.discovery.mode == SINGLE:
            also = [CELL, *([CLAIMS] if settings.quota else [])] if settings.shared else []
            self.fleet.add(self._at_host(SINGLE, PROJECT, also))
            self._own.append(SINGLE)
        if settings.cell and not settings.shared:
            self.fleet.add(self._at_host(CELL_PLANE, CELL))
            self._own.append(CELL_PLANE)

    def _at_host(self, name: str, role: str, also: Sequence[str] = ()) -> Plane:
        return self.planes.plane(name, role, _needed(self._endpoints.host), also, credentials=self._host_credentials)

    def _find_projects(self) -> None:
        settings, discovery = self._settings, self._settings.config.discovery
        if settings.projects and discovery.mode == MILO:
            self.fleet.add(self.planes.plane(ROOT_PLANE, ROOT, _needed(self._endpoints.root)))
            projects = ProjectDiscovery(self.fleet, self._milo_project, internal=discovery.internal_service_discovery)
            self._background.append(Controller(projects, self.fleet, self.clock).run)
            self._discovery = projects
        elif settings.projects and discovery.mode == KUBECONFIGS:
            directory = DirectoryDiscovery(
                self.fleet,
                Path(discovery.kubeconfig_dir),
                self._project,
                trusted=settings.trust_project_kubeconfigs,
            )
            self._background.append(directory.run)
            self._discovery = directory
        if settings.cell and settings.quota and not settings.projects:
            self._find_claims()

    def _find_claims(self) -> None:
        """A cell alone claims quota in the projects that its namespaces name; management knows the projects already."""
        discovery = self._settings.config.discovery
        if discovery.mode != KUBECONFIGS:
            claims = Controller(ClaimDiscovery(self.fleet, self._milo_claims, self._abandoned), self.fleet, self.clock)
            self._background.append(claims.run)
            return

        def changed(project: str) -> None:
            if self.fleet.knows(project):
                self.fleet.remove(project)
            claims.enqueue(Request(CELL_PLANE, "", CELL_PLANE))

        directory = KubeconfigDirectory(
            Path(discovery.kubeconfig_dir), changed, trusted=self._settings.trust_project_kubeconfigs
        )

        def plane_of(project: str) -> Plane:
            return self.planes.plane(project, CLAIMS, directory.endpoint(project))

        claims = Controller(ClaimDiscovery(self.fleet, plane_of, self._abandoned), self.fleet, self.clock)
        self._background += [claims.run, directory.run]

    def _abandoned(self) -> Iterable[str]:
        """Projects in which a claim is still to be deleted, even when the cell runs nothing else for them."""
        return self._ledger.projects() if self._ledger is not None else ()

    def _milo_project(self, name: str) -> Plane:
        return self._project(name, self._endpoints.of_project(name), self._project_credentials)

    def _project(self, name: str, endpoint: Endpoint, credentials: EndpointCredentials | None = None) -> Plane:
        claimed = self._settings.cell and self._settings.quota
        also = [CLAIMS] if claimed else []
        return self.planes.plane(name, PROJECT, endpoint, also, credentials=credentials)

    def _milo_claims(self, name: str) -> Plane:
        endpoint = self._endpoints.of_quota(name)
        return self.planes.plane(name, CLAIMS, endpoint, credentials=self._claim_credentials)

    # Controllers

    def _controllers(self) -> list[Reconciler]:
        settings = self._settings
        of_projects: list[Reconciler] = []
        of_cell: list[Reconciler] = []
        if settings.management:
            of_projects += management_controllers(
                self.fleet,
                HUB_PLANE,
                networking=settings.networking,
                registry=self.registry,
                remove_leftovers=settings.remove_leftovers,
                leftover_grace=settings.leftover_grace,
            )
            of_projects += in_projects(settings.builtins, self.fleet, settings.config.default_grants)
        if settings.cell:
            of_cell += [self._name_lease] if self._name_lease is not None else []
            of_cell += cell_controllers(
                self.fleet,
                self.clock,
                lambda plane: settings.cluster_name,
                networking=settings.networking,
                metrics=Metrics(self.registry),
                named=bool(settings.config.discovery.cluster_name),
                recreate_denied=settings.recreate_denied_claims,
                is_gone=self._discovery.is_gone if isinstance(self._discovery, ProjectDiscovery) else never_gone,
                ledger=self._ledger,
                abandon_after=settings.abandon_claims_after,
                quota=settings.quota,
                remove_leftovers=settings.remove_leftovers,
                leftover_grace=settings.leftover_grace,
                write_back=self._endpoints.hub is not None,
            )
            of_cell += in_cell(settings.builtins, networking=settings.networking)
            addressed = settings.networking and NETWORK in settings.builtins
            of_cell += provider(settings.provider, addressed=addressed, pods=settings.config.pods)
        return [*of_projects, *of_cell]

    def _exclusive_name(self) -> NameLease | None:
        """None for a cell without a configured name: such cells all share the default one."""
        settings = self._settings
        if not (settings.cell and settings.config.discovery.cluster_name and self._endpoints.hub is not None):
            return None
        return NameLease(self.fleet, self.clock, settings.cluster_name, registry=self.registry)

    @property
    def own_namespace(self) -> str:
        """The namespace for this process's own objects."""
        return own_namespace(self._settings, self._endpoints.host)

    def _election(self) -> Election:
        refuse_homeless_lease(self._settings, self.own_namespace)
        identity = f"{socket.gethostname()}_{uuid.UUID(int=self._generator.getrandbits(128), version=4)}"
        return Election(self.host, self.own_namespace, self._settings.lease, identity, self.clock, self._generator)


def _credentials(endpoint: Endpoint | None) -> EndpointCredentials | None:
    return EndpointCredentials(endpoint) if endpoint is not None else None


def _needed(endpoint: Endpoint | None) -> Endpoint:
    assert endpoint is not None, "Endpoints.read loads every endpoint that the settings need"
    return endpoint


def _all_tried(discovery: ProjectDiscovery | DirectoryDiscovery) -> bool:
    """Every project was tried: one that is unreachable must not keep admission from all the others."""
    if not discovery.synced():
        raise Unhealthy("it is not known yet which projects there are")
    if untried := discovery.untried():
        raise Unhealthy(f"{len(untried)} projects were not tried yet")
    return True
