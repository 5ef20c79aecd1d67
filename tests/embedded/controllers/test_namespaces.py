"""A namespace that is deleted is emptied first."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.roles import CELL
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Forbidden, NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind, Namespace
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count

HELD = "example.test/held"


class Cell:
    """A running plane, started from a log."""

    def __init__(self, simulation: Simulation, log: Log | None = None) -> None:
        self.engine = compute_engine(log, clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.engine.serve("cell", CELL)
        self.client: Client = self.engine.client("cell")
        self._simulation = simulation
        self._run: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._run = asyncio.create_task(self.engine.run(), name="engine")

    async def stop(self) -> None:
        assert self._run is not None
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)

    async def settle(self) -> None:
        await self._simulation.settle()

    async def create(self, kind: Kind[Any], name: str, namespace: str = "web", **metadata: object) -> None:
        await self.client.create(kind, kind.body(name, namespace, **metadata))

    async def release(self, kind: Kind[Any], name: str, namespace: str = "web") -> None:
        await self.client.merge_patch(kind, name, namespace, {"metadata": {"finalizers": None}})
        await self.settle()

    async def delete_namespace(self, name: str = "web") -> None:
        await self.client.delete(NAMESPACE, name)

    async def namespace(self, name: str = "web") -> Namespace | None:
        try:
            return await self.client.get(NAMESPACE, name)
        except NotFound:
            return None

    async def content(self, namespace: str = "web") -> list[str]:
        listed = [await self.client.list(kind, namespace) for kind in (WORKLOAD_DEPLOYMENT, INSTANCE)]
        return [item.name for listing in listed for item in listing.items]


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation)
    runner.run(cell.client.create(NAMESPACE, NAMESPACE.body("web")))
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


async def test_an_empty_namespace_is_deleted(cell: Cell) -> None:
    await cell.delete_namespace()
    await cell.settle()
    assert await cell.namespace() is None


@pytest.mark.parametrize("seed", range(5))
async def test_content_is_deleted_first_and_other_namespaces_stay(cell: Cell, seed: int) -> None:
    await cell.client.create(NAMESPACE, NAMESPACE.body("other"))
    for namespace in ("web", "other"):
        await cell.create(WORKLOAD_DEPLOYMENT, "a", namespace)
        await cell.create(INSTANCE, "b", namespace)
    before = cell.engine.store.revision
    await cell.delete_namespace()
    await cell.settle()
    assert await cell.namespace() is None
    assert await cell.content("other") == ["a", "b"]
    gone = [row.name for row in cell.engine.log.rows(after=before) if row.type == "DELETED"]
    assert sorted(gone[:-1]) == ["a", "b"]
    assert gone[-1] == "web"


async def test_a_namespace_waits_for_the_finalizers_of_its_content(cell: Cell) -> None:
    await cell.create(INSTANCE, "held", finalizers=[HELD])
    await cell.create(INSTANCE, "free")
    await cell.delete_namespace()
    await cell.settle()
    assert await cell.content() == ["held"]
    assert (await cell.client.get(INSTANCE, "held", "web")).metadata.deleting
    namespace = await cell.namespace()
    assert namespace is not None
    assert namespace.metadata.deleting
    await cell.release(INSTANCE, "held")
    assert await cell.namespace() is None


async def test_a_namespace_waits_for_its_own_finalizers(cell: Cell) -> None:
    await cell.client.create(NAMESPACE, NAMESPACE.body("mine", finalizers=[HELD]))
    await cell.create(INSTANCE, "a", "mine")
    await cell.delete_namespace("mine")
    await cell.settle()
    assert await cell.content("mine") == []
    assert await cell.namespace("mine") is not None
    await cell.release(NAMESPACE, "mine", "")
    assert await cell.namespace("mine") is None


async def test_nothing_is_created_in_a_namespace_that_is_being_deleted(cell: Cell) -> None:
    await cell.create(INSTANCE, "held", finalizers=[HELD])
    await cell.delete_namespace()
    with pytest.raises(Forbidden) as refused:
        await cell.create(INSTANCE, "late")
    assert [cause.reason for cause in refused.value.causes] == ["NamespaceTerminating"]


@pytest.mark.parametrize("seed", range(count(10, 200)))
async def test_the_content_of_a_new_namespace_of_the_same_name_is_left_alone(cell: Cell, seed: int) -> None:
    for name in "abc":
        await cell.create(INSTANCE, name)
    await cell.delete_namespace()
    while await cell.namespace() is not None:
        pass
    await cell.client.create(NAMESPACE, NAMESPACE.body("web"))
    await cell.create(INSTANCE, "new")
    await cell.settle()
    assert await cell.content() == ["new"]
    namespace = await cell.namespace()
    assert namespace is not None
    assert not namespace.metadata.deleting

    await cell.delete_namespace()
    await cell.settle()
    assert await cell.content() == []
    assert await cell.namespace() is None


@pytest.mark.parametrize("seed", range(3))
async def test_a_restart_at_any_point_has_the_same_outcome(simulation: Simulation, seed: int) -> None:
    first = Cell(simulation)
    await first.start()
    await first.client.create(NAMESPACE, NAMESPACE.body("web"))
    for name in "abc":
        await first.create(INSTANCE, name)
    await first.create(INSTANCE, "held", finalizers=[HELD])
    deletion = first.engine.store.revision + 1
    await first.delete_namespace()
    await first.settle()
    await first.release(INSTANCE, "held")
    assert await first.namespace() is None
    await first.stop()
    rows = list(first.engine.log.rows())

    for k in range(deletion, len(rows) + 1):
        log = Log()
        log.append(rows[:k])
        restarted = Cell(simulation, log)
        await restarted.start()
        await restarted.settle()
        if await restarted.content():
            assert await restarted.content() == ["held"]
            await restarted.release(INSTANCE, "held")
        assert await restarted.namespace() is None
        await restarted.stop()


async def test_at_rest_nothing_is_written(cell: Cell) -> None:
    await cell.create(INSTANCE, "held", finalizers=[HELD])
    await cell.delete_namespace()
    await cell.settle()
    revision = cell.engine.store.revision
    await asyncio.sleep(3600)
    assert cell.engine.store.revision == revision
