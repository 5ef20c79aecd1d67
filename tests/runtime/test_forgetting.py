"""Nothing is remembered about planes and objects that are gone."""

import asyncio
import gc
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from datum_compute.kube.client import Client
from datum_compute.kube.errors import Conflict, Forbidden, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.runtime.caches.informer import RELIST_SECONDS
from datum_compute.runtime.controller import STANDBY_AT_MOST
from datum_compute.runtime.damping import WINDOW
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.leases import Election
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request, Unfinished
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.telemetry.calls import Calls, Counted
from datum_compute.runtime.telemetry.table import RUNTIME
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.server import NAMESPACE, WIDGET, Server, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.conftest import count
from tests.metrics import Series, differences, samples

NAMES = ("writes", "fails", "conflicts", "unfinished", "waits", "slow")


class Worker:
    """Leaves as many traces as it can: each pass ends as the name of its widget says."""

    name = "worker"

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.remembered: set[Request] = set()

    def sources(self) -> Sequence[Source[Any]]:
        return (Source("east", WIDGET, itself, {"name": lambda widget: [widget.name]}),)

    def disengaged(self, plane: Plane) -> None:
        self.remembered = {request for request in self.remembered if request.plane != plane.name}

    async def reconcile(self, pass_: Pass) -> None:
        request = pass_.request
        self.ran.append(request.name)
        self.remembered.add(request)
        match request.name:
            case "writes":
                widget = pass_.get(WIDGET)
                assert widget is not None
                await pass_.write.status(widget, {"ready": True})
                pass_.events.normal(widget, "Ready", "it is")
            case "fails":
                raise Unavailable("away", plane=request.plane)
            case "conflicts":
                raise Conflict("changed", plane=request.plane)
            case "unfinished":
                raise Unfinished("not yet")
            case "waits":
                pass_.no_later_than(300)
            case "slow":  # still running when its plane has left
                await asyncio.sleep(3)
                self.remembered.add(request)
                widget = pass_.get(WIDGET)
                assert widget is not None
                await pass_.write.patch(widget, {"spec": {}})


class World:
    def __init__(self, simulation: Simulation, election: Election | None = None) -> None:
        self.simulation = simulation
        self.registry = CollectorRegistry()
        self.fleet, self.writes, self.calls = Fleet(), Writes(), Calls()
        self.worker = Worker()
        self.manager = Manager(
            self.fleet,
            [self.worker],
            simulation,
            election=election,
            registry=self.registry,
            writes=self.writes,
            calls=self.calls,
            prefix="oven_",
        )
        self.add("steady", *(f"calm-{number}" for number in range(300)))

    @property
    def controller(self) -> Any:
        return self.manager.controllers["worker"]

    def add(self, name: str, *widgets: str) -> Server:
        server = Server()
        for widget in widgets or NAMES:
            server.make(widget)
        faults = Faults(InProcess(server), self.simulation.random)
        transport = Counted(faults, self.calls, "east")
        self.fleet.add(Plane(name, "east", transport, writes=self.writes, generator=self.simulation.random))
        return server

    async def visit(self, *names: str) -> None:
        """Planes that come, are worked on, and go."""
        for name in names:
            self.add(name)
        await self.simulation.advance(0.001)
        assert all(map(self.fleet.has, names))
        for name in names:
            self.fleet.remove(name)
        await self.simulation.advance(2 * WINDOW + 1)  # what is remembered of writes for a while is over
        self.worker.ran.clear()

    def series(self) -> set[Series]:
        return set(samples(self.registry))

    async def traced(self) -> int:
        """Bytes in use, when the timers that were cancelled are over, and somebody has written since."""
        await self.simulation.advance(RELIST_SECONDS)
        await self.visit("last")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


@pytest.mark.timeout(300)  # a long run is heavy
async def test_planes_that_come_and_go_leave_nothing_behind(simulation: Simulation) -> None:
    tracemalloc.start()
    try:
        world = World(simulation)
        async with background(world.manager.run()):
            await world.visit(*(f"early-{number}" for number in range(50)))
            series, before = world.series(), await world.traced()
            for batch in range(count(4, 20)):
                await world.visit(*(f"plane-{batch}-{number}" for number in range(50)))
            assert world.series() == series
            assert await world.traced() <= before * 1.05
            assert {request.plane for request in world.worker.remembered} == {"steady"}
    finally:
        tracemalloc.stop()


async def test_a_thousand_planes_that_come_and_go_leave_the_series_as_they_were(simulation: Simulation) -> None:
    """Some refuse their caches, so that failures are counted too. While they are here, each adds no more than its own
    health and its own writes."""
    world = World(simulation)
    async with background(world.manager.run()):

        async def visit(batch: str) -> set[Series]:
            names = [f"{batch}-{number}" for number in range(250)]
            for name in names:
                server = world.add(name, "writes")
                server.refuse = [Forbidden("no")] if name.endswith("7") else []
            await simulation.advance(10)
            present = world.series()
            for name in names:
                world.fleet.remove(name)
            await simulation.advance(2 * WINDOW + 1)
            return present

        await visit("first")
        before = world.series()
        for batch in ("a", "b", "c", "d"):
            added = await visit(batch) - before
            assert {name for name, _ in added} == {"oven_plane_up", "oven_api_writes_total"}
            assert sum(name == "oven_plane_up" for name, _ in added) == 250
            assert len(added) <= 250 * 4  # up, a status, and an event that may be repeated
        assert world.series() == before
        assert any(name == "oven_plane_failures_total" for name, _ in before)
        assert differences(world.registry, [metric.with_prefix("oven_") for metric in RUNTIME]) == set()


async def test_writes_of_planes_that_left_are_still_part_of_the_total(simulation: Simulation) -> None:
    world = World(simulation)
    async with background(world.manager.run()):
        await world.visit("a", "b")
        assert world.writes.counts == {}
        made = world.writes.total()
        assert made == world.writes.total("worker") >= 4  # a status and an event on each, one of them counted late
        await world.visit("a")
        assert world.writes.total() > made


# One that waits for its turn


class Standby:
    """A replica that never leads, until it is let."""

    def __init__(self, simulation: Simulation) -> None:
        host = Server()
        self.other = Election(
            Client("host", InProcess(host)), NAMESPACE, "lead", "other", simulation, simulation.random
        )
        own = Election(Client("host", InProcess(host)), NAMESPACE, "lead", "own", simulation, simulation.random)
        self.world = World(simulation, own)


async def test_a_standby_queues_a_bounded_number_of_requests(simulation: Simulation) -> None:
    standby = Standby(simulation)
    await standby.other.acquire()
    world = standby.world
    async with background(world.manager.run(), standby.other.hold()):
        server = world.add("busy")
        await simulation.settle()
        for number in range(0, 3 * STANDBY_AT_MOST, 1000):
            for name in range(number, number + 1000):
                server.make(f"w-{name}")
                server.remove(f"w-{name}")
            await simulation.settle()
            assert len(world.controller.queue) <= STANDBY_AT_MOST


async def test_a_standby_that_dropped_requests_looks_at_everything_when_it_leads(simulation: Simulation) -> None:
    standby = Standby(simulation)
    await standby.other.acquire()
    world = standby.world
    holding = asyncio.create_task(standby.other.hold())
    async with background(world.manager.run()):
        server = world.add("busy")
        await simulation.settle()
        for name in range(STANDBY_AT_MOST + 1):
            server.make(f"gone-{name}")
            server.remove(f"gone-{name}")
        server.make("late")
        await simulation.settle()
        assert world.worker.ran == []
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await standby.other.release()
        await simulation.advance(5)
        ran = world.worker.ran
        assert set(NAMES) <= set(ran)
        assert ran.index("late") < min(ran.index(name) for name in NAMES), "what changed last comes first"
        assert "gone-0" not in ran
