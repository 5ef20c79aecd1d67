import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import pytest

from datum_compute.kube.errors import ApiError, Conflict, Invalid, ServerError, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.meta import ObjectMeta, owner_reference
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.runtime.controller import CRASHES_KEPT, Source, controller_of, itself
from datum_compute.runtime.faults import Faults
from datum_compute.runtime.informer import UNSERVED_SECONDS, Change
from datum_compute.runtime.missed import Missed
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished
from datum_compute.runtime.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.runtime.scripted import GADGET, NAMESPACE, WIDGET, Server, Widget
from tests.runtime.world import Act, Recorder, World


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


# Predicates


async def test_changes_that_the_predicate_refuses_are_not_even_mapped(simulation: Simulation) -> None:
    def only_blue(change: Change[Widget]) -> bool:
        return change.object.metadata.labels.get("colour") == "blue"

    world = World(Source("east", WIDGET, itself, when=only_blue))
    server = world.add("a")
    server.make("red", labels={"colour": "red"})
    server.make("blue", labels={"colour": "blue"})
    async with world.running(simulation):
        server.change("red")
        await simulation.settle()
        assert world.recorder.requests == ["a:default/blue"]
        server.change("red", {"metadata": {"labels": {"colour": "blue"}}})
        await simulation.settle()
        assert world.recorder.requests == ["a:default/blue", "a:default/red"]


async def test_a_predicate_that_crashes_is_a_defect_and_stops_nothing(simulation: Simulation) -> None:
    world = World(Source("east", GADGET, itself, when=lambda change: 1 / 0 > 0), Source("east", WIDGET, itself))
    server = world.add("a")
    server.make("g", GADGET)
    server.make("w")
    async with world.running(simulation):
        assert world.recorder.requests == ["a:default/w"]
        assert world.controller.dropped == {"crashed": 1}


# Kinds that a plane need not have


async def test_a_kind_that_is_not_served_now_is_watched_when_it_appears(simulation: Simulation) -> None:
    world = World(Source("east", WIDGET, itself), Source("east", GADGET, itself, optional=True))
    server = world.add("a")
    server.unserved = {GADGET.plural}
    server.make("w")
    async with world.running(simulation):
        plane = world.fleet.plane("a")
        assert (plane.serves(WIDGET), plane.serves(GADGET)) == (True, False)
        assert plane.informer(GADGET).all() == []
        assert world.recorder.requests == ["a:default/w"]
        await asyncio.sleep(3600)
        assert 10 < server.listed(GADGET) < 16  # slowly
        assert server.watched(GADGET) == 0
        server.unserved.clear()
        server.make("g", GADGET)
        await simulation.until(world.has_run(2), within=UNSERVED_SECONDS * 1.1)
        assert plane.serves(GADGET)
        server.make("h", GADGET)
        await simulation.settle()
        assert world.recorder.requests[1:] == ["a:default/g", "a:default/h"]


async def test_a_kind_that_disappears_takes_its_objects_with_it(simulation: Simulation) -> None:
    world = World(Source("east", GADGET, itself, optional=True))
    server = world.add("a")
    server.make("g", GADGET)
    async with world.running(simulation):
        server.unserved = {GADGET.plural}
        server.end_watches()
        await simulation.until(world.has_run(2), within=10)
        plane = world.fleet.plane("a")
        assert plane.informer(GADGET).all() == []
        assert not plane.serves(GADGET)
        server.unserved.clear()
        await simulation.until(world.has_run(3), within=UNSERVED_SECONDS * 1.1)
        assert plane.informer(GADGET).get(NAMESPACE, "g") is not None


async def test_a_kind_that_somebody_needs_is_not_optional(simulation: Simulation) -> None:
    world = World(Source("east", GADGET, itself, optional=True), Source("east", GADGET))
    world.add("a").unserved = {GADGET.plural}
    async with world.running(simulation):
        await asyncio.sleep(60)
        assert not world.fleet.has("a")
        world.servers["a"].unserved.clear()
        await asyncio.sleep(6)
        assert world.fleet.has("a")


async def test_a_kind_cannot_be_kept_in_two_forms(simulation: Simulation) -> None:
    world = World(Source("east", WIDGET, transform=lambda widget: widget), Source("east", WIDGET))
    plane = Plane("a", "east", InProcess(Server()), writes=Writes(), generator=random.Random(1))
    with pytest.raises(ValueError, match=r"widgets\.example\.test on plane a cannot be kept in two forms"):
        world.controller.prepare(plane)


# Sweeps


class Sweeping(Recorder):
    sweep_role = "east"
    sweep_seconds = 60.0

    def __init__(self) -> None:
        super().__init__([Source("east", WIDGET), Source("west", WIDGET)])
        self.swept: list[tuple[float, str]] = []
        self.crash = False

    def sweep(self, plane: Plane) -> Iterable[Request | Drop]:
        self.swept.append((asyncio.get_running_loop().time(), plane.name))
        if self.crash:
            raise LookupError("a defect")
        for widget in plane.informer(WIDGET).all():
            yield Request(plane.name, widget.namespace, widget.name)


async def test_a_sweep_is_made_when_a_plane_comes_and_regularly_until_it_goes(simulation: Simulation) -> None:
    sweeping = Sweeping()
    world = World(recorder=sweeping)
    world.add("a").make("w")
    world.add("c", role="west").make("w")
    async with world.running(simulation):
        await asyncio.sleep(150)
        assert sweeping.swept == [(0, "a"), (60, "a"), (120, "a")]
        assert world.recorder.ran == [(0, "a:default/w"), (60, "a:default/w"), (120, "a:default/w")]
        world.fleet.remove("a")
        await asyncio.sleep(600)
        assert len(sweeping.swept) == 3


async def test_a_sweep_that_crashes_is_made_again(simulation: Simulation) -> None:
    sweeping = Sweeping()
    sweeping.crash = True
    world = World(recorder=sweeping)
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(90)
        assert len(sweeping.swept) == len(world.controller.crashes) == 2
        sweeping.crash = False
        await asyncio.sleep(60)
        assert world.recorder.requests == ["a:default/w"]


# How long a change has waited


async def test_a_pass_knows_when_the_oldest_change_it_looks_at_came_in(simulation: Simulation) -> None:
    seen: list[float] = []
    outcomes: list[Exception | None] = [None, None, ServerError("no"), Conflict("changed"), None]

    async def act(request: Request, pass_: Pass) -> None:
        seen.append(pass_.since)
        await asyncio.sleep(10)
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    world = World()
    world.recorder.act = act
    server = world.add("a")
    server.make("w")
    async with world.running(simulation):
        await asyncio.sleep(4)
        server.change("w")  # while the first pass runs
        await asyncio.sleep(96)
        server.change("w")  # fails, meets a conflict, succeeds
        await asyncio.sleep(3600)
        assert seen == [0, 4, 100, 100, 100]


async def test_a_floor_that_comes_due_is_no_old_change(simulation: Simulation) -> None:
    seen: list[float] = []

    async def act(request: Request, pass_: Pass) -> None:
        pass_.no_later_than(60)
        seen.append(pass_.since)

    world = World()
    world.recorder.act = act
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(130)
        assert seen == [0, 60, 120]


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


async def grouped(*errors: Exception) -> None:
    """Raises as things done at once in a task group do."""

    async def fail(error: Exception) -> None:
        raise error

    async with asyncio.TaskGroup() as tasks:
        for error in errors:
            tasks.create_task(fail(error))


@pytest.mark.parametrize(
    ("errors", "gap", "crashes"),
    [
        ([Conflict("changed")], 0.01, 0),
        ([ServerError("no")], 0.005, 0),
        ([Conflict("changed"), ServerError("no")], 0.005, 0),
        ([Conflict("changed"), LookupError("a defect"), ServerError("no")], 0.005, 1),
    ],
)
async def test_of_what_failed_at_once_the_worst_counts(
    simulation: Simulation, errors: list[Exception], gap: float, crashes: int
) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        if len(world.recorder.ran) == 1:
            await grouped(*errors)

    world = World()
    world.recorder.act = act
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(60)
        assert world.recorder.gaps == [gap]
        assert len(world.controller.crashes) == crashes


async def test_a_failure_in_a_group_is_made_up_for_when_its_plane_returns(simulation: Simulation) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.fleet.plane("c").client.list(GADGET))

    world = World(Source("east", WIDGET, itself), Source("west", GADGET))
    world.recorder.act = act
    world.add("a").make("w")
    world.add("c", role="west")
    async with world.running(simulation):
        world.faults["c"].take_away()
        world.controller.enqueue(request())
        await asyncio.sleep(120)
        world.faults["c"].bring_back()
        tried = len(world.recorder.ran)
        await simulation.until(world.has_run(tried + 1), within=6)


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


@pytest.mark.parametrize("name", ["c", "west", "east"])
async def test_what_needs_a_plane_of_a_role_runs_when_one_comes(simulation: Simulation, name: str) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        world.fleet.only("west")

    world = World(Source("east", WIDGET, itself))
    world.recorder.act = act
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(100)
        tried = len(world.recorder.ran)
        world.add(name, role="west")
        await simulation.settle()
        assert len(world.recorder.ran) == tried + 1
        await asyncio.sleep(3600)
        assert len(world.recorder.ran) == tried + 1


async def test_a_plane_that_is_called_like_a_role_is_not_taken_for_one_of_it(simulation: Simulation) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        world.fleet.only("west")

    world = World(Source("east", WIDGET, itself))
    world.recorder.act = act
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(100)
        tried = len(world.recorder.ran)
        world.add("west", role="east")
        await simulation.settle()
        assert len(world.recorder.ran) == tried


async def test_what_had_one_plane_of_a_role_too_many_runs_when_one_goes(simulation: Simulation) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        world.fleet.only("west")

    world = World(Source("east", WIDGET, itself))
    world.recorder.act = act
    world.add("a").make("w")
    world.add("c", role="west")
    world.add("d", role="west")
    async with world.running(simulation):
        await asyncio.sleep(100)
        tried = len(world.recorder.ran)
        world.fleet.remove("d")
        await simulation.settle()
        assert len(world.recorder.ran) == tried + 1


async def test_when_too_much_was_missed_a_plane_that_comes_is_asked_for_by_everything(simulation: Simulation) -> None:
    world = World(Source("west", WIDGET, to_plane_in_label))
    world.controller._missed = Missed(at_most=3)
    server = world.add("c", role="west")
    for number in range(10):
        server.make(f"w{number}", labels={"to": "a" if number % 2 else "b"})
    async with world.running(simulation):
        world.add("a")
        await simulation.settle()
        assert sorted(world.recorder.requests) == [f"a:default/w{number}" for number in range(1, 10, 2)]


async def test_an_api_error_names_its_plane(simulation: Simulation) -> None:
    world = World()
    world.add("a")
    async with world.running(simulation):
        world.faults["a"].take_away()
        with pytest.raises(ApiError) as caught:
            await world.fleet.plane("a").client.list(WIDGET)
        assert caught.value.plane == "a"


async def test_what_fails_after_its_plane_has_left_is_forgotten(simulation: Simulation) -> None:
    world, server = World(), Server()
    server.make("w")

    async def act(request: Request, pass_: Pass) -> None:
        await asyncio.sleep(1)
        raise Unavailable("no", plane=request.plane)

    world.recorder.act = act
    async with world.running(simulation):
        for number in range(5):
            world.add(f"p{number}", server=server)
            await asyncio.sleep(0.5)
            world.fleet.remove(f"p{number}")
            await asyncio.sleep(5)
        await asyncio.sleep(3600)
        assert not world.controller.queue._failures
        assert not world.controller._failed_on


async def test_a_server_whose_versions_are_no_numbers_costs_only_itself(simulation: Simulation) -> None:
    world = World()
    good, bad = world.add("good"), world.add("bad")
    good.make("w")
    item = {"metadata": {"name": "x", "namespace": "default", "uid": "u", "resourceVersion": "eyJ9"}}
    bad.garbage.append(msgspec.json.encode({"metadata": {"resourceVersion": "eyJ9"}, "items": [item]}))
    async with world.running(simulation):
        await asyncio.sleep(60)
        world.recorder.ran.clear()
        good.change("w")
        await asyncio.sleep(1)
        assert world.recorder.requests == ["good:default/w"]
