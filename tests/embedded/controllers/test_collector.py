"""Objects whose owners are all gone are deleted, and nothing else is."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.embedded.storage.store import Operation
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ServerError
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, KubeObject
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import Simulation

PLANE = "cell"


class Cell:
    """A running plane of deployments and instances, started from a log."""

    def __init__(self, simulation: Simulation, log: Log | None = None, *, role: str = CELL) -> None:
        self.engine = compute_engine(log, clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.engine.serve(PLANE, role)
        self.client: Client = self.engine.client(PLANE)
        self._simulation = simulation
        self._run: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._run = asyncio.create_task(self.engine.run(), name="engine")

    async def stop(self) -> None:
        assert self._run is not None
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)

    async def deployment(self, name: str = "owner") -> KubeObject:
        return await self.client.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body(name, "default"))

    async def instance(self, name: str, *owners: Json, **metadata: object) -> KubeObject:
        body = INSTANCE.body(name, "default", ownerReferences=list(owners), **metadata)
        return await self.client.create(INSTANCE, body)

    async def delete(self, object_: KubeObject, kind: Kind[Any] = WORKLOAD_DEPLOYMENT) -> None:
        await self.client.delete(kind, object_.name, object_.namespace)

    async def instances(self) -> list[str]:
        """The names of the remaining objects at rest."""
        await self._simulation.settle()
        return [instance.name for instance in (await self.client.list(INSTANCE)).items]


def reference(owner: KubeObject, kind: Kind[Any] = WORKLOAD_DEPLOYMENT, **changes: object) -> Json:
    uid = owner.metadata.uid
    return {"apiVersion": kind.api_version, "kind": kind.name, "name": owner.name, "uid": uid, **changes}


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation)
    runner.run(cell.client.create(NAMESPACE, NAMESPACE.body("default")))
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


@pytest.mark.parametrize("seed", range(5))
async def test_dependents_are_deleted_with_their_owner(cell: Cell, seed: int) -> None:
    owner, other = await cell.deployment("owner"), await cell.deployment("other")
    for name in ("a", "b"):
        await cell.instance(name, reference(owner))
    await cell.instance("c", reference(other))
    await cell.instance("free")
    assert await cell.instances() == ["a", "b", "c", "free"]
    await cell.delete(owner)
    assert await cell.instances() == ["c", "free"]


async def test_dependents_of_dependents_are_deleted_as_well(cell: Cell) -> None:
    owner = await cell.deployment()
    child = await cell.instance("child", reference(owner))
    await cell.instance("grandchild", reference(child, INSTANCE))
    await cell.delete(owner)
    assert await cell.instances() == []


async def test_an_owner_that_waits_for_its_finalizers_keeps_its_dependents(cell: Cell) -> None:
    body = WORKLOAD_DEPLOYMENT.body("owner", "default", finalizers=["example.test/a"])
    owner = await cell.client.create(WORKLOAD_DEPLOYMENT, body)
    await cell.instance("a", reference(owner))
    await cell.delete(owner)
    assert await cell.instances() == ["a"]
    await cell.client.merge_patch(WORKLOAD_DEPLOYMENT, "owner", "default", {"metadata": {"finalizers": None}})
    assert await cell.instances() == []


async def test_a_dependent_waits_for_its_own_finalizers(cell: Cell) -> None:
    owner = await cell.deployment()
    await cell.instance("a", reference(owner), finalizers=["example.test/a"])
    await cell.delete(owner)
    assert await cell.instances() == ["a"]
    assert (await cell.client.get(INSTANCE, "a", "default")).metadata.deleting
    await cell.client.merge_patch(INSTANCE, "a", "default", {"metadata": {"finalizers": None}})
    assert await cell.instances() == []


async def test_an_object_created_for_a_missing_owner_is_collected(cell: Cell) -> None:
    owner = await cell.deployment()
    await cell.delete(owner)
    await cell.instance("late", reference(owner))
    assert await cell.instances() == []


async def test_an_owner_of_the_same_name_but_another_uid_does_not_count(cell: Cell) -> None:
    owner = await cell.deployment()
    await cell.instance("a", reference(owner))
    await cell.delete(owner)
    await cell.deployment()
    await cell.instance("late", reference(owner))
    assert await cell.instances() == []


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_an_owner_is_looked_for_in_the_namespace_of_its_dependent(cell: Cell, elsewhere: bool) -> None:
    await cell.client.create(NAMESPACE, NAMESPACE.body("other"))
    namespace = "other" if elsewhere else "default"
    owner = await cell.client.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("owner", namespace))
    await cell.instance("a", reference(owner))
    assert await cell.instances() == ([] if elsewhere else ["a"])


async def test_a_cluster_scoped_owner_can_have_dependents_in_any_namespace(cell: Cell) -> None:
    owner = await cell.client.create(NAMESPACE, NAMESPACE.body("owner"))
    await cell.instance("a", reference(owner, NAMESPACE))
    assert await cell.instances() == ["a"]
    await cell.delete(owner, NAMESPACE)
    assert await cell.instances() == []


async def test_one_owner_of_two_is_enough(cell: Cell) -> None:
    one, two = await cell.deployment("one"), await cell.deployment("two")
    await cell.instance("a", reference(one), reference(two))
    await cell.delete(one)
    assert await cell.instances() == ["a"]
    await cell.delete(two)
    assert await cell.instances() == []


async def test_an_owner_of_a_kind_that_is_not_served_may_exist(cell: Cell) -> None:
    owner = await cell.deployment()
    await cell.instance("a", reference(owner, WORKLOAD, uid="unknown"))
    await cell.instance("b", reference(owner, apiVersion="example.test/v1", uid="unknown"))
    assert await cell.instances() == ["a", "b"]


async def test_an_owner_that_is_served_in_another_version_still_counts(cell: Cell) -> None:
    owner = await cell.deployment()
    await cell.instance("a", reference(owner, apiVersion=f"{WORKLOAD_DEPLOYMENT.group}/v9"))
    assert await cell.instances() == ["a"]


async def test_a_cluster_scoped_object_is_not_collected_for_a_namespaced_owner(cell: Cell) -> None:
    owner = await cell.deployment()
    await cell.client.create(NAMESPACE, NAMESPACE.body("kept", ownerReferences=[reference(owner)]))
    await cell.instances()
    assert not (await cell.client.get(NAMESPACE, "kept")).metadata.deleting


async def test_a_reference_that_is_added_later_counts_and_one_that_is_removed_does_not(cell: Cell) -> None:
    owner = await cell.deployment()
    await cell.instance("released", reference(owner))
    await cell.instance("adopted")
    await cell.client.merge_patch(INSTANCE, "released", "default", {"metadata": {"ownerReferences": None}})
    await cell.client.merge_patch(INSTANCE, "adopted", "default", {"metadata": {"ownerReferences": [reference(owner)]}})
    assert await cell.instances() == ["adopted", "released"]
    await cell.delete(owner)
    assert await cell.instances() == ["released"]


async def test_planes_do_not_collect_for_each_other(cell: Cell) -> None:
    owner = await cell.deployment()
    cell.engine.serve("hub", HUB)
    hub = cell.engine.client("hub")
    await hub.create(NAMESPACE, NAMESPACE.body("default"))
    await hub.create(INSTANCE, INSTANCE.body("a", "default", ownerReferences=[reference(owner)]))
    await cell.instances()
    assert (await hub.list(INSTANCE)).items == []
    assert [deployment.name for deployment in (await cell.client.list(WORKLOAD_DEPLOYMENT)).items] == ["owner"]


@pytest.mark.parametrize("seed", range(3))
async def test_a_restart_at_any_point_has_the_same_outcome(simulation: Simulation, seed: int) -> None:
    """Creates owner and dependents and deletes the owner without a collector; then starts one after each write."""
    cell = Cell(simulation)
    await cell.client.create(NAMESPACE, NAMESPACE.body("default"))
    owner, other = await cell.deployment("owner"), await cell.deployment("other")
    made = cell.engine.store.revision
    for name in ("a", "b"):
        await cell.instance(name, reference(owner))
    await cell.instance("c", reference(owner), reference(other))
    await cell.delete(owner)
    rows = list(cell.engine.log.rows())

    for k in range(made, len(rows) + 1):
        log = Log()
        log.append(rows[:k])
        restarted = Cell(simulation, log)
        await restarted.start()
        made_by_then = ["a", "b", "c"][: k - made]
        assert await restarted.instances() == (["c"] if k == len(rows) else made_by_then)
        await restarted.stop()


async def test_at_rest_nothing_is_written(cell: Cell, simulation: Simulation) -> None:
    owner = await cell.deployment()
    await cell.instance("a", reference(owner))
    await cell.instances()
    revision = cell.engine.store.revision
    await asyncio.sleep(3600)
    assert cell.engine.store.revision == revision


@pytest.mark.parametrize("role", [PROJECT, HUB, CELL])
async def test_every_plane_collects(simulation: Simulation, role: str) -> None:
    plane = Cell(simulation, role=role)
    await plane.start()
    await plane.client.create(NAMESPACE, NAMESPACE.body("default"))
    owner = await plane.deployment()
    await plane.instance("a", reference(owner))
    await plane.delete(owner)
    assert await plane.instances() == []
    await plane.stop()


async def test_deleted_owners_are_forgotten(cell: Cell, simulation: Simulation) -> None:
    for number in range(5):
        owner = await cell.deployment(f"owner-{number}")
        await cell.instance(f"web-{number}", reference(owner), finalizers=["example.com/slow"])
        await cell.delete(owner)
        await simulation.settle()
        await cell.client.merge_patch(INSTANCE, f"web-{number}", "default", {"metadata": {"finalizers": None}})
    assert await cell.instances() == []
    collector, *_ = cell.engine._controllers[PLANE]
    assert not collector._dependents


async def test_failed_writes_are_retried_with_growing_waits(
    cell: Cell, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await cell.deployment()
    await cell.instance("web-0", reference(owner))
    tried = 0

    async def full(operation: Operation[object]) -> object:
        nonlocal tried
        tried += 1
        raise ServerError("the change could not be stored: database or disk is full")

    await cell.delete(owner)
    with monkeypatch.context() as patched:
        patched.setattr(cell.engine._writer, "submit", full)
        await simulation.advance(60)
    assert 1 < tried < 30
    await simulation.advance(10)
    assert await cell.instances() == []
