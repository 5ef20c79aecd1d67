"""Everything that one compute-manager runs, put together. Entry point: `Assembly`."""

import asyncio
import random
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from datum_compute.cell.quota import nobody_knows
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT, ROOT
from datum_compute.kube.client import Client
from datum_compute.kube.credentials import EndpointCredentials
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kubeconfig import Endpoint
from datum_compute.operator.config import KUBECONFIGS, MILO, SINGLE
from datum_compute.operator.directory import DirectoryDiscovery, KubeconfigDirectory
from datum_compute.operator.discovery import ClaimDiscovery, ProjectDiscovery
from datum_compute.operator.planes import CELL_PLANE, HUB_PLANE, ROOT_PLANE, Endpoints, Planes
from datum_compute.operator.separation import apart
from datum_compute.operator.settings import NETWORK, Refused, Settings
from datum_compute.operator.stand_ins import in_cell, in_projects, provider
from datum_compute.operator.wiring import cell_controllers, management_controllers
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Controller, Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.health import Check, Heartbeat, Probes, Unwell, caches_follow, engaged
from datum_compute.runtime.leases import Election
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.metrics import process_registry
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.writes import Writes

HOST = "@host"


class Assembly:
    """Built on a running loop. `run` works until `stop` or a lost lease; then `close` ends the connections.

    Finding and engaging projects is done on every replica, whether it leads or not: its caches are warm when its turn
    comes, and admission is asked of any.
    """

    def __init__(self, settings: Settings, endpoints: Endpoints, *, clock: Clock, generator: random.Random) -> None:
        self._settings = settings
        self._endpoints = endpoints
        self._clock = clock
        self._generator = generator
        self._writes = Writes()
        self.registry = process_registry()
        self.fleet = Fleet()
        self.planes = Planes(self._writes, generator)
        self.fleet.join(self.planes)
        self._heartbeat = Heartbeat()
        self._background: list[Callable[[], Awaitable[None]]] = [self._heartbeat.run]
        self._own: list[str] = []  # planes without which there is nothing to do
        self._discovery: ProjectDiscovery | DirectoryDiscovery | None = None
        # One for all planes that are reached with it: a plugin is run once, not once a project.
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
            election=self._election() if settings.leader_elect else None,
            registry=self.registry,
            writes=self._writes,
            prefix="compute_",
        )

    @property
    def host(self) -> Client:
        """The cluster that the process works for, for what every replica asks of it."""
        assert self._host is not None
        return Client(HOST, self._host)

    async def run(self) -> None:
        """Raises `LeaseLost` when another replica may be at work."""
        work = asyncio.create_task(self.manager.run(), name="manager")
        tasks = [work, *(asyncio.ensure_future(run()) for run in self._background)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks[1:]:
                task.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            with suppress(asyncio.CancelledError):
                task.result()

    def stop(self) -> None:
        """Lets passes that run end; `run` returns then."""
        self.manager.stop()

    async def close(self) -> None:
        await self.planes.close()
        if self._host is not None:
            await self._host.close()

    def probes(self) -> Probes:
        """Alive while the loop and the caches keep up; ready when this replica could take over, and admit."""
        ready: dict[str, Check] = {"caches-synced": engaged(self.fleet, *self._own)}
        match discovery := self._discovery:
            case ProjectDiscovery():
                ready["project-discovery-synced"] = discovery.synced
                ready["projects-engaged"] = partial(_all_engaged, discovery)
            case DirectoryDiscovery():
                ready["projects-engaged"] = partial(_all_engaged, discovery)
        live: dict[str, Check] = {"loop": self._heartbeat.check, "caches": caches_follow(self.fleet)}
        return Probes(live, ready)

    # What it works on

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
            found = ProjectDiscovery(self.fleet, self._milo_project, internal=discovery.internal_service_discovery)
            self._background.append(Controller(found, self.fleet).run)
            self._discovery = found
        elif settings.projects and discovery.mode == KUBECONFIGS:
            listed = DirectoryDiscovery(self.fleet, Path(discovery.kubeconfig_dir), self._project)
            self._background.append(listed.run)
            self._discovery = listed
        if settings.cell and settings.quota and not settings.projects:
            self._find_claims()

    def _find_claims(self) -> None:
        """A cell alone asks for quota where its namespaces say; beside management the projects are here already."""
        discovery = self._settings.config.discovery
        if discovery.mode != KUBECONFIGS:
            claims = Controller(ClaimDiscovery(self.fleet, self._milo_claims), self.fleet)
            self._background.append(claims.run)
            return

        def changed(project: str) -> None:
            if self.fleet.knows(project):
                self.fleet.remove(project)
            claims.enqueue(Request(CELL_PLANE, "", CELL_PLANE))

        directory = KubeconfigDirectory(Path(discovery.kubeconfig_dir), changed)

        def listed(project: str) -> Plane:
            return self.planes.plane(project, CLAIMS, directory.endpoint(project))

        claims = Controller(ClaimDiscovery(self.fleet, listed), self.fleet)
        self._background += [claims.run, directory.run]

    def _milo_project(self, name: str) -> Plane:
        return self._project(name, self._endpoints.of_project(name), self._project_credentials)

    def _project(self, name: str, endpoint: Endpoint, credentials: EndpointCredentials | None = None) -> Plane:
        claimed = self._settings.cell and self._settings.quota
        also = [CLAIMS] if claimed else []
        return self.planes.plane(name, PROJECT, endpoint, also, credentials=credentials)

    def _milo_claims(self, name: str) -> Plane:
        endpoint = self._endpoints.of_quota(name)
        return self.planes.plane(name, CLAIMS, endpoint, credentials=self._claim_credentials)

    # What it does there

    def _controllers(self) -> list[Reconciler]:
        settings = self._settings
        of_projects: list[Reconciler] = []
        of_cell: list[Reconciler] = []
        if settings.management:
            of_projects += management_controllers(
                self.fleet, self._clock, HUB_PLANE, networking=settings.networking, registry=self.registry
            )
            of_projects += in_projects(settings.builtins, self.fleet, self._clock)
        if settings.cell:
            of_cell += cell_controllers(
                self.fleet,
                self._clock,
                lambda plane: settings.cluster_name,
                networking=settings.networking,
                registry=self.registry,
                named=bool(settings.config.discovery.cluster_name),
                recreate_denied=settings.recreate_denied_claims,
                is_gone=self._discovery.is_gone if isinstance(self._discovery, ProjectDiscovery) else nobody_knows,
                quota=settings.quota,
                write_back=self._endpoints.hub is not None,
            )
            of_cell += in_cell(settings.builtins, self.fleet, self._clock, networking=settings.networking)
            addressed = settings.networking and NETWORK in settings.builtins
            of_cell += provider(settings.provider, self.fleet, self._clock, addressed=addressed)
        if settings.shared:
            of_projects = apart(of_projects, self.fleet, SINGLE)
        return [*of_projects, *of_cell]

    def _election(self) -> Election:
        namespace = self._settings.leader_elect_namespace or (self._endpoints.host and self._endpoints.host.namespace)
        if not namespace:
            raise Refused("--leader-elect needs to know where the lease lives: add --leader-elect-namespace")
        identity = f"{socket.gethostname()}_{uuid.UUID(int=self._generator.getrandbits(128), version=4)}"
        return Election(self.host, namespace, self._settings.lease, identity, self._clock, self._generator)


def _credentials(endpoint: Endpoint | None) -> EndpointCredentials | None:
    return EndpointCredentials(endpoint) if endpoint is not None else None


def _needed(endpoint: Endpoint | None) -> Endpoint:
    assert endpoint is not None, "settings decide what is needed, and endpoints are read by them"
    return endpoint


def _all_engaged(discovery: ProjectDiscovery | DirectoryDiscovery) -> bool:
    if waiting := discovery.waiting():
        raise Unwell(f"{len(waiting)} projects are not engaged yet")
    return True
