"""A server that asks for no calls gets none from its whole plane, and other planes go on."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Conflict, Forbidden, ServerError, TooManyRequests, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime.caches.informer import State
from datum_compute.runtime.pace import Pace, Paced, Patient
from datum_compute.runtime.testing.faults import Faults, calls, writes
from datum_compute.runtime.testing.server import GADGET, NAMESPACE, WIDGET, Server
from datum_compute.runtime.testing.simulation import Simulation
from tests.runtime.world import World


class Setup:
    def __init__(self) -> None:
        self.server = Server()
        self.faults = Faults(InProcess(self.server), random.Random(1))
        pace = Pace("p", self.faults)
        self.client = Client("p", pace)
        self.patient = Client("p", Patient(pace, pace))


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def refused(setup: Setup, error: ApiError) -> None:
    setup.faults.answer(writes, error)
    with pytest.raises(type(error)):
        await setup.client.create(WIDGET, WIDGET.body("a", NAMESPACE))


@pytest.mark.parametrize("kind", [TooManyRequests, Unavailable, ServerError])
@pytest.mark.parametrize(("retry_after", "pause"), [(1, 1), (10, 10), (3600, 60)])
async def test_no_call_goes_out_before_retry_after_has_passed(
    setup: Setup, simulation: Simulation, kind: type[ApiError], retry_after: int, pause: float
) -> None:
    await refused(setup, kind("busy", retry_after=retry_after))
    for _ in range(2):
        with pytest.raises(Paced) as paced:
            await setup.client.list(WIDGET)
        assert paced.value.plane == "p"
        assert paced.value.retryable
        assert pause <= paced.value.retry_after < pause + 0.1
    with pytest.raises(Paced):
        async with setup.client.watch(WIDGET, "0", timeout_seconds=60):
            pass
    await simulation.advance(pause - 0.1)
    with pytest.raises(Paced):
        await setup.client.list(WIDGET)
    assert setup.server.calls == []
    await simulation.advance(0.1)
    assert (await setup.client.list(WIDGET)).items == []


@pytest.mark.parametrize(
    "error",
    [TooManyRequests("busy"), ServerError("broken"), Conflict("no", retry_after=9), Forbidden("no", retry_after=9)],
)
async def test_other_errors_pause_nothing(setup: Setup, error: ApiError) -> None:
    await refused(setup, error)
    assert (await setup.client.list(WIDGET)).items == []


async def test_the_longer_of_two_pauses_counts(setup: Setup, simulation: Simulation) -> None:
    setup.faults.slow_down(1, calls())
    setup.faults.answer(calls("GET"), TooManyRequests("busy", retry_after=30))
    setup.faults.answer(calls("POST"), TooManyRequests("busy", retry_after=5))
    both = asyncio.gather(
        setup.client.list(WIDGET), setup.client.create(WIDGET, WIDGET.body("a", NAMESPACE)), return_exceptions=True
    )
    assert [type(outcome) for outcome in await both] == [TooManyRequests, TooManyRequests]
    await simulation.advance(29)
    with pytest.raises(Paced):
        await setup.client.list(WIDGET)


async def test_a_watch_that_is_refused_pauses_too(setup: Setup) -> None:
    setup.faults.answer(calls(), TooManyRequests("busy", retry_after=5))
    with pytest.raises(TooManyRequests):
        async with setup.client.watch(WIDGET, "0", timeout_seconds=60):
            pass
    with pytest.raises(Paced):
        await setup.client.list(WIDGET)


async def test_an_error_in_the_middle_of_a_watch_pauses_too(setup: Setup, simulation: Simulation) -> None:
    async def watch() -> None:
        async with setup.client.watch(WIDGET, "0", timeout_seconds=60) as events:
            async for _ in events:
                pass

    watching = asyncio.create_task(watch())
    await simulation.settle()
    error = TooManyRequests("overloaded", retry_after=5)
    setup.server.send(encode({"type": "ERROR", "object": error.status()}))
    with pytest.raises(TooManyRequests):
        await watching
    with pytest.raises(Paced):
        await setup.client.list(WIDGET)


async def test_retries_after_a_pause_are_spaced(setup: Setup) -> None:
    await refused(setup, TooManyRequests("busy", retry_after=10))
    pauses = []
    for _ in range(300):
        with pytest.raises(Paced) as paced:
            await setup.client.list(WIDGET)
        pauses.append(paced.value.retry_after)
    assert pauses[:3] == [10, 10.01, 10.02]
    assert max(pauses) == 11


async def test_a_pause_requested_only_in_the_body_counts(simulation: Simulation) -> None:
    class Busy:
        async def call(self, call: Call) -> Answer:
            return Answer(429, encode(TooManyRequests("busy", retry_after=5).status()))

        def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
            raise NotImplementedError

    pace = Pace("p", Busy())
    assert (await pace.call(Call("GET", "/x"))).code == 429
    assert pace.left == 5


async def test_patience_waits_instead_of_failing(setup: Setup, simulation: Simulation) -> None:
    await refused(setup, TooManyRequests("busy", retry_after=10))
    assert (await setup.patient.list(WIDGET)).items == []
    assert simulation.time() == 10
    await refused(setup, TooManyRequests("busy", retry_after=5))
    async with setup.patient.watch(WIDGET, "0", timeout_seconds=60):
        assert simulation.time() == 15


async def test_caches_wait_as_well_and_follow_again(simulation: Simulation) -> None:
    world = World()
    server = world.add("a")
    async with world.running(simulation):
        plane = world.fleet.plane("a")
        world.faults["a"].answer(calls("POST"), TooManyRequests("busy", retry_after=30))
        with pytest.raises(TooManyRequests):
            await plane.client.create(GADGET, GADGET.body("g", NAMESPACE))
        world.faults["a"].cut_watches()
        server.calls.clear()
        server.make("w")
        await simulation.advance(29)
        assert server.calls == []
        await simulation.advance(2)
        assert plane.informer(WIDGET).get(NAMESPACE, "w") is not None
        assert plane.informer(WIDGET).state is State.WATCHING
