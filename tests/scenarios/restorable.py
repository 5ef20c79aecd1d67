"""A federation of which single planes can be restored to an earlier moment. Entry point: `RestorableFederation`.

Each plane has an engine and a log of its own; a snapshot is a copy of the rows. Management, Karmada's part and each
cell are processes of their own, which can be stopped and started.
"""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.storage.log import Log, Row
from datum_compute.embedded.storage.records import CountedUids, Key
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT, ROOT
from datum_compute.karmada.cluster_readiness import ClusterReadiness
from datum_compute.karmada.execution_spaces import ExecutionSpaces
from datum_compute.karmada.propagation import NamespacePropagation, Propagation
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject
from datum_compute.kube.transport import Answer, Call
from datum_compute.local.engine import compute_engine
from datum_compute.local.federation import HUB_PLANE, ROOT_PLANE, prepare_project
from datum_compute.operator.controllers import cell_controllers, management_controllers
from datum_compute.operator.discovery import ClaimDiscovery, ProjectDiscovery
from datum_compute.platform.entitlement import EntitlementController
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.platform.projects import ProjectController
from datum_compute.platform.quota import QuotaBroker
from datum_compute.providers.simulated import SimulatedProvider
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.scenarios.life import BEHAVIOUR

CITIES = {"DFW": "cell-dfw", "ORD": "cell-ord"}
PROJECTS = ("demo",)
LIMITS = {type_: 100 * limit for type_, limit in DEFAULT_LIMITS.items()}
MANAGEMENT, KARMADA, PLATFORM = "management", "karmada", "platform"

Snapshot = tuple[Row, ...]


class _Uids(CountedUids):
    """Those of a restored server are new ones, also for names that it has used before."""

    def __init__(self, restores: int) -> None:
        super().__init__()
        self._restores = restores

    def assign(self, key: Key, uncommitted: int) -> str:
        counted = super().assign(key, uncommitted)
        if not self._restores:
            return counted
        return str(uuid.UUID(bytes=hashlib.sha256(f"{counted}/{self._restores}".encode()).digest()[:16], version=4))


class _Wire:
    """A transport to whichever server serves the plane at the moment."""

    def __init__(self, server: Callable[[], InProcess]) -> None:
        self._server = server

    async def call(self, call: Call) -> Answer:
        return await self._server().call(call)

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._server().stream(call)


class Planes:
    """Every plane over a log of its own."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._engines: dict[str, Engine] = {}
        self._roles: dict[str, str] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._restores = 0

    def open(self, plane: str, role: str) -> None:
        if plane not in self._engines:
            self._serve(plane, role, ())

    def wire(self, plane: str) -> _Wire:
        return _Wire(lambda: self._server(plane))

    def _server(self, plane: str) -> InProcess:
        if plane not in self._engines:
            raise Unavailable(f"{plane} is down")
        return InProcess(self._engines[plane].serve(plane, self._roles[plane]))

    def client(self, plane: str) -> Client:
        return Client(plane, self.wire(plane))

    def has_deleted(self, plane: str, kind: Kind[Any], copy: KubeObject, uid: str) -> bool:
        return self._engines[plane].has_deleted(plane, kind, copy, uid)

    def snapshot(self, plane: str) -> Snapshot:
        return tuple(self._engines[plane].log.rows())

    async def restore(self, plane: str, snapshot: Snapshot) -> None:
        """The server goes down, and comes back with what it knew then."""
        self._restores += 1
        engine = self._engines.pop(plane)
        engine.leave(plane)
        await _ended(self._runs.pop(plane))
        engine.close()
        self._serve(plane, self._roles[plane], snapshot)

    async def close(self) -> None:
        for run in self._runs.values():
            await _ended(run)

    def _serve(self, plane: str, role: str, rows: Iterable[Row]) -> None:
        log = Log()
        log.append(list(rows))
        simulation = self._simulation
        engine = compute_engine(log, clock=simulation, uids=_Uids(self._restores), generator=simulation.random)
        engine.serve(plane, role)
        self._engines[plane], self._roles[plane] = engine, role
        self._runs[plane] = asyncio.create_task(engine.run(), name=f"server/{plane}")


class Process:
    """One operator: its own fleet and caches; it can be ended and started again, remembering nothing."""

    def __init__(self, planes: Planes, simulation: Simulation, build: Callable[["Process"], list[Reconciler]]) -> None:
        self._planes = planes
        self._simulation = simulation
        self._build = build
        self._run: asyncio.Task[None] | None = None
        self.fleet: Fleet
        self.manager: Manager

    def plane(self, name: str, role: str) -> Plane:
        return Plane(name, role, self._planes.wire(name), writes=self.writes, generator=self._simulation.random)

    @property
    def is_up(self) -> bool:
        return self._run is not None

    @property
    def is_running(self) -> bool:
        return self._run is not None and not self._run.done()

    def start(self) -> None:
        assert self._run is None
        self.fleet, self.writes = Fleet(), Writes()
        self.manager = Manager(self.fleet, self._build(self), self._simulation)
        self._run = asyncio.create_task(self.manager.run())

    async def stop(self) -> None:
        if self._run is not None:
            await _ended(self._run)
            self._run = None
            self.check()

    def check(self) -> None:
        for controller in self.manager.controllers.values():
            for crash in controller.crashes:
                raise crash


class RestorableFederation:
    """By default one project, a hub, and two cells."""

    def __init__(
        self,
        simulation: Simulation,
        projects: Sequence[str] = PROJECTS,
        cities: Mapping[str, str] = CITIES,
    ) -> None:
        self.simulation = simulation
        self._projects = projects
        self._cities = cities
        self.planes = Planes(simulation)
        for name, role in {ROOT_PLANE: ROOT, HUB_PLANE: HUB, **dict.fromkeys(cities.values(), CELL)}.items():
            self.planes.open(name, role)
        self.root = self.planes.client(ROOT_PLANE)
        self.hub = self.planes.client(HUB_PLANE)
        self.cells: Mapping[str, Client] = {city: self.planes.client(cell) for city, cell in cities.items()}
        builders: dict[str, Callable[[Process], list[Reconciler]]] = {
            PLATFORM: self._platform,
            KARMADA: self._karmada,
            MANAGEMENT: self._management,
            **{cell: partial(self._cell, cell) for cell in cities.values()},
        }
        self.processes = {name: Process(self.planes, simulation, build) for name, build in builders.items()}

    def project_client(self, project: str) -> Client:
        return self.planes.client(project)

    def user_client(self, project: str) -> Client:
        return self.planes.client(project)

    async def start(self) -> None:
        for city, cell in self._cities.items():
            await self.hub.create(CLUSTER, CLUSTER.body(cell, labels={TOPOLOGY_CITY: city}))
        for project in self._projects:
            await self.planes.client(ROOT_PLANE).create(PROJECT_KIND, PROJECT_KIND.body(project) | {"spec": {}})
        self.up(*self.processes)
        for project in self._projects:
            await self.until(partial(self.is_open, project), 30, f"project {project} is open")
            await prepare_project(self.project_client(project))
            await self.until(partial(self._offers, project), 30, f"{project} has cities")

    async def stop(self) -> None:
        await self.down(*self.processes)
        await self.planes.close()

    def up(self, *names: str) -> None:
        for name in names:
            if not self.processes[name].is_up:
                self.processes[name].start()

    async def down(self, *names: str) -> None:
        for name in names:
            await self.processes[name].stop()

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float, what: str) -> None:
        await self.simulation.until(condition, within, what)
        self.check()

    async def advance(self, seconds: float) -> None:
        await self.simulation.advance(seconds)
        self.check()

    def check(self) -> None:
        for process in self.processes.values():
            if process.is_up:
                process.check()

    def managers(self) -> dict[str, Manager]:
        """Of the processes that are up, by name."""
        return {name: process.manager for name, process in self.processes.items() if process.is_up}

    @property
    def running(self) -> bool:
        return all(process.is_running for process in self.processes.values())

    async def is_open(self, project: str) -> bool:
        try:
            await self.planes.client(project).list(LOCATION_BINDING)
        except Unavailable:
            return False
        return True

    async def _offers(self, project: str) -> bool:
        return len((await self.project_client(project).list(LOCATION_BINDING)).items) == len(self._cities)

    # What each process runs

    def _platform(self, process: Process) -> list[Reconciler]:
        fleet = process.fleet
        fleet.add(process.plane(ROOT_PLANE, ROOT))
        return [
            ProjectController(self._open),
            ProjectDiscovery(fleet, lambda name: process.plane(name, PROJECT)),
            EntitlementController(cities=tuple(self._cities), limits=LIMITS),
            QuotaBroker(),
        ]

    def _open(self, name: str) -> Client:
        self.planes.open(name, PROJECT)
        return self.planes.client(name)

    def _karmada(self, process: Process) -> list[Reconciler]:
        for name, role in {HUB_PLANE: HUB, **dict.fromkeys(self._cities.values(), CELL)}.items():
            process.fleet.add(process.plane(name, role))
        return [
            NamespacePropagation(process.fleet, HUB_PLANE, self.planes.has_deleted),
            Propagation(process.fleet, HUB_PLANE, self.planes.has_deleted),
            ClusterReadiness(process.fleet),
            ExecutionSpaces(),
        ]

    def _management(self, process: Process) -> list[Reconciler]:
        for name, role in {ROOT_PLANE: ROOT, HUB_PLANE: HUB}.items():
            process.fleet.add(process.plane(name, role))
        return [
            ProjectDiscovery(process.fleet, lambda name: process.plane(name, PROJECT)),
            *management_controllers(process.fleet, HUB_PLANE),
        ]

    def _cell(self, cell: str, process: Process) -> list[Reconciler]:
        for name, role in {HUB_PLANE: HUB, cell: CELL}.items():
            process.fleet.add(process.plane(name, role))
        return [
            ClaimDiscovery(process.fleet, lambda name: process.plane(name, CLAIMS)),
            *cell_controllers(process.fleet, self.simulation, lambda plane: plane.name),
            SimulatedProvider(BEHAVIOUR),
        ]


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
