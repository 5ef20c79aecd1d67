"""The same federation as separate processes would run it: management in one, each cell in its own.

Nothing is shared but the planes, so a cell learns of a grant only from its watch or by polling.
"""

import asyncio
from collections.abc import Iterable

from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT, ROOT
from datum_compute.karmada.propagation import NamespacePropagation, Propagation
from datum_compute.kube.client import Client
from datum_compute.kube.inprocess import InProcess
from datum_compute.local.engine import compute_engine
from datum_compute.local.federation import HUB_PLANE, ROOT_PLANE
from datum_compute.operator.controllers import cell_controllers, management_controllers
from datum_compute.operator.discovery import ClaimDiscovery, ProjectDiscovery
from datum_compute.platform.entitlement import EntitlementController
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.platform.projects import ProjectController
from datum_compute.providers.simulated import Behaviour, SimulatedProvider
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.clock import ShiftedClock
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes

CITY, CELL_NAME = "DFW", "cell-dfw"
PROJECT_NAME = "demo"


class Process:
    """One operator: its own fleet, caches and counted writes."""

    def __init__(self, engine: Engine, simulation: Simulation) -> None:
        self.fleet = Fleet()
        self.writes = Writes()
        self.faults: dict[str, Faults] = {}
        self.manager: Manager
        self._engine = engine
        self._simulation = simulation

    def plane(self, name: str, role: str, also: Iterable[str] = (), serve_as: str = "") -> Plane:
        server = self._engine.serve(name, serve_as or role)
        self.faults[name] = Faults(InProcess(server), self._simulation.random)
        generator = self._simulation.random
        return Plane(name, role, self.faults[name], writes=self.writes, generator=generator, also=also)

    def start(self, reconcilers: Iterable[Reconciler], clock: Clock) -> "asyncio.Task[None]":
        self.manager = Manager(self.fleet, list(reconcilers), clock)
        return asyncio.create_task(self.manager.run())


class SplitFederation:
    """One project, one cell. Quota is decided by the test, which plays Milo."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.engine = compute_engine(
            clock=simulation, clock_of=self._clock_of, uids=CountedUids(), generator=simulation.random
        )
        self.management = Process(self.engine, simulation)
        self.cell = Process(self.engine, simulation)
        self.cell_clock = ShiftedClock(simulation)  # of the cell's machine: set `ahead` to let it differ
        self._tasks: list[asyncio.Task[None]] = []

    def _clock_of(self, plane: str) -> Clock:
        return self.cell_clock if plane == CELL_NAME else self.simulation

    def client(self, plane: str) -> Client:
        return self.engine.client(plane)

    async def start(self) -> None:
        management, cell = self.management, self.cell
        for plane in (
            management.plane(ROOT_PLANE, ROOT),
            management.plane(HUB_PLANE, HUB),
            management.plane(CELL_NAME, CELL),
        ):
            management.fleet.add(plane)
        for plane in (cell.plane(HUB_PLANE, HUB), cell.plane(CELL_NAME, CELL)):
            cell.fleet.add(plane)
        await self.client(HUB_PLANE).create(CLUSTER, CLUSTER.body(CELL_NAME, labels={TOPOLOGY_CITY: CITY}))
        await self.client(ROOT_PLANE).create(PROJECT_KIND, PROJECT_KIND.body(PROJECT_NAME) | {"spec": {}})
        self._tasks = [
            asyncio.create_task(self.engine.run()),
            management.start(
                [
                    ProjectController(self._open),
                    ProjectDiscovery(management.fleet, lambda name: management.plane(name, PROJECT)),
                    EntitlementController(cities=[CITY], limits=DEFAULT_LIMITS),
                    *management_controllers(management.fleet, HUB_PLANE),
                    NamespacePropagation(management.fleet, HUB_PLANE, self.engine.has_deleted),
                    Propagation(management.fleet, HUB_PLANE, self.engine.has_deleted),
                ],
                self.simulation,
            ),
            cell.start(
                [
                    ClaimDiscovery(cell.fleet, lambda name: cell.plane(name, CLAIMS, serve_as=PROJECT)),
                    *cell_controllers(cell.fleet, self.cell_clock, lambda plane: plane.name),
                    SimulatedProvider(Behaviour()),
                ],
                self.cell_clock,
            ),
        ]

    def _open(self, name: str) -> Client:
        self.engine.serve(name, PROJECT)
        return self.client(name)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in (self.management, self.cell):
            for controller in process.manager.controllers.values():
                assert controller.crashes == []
