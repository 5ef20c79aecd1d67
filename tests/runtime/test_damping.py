"""Writes that somebody keeps undoing become rare; progress, however fast, is never delayed."""

import asyncio
import random
from collections.abc import Callable

import pytest

from datum_compute.kube.client import Client
from datum_compute.kube.errors import ServerError
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.meta import Json, as_dict, timestamp
from datum_compute.runtime.damping import LIMIT, REMEMBERED, WINDOW, Damper
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.server import GADGET, NAMESPACE, WIDGET, Server, Widget, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import WRITES_DAMPED, Writes
from tests.runtime.world import Act, World

# The decision


def tried(damper: Damper, times: list[float], key: int = 1) -> list[float]:
    """The times at which a write was made by somebody who wants to make it at each of `times`."""
    made = []
    for now in times:
        if not damper.pause(key, now):
            damper.record(key, now)
            made.append(now)
    return made


def test_ten_writes_in_a_minute_are_made_at_once() -> None:
    times = [float(second) for second in range(LIMIT)]
    assert tried(Damper(), times) == times


def test_from_the_eleventh_on_one_write_per_minute_is_made() -> None:
    made = tried(Damper(), [second / 10 for second in range(6000)])
    assert len(made) == LIMIT + 9
    assert made[:LIMIT] == [n / 10 for n in range(LIMIT)]
    assert made[LIMIT:] == pytest.approx([0.9 + WINDOW * n for n in range(1, 10)])


def test_ten_writes_per_minute_are_not_a_fight() -> None:
    times = [second * 6.0 for second in range(600)]
    assert tried(Damper(), times) == times


def test_a_fight_is_over_after_a_minute_without_attempts() -> None:
    damper = Damper()
    assert len(tried(damper, [n / 10 for n in range(100)])) == LIMIT
    assert tried(damper, [100.0]) == [100.0]  # the one that was held back
    again = [200.0 + n for n in range(LIMIT)]
    assert tried(damper, again) == again


def test_a_delayed_write_says_when_it_may_be_made() -> None:
    damper = Damper()
    tried(damper, [0.0] * LIMIT)
    assert damper.pause(1, 20.0) == 40.0
    assert damper.is_damped(1)
    assert damper.pause(1, 60.0) == 0.0
    assert damper.pause(2, 20.0) == 0.0


def test_memory_is_bounded() -> None:
    damper = Damper()
    for number in range(REMEMBERED + 100):
        damper.record(number, 0.0)
        damper.record_version(number, "1", 0.0)
    assert len(damper._trails) == len(damper._versions) == REMEMBERED


def test_old_writes_are_forgotten() -> None:
    damper = Damper()
    for number in range(100):
        damper.record(number, 0.0)
        damper.record_version(number, "1", 0.0)
    damper.record(100, 2 * WINDOW)
    assert len(damper._trails) == len(damper._versions) + 1 == 101
    damper.record(100, 2 * WINDOW + 1)
    damper.record_version(100, "1", 2 * WINDOW + 1)
    assert list(damper._trails) == list(damper._versions) == [100]


# Fights


def labelled(world: World, value: str) -> Act:
    async def act(request: Request, pass_: Pass) -> None:
        plane = world.fleet.plane(request.plane)
        widget = plane.informer(WIDGET).get(request.namespace, request.name)
        if widget is not None and widget.metadata.labels.get("by") != value:
            await plane.writer("recorder").patch(widget, {"metadata": {"labels": {"by": value}}})

    return act


def stated(world: World, now: Callable[[], str]) -> Act:
    async def act(request: Request, pass_: Pass) -> None:
        plane = world.fleet.plane(request.plane)
        widget = plane.informer(WIDGET).get(request.namespace, request.name)
        if widget is not None and as_dict(widget.status_json).get("by") != "us":
            status = {"by": "us", "conditions": [{"type": "Ready", "lastTransitionTime": now()}]}
            await plane.writer("recorder").status(widget, status)

    return act


def created(world: World) -> Act:
    async def act(request: Request, pass_: Pass) -> None:
        plane = world.fleet.plane(request.plane)
        if plane.informer(GADGET).get(request.namespace, request.name) is None:
            await plane.writer("recorder").create(GADGET, GADGET.body(request.name, request.namespace))

    return act


def deleted(world: World) -> Act:
    async def act(request: Request, pass_: Pass) -> None:
        plane = world.fleet.plane(request.plane)
        if (gadget := plane.informer(GADGET).get(request.namespace, request.name)) is not None:
            await plane.writer("recorder").delete(gadget)

    return act


def finalized(world: World) -> Act:
    async def act(request: Request, pass_: Pass) -> None:
        plane = world.fleet.plane(request.plane)
        if (widget := plane.informer(WIDGET).get(request.namespace, request.name)) is not None:
            await plane.writer("recorder").add_finalizer(widget, "ours")

    return act


def small_world() -> tuple[World, Server]:
    def to_widget(plane: Plane, change: object) -> list[Request]:
        return [Request(plane.name, NAMESPACE, "w")]

    world = World(Source("east", WIDGET, itself), Source("east", GADGET, to_widget))
    server = world.add("a")
    server.make("w")
    server.make("other")
    return world, server


async def fought(server: Server, undo: Json, is_ours: Callable[[Json], bool], seconds: float) -> None:
    """Somebody undoes what we did to a widget within a tenth of a second."""
    for _ in range(int(seconds * 10)):
        await asyncio.sleep(0.1)
        if is_ours(server.get("w")):
            server.change("w", undo)


THEIRS = {"metadata": {"labels": {"by": "them"}}}


def has_our_label(widget: Json) -> bool:
    return bool(widget["metadata"]["labels"].get("by") == "us")


async def test_a_fight_over_a_label_is_damped_and_reported_once_and_delays_no_other_object(
    simulation: Simulation,
) -> None:
    world, server = small_world()
    world.recorder.act = labelled(world, "us")
    async with world.running(simulation):
        await fought(server, THEIRS, has_our_label, 600)
        writes = [call for call in server.calls if call.method == "PATCH" and call.path.endswith("/w")]
        assert LIMIT + 9 <= len(writes) <= LIMIT + 11
        assert server.get("other")["metadata"]["labels"] == {"by": "us"}
        events = [call for call in server.calls if call.path.endswith("/events")]
        assert len(events) == 1
        assert WRITES_DAMPED.encode() in events[0].body


async def test_a_fight_over_a_status_is_damped_although_each_write_has_another_time(simulation: Simulation) -> None:
    world, server = small_world()
    world.recorder.act = stated(world, lambda: timestamp(simulation.now()))
    async with world.running(simulation):
        await fought(server, {"status": {"by": "them"}}, lambda widget: widget.get("status", {}).get("by") == "us", 300)
        writes = [call for call in server.calls if call.method == "PUT" and "/w/" in call.path]
        assert len(writes) <= LIMIT + 6


@pytest.mark.parametrize("seed", range(3))
async def test_a_fight_over_whether_something_exists_is_damped(simulation: Simulation, seed: int) -> None:
    """One process creates what the other deletes."""
    world, server = small_world()
    world.recorder.act = created(world)
    other, _ = small_world()
    other.fleet.remove("a")
    other.add("a", server=server)
    other.recorder.act = deleted(other)
    async with world.running(simulation), other.running(simulation):
        await asyncio.sleep(600)
        gadgets = [method for method, path in server.written if "gadgets" in path and "/other" not in path]
        assert len(gadgets) <= 2 * (LIMIT + 12)
        assert len(gadgets) >= 10


async def test_a_fight_of_two_requests_of_one_controller_is_damped(simulation: Simulation) -> None:
    """Both want the same object to bear their own name."""
    world = World(Source("east", WIDGET, itself), Source("east", GADGET, both))

    async def act(request: Request, pass_: Pass) -> None:
        plane = world.fleet.plane(request.plane)
        gadget = plane.informer(GADGET).get(NAMESPACE, "g")
        if gadget is not None and gadget.metadata.labels.get("of") != request.name:
            await plane.writer("recorder").patch(gadget, {"metadata": {"labels": {"of": request.name}}})

    world.recorder.act = act
    server = world.add("a")
    for name in ("one", "two"):
        server.make(name)
    async with world.running(simulation):
        server.make("g", GADGET)
        await asyncio.sleep(60)
        assert len([call for call in server.calls if call.method == "PATCH"]) <= 2 * LIMIT + 2


def both(plane: Plane, change: object) -> list[Request]:
    return [Request(plane.name, NAMESPACE, name) for name in ("one", "two")]


async def test_a_fight_over_a_finalizer_is_damped(simulation: Simulation) -> None:
    world, server = small_world()
    world.recorder.act = finalized(world)
    async with world.running(simulation):
        await fought(
            server, {"metadata": {"finalizers": []}}, lambda widget: bool(widget["metadata"].get("finalizers")), 300
        )
        writes = [call for call in server.calls if call.method == "PATCH" and call.path.endswith("/w")]
        assert len(writes) <= LIMIT + 6


async def test_when_the_other_writer_gives_up_ours_prevails_within_a_minute(simulation: Simulation) -> None:
    world, server = small_world()
    world.recorder.act = labelled(world, "us")
    async with world.running(simulation):
        await fought(server, THEIRS, has_our_label, 100)
        await asyncio.sleep(WINDOW + 0.1)
        assert server.get("w")["metadata"]["labels"]["by"] == "us"
        await asyncio.sleep(2 * WINDOW)
        began = simulation.time()
        server.change("w", THEIRS)
        await simulation.settle()
        assert server.get("w")["metadata"]["labels"]["by"] == "us"
        assert simulation.time() == began


# What is no fight


async def test_a_new_request_is_never_held_up(simulation: Simulation) -> None:
    """A user changes his mind every second, back and forth."""
    world, server = small_world()

    async def act(request: Request, pass_: Pass) -> None:
        plane = world.fleet.plane(request.plane)
        widget = plane.informer(WIDGET).get(request.namespace, request.name)
        if request.name != "w" or widget is None:
            return
        size = as_dict(widget.spec_json).get("size", 0)
        gadget = plane.informer(GADGET).get(NAMESPACE, "w")
        write = plane.writer("recorder")
        if gadget is None:
            gadget = await write.create(GADGET, GADGET.body("w", NAMESPACE))
        if as_dict(gadget.spec_json).get("size") != size:
            await write.patch(gadget, {"spec": {"size": size}})

    world.recorder.act = act
    async with world.running(simulation):
        for second in range(120):
            patch = {"spec": {"size": second % 2}, "metadata": {"generation": second + 2}}
            server.change("w", patch)
            server.change("w", {"metadata": {"labels": {"seen": str(second)}}}, GADGET)  # others write it too
            await simulation.settle()
            assert server.get("w", GADGET)["spec"]["size"] == second % 2
            await asyncio.sleep(1)


async def test_a_status_that_goes_up_and_down_is_never_delayed(simulation: Simulation) -> None:
    """Two hundred things come and go; how many there are repeats all the time, and nobody else writes it."""
    world, server = small_world()
    ready = 200

    async def act(request: Request, pass_: Pass) -> None:
        plane = world.fleet.plane(request.plane)
        widget = plane.informer(WIDGET).get(request.namespace, request.name)
        if request.name == "w" and widget is not None:
            await plane.writer("recorder").status(widget, {"ready": ready})

    world.recorder.act = act
    async with world.running(simulation):
        for tenth in range(1200):
            ready = 200 - tenth % 2
            world.controller.enqueue(Request("a", NAMESPACE, "w"))
            await simulation.settle()
            assert server.get("w")["status"] == {"ready": ready}
            await asyncio.sleep(0.1)


async def test_many_objects_with_the_same_content_are_not_a_fight(simulation: Simulation) -> None:
    world = World()
    world.recorder.act = labelled(world, "us")
    server = world.add("a")
    for number in range(300):
        server.make(f"w{number}")
    async with world.running(simulation):
        assert all(server.get(f"w{number}")["metadata"]["labels"] == {"by": "us"} for number in range(300))


async def test_creating_an_object_again_for_another_owner_is_not_a_fight(simulation: Simulation) -> None:
    server, writes = Server(), Writes(simulation)
    plane = Plane("p", "east", InProcess(server), writes=writes, generator=random.Random(1))
    plane.informer(WIDGET)
    async with background(plane.run()):
        await plane.synced()
        write = plane.writer("tester")
        for number in range(50):
            owner = {"apiVersion": "v1", "kind": "Owner", "name": "o", "uid": f"uid-{number}"}
            widget: Widget = await write.create(WIDGET, WIDGET.body("w", NAMESPACE, ownerReferences=[owner]))
            widget = await write.add_finalizer(widget, "ours")
            widget = await write.status(widget, {"ready": 1})
            await write.delete(widget)
            await write.remove_finalizers(await Client("p", InProcess(server)).get(WIDGET, "w", NAMESPACE), "ours")
            await simulation.settle()
    assert not writes.damped


async def test_a_failed_write_is_not_a_fight(simulation: Simulation) -> None:
    world, server = small_world()
    world.recorder.act = labelled(world, "us")
    refusal = world.faults["a"].refuse(calls("PATCH", "/w"), ServerError("not now"))
    async with world.running(simulation):
        await asyncio.sleep(50)
        assert refusal.times > LIMIT
        refusal.lift()
        await asyncio.sleep(30)
        assert has_our_label(server.get("w"))
        assert not [call for call in server.calls if call.path.endswith("/events")]
