"""Events expire an hour after they last occurred."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import TypeVar

import pytest

from datum_compute.embedded.engine import Engine
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.embedded.storage.store import Operation, Store
from datum_compute.embedded.storage.writer import InlineWriter
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ServerError
from datum_compute.kube.kinds import CONFIG_MAP, EVENT, NAMESPACE
from datum_compute.kube.meta import timestamp
from datum_compute.runtime.testing.simulation import Simulation

T = TypeVar("T")

HOUR = 3600.0
SWEEP = 60.0


class Disk(InlineWriter):
    full = False

    async def submit(self, operation: Operation[T]) -> T:
        if self.full:
            raise ServerError("the change could not be stored: database or disk is full")
        return await super().submit(operation)


class Plane:
    def __init__(self, simulation: Simulation) -> None:
        self.engine = Engine(
            clock=simulation,
            uids=CountedUids(),
            generator=simulation.random,
            writer=self._disk,
            event_ttl=timedelta(hours=1),
        )
        self.engine.serve("plane", "")
        self.client: Client = self.engine.client("plane")
        self.simulation = simulation

    def _disk(self, store: Store) -> Disk:
        self.disk = Disk(store)
        return self.disk

    async def record(self, name: str) -> None:
        times = {"firstTimestamp": timestamp(self.simulation.now()), "lastTimestamp": timestamp(self.simulation.now())}
        await self.client.create(EVENT, EVENT.body(name, "default") | times)

    async def repeat(self, name: str) -> None:
        patch = {"count": 2, "lastTimestamp": timestamp(self.simulation.now())}
        await self.client.merge_patch(EVENT, name, "default", patch)

    async def events(self) -> list[str]:
        return [event.name for event in (await self.client.list(EVENT)).items]


@pytest.fixture
def plane(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Plane]:
    plane = Plane(simulation)
    runner.run(plane.client.create(NAMESPACE, NAMESPACE.body("default")))

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(plane.engine.run(), name="engine")

    async def stop(task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    task = runner.run(start())
    yield plane
    runner.run(stop(task))


async def test_an_event_is_deleted_after_an_hour(plane: Plane) -> None:
    await plane.record("old")
    await plane.simulation.advance(HOUR / 2)
    await plane.record("young")
    await plane.simulation.advance(HOUR / 2 - SWEEP)
    assert await plane.events() == ["old", "young"]
    await plane.simulation.advance(2 * SWEEP)
    assert await plane.events() == ["young"]


async def test_an_event_that_occurs_again_lives_for_another_hour(plane: Plane) -> None:
    await plane.record("repeated")
    await plane.simulation.advance(HOUR - SWEEP)
    await plane.repeat("repeated")
    await plane.simulation.advance(HOUR - SWEEP)
    assert await plane.events() == ["repeated"]
    await plane.simulation.advance(2 * SWEEP)
    assert await plane.events() == []


async def test_an_event_without_times_expires_by_its_age(plane: Plane) -> None:
    await plane.client.create(EVENT, EVENT.body("bare", "default"))
    await plane.simulation.advance(HOUR + SWEEP)
    assert await plane.events() == []


async def test_other_kinds_do_not_expire(plane: Plane) -> None:
    await plane.client.create(CONFIG_MAP, CONFIG_MAP.body("a", "default"))
    await plane.simulation.advance(3 * HOUR)
    assert [item.name for item in (await plane.client.list(CONFIG_MAP)).items] == ["a"]


async def test_watchers_see_an_ordinary_deletion(plane: Plane) -> None:
    await plane.record("old")
    listed = await plane.client.list(EVENT)
    timeout = int(HOUR + 2 * SWEEP)
    async with plane.client.watch(EVENT, listed.resource_version, timeout_seconds=timeout) as events:
        changes = [(event.type, event.object.name) async for event in events if event.object is not None]
    assert changes == [("DELETED", "old")]


async def test_a_full_disk_postpones_the_deletion(plane: Plane) -> None:
    await plane.record("old")
    await plane.simulation.advance(HOUR - SWEEP)
    plane.disk.full = True
    await plane.simulation.advance(2 * SWEEP)
    assert await plane.events() == ["old"]
    plane.disk.full = False
    await plane.simulation.advance(SWEEP)
    assert await plane.events() == []


async def test_at_rest_a_sweep_writes_nothing(plane: Plane) -> None:
    await plane.record("young")
    before = plane.engine.store.revision
    await plane.simulation.advance(HOUR / 2)
    assert plane.engine.store.revision == before
