"""Planes of one process over one log: separate, repeatable, and persistent."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.kube.calls import WatchEvent
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.clock import ShiftedClock
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count

STATUS = {"replicas": 0, "currentReplicas": 0, "updatedReplicas": 0, "desiredReplicas": 0, "readyReplicas": 0}


def new_engine(simulation: Simulation, log: Log | None = None) -> Engine:
    return compute_engine(log, clock=simulation, uids=CountedUids(), generator=simulation.random)


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# planes


async def test_serving_a_plane_twice_returns_the_same_server(simulation: Simulation) -> None:
    engine = new_engine(simulation)
    assert engine.serve("cell", CELL) is engine.serve("cell", CELL)
    assert engine.serve("cell", CELL) is not engine.serve("hub", HUB)


async def test_planes_do_not_share_objects(simulation: Simulation) -> None:
    engine = new_engine(simulation)
    for plane in ("one", "two"):
        engine.serve(plane, CELL)
    first, second = engine.client("one"), engine.client("two")
    await first.create(NAMESPACE, NAMESPACE.body("default"))
    with pytest.raises(NotFound):
        await second.get(NAMESPACE, "default")
    created = await second.create(NAMESPACE, NAMESPACE.body("default"))
    assert created.metadata.uid != (await first.get(NAMESPACE, "default")).metadata.uid
    async with second.watch(NAMESPACE, "0", timeout_seconds=1) as events:
        assert [event.object async for event in events if event.type != "BOOKMARK"] == [created]


async def test_a_plane_may_run_on_a_machine_with_another_clock(simulation: Simulation) -> None:
    clocks = {"ahead": ShiftedClock(simulation, 301)}
    engine = compute_engine(clock=simulation, clock_of=lambda plane: clocks.get(plane, simulation), uids=CountedUids())
    for plane in ("ahead", "exact"):
        engine.serve(plane, CELL)
        await engine.client(plane).create(NAMESPACE, NAMESPACE.body("default"))
    ahead, exact = [
        (await engine.client(plane).get(NAMESPACE, "default")).metadata.creation_timestamp
        for plane in ("ahead", "exact")
    ]
    assert ahead is not None
    assert exact is not None
    assert ahead - exact == timedelta(seconds=301)


async def test_a_plane_serves_the_kinds_of_its_role(simulation: Simulation) -> None:
    engine = new_engine(simulation)
    engine.serve("demo", PROJECT)
    engine.serve("cell", CELL)
    assert (await engine.client("demo").list(WORKLOAD)).items == []
    assert (await engine.client("cell").list(INSTANCE)).items == []
    with pytest.raises(NotFound):
        await engine.client("cell").list(WORKLOAD)


async def test_an_error_carries_the_name_of_its_plane(simulation: Simulation) -> None:
    engine = new_engine(simulation)
    engine.serve("cell", CELL)
    with pytest.raises(NotFound) as failed:
        await engine.client("cell").get(NAMESPACE, "absent")
    assert failed.value.plane == "cell"


async def test_a_plane_opened_later_has_controllers_as_well(simulation: Simulation) -> None:
    engine = new_engine(simulation)
    run = asyncio.create_task(engine.run(), name="engine")
    await simulation.settle()
    engine.serve("late", CELL)
    client = engine.client("late")
    await client.create(NAMESPACE, NAMESPACE.body("default"))
    await client.delete(NAMESPACE, "default")
    await simulation.settle()
    assert (await client.list(NAMESPACE)).items == []
    await stopped(run)


async def test_a_closed_plane_costs_nothing_and_is_unchanged_when_reopened(
    simulation: Simulation,
) -> None:
    engine = new_engine(simulation)
    run = asyncio.create_task(engine.run(), name="engine")
    engine.serve("stays", CELL)
    engine.serve("goes", CELL)
    client = engine.client("goes")
    await client.create(NAMESPACE, NAMESPACE.body("default"))

    async def watched() -> list[str]:
        async with client.watch(NAMESPACE, "", timeout_seconds=600) as events:
            return [event.type async for event in events]

    watching = asyncio.create_task(watched())
    await simulation.settle()
    engine.leave("goes")
    engine.leave("goes")
    assert await watching == ["ADDED"]
    assert simulation.time() < 60
    await simulation.settle()
    assert not [task.get_name() for task in asyncio.all_tasks() if task.get_name().endswith("/goes")]
    assert engine.plane("goes") is None
    assert not run.done()

    engine.serve("goes", CELL)
    again = engine.client("goes")
    await again.delete(NAMESPACE, "default")
    await simulation.settle()
    assert (await again.list(NAMESPACE)).items == []
    await stopped(run)


async def test_a_quiet_watch_gets_a_bookmark_every_minute(simulation: Simulation) -> None:
    engine = new_engine(simulation)
    engine.serve("cell", CELL)
    run = asyncio.create_task(engine.run(), name="engine")
    client = engine.client("cell")
    await client.create(NAMESPACE, NAMESPACE.body("default"))
    received: list[tuple[float, WatchEvent[Any]]] = []
    async with client.watch(INSTANCE, "0", timeout_seconds=130) as events:
        async for event in events:
            received.append((simulation.time(), event))
    assert [(when, event.type, event.resource_version) for when, event in received] == [
        (60, "BOOKMARK", "1"),
        (120, "BOOKMARK", "1"),
        (130, "BOOKMARK", "1"),  # and at the end
    ]
    await stopped(run)


# starting again


async def test_objects_and_resource_versions_survive_a_restart(simulation: Simulation, tmp_path: Path) -> None:
    engine = new_engine(simulation, Log(tmp_path / "log.db"))
    engine.serve("cell", CELL)
    client = engine.client("cell")
    await client.create(NAMESPACE, NAMESPACE.body("default"))
    created = await client.create(INSTANCE, INSTANCE.body("a", "default"))
    await client.create(INSTANCE, INSTANCE.body("b", "default"))
    await client.delete(INSTANCE, "b", "default")
    before = await client.list(INSTANCE)
    engine.close()

    again = new_engine(simulation, Log(tmp_path / "log.db"))
    again.serve("cell", CELL)
    client = again.client("cell")
    assert await client.list(INSTANCE) == before
    async with client.watch(INSTANCE, created.metadata.resource_version, timeout_seconds=1) as events:
        assert [event.type async for event in events] == ["ADDED", "DELETED", "BOOKMARK"]
    created = await client.create(INSTANCE, INSTANCE.body("c", "default"))
    assert created.metadata.revision == int(before.resource_version) + 1
    again.close()


# whatever is done


NAMES = ("a", "b")
Step = tuple[str, str, int]
steps = st.tuples(
    st.sampled_from(["create", "spec", "label", "status", "hold", "release", "delete", "stale", "invalid"]),
    st.sampled_from(NAMES),
    st.integers(1, 3),
)


async def act(client: Client, step: Step) -> None:
    verb, name, number = step
    kind = WORKLOAD_DEPLOYMENT
    patch: Json = {}
    subresource = ""
    match verb:
        case "create":
            await client.create(kind, kind.body(name, "default"))
            return
        case "delete":
            await client.delete(kind, name, "default")
            return
        case "spec":
            settings = {"minReplicas": number}
            template = {
                "spec": {
                    "runtime": {"resources": {"instanceType": "x"}},
                    "networkInterfaces": [{"network": {"name": "x"}}],
                }
            }
            placement = {"cityCode": "DFW", "placementName": "main", "workloadRef": {"name": "x", "uid": "x"}}
            patch = {"spec": {**placement, "template": template, "scaleSettings": settings}}
        case "label":
            patch = {"metadata": {"labels": {"number": str(number) if number > 1 else None}}}
        case "status":
            patch, subresource = {"status": STATUS | {"replicas": number}}, "status"
        case "hold":
            patch = {"metadata": {"finalizers": [f"example.test/{number}"]}}
        case "release":
            patch = {"metadata": {"finalizers": None}}
        case "stale":
            patch = {"metadata": {"resourceVersion": "1", "labels": {"stale": "yes"}}}
        case "invalid":
            patch = {"spec": {"scaleSettings": {"minReplicas": "many"}}}
    await client.merge_patch(kind, name, "default", patch, subresource)


async def state(client: Client) -> dict[str, WorkloadDeployment]:
    return {item.name: item for item in (await client.list(WORKLOAD_DEPLOYMENT)).items}


def check(before: WorkloadDeployment | None, after: WorkloadDeployment | None, verb: str) -> None:
    """Checks the rules of generation and of both endpoints for one write."""
    if after is None:
        assert before is None or verb in ("delete", "release")
        return
    if before is None:
        assert (verb, after.metadata.generation) == ("create", 1)
        return
    if before == after:
        return
    assert after.metadata.revision > before.metadata.revision
    assert (after.metadata.uid, after.metadata.creation_timestamp) == (
        before.metadata.uid,
        before.metadata.creation_timestamp,
    )
    spec_changed = bytes(after.spec_json) != bytes(before.spec_json)
    started_to_go = after.metadata.deleting and not before.metadata.deleting
    assert after.metadata.generation - before.metadata.generation == spec_changed + started_to_go
    assert (bytes(after.status_json) != bytes(before.status_json)) == (verb == "status")
    assert not before.metadata.deleting or after.metadata.deletion_timestamp == before.metadata.deletion_timestamp


@settings(deadline=None, max_examples=count(100, 2000))
@given(done=st.lists(steps, max_size=14))
def test_random_writes_keep_the_invariants_and_watches_see_them_all(done: list[Step]) -> None:
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(1)) as runner:
        runner.run(_keeps_the_rules(done))


async def _keeps_the_rules(done: list[Step]) -> None:
    engine = compute_engine(uids=CountedUids())
    engine.serve("cell", CELL)
    client = engine.client("cell")
    await client.create(NAMESPACE, NAMESPACE.body("default"))
    start = str(engine.store.revision)
    now = await state(client)
    for step in done:
        revision, before = engine.store.revision, now
        try:
            await act(client, step)
        except ApiError:
            assert engine.store.revision == revision
        now = await state(client)
        if engine.store.revision == revision:
            assert now == before
        else:
            assert engine.store.revision == revision + 1
            for name in NAMES:
                check(before.get(name), now.get(name), step[0] if step[1] == name else "")

    assert await _replayed(client, start) == now
    assert await _replayed(client, "0") == now
    assert await _replayed(client, start, int(start)) == now
    engine.close()


async def _replayed(client: Client, start: str, newer_than: int | None = None) -> dict[str, WorkloadDeployment]:
    """The state that a watcher reaches when it starts from nothing."""
    objects: dict[str, WorkloadDeployment] = {}
    async with client.watch(WORKLOAD_DEPLOYMENT, start, timeout_seconds=1) as events:
        async for event in events:
            if event.type == "BOOKMARK":
                continue
            assert event.object is not None
            name = event.object.name
            if newer_than is not None:
                assert int(event.resource_version) > newer_than
                newer_than = int(event.resource_version)
            match event.type:
                case "ADDED":
                    assert name not in objects
                    objects[name] = event.object
                case "MODIFIED":
                    assert objects[name].metadata.uid == event.object.metadata.uid
                    objects[name] = event.object
                case "DELETED":
                    assert objects.pop(name).metadata.uid == event.object.metadata.uid
    return objects


def _rows(seed: int) -> list[Any]:
    async def work(simulation: Simulation) -> list[Any]:
        engine = new_engine(simulation)
        engine.serve("cell", CELL)
        run = asyncio.create_task(engine.run(), name="engine")
        client = engine.client("cell")
        await client.create(NAMESPACE, NAMESPACE.body("default"))
        body: Json = INSTANCE.body("", "default") | {"metadata": {"generateName": "a-", "namespace": "default"}}
        await asyncio.gather(*(client.create(INSTANCE, body) for _ in range(5)))
        await client.delete(NAMESPACE, "default")
        await simulation.settle()
        await stopped(run)
        return list(engine.log.rows())

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        return runner.run(work(loop))


def test_a_seed_determines_the_log() -> None:
    first = _rows(1)
    assert msgspec.json.encode(_rows(1)) == msgspec.json.encode(first)
    assert _rows(2) != first
