"""Caches of a selection, on a server that selects as Kubernetes does."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.roles import CELL
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import CONFIG_MAP, NAMESPACE
from datum_compute.kube.meta import ObjectMeta
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.caches.selection import EVERYTHING, Selection
from datum_compute.runtime.controller import Controller
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.telemetry.metrics import RuntimeCollector
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.runtime.world import Recorder

RED = Selection(labels="colour=red")
HERE = Selection(namespace="here")
RED_HERE = Selection("here", "colour=red")


@pytest.mark.parametrize(
    ("selection", "expected"),
    [(EVERYTHING, "abcd"), (HERE, "ab"), (RED, "ac"), (RED_HERE, "a"), (Selection(labels="!colour"), "")],
    ids=str,
)
def test_a_selection_holds_objects_of_its_namespace_and_labels(selection: Selection, expected: str) -> None:
    objects = {
        "a": ObjectMeta(namespace="here", labels={"colour": "red"}),
        "b": ObjectMeta(namespace="here", labels={"colour": "blue"}),
        "c": ObjectMeta(namespace="there", labels={"colour": "red"}),
        "d": ObjectMeta(namespace="there", labels={"colour": "blue"}),
    }
    assert "".join(name for name, metadata in objects.items() if selection.holds(metadata)) == expected


class World:
    """One plane with a controller that watches what its sources select."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.faults = Faults(InProcess(self.engine.serve("cell", CELL)), simulation.random)
        self.client = self.engine.client("cell")
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, *sources: Source[Any]) -> None:
        self.fleet, self.recorder = Fleet(), Recorder(sources)
        self.controller = Controller(self.recorder, self.fleet, self.simulation)
        self.plane = Plane("cell", CELL, self.faults, writes=Writes(), generator=self.simulation.random)
        self.fleet.add(self.plane)
        runs = (self.engine.run(), self.fleet.run(), self.controller.run())
        self._tasks = [asyncio.create_task(run) for run in runs]
        await self.simulation.settle()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.close()

    async def make(self, name: str, namespace: str, colour: str) -> None:
        await self.client.create(CONFIG_MAP, CONFIG_MAP.body(name, namespace, labels={"colour": colour}))

    async def paint(self, name: str, namespace: str, colour: str) -> None:
        await self.client.merge_patch(CONFIG_MAP, name, namespace, {"metadata": {"labels": {"colour": colour}}})

    def held(self, selection: Selection) -> list[str]:
        return [object_.name for object_ in self.plane.informer(CONFIG_MAP, selection).all()]


@pytest.fixture
def world(runner: asyncio.Runner, simulation: Simulation) -> Iterator[World]:
    async def build() -> World:
        world = World(simulation)
        for name in ("here", "there"):
            await world.client.create(NAMESPACE, NAMESPACE.body(name))
        await world.make("a", "here", "red")
        await world.make("b", "here", "blue")
        await world.make("c", "there", "red")
        return world

    world = runner.run(build())
    yield world
    runner.run(world.stop())


async def test_a_source_sees_only_what_it_selects(world: World) -> None:
    await world.run(Source(CELL, CONFIG_MAP, itself, selection=RED_HERE))
    assert world.recorder.requests == ["cell:here/a"]
    await world.make("d", "here", "red")
    await world.make("e", "there", "red")
    await world.paint("b", "here", "green")
    await world.simulation.settle()
    assert world.recorder.requests == ["cell:here/a", "cell:here/d"]
    assert world.held(RED_HERE) == ["a", "d"]


async def test_an_object_comes_and_goes_with_its_labels(world: World) -> None:
    await world.run(Source(CELL, CONFIG_MAP, itself, selection=RED))
    world.recorder.ran.clear()
    await world.paint("b", "here", "red")
    await world.paint("a", "here", "blue")
    await world.simulation.settle()
    assert world.held(RED) == ["b", "c"]
    assert sorted(world.recorder.requests) == ["cell:here/a", "cell:here/b"]


async def test_each_selection_has_its_own_cache(world: World) -> None:
    await world.run(
        *(Source(CELL, CONFIG_MAP, itself, selection=selection) for selection in (EVERYTHING, HERE, RED, RED_HERE))
    )
    assert [world.held(selection) for selection in (EVERYTHING, HERE, RED, RED_HERE)] == [
        ["a", "b", "c"],
        ["a", "b"],
        ["a", "c"],
        ["a"],
    ]
    assert world.plane.informer(CONFIG_MAP, Selection("here", "colour=red")) is world.plane.informer(
        CONFIG_MAP, RED_HERE
    )


async def test_an_own_write_is_seen_at_once_in_every_cache_that_holds_it(world: World) -> None:
    await world.run(*(Source(CELL, CONFIG_MAP, selection=selection) for selection in (EVERYTHING, HERE, RED)))
    world.faults.silence_watches()
    write = world.plane.writer("tester")
    body = CONFIG_MAP.body("own", "here", labels={"colour": "red"})
    made = await write.create(CONFIG_MAP, body)
    assert [("own" in world.held(selection)) for selection in (EVERYTHING, HERE, RED)] == [True, True, True]
    painted = await write.patch(made, {"metadata": {"labels": {"colour": "blue"}}})
    assert [("own" in world.held(selection)) for selection in (EVERYTHING, HERE, RED)] == [True, True, False]
    painted = await write.patch(painted, {"metadata": {"labels": {"colour": "red"}}})
    assert [("own" in world.held(selection)) for selection in (EVERYTHING, HERE, RED)] == [True, True, True]
    await write.delete(painted)
    assert [("own" in world.held(selection)) for selection in (EVERYTHING, HERE, RED)] == [False, False, False]


async def test_a_pass_that_moved_an_object_out_of_a_selection_is_not_undone_by_late_events(world: World) -> None:
    await world.run(Source(CELL, CONFIG_MAP, selection=RED))
    world.faults.delay_watches(5, 5)
    seen = world.plane.informer(CONFIG_MAP, RED).get("here", "a")
    assert seen is not None
    await world.plane.writer("tester").patch(seen, {"metadata": {"labels": {"colour": "blue"}}})
    await asyncio.sleep(60)
    assert world.held(RED) == ["c"]


async def test_a_relist_compares_what_is_selected(world: World) -> None:
    await world.run(Source(CELL, CONFIG_MAP, selection=RED_HERE))
    world.faults.silence_watches()
    await world.make("d", "here", "red")
    await world.paint("a", "here", "blue")
    await asyncio.sleep(200)
    assert world.held(RED_HERE) == ["d"]


async def test_metrics_tell_caches_of_one_kind_apart(world: World) -> None:
    await world.run(*(Source(CELL, CONFIG_MAP, selection=selection) for selection in (EVERYTHING, RED_HERE)))
    registry = CollectorRegistry()
    registry.register(RuntimeCollector([world.controller], world.fleet))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    (objects,) = [family for family in families if family.name == "cache_objects"]
    assert {sample.labels["kind"]: sample.value for sample in objects.samples} == {
        "ConfigMap": 3,
        "ConfigMap in here with colour=red": 1,
    }
