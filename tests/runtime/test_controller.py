import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from datum_compute.kube.errors import ApiError, Conflict, Invalid, ServerError, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.meta import ObjectMeta, owner_reference
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.runtime.controller import CRASHES_KEPT, Controller, Source, controller_of, itself
from datum_compute.runtime.faults import Faults
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished
from datum_compute.runtime.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.runtime.scripted import GADGET, NAMESPACE, WIDGET, Server, background

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

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        self.ran.append((asyncio.get_running_loop().time(), str(request)))
        if self.act is not None:
            await self.act(request, pass_)

    @property
    def requests(self) -> list[str]:
        return [request for _, request in self.ran]

    @property
    def gaps(self) -> list[float]:
        return [round(later - earlier, 6) for (earlier, _), (later, _) in pairwise(self.ran)]


class World:
    """A fleet of scripted planes with one controller on it."""

    def __init__(self, *sources: Source[Any]) -> None:
        self.fleet = Fleet()
        self.recorder = Recorder(sources or (Source("east", WIDGET, itself),))
        self.controller = Controller(self.recorder, self.fleet)
        self.servers: dict[str, Server] = {}
        self.faults: dict[str, Faults] = {}

    def add(self, name: str, role: str = "east", server: Server | None = None) -> Server:
        self.servers[name] = server = server or self.servers.get(name) or Server()
        self.faults[name] = Faults(InProcess(server), random.Random(1))
        self.fleet.add(Plane(name, role, self.faults[name], writes=Writes(), generator=random.Random(1)))
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


def request(plane: str = "a", name: str = "w") -> Request:
    return Request(plane, NAMESPACE, name)


def raising(error: Exception, floor: float | None = None) -> Act:
    async def act(request: Request, pass_: Pass) -> None:
        pass_.no_later_than(floor)
        raise error

    return act


# Requests


@pytest.mark.parametrize(("plane", "name"), [("", "w"), ("a", ""), ("", "")])
def test_a_request_without_a_plane_or_a_name_cannot_be_built(plane: str, name: str) -> None:
    with pytest.raises(ValueError, match="needs the name"):
        Request(plane, NAMESPACE, name)


async def test_every_object_and_every_change_becomes_a_request_on_its_plane(simulation: Simulation) -> None:
    world = World()
    for plane in ("a", "b"):
        world.add(plane).make(f"on-{plane}")
    world.add("c", role="west").make("on-c")
    async with world.running(simulation):
        assert sorted(world.recorder.requests) == ["a:default/on-a", "b:default/on-b"]
        world.servers["b"].remove("on-b")
        await simulation.settle()
        assert world.recorder.requests[2:] == ["b:default/on-b"]


async def test_a_source_without_a_map_is_only_cached(simulation: Simulation) -> None:
    world = World(Source("east", WIDGET, indexes={"name": lambda widget: [widget.name]}))
    world.add("a").make("w")
    async with world.running(simulation):
        [widget] = world.fleet.plane("a").informer(WIDGET).by("name", "w")
        assert widget.name == "w"
        assert world.recorder.ran == []


async def test_an_owned_object_asks_for_its_controller_old_and_new(simulation: Simulation) -> None:
    def owned_by(name: str) -> list[dict[str, Any]]:
        return [
            owner_reference(WIDGET.api_version, "Widget", ObjectMeta(name=name, uid=f"uid-{name}"), controller=True)
        ]

    world = World(Source("east", GADGET, controller_of(WIDGET)))
    server = world.add("a")
    server.make("g", GADGET, ownerReferences=owned_by("first"))
    server.make("lonely", GADGET)
    async with world.running(simulation):
        assert world.recorder.requests == ["a:default/first"]
        server.change("g", {"metadata": {"ownerReferences": owned_by("second")}}, GADGET)
        await simulation.settle()
        assert sorted(world.recorder.requests[1:]) == ["a:default/first", "a:default/second"]


# Events that lead nowhere


def to_plane_in_label(plane: Plane, change: Change[Any]) -> Iterable[Request | Drop]:
    yield Request(change.object.metadata.labels["to"], NAMESPACE, change.object.name)


async def test_a_map_may_lead_to_another_plane(simulation: Simulation) -> None:
    world = World(Source("west", WIDGET, to_plane_in_label))
    world.add("a")
    world.add("c", role="west").make("w", labels={"to": "a"})
    async with world.running(simulation):
        world.servers["c"].change("w")
        await simulation.settle()
        assert "a:default/w" in world.recorder.requests


async def test_an_event_for_a_plane_that_is_not_engaged_is_dropped_and_counted(simulation: Simulation) -> None:
    world = World(Source("west", WIDGET, to_plane_in_label))
    world.add("c", role="west").make("w", labels={"to": "nowhere"})
    async with world.running(simulation):
        world.controller.enqueue(request("elsewhere"))
        await simulation.settle()
        assert world.recorder.ran == []
        assert world.controller.dropped["plane_not_engaged"] == 2
        assert world.controller.crashes == []


async def test_what_led_to_a_plane_runs_when_that_plane_comes(simulation: Simulation) -> None:
    world = World(Source("west", WIDGET, to_plane_in_label))
    world.add("c", role="west").make("w", labels={"to": "a"})
    async with world.running(simulation):
        assert world.recorder.ran == []
        world.add("a")
        await simulation.settle()
        assert world.recorder.requests == ["a:default/w"]


async def test_a_map_may_drop_an_event_for_a_reason(simulation: Simulation) -> None:
    world = World(Source("east", WIDGET, lambda plane, change: [Drop("not_ours")]))
    world.add("a").make("w")
    async with world.running(simulation):
        assert world.controller.dropped == {"not_ours": 1}


def unreadable(plane: Plane, change: Change[Any]) -> Iterable[Request | Drop]:
    yield from [msgspec.json.decode(b"{")]


def without_plane(plane: Plane, change: Change[Any]) -> Iterable[Request | Drop]:
    yield Request(change.object.metadata.labels.get("to", ""), NAMESPACE, change.object.name)


@pytest.mark.parametrize(
    ("broken", "reason", "crashes"), [(unreadable, "unreadable", 0), (without_plane, "crashed", 1)]
)
async def test_a_map_that_cannot_read_an_object_stops_nothing_else(
    simulation: Simulation, broken: Callable[[Plane, Change[Any]], Iterable[Request | Drop]], reason: str, crashes: int
) -> None:
    world = World(Source("east", GADGET, broken), Source("east", WIDGET, itself))
    server = world.add("a")
    async with world.running(simulation):
        server.make("g", GADGET)
        await simulation.settle()
        server.make("w")
        await simulation.settle()
        assert world.recorder.requests == ["a:default/w"]
        assert world.controller.dropped == {reason: 1}
        assert len(world.controller.crashes) == crashes
        assert world.fleet.plane("a").informer(GADGET).get(NAMESPACE, "g") is not None


# How a pass ends, and when the next one is


@pytest.mark.parametrize(
    "outcome",
    [None, Conflict("changed"), ServerError("no"), Invalid("never"), Unfinished("not yet"), LookupError("a defect")],
    ids=["success", "conflict", "server error", "invalid", "unfinished", "crash"],
)
async def test_the_floor_is_kept_however_the_pass_ends(simulation: Simulation, outcome: Exception | None) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        pass_.no_later_than(None)
        pass_.no_later_than(0.5)
        pass_.no_later_than(7)
        if outcome is not None:
            raise outcome

    world = World()
    world.recorder.act = act
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(60)
        assert len(world.recorder.ran) >= 120
        assert max(world.recorder.gaps) == 0.5
        if outcome is None:
            assert set(world.recorder.gaps) == {0.5}
        assert len(world.controller.crashes) == (CRASHES_KEPT if isinstance(outcome, LookupError) else 0)


async def test_success_without_a_floor_is_the_end(simulation: Simulation) -> None:
    world = World()
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(3600)
        assert len(world.recorder.ran) == 1


async def test_a_failure_runs_again_with_backoff_up_to_30_s(simulation: Simulation) -> None:
    world = World()
    world.recorder.act = raising(ServerError("no"))
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(200)
        assert world.recorder.gaps[:4] == [0.005, 0.01, 0.02, 0.04]
        assert max(world.recorder.gaps) == 30


async def test_a_success_resets_the_backoff(simulation: Simulation) -> None:
    world = World()
    world.recorder.act = raising(ServerError("no"))
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(100)
        world.recorder.act = None
        await asyncio.sleep(100)
        world.recorder.act = raising(ServerError("no"))
        world.recorder.ran.clear()
        world.controller.enqueue(request())
        await simulation.until(world.has_run(3), within=1)
        assert world.recorder.gaps == [0.005, 0.01]


async def test_a_conflict_runs_again_soon_and_is_no_failure(simulation: Simulation) -> None:
    world = World()
    world.recorder.act = raising(Conflict("changed"))
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(60)
        assert world.recorder.gaps[:3] == [0.01, 0.02, 0.04]
        assert max(world.recorder.gaps) == 1
        world.recorder.act = raising(ServerError("no"))
        world.recorder.ran.clear()
        await simulation.until(world.has_run(2), within=2)
        assert world.recorder.gaps == [0.005]


async def test_a_change_during_a_pass_runs_it_again(simulation: Simulation) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        await asyncio.sleep(10)

    world = World()
    world.recorder.act = act
    server = world.add("a")
    server.make("w")
    async with world.running(simulation):
        server.change("w")
        await asyncio.sleep(3600)
        assert world.recorder.gaps == [10]


async def test_a_crash_stops_neither_other_keys_nor_the_controller(simulation: Simulation) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        if request.name == "bad":
            raise LookupError("a defect")

    world = World()
    world.recorder.act = act
    server = world.add("a")
    server.make("bad")
    server.make("good")
    async with world.running(simulation):
        await asyncio.sleep(60)
        assert world.recorder.requests.count("a:default/good") == 1
        assert world.recorder.requests.count("a:default/bad") > 10


# Planes that go away


class Gateway:
    """Answers for a plane that is away, as the load balancer in front of it does."""

    def __init__(self, transport: Transport) -> None:
        self.down = False
        self._transport = transport

    async def call(self, call: Call) -> Answer:
        await asyncio.sleep(0)
        return Answer(503, b"no healthy upstream") if self.down else await self._transport.call(call)

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._stream(call)

    @asynccontextmanager
    async def _stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.down:
            raise Unavailable("no healthy upstream")
        async with self._transport.stream(call) as lines:
            yield lines


def reading(world: World, plane: str) -> Act:
    async def act(request: Request, pass_: Pass) -> None:
        await world.fleet.plane(plane).client.list(WIDGET)

    return act


@pytest.mark.parametrize("way", ["away", "behind a gateway"])
@pytest.mark.parametrize("seed", range(3))
async def test_failed_keys_run_at_once_when_their_plane_returns(simulation: Simulation, way: str, seed: int) -> None:
    world = World(Source("east", WIDGET, itself), Source("west", GADGET))
    world.recorder.act = reading(world, "c")
    world.add("a").make("w")
    server = Server()
    faults = Faults(InProcess(server), random.Random(1))
    gateway = Gateway(faults)
    world.fleet.add(Plane("c", "west", gateway, writes=Writes(), generator=random.Random(1)))
    async with world.running(simulation):
        world.recorder.ran.clear()
        if way == "away":
            faults.take_away()
        else:
            gateway.down = True
            server.end_watches()
        world.controller.enqueue(request())
        await asyncio.sleep(120)
        tried = len(world.recorder.ran)
        assert tried < 20
        await simulation.until(world.has_run(tried + 1), within=30)  # the next one would be in 30 s
        server.calls.clear()
        faults.bring_back()
        gateway.down = False
        await simulation.until(world.has_run(tried + 2), within=6)
        assert len(server.calls) >= 2  # the informer's, and at once the key's
        await asyncio.sleep(3600)
        assert len(world.recorder.ran) == tried + 2


async def test_a_key_that_has_succeeded_since_does_not_run_again_when_its_plane_returns(simulation: Simulation) -> None:
    world = World()
    world.recorder.act = raising(ServerError("once", plane="a"))
    world.add("a").make("w")
    async with world.running(simulation):
        world.recorder.act = None
        await simulation.until(world.has_run(2), within=1)
        world.faults["a"].take_away()
        await asyncio.sleep(60)
        world.faults["a"].bring_back()
        await asyncio.sleep(60)
        assert len(world.recorder.ran) == 2


@pytest.mark.parametrize("seed", range(5))
async def test_a_plane_that_never_answers_does_not_hold_up_another(simulation: Simulation, seed: int) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        await world.fleet.plane(request.plane).client.list(WIDGET)

    world = World()
    world.recorder.act = act
    for plane in "abc":
        world.add(plane)
    async with world.running(simulation):
        for plane in "ab":
            world.servers[plane].answering.clear()
            for number in range(50):
                world.servers[plane].make(f"w{number}")
        await simulation.settle()
        for number in range(20):
            world.servers["c"].make(f"w{number}")
            await simulation.settle()
        assert sum(request.startswith("c:") for request in world.recorder.requests) == 20
        for plane in "ab":
            world.servers[plane].answering.set()
        await simulation.settle()
        assert len(set(world.recorder.requests)) == 120


async def test_a_plane_that_is_gone_takes_its_work_with_it(simulation: Simulation) -> None:
    outcomes: dict[str, Act] = {
        "failing": raising(ServerError("no", plane="a")),
        "changed": raising(Conflict("changed", plane="a")),
        "waiting": raising(ServerError("no", plane="a"), floor=60),
    }

    async def act(request: Request, pass_: Pass) -> None:
        await outcomes[request.name](request, pass_)

    world = World()
    world.recorder.act = act
    server = world.add("a")
    for name in outcomes:
        server.make(name)
    async with world.running(simulation):
        await asyncio.sleep(100)
        world.fleet.remove("a")
        world.recorder.ran.clear()
        server.change("failing")
        await asyncio.sleep(3600)
        assert world.recorder.ran == []
        assert not world.controller.dropped


async def test_a_pass_for_a_plane_that_went_meanwhile_is_dropped(simulation: Simulation) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        pass_.no_later_than(1)
        await asyncio.sleep(10)

    world = World()
    world.recorder.act = act
    world.add("a").make("w")
    async with world.running(simulation):
        world.fleet.remove("a")
        await asyncio.sleep(3600)
        assert len(world.recorder.ran) == 1
        assert world.controller.dropped == {"plane_not_engaged": 1}


async def test_a_plane_that_comes_again_is_listed_again(simulation: Simulation) -> None:
    world = World()
    world.add("a").make("w")
    async with world.running(simulation):
        world.fleet.remove("a")
        await simulation.settle()
        world.add("a")
        await simulation.settle()
        assert world.recorder.requests == ["a:default/w", "a:default/w"]


async def test_an_api_error_names_its_plane(simulation: Simulation) -> None:
    world = World()
    world.add("a")
    async with world.running(simulation):
        world.faults["a"].take_away()
        with pytest.raises(ApiError) as caught:
            await world.fleet.plane("a").client.list(WIDGET)
        assert caught.value.plane == "a"
