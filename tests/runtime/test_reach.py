import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, ServerError, Timeout, TooManyRequests, Unavailable, from_status
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.reach import LONGEST_PROBE, FailFast, Reach
from datum_compute.runtime.requests import Request
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.telemetry.health import caches_follow
from datum_compute.runtime.testing.faults import Faults, calls, watches
from datum_compute.runtime.testing.server import GADGET, WIDGET, Server
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.runtime.world import World

ANSWER_SECONDS = 30.0


class Hanging:
    """Passes calls on, or lets them wait until nobody does any more, as a dead machine does."""

    def __init__(self, transport: Transport) -> None:
        self.hangs = False
        self.waiting = 0
        self.tried = 0
        self._transport = transport

    async def call(self, call: Call) -> Answer:
        await self._connect()
        return await self._transport.call(call)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        await self._connect()
        async with self._transport.stream(call) as lines:
            yield lines

    async def _connect(self) -> None:
        self.tried += 1
        if self.hangs:
            self.waiting += 1
            await asyncio.sleep(ANSWER_SECONDS)
            self.waiting -= 1
            raise Timeout("no answer in time")


class Setup:
    def __init__(self) -> None:
        self.server = Server()
        self.faults = Faults(InProcess(self.server), random.Random(1))
        self.hanging = Hanging(self.faults)
        self.reach = Reach(self.hanging)
        self.client = Client("p", FailFast(self.reach))
        self.returns: list[float] = []
        self.reach.on_return.append(lambda: self.returns.append(asyncio.get_running_loop().time()))

    async def ask(self) -> str:
        try:
            await self.client.list(WIDGET)
        except ApiError as error:
            return error.reason
        return "answered"

    @property
    def call_count(self) -> int:
        return len(self.server.calls)


@pytest.fixture
def setup() -> Setup:
    return Setup()


# Failing fast


async def test_while_a_plane_hangs_one_call_at_a_time_waits_for_it(setup: Setup, simulation: Simulation) -> None:
    setup.hanging.hangs = True
    assert await setup.ask() == "Timeout"
    waiting = [asyncio.create_task(setup.ask()) for _ in range(50)]
    began = simulation.time()
    await simulation.settle()
    assert setup.hanging.waiting == 1
    assert sum(task.done() and task.result() == "ServiceUnavailable" for task in waiting) == 49
    assert simulation.time() == began
    await asyncio.gather(*waiting)


async def test_a_call_that_fails_fast_names_the_plane_and_can_be_tried_again(setup: Setup) -> None:
    setup.faults.take_away()
    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            await setup.client.list(WIDGET)
        assert caught.value.plane == "p"
        assert caught.value.retryable


async def test_a_plane_that_is_away_is_tried_every_second_while_somebody_wants_it(setup: Setup) -> None:
    setup.faults.take_away()
    for _ in range(600):
        await setup.ask()
        await asyncio.sleep(0.1)
    assert 60 <= setup.hanging.tried <= 75
    setup.faults.bring_back()
    answers = []
    for _ in range(int(LONGEST_PROBE / 0.1) + 2):
        answers.append(await setup.ask())
        await asyncio.sleep(0.1)
    assert answers[-1] == "answered"
    assert len(setup.returns) == 1


@pytest.mark.parametrize("error", [ServerError("broken"), TooManyRequests("patience")])
async def test_an_error_of_the_server_itself_is_an_answer(setup: Setup, error: ApiError) -> None:
    setup.faults.answer(calls(), error)
    assert await setup.ask() == error.reason
    assert not setup.reach.silent
    assert await setup.ask() == "answered"
    assert setup.returns == []


async def test_errors_of_a_gateway_hold_back_no_call(setup: Setup) -> None:
    for nth in range(1, 6):
        setup.faults.answer(calls(), Unavailable("no healthy upstream"), nth=nth)
    assert [await setup.ask() for _ in range(6)] == ["ServiceUnavailable"] * 5 + ["answered"]
    assert len(setup.returns) == 1


@pytest.mark.parametrize("code", [403, 410, 429, 500, 502, 503, 504])
async def test_a_watch_that_is_refused_does_not_keep_calls_from_a_plane_that_answers(
    setup: Setup, simulation: Simulation, code: int
) -> None:
    for _ in range(20):
        setup.faults.answer(watches, from_status(code, b"", ""))
        with pytest.raises(ApiError):
            async with setup.client.watch(GADGET, "1", timeout_seconds=60):
                pass
        assert not setup.reach.silent
        assert await asyncio.gather(*(setup.ask() for _ in range(16))) == ["answered"] * 16


async def test_a_watch_that_breaks_off_does_not_keep_calls_from_a_plane_that_answers(setup: Setup) -> None:
    with pytest.raises(Unavailable):
        async with setup.client.watch(WIDGET, "100", timeout_seconds=60) as events:
            setup.faults.cut_watches()
            await anext(events)
    assert await asyncio.gather(*(setup.ask() for _ in range(16))) == ["answered"] * 16


@pytest.mark.parametrize("code", [403, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("way", ["call", "watch"])
async def test_any_answer_ends_the_silence(setup: Setup, simulation: Simulation, code: int, way: str) -> None:
    setup.faults.take_away()
    await setup.ask()
    assert setup.reach.silent
    setup.faults.bring_back()
    setup.faults.answer(calls(), from_status(code, b"", ""))
    with pytest.raises(ApiError):
        if way == "call":
            await setup.client.list(WIDGET)
        else:
            async with setup.client.watch(WIDGET, "1", timeout_seconds=60):
                pass
    assert not setup.reach.silent


async def test_one_lost_call_does_not_keep_the_next_from_the_plane(setup: Setup) -> None:
    setup.faults.fail(calls())
    assert [await setup.ask(), await setup.ask()] == ["ServiceUnavailable", "answered"]
    assert len(setup.returns) == 1


# Coming back


async def test_callbacks_become_rarer_for_a_plane_that_flaps(setup: Setup, simulation: Simulation) -> None:
    for _ in range(3000):
        setup.faults.fail(calls())
        await setup.ask()
        await setup.ask()
        await asyncio.sleep(0.1)
    gaps = [round(later - earlier) for earlier, later in zip(setup.returns, setup.returns[1:], strict=False)]
    assert gaps[:6] == [1, 2, 4, 8, 16, 30]
    assert set(gaps[6:]) == {30}
    await asyncio.sleep(100)
    setup.faults.fail(calls())
    await setup.ask()
    await setup.ask()
    assert setup.returns[-1] == simulation.time()


async def test_a_plane_that_is_away_again_is_not_reported_as_back(setup: Setup, simulation: Simulation) -> None:
    for _ in range(2):
        setup.faults.fail(calls())
        await setup.ask()
        await setup.ask()
    assert len(setup.returns) == 1  # the second is due in a second
    setup.faults.take_away()
    await setup.ask()
    await asyncio.sleep(60)
    assert len(setup.returns) == 1
    setup.faults.bring_back()
    assert await setup.ask() == "answered"
    assert len(setup.returns) == 2


# With a controller on it


async def test_keys_that_fail_on_one_call_and_succeed_on_another_do_not_run_in_a_hot_loop(
    simulation: Simulation,
) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        client = world.fleet.plane("a").client
        await client.list(WIDGET)
        world.faults["a"].fail(calls(path="gadgets"))
        await client.list(GADGET)

    world = World()
    world.recorder.act = act
    server = world.add("a")
    for name in "xyz":
        server.make(name)
    async with world.running(simulation):
        await asyncio.sleep(600)
        assert len(world.recorder.ran) < 3 * 16 * 30  # a dozen tries of each key every 30 s


@pytest.mark.parametrize("seed", range(5))
async def test_a_plane_that_hangs_holds_up_neither_workers_nor_its_own_recovery(
    simulation: Simulation, seed: int
) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        if request.name.startswith("far"):
            await world.fleet.plane("far").client.list(GADGET)

    world = World(Source("east", WIDGET, itself), Source("west", GADGET))
    world.recorder.act = act
    server = world.add("a")
    far = Server()
    hanging = Hanging(InProcess(far))
    world.fleet.add(Plane("far", "west", hanging, writes=Writes(), generator=random.Random(seed)))
    async with world.running(simulation):
        hanging.hangs = True
        far.end_watches()
        for number in range(20):
            server.make(f"far-{number}")
        await asyncio.sleep(2 * ANSWER_SECONDS)  # the first wave has found out
        world.recorder.ran.clear()
        for number in range(20):
            server.make(f"near-{number}")
        await simulation.settle()
        assert sum("near" in request for request in world.recorder.requests) == 20
        hanging.hangs = False
        world.recorder.ran.clear()
        await simulation.until(lambda: ran(world, "far", 20), within=ANSWER_SECONDS + 6)


async def ran(world: World, name: str, times: int) -> bool:
    return len({request for request in world.recorder.requests if name in request}) >= times


class Gateway:
    """Before a plane that is away: open streams fall silent, and everything new is refused."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.refuses = False

    async def call(self, call: Call) -> Answer:
        return Answer(503, b"no healthy upstream") if self.refuses else await self._transport.call(call)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.refuses:
            raise from_status(503, b"no healthy upstream", "")
        async with self._transport.stream(call) as lines:
            yield lines


async def test_a_plane_that_a_gateway_says_is_away_is_no_reason_to_restart(simulation: Simulation) -> None:
    world = World()
    server = Server()
    server.make("w")
    faults = Faults(InProcess(server), random.Random(1))
    gateway = Gateway(faults)
    world.fleet.add(Plane("p", "east", gateway, writes=Writes(), generator=random.Random(1)))
    async with world.running(simulation):
        check = caches_follow(world.fleet)
        gateway.refuses = True
        faults.silence_watches()
        for _ in range(60):
            await asyncio.sleep(60)
            check()
