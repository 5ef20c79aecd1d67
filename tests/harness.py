"""One or a few controllers on simulated planes; the test plays everybody else. Entry point: `ControllerHarness`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from datum_compute.embedded.storage.records import CountedUids
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.transport import Transport
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.clock import ShiftedClock
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes


class ControllerHarness:
    """Serves `planes` by role, with a fault injector between each plane and the controllers.

    `controller` is the first controller that `build` returns.
    """

    def __init__(
        self,
        simulation: Simulation,
        planes: Mapping[str, str],
        build: Callable[[Fleet], Reconciler | Sequence[Reconciler]],
    ) -> None:
        self.simulation = simulation
        self.clock = ShiftedClock(simulation)  # clock of the machine that runs the controllers
        self.engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self._planes = dict(planes)
        self._tasks: list[asyncio.Task[None]] = []
        self._begin(build)

    def _begin(self, build: Callable[[Fleet], Reconciler | Sequence[Reconciler]]) -> None:
        self.writes = Writes()
        self.fleet = Fleet()
        self.faults: dict[str, Faults] = {}
        for name, role in self._planes.items():
            transport = self.transport(name, InProcess(self.engine.serve(name, role)))
            self.fleet.add(Plane(name, role, transport, writes=self.writes, generator=self.simulation.random))
        built = build(self.fleet)
        self.manager = Manager(self.fleet, built if isinstance(built, Sequence) else [built], self.clock)
        self.controller = next(iter(self.manager.controllers.values()))

    def transport(self, plane: str, server: InProcess) -> Transport:
        self.faults[plane] = Faults(server, self.simulation.random)
        return self.faults[plane]

    async def run(self) -> None:
        self._tasks = [asyncio.create_task(self.engine.run())]
        await self.start_controllers()

    async def replace(self, build: Callable[[Fleet], Reconciler | Sequence[Reconciler]]) -> None:
        """Replaces the controllers on the same planes; `start_controllers` starts the new ones."""
        ended = self._tasks.pop()
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        self._begin(build)

    async def start_controllers(self) -> None:
        self._tasks.append(asyncio.create_task(self.manager.run()))
        await self.settle()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.close()

    async def settle(self) -> None:
        await self.simulation.settle()
        for controller in self.manager.controllers.values():
            assert controller.crashes == []
