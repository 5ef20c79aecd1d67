"""Scripted planes with one controller, for tests of the runtime. Entry points: `World`, `Recorder`."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from datum_compute.kube.inprocess import InProcess
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.controller import Controller
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.server import WIDGET, Server, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes

Act = Callable[[Request, Pass], Awaitable[None]]


class Recorder:
    """A reconciler that notes when it ran, and then does what the test says."""

    name = "recorder"

    def __init__(self, sources: Sequence[Source[Any]]) -> None:
        self._sources = sources
        self.ran: list[tuple[float, str]] = []
        self.act: Act | None = None

    def sources(self) -> Sequence[Source[Any]]:
        return self._sources

    async def reconcile(self, pass_: Pass) -> None:
        self.ran.append((asyncio.get_running_loop().time(), str(pass_.request)))
        if self.act is not None:
            await self.act(pass_.request, pass_)

    @property
    def requests(self) -> list[str]:
        return [request for _, request in self.ran]

    @property
    def gaps(self) -> list[float]:
        return [round(later - earlier, 6) for (earlier, _), (later, _) in pairwise(self.ran)]


class World:
    """A fleet of scripted planes with one controller on it."""

    def __init__(self, *sources: Source[Any], recorder: Recorder | None = None) -> None:
        self.fleet = Fleet()
        self.writes = Writes()
        self.recorder = recorder or Recorder(sources or (Source("east", WIDGET, itself),))
        self.controller = Controller(self.recorder, self.fleet, SystemClock())
        self.servers: dict[str, Server] = {}
        self.faults: dict[str, Faults] = {}

    def add(self, name: str, role: str = "east", server: Server | None = None) -> Server:
        self.servers[name] = server = server or self.servers.get(name) or Server()
        self.faults[name] = Faults(InProcess(server), random.Random(1))
        self.fleet.add(Plane(name, role, self.faults[name], writes=self.writes, generator=random.Random(1)))
        return server

    @asynccontextmanager
    async def running(self, simulation: Simulation) -> AsyncIterator[None]:
        async with background(self.fleet.run(), self.controller.run()):
            await simulation.settle()
            yield

    def has_run(self, times: int) -> Callable[[], Awaitable[bool]]:
        async def enough() -> bool:
            return len(self.recorder.ran) >= times

        return enough
