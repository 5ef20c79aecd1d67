import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from datum_compute.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
    ServerError,
    TooLarge,
    TooManyRequests,
    Unavailable,
)
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.meta import ObjectMeta, controller_reference
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.runtime.caches.informer import RELIST_SECONDS, UNSERVED_SECONDS, Change
from datum_compute.runtime.controller import (
    CRASHES_KEPT,
    LAG_TRIES,
    MANY_CONFLICTS,
    PER_GROUP,
    SEVERAL_CONFLICTS,
    SPARE,
)
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.missed import Missed
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Request, Unfinished
from datum_compute.runtime.sources import Source, controller_of, itself
from datum_compute.runtime.testing.faults import Faults, calls, writes
from datum_compute.runtime.testing.server import GADGET, NAMESPACE, WIDGET, Server, Widget
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
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


async def test_an_owned_object_requests_its_old_and_its_new_owner(simulation: Simulation) -> None:
    def owned_by(name: str) -> list[dict[str, Any]]:
        return [controller_reference(WIDGET.mark(Widget(ObjectMeta(name=name, uid=f"uid-{name}"))))]

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


async def test_requests_for_a_plane_run_when_it_is_engaged(simulation: Simulation) -> None:
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


async def test_an_object_that_an_index_fails_on_is_counted_like_one_that_a_map_fails_on(
    simulation: Simulation,
) -> None:
    def fragile(widget: Any) -> Iterable[str]:
        if widget.name == "poison":
            raise ZeroDivisionError
        return [widget.name]

    world = World(Source("east", WIDGET, itself, {"name": fragile}))
    good, bad = world.add("good"), world.add("bad")
    for name in ("poison", "w"):
        bad.make(name)
    good.make("w")
    with capture_logs() as logs:
        async with world.running(simulation):
            assert sorted(world.recorder.requests) == ["bad:default/poison", "bad:default/w", "good:default/w"]
            assert [widget.name for widget in world.fleet.plane("bad").informer(WIDGET).by("name", "w")] == ["w"]
    assert world.controller.dropped == {"crashed": 1}
    assert (world.controller.panics, len(world.controller.crashes)) == (1, 1)
    assert [line["phase"] for line in logs if line["log_level"] == "error"] == ["index"]


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


async def test_an_event_that_is_dropped_is_logged_once_per_object(simulation: Simulation) -> None:
    world = World(Source("east", WIDGET, lambda plane, change: [Drop("unlabelled")]))
    server = world.add("a")
    with capture_logs() as logs:
        async with world.running(simulation):
            for name in ("v", "w"):
                server.make(name)
                for _ in range(3):
                    await simulation.settle()
                    server.change(name)
            await simulation.settle()
            server.remove("v")
            await simulation.settle()
    lines = [entry for entry in logs if entry["event"] == "event dropped" and entry["log_level"] == "warning"]
    assert [(entry["object"], entry["reason"], entry["plane"]) for entry in lines] == [
        ("default/v", "unlabelled", "a"),
        ("default/w", "unlabelled", "a"),
    ]
    assert world.controller.dropped["unlabelled"] == 9


async def test_an_ordinary_drop_is_counted_but_not_logged(simulation: Simulation) -> None:
    world = World(Source("east", WIDGET, lambda plane, change: [Drop("not_ours", ordinary=True)]))
    world.add("a").make("w")
    with capture_logs() as logs:
        async with world.running(simulation):
            pass
    assert not [entry for entry in logs if entry["log_level"] == "warning"]
    assert world.controller.dropped == {"not_ours": 1}


async def test_events_for_a_plane_that_is_not_engaged_are_logged_once(simulation: Simulation) -> None:
    world = World(Source("west", WIDGET, to_plane_in_label))
    server = world.add("c", role="west")
    with capture_logs() as logs:
        async with world.running(simulation):
            for number in range(5):
                server.make(f"w{number}", labels={"to": "a"})
            await simulation.settle()
    lines = [entry for entry in logs if entry["event"] == "events wait for their plane"]
    assert [(entry["plane"], entry["log_level"]) for entry in lines] == [("a", "info")]


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
        assert 10 < server.list_calls(GADGET) < 16  # slowly
        assert server.watch_calls(GADGET) == 0
        server.unserved.clear()
        server.make("g", GADGET)
        await simulation.until(world.has_run(2), within=UNSERVED_SECONDS * 1.1)
        assert plane.serves(GADGET)
        await simulation.settle()
        server.make("h", GADGET)
        await simulation.settle()
        assert sorted(world.recorder.requests[1:]) == ["a:default/g", "a:default/h", "a:default/w"]


async def test_a_kind_that_was_refused_with_all_others_is_watched_when_they_are(simulation: Simulation) -> None:
    world = World(Source("east", WIDGET, itself), Source("east", GADGET, itself, optional=True))
    server = world.add("a")
    async with world.running(simulation):
        refusal = world.faults["a"].refuse(calls(), NotFound("404 page not found"))
        world.faults["a"].cut_watches()
        await asyncio.sleep(60)
        assert not world.fleet.plane("a").serves(GADGET)
        refusal.lift()
        server.make("g", GADGET)
        await simulation.until(world.has_run(1), within=8)


async def test_when_a_kind_appears_all_passes_that_lacked_it_run_again(simulation: Simulation) -> None:
    world = World(Source("east", WIDGET, itself), Source("east", GADGET, optional=True))
    server = world.add("a")
    server.unserved = {GADGET.plural}
    server.make("w")
    async with world.running(simulation):
        assert world.recorder.requests == ["a:default/w"]
        server.unserved.clear()
        await simulation.until(world.has_run(2), within=UNSERVED_SECONDS * 1.1)
        assert world.recorder.requests == ["a:default/w", "a:default/w"]
        await asyncio.sleep(3600)
        assert len(world.recorder.ran) == 2


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


async def test_a_sweep_runs_when_a_plane_is_engaged_and_regularly_until_it_leaves(simulation: Simulation) -> None:
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


class Listening(Recorder):
    """Has work between passes: it requests what it hears, and ends or crashes when it hears so."""

    def __init__(self) -> None:
        super().__init__([Source("east", WIDGET, itself)])
        self.news: asyncio.Queue[Request | Exception | None] = asyncio.Queue()
        self.began: list[float] = []
        self.cancelled = 0

    async def watch(self, fleet: Fleet, enqueue: Callable[[Request], None]) -> None:
        self.began.append(asyncio.get_running_loop().time())
        try:
            while (item := await self.news.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                assert fleet.has("a")
                enqueue(item)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_a_reconciler_may_request_what_no_plane_reports(simulation: Simulation) -> None:
    listening = Listening()
    world = World(recorder=listening)
    world.add("a")
    async with world.running(simulation):
        listening.news.put_nowait(request())
        listening.news.put_nowait(request("later"))
        await simulation.settle()
        assert listening.requests == ["a:default/w"]
        world.add("later")
        await simulation.settle()
        assert listening.requests == ["a:default/w", "later:default/w"]
    assert (listening.began, listening.cancelled) == ([0], 1)


async def test_a_watch_that_ends_or_crashes_is_begun_again_and_passes_go_on(simulation: Simulation) -> None:
    listening = Listening()
    world = World(recorder=listening)
    server = world.add("a")
    async with world.running(simulation):
        listening.news.put_nowait(None)
        await asyncio.sleep(1.5)
        listening.news.put_nowait(ValueError("a defect"))
        await simulation.settle()
        server.make("w")
        await simulation.settle()
        assert listening.requests == ["a:default/w"]
        await asyncio.sleep(10)
        assert listening.began == [0, 1, 3.5]
        assert len(world.controller.crashes) == 1


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


async def test_a_floor_that_comes_due_is_not_an_old_change(simulation: Simulation) -> None:
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
async def test_the_floor_is_honoured_however_the_pass_ends(simulation: Simulation, outcome: Exception | None) -> None:
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
async def test_of_several_failures_the_worst_counts(
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


async def test_a_failure_in_an_exception_group_runs_again_when_its_plane_returns(simulation: Simulation) -> None:
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


async def test_a_successful_pass_without_a_floor_does_not_run_again(simulation: Simulation) -> None:
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


async def test_a_conflict_runs_again_soon_and_is_not_a_failure(simulation: Simulation) -> None:
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


@pytest.mark.parametrize(("floor", "expected"), [(None, 5), (1, 1), (30, 5)])
async def test_a_terminating_namespace_is_waited_for_and_is_not_a_failure(
    simulation: Simulation, floor: float | None, expected: float
) -> None:
    world = World()
    world.recorder.act = raising(NamespaceTerminating("team is being terminated"), floor)
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(60)
        assert set(world.recorder.gaps) == {expected}
        assert world.controller.results["error"] == 0


@pytest.mark.parametrize("floor", [None, 1, 30, 300])
@pytest.mark.parametrize(("retry_after", "expected"), [(10, 10), (60, 60), (3600, 60)])
async def test_the_server_decides_when_a_pass_runs_again_whatever_its_floor(
    simulation: Simulation, floor: float | None, retry_after: int, expected: float
) -> None:
    world = World()
    world.recorder.act = raising(TooManyRequests("patience", retry_after=retry_after), floor)
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(200)
        assert set(world.recorder.gaps) == {expected}


@pytest.mark.parametrize("error", [Invalid("never"), BadRequest("never"), TooLarge("never")])
async def test_a_pass_that_cannot_be_retried_runs_again_at_the_pace_of_relists(
    simulation: Simulation, error: ApiError
) -> None:
    world = World()
    world.recorder.act = raising(error)
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(10 * RELIST_SECONDS)
        assert 8 <= len(world.recorder.ran) <= 12
        assert min(world.recorder.gaps) >= 0.9 * RELIST_SECONDS


async def test_requests_refused_together_are_not_retried_together(simulation: Simulation) -> None:
    world = World()
    world.recorder.act = raising(Invalid("never"))
    server = world.add("a")
    for number in range(100):
        server.make(f"w{number}")
    async with world.running(simulation):
        world.recorder.ran.clear()
        await asyncio.sleep(1.1 * RELIST_SECONDS)
        times = [time for time, _ in world.recorder.ran]
        assert len(times) == 100
        assert max(times) - min(times) > 0.15 * RELIST_SECONDS


@pytest.mark.parametrize("error", [NotFound("gone"), AlreadyExists("there")])
async def test_an_error_that_a_stale_cache_may_explain_is_retried_quickly_at_first(
    simulation: Simulation, error: ApiError
) -> None:
    world = World()
    world.recorder.act = raising(error)
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(3)
        assert world.recorder.gaps[:3] == [0.005, 0.01, 0.02]
        assert len(world.recorder.ran) == LAG_TRIES + 1
        await asyncio.sleep(5 * RELIST_SECONDS)
        assert len(world.recorder.ran) <= LAG_TRIES + 7


async def test_a_pass_that_cannot_be_retried_runs_after_a_change_and_when_its_plane_returns(
    simulation: Simulation,
) -> None:
    world = World()
    world.recorder.act = raising(Invalid("never", plane="a"))
    server = world.add("a")
    server.make("w")
    async with world.running(simulation):
        await asyncio.sleep(60)
        assert len(world.recorder.ran) == 1
        server.change("w")
        await simulation.settle()
        assert len(world.recorder.ran) == 2
        world.faults["a"].take_away()
        await asyncio.sleep(60)
        world.faults["a"].bring_back()
        await simulation.until(world.has_run(3), within=6)


@pytest.mark.parametrize("error", [NotFound("404 page not found"), Forbidden("not you"), ServerError("broken")])
async def test_requests_that_a_plane_refused_run_when_its_caches_follow_again(
    simulation: Simulation, error: ApiError
) -> None:
    world = World()
    world.recorder.act = writing(world)
    server = world.add("a")
    async with world.running(simulation):
        refusal = world.faults["a"].refuse(calls(), error)
        server.make("w")
        await simulation.settle()
        world.faults["a"].cut_watches()
        await asyncio.sleep(120)
        refusal.lift()
        began = simulation.time()

        async def made() -> bool:
            return server.has("w", GADGET)

        await simulation.until(made, within=8)
        assert simulation.time() - began < 8


async def test_a_pass_that_cannot_be_retried_honours_its_floor(simulation: Simulation) -> None:
    world = World()
    world.recorder.act = raising(Invalid("never"), floor=30)
    world.add("a").make("w")
    async with world.running(simulation):
        await asyncio.sleep(100)
        assert world.recorder.gaps == [30, 30, 30]


def writing(world: World) -> Act:
    async def act(request: Request, pass_: Pass) -> None:
        plane = world.fleet.plane(request.plane)
        await plane.writer("recorder").create(GADGET, GADGET.body(request.name, NAMESPACE))

    return act


@pytest.mark.parametrize("error", [TooManyRequests("patience", retry_after=10), Unavailable("busy", retry_after=10)])
async def test_a_pause_that_a_plane_asks_for_applies_to_all_its_requests(
    simulation: Simulation, error: ApiError
) -> None:
    world = World()
    world.recorder.act = writing(world)
    busy, other = world.add("busy"), world.add("other")
    async with world.running(simulation):
        refusal = world.faults["busy"].refuse(writes, error)
        for number in range(100):
            busy.make(f"w{number}")
            other.make(f"w{number}")
        await asyncio.sleep(9.9)
        assert len(other.versions(GADGET)) == 100
        assert refusal.times <= PER_GROUP  # those that were under way when the first was answered
        await asyncio.sleep(90)
        assert refusal.times <= PER_GROUP + 9 * 4
        refusal.lift()
        await asyncio.sleep(12)
        assert len(busy.versions(GADGET)) == 100


async def test_conflicts_are_logged_once_they_repeat_and_again_when_they_do_not_end(simulation: Simulation) -> None:
    world = World()
    world.recorder.act = raising(Conflict("changed"))
    world.add("a").make("w")
    with capture_logs() as logs:
        async with world.running(simulation):
            await asyncio.sleep(60)
    lines = [(entry["log_level"], entry["conflicts"]) for entry in logs if "conflicts" in entry]
    above_debug = [entry for entry in lines if entry[0] != "debug"]
    assert above_debug == [("info", SEVERAL_CONFLICTS), ("warning", MANY_CONFLICTS)]
    assert len(lines) == len(world.recorder.ran)


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


async def test_however_many_planes_hang_another_one_is_worked_on_at_once(simulation: Simulation) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        if request.plane != "fast":
            await asyncio.sleep(9)

    world = World()
    world.recorder.act = act
    slow = [world.add(f"slow-{number}") for number in range(40)]
    fast = world.add("fast")
    async with world.running(simulation):
        for server in slow:
            for number in range(50):
                server.make(f"w{number}")
        await simulation.settle()
        for number in range(20):
            fast.make(f"w{number}")
        await simulation.settle()
        assert sum(request.startswith("fast:") for request in world.recorder.requests) == 20
        assert simulation.time() == 0


async def test_a_busy_plane_alone_has_32_passes_at_once_and_idle_workers_end(
    simulation: Simulation,
) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        await asyncio.sleep(1)

    world = World()
    world.recorder.act = act
    server = world.add("a")
    for number in range(320):
        server.make(f"w{number}")
    async with world.running(simulation):
        assert len(world.controller.queue.running_seconds()) == 32
        await asyncio.sleep(9.5)
        assert len(world.recorder.ran) == 320
        await asyncio.sleep(1)
        workers = [task for task in asyncio.all_tasks() if task.get_name().startswith("recorder/")]
        assert len(workers) <= SPARE


async def test_requests_of_a_removed_plane_are_dropped(simulation: Simulation) -> None:
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


async def test_a_pass_for_a_plane_removed_meanwhile_is_dropped(simulation: Simulation) -> None:
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


async def test_a_plane_added_again_is_listed_again(simulation: Simulation) -> None:
    world = World()
    world.add("a").make("w")
    async with world.running(simulation):
        world.fleet.remove("a")
        await simulation.settle()
        world.add("a")
        await simulation.settle()
        assert world.recorder.requests == ["a:default/w", "a:default/w"]


@pytest.mark.parametrize("name", ["c", "west", "east"])
async def test_a_pass_that_needs_a_plane_of_a_role_runs_when_one_is_engaged(simulation: Simulation, name: str) -> None:
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


async def test_a_plane_named_like_a_role_is_not_taken_for_one_of_that_role(simulation: Simulation) -> None:
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


async def test_a_pass_that_found_too_many_planes_of_a_role_runs_when_one_leaves(simulation: Simulation) -> None:
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


async def test_when_too_many_requests_were_missed_a_new_plane_maps_everything_again(simulation: Simulation) -> None:
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


async def test_a_failure_after_its_plane_has_left_is_forgotten(simulation: Simulation) -> None:
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


async def test_a_server_whose_versions_are_not_numbers_affects_only_itself(simulation: Simulation) -> None:
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
