"""One controller on planes of its own, in a simulation; the test plays everybody else. Entry point: `Alone`."""

import asyncio
from collections.abc import Callable, Mapping

from datum_compute.embedded.engine import Engine
from datum_compute.embedded.store import CountedUids
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.transport import Transport
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.faults import Faults
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.simulation import Simulation
from datum_compute.runtime.writes import Writes


class Alone:
    """`planes` are served by role; between each and the controller stands a fault injector."""

    def __init__(self, simulation: Simulation, planes: Mapping[str, str], build: Callable[[Fleet], Reconciler]) -> None:
        self.simulation = simulation
        self.engine = Engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.writes = Writes()
        self.fleet = Fleet()
        self.faults: dict[str, Faults] = {}
        for name, role in planes.items():
            transport = self.transport(name, InProcess(self.engine.serve(name, role)))
            self.fleet.add(Plane(name, role, transport, writes=self.writes, generator=simulation.random))
        self.manager = Manager(self.fleet, [build(self.fleet)])
        (self.controller,) = self.manager.controllers.values()
        self._tasks: list[asyncio.Task[None]] = []

    def transport(self, plane: str, server: InProcess) -> Transport:
        self.faults[plane] = Faults(server, self.simulation.random)
        return self.faults[plane]

    async def run(self) -> None:
        self._tasks = [asyncio.create_task(self.engine.run()), asyncio.create_task(self.manager.run())]
        await self.settle()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.close()

    async def settle(self) -> None:
        await self.simulation.settle()
        assert self.controller.crashes == []
