"""One API server as project and cell: what works in projects does not look at the cell's namespaces."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from datum_compute.api.instance import INSTANCE
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.local.engine import compute_engine
from datum_compute.operator.separation import apart
from datum_compute.runtime.controller import Controller, Source, Sweeper, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes


class Seen:
    name = "seen"

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(PROJECT, INSTANCE, itself), Source(PROJECT, NAMESPACE))

    async def reconcile(self, pass_: Pass) -> None:
        self.requests.append(pass_.request)


class Sweeping(Seen):
    sweep_role = PROJECT
    sweep_seconds = 60.0

    def sweep(self, plane: Plane) -> Iterable[Request]:
        yield Request(plane.name, "default", "swept")


@pytest.fixture
def fleet(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Fleet]:
    async def build() -> tuple[Fleet, asyncio.Task[None]]:
        engine = compute_engine(clock=simulation, generator=simulation.random)
        transport = InProcess(engine.serve("single", PROJECT))
        fleet = Fleet()
        fleet.add(Plane("single", PROJECT, transport, writes=Writes(), generator=simulation.random, also=[CELL]))
        hub = InProcess(engine.serve("hub", HUB))
        fleet.add(Plane("hub", HUB, hub, writes=Writes(), generator=simulation.random))
        client = engine.client("single")
        await client.create(NAMESPACE, NAMESPACE.body("default"))
        await client.create(NAMESPACE, NAMESPACE.body("ns-1", labels=hub_labels("single", "default")))
        run = asyncio.create_task(fleet.run())
        await simulation.settle()
        return fleet, run

    fleet, run = runner.run(build())
    yield fleet

    async def stop() -> None:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    runner.run(stop())


@pytest.mark.parametrize(
    ("request_", "passes"),
    [
        (Request("single", "default", "web"), True),
        (Request("single", "ns-1", "web"), False),
        (Request("single", "", "cluster-wide"), True),
        (Request("single", "gone", "web"), True),
        (Request("hub", "ns-1", "web"), True),
    ],
)
async def test_it_sees_the_namespaces_of_projects(
    fleet: Fleet, simulation: Simulation, request_: Request, passes: bool
) -> None:
    seen = Seen()
    [one] = apart([seen], fleet, "single")
    await one.reconcile(Controller(one, fleet, simulation).new_pass(request_))
    assert bool(seen.requests) is passes


async def test_what_sweeps_still_sweeps_and_what_does_not_does_not(fleet: Fleet) -> None:
    plain, sweeping = apart([Seen(), Sweeping()], fleet, "single")
    assert not isinstance(plain, Sweeper)
    assert isinstance(sweeping, Sweeper)
    assert list(sweeping.sweep(fleet.plane("single"))) == [Request("single", "default", "swept")]
