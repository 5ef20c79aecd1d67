"""What a delete does to dependents, for each propagation policy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from datum_compute.embedded.engine import Engine
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.roles import CELL
from datum_compute.kube.client import Client
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, KubeObject, encode
from datum_compute.kube.transport import Call
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import Simulation

CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps", KubeObject)


class Plane:
    def __init__(self, engine: Engine, simulation: Simulation) -> None:
        self.engine = engine
        self.client: Client = engine.client("cell")
        self._simulation = simulation

    async def make(self, name: str, *owners: str, block: bool = True, finalizers: list[str] | None = None) -> None:
        references: list[Json] = []
        for owner in owners:
            uid = (await self.client.get(CONFIG_MAP, owner, "default")).metadata.uid
            references.append(
                {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "blockOwnerDeletion": block}
            )
        body = CONFIG_MAP.body(name, "default", ownerReferences=references, finalizers=finalizers)
        await self.client.create(CONFIG_MAP, body)

    async def delete(self, name: str, policy: str) -> Json:
        server = self.engine.plane("cell")
        assert server is not None
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
        answer = await server.answer(Call("DELETE", CONFIG_MAP.path("default", name), {}, encode(options)))
        assert answer.code == 200
        value: Json = msgspec.json.decode(answer.body)
        return value

    async def release(self, name: str) -> None:
        await self.client.merge_patch(CONFIG_MAP, name, "default", {"metadata": {"finalizers": None}})

    async def left(self) -> dict[str, list[str]]:
        """The remaining objects at rest: name and names of owners; a `-` marks one that is being deleted."""
        await self._simulation.settle()
        return {
            f"{'-' if item.metadata.deleting else ''}{item.name}": [
                owner.name for owner in item.metadata.owner_references
            ]
            for item in (await self.client.list(CONFIG_MAP)).items
        }


@asynccontextmanager
async def running(simulation: Simulation, log: Log | None = None) -> AsyncIterator[Plane]:
    engine = compute_engine(log, clock=simulation, uids=CountedUids(), generator=simulation.random)
    engine.serve("cell", CELL)
    work = asyncio.create_task(engine.run())
    yield Plane(engine, simulation)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def family(plane: Plane) -> None:
    await plane.client.create(NAMESPACE, NAMESPACE.body("default"))
    await plane.make("owner")
    await plane.make("child", "owner")
    await plane.make("grandchild", "child")


async def test_background_deletion_deletes_the_owner_first(simulation: Simulation) -> None:
    async with running(simulation) as plane:
        await family(plane)
        assert (await plane.delete("owner", "Background"))["status"] == "Success"
        assert await plane.left() == {}


@pytest.mark.parametrize("seed", range(10))
async def test_orphans_stay_and_lose_their_owner_reference(simulation: Simulation, seed: int) -> None:
    async with running(simulation) as plane:
        await family(plane)
        going = await plane.delete("owner", "Orphan")
        assert going["metadata"]["finalizers"] == ["orphan"]
        assert await plane.left() == {"child": [], "grandchild": ["child"]}


@pytest.mark.parametrize("seed", range(10))
async def test_foreground_deletion_waits_for_blocking_dependents(simulation: Simulation, seed: int) -> None:
    async with running(simulation) as plane:
        await family(plane)
        await plane.make("held", "child", finalizers=["x/y"])
        going = await plane.delete("owner", "Foreground")
        assert going["metadata"]["finalizers"] == ["foregroundDeletion"]
        assert await plane.left() == {"-owner": [], "-child": ["owner"], "-held": ["child"]}
        await plane.release("held")
        assert await plane.left() == {}


async def test_foreground_deletion_does_not_wait_for_other_dependents(simulation: Simulation) -> None:
    async with running(simulation) as plane:
        await plane.client.create(NAMESPACE, NAMESPACE.body("default"))
        await plane.make("owner")
        await plane.make("child", "owner", block=False, finalizers=["x/y"])
        await plane.delete("owner", "Foreground")
        assert await plane.left() == {"-child": ["owner"]}


async def test_a_dependent_with_another_owner_stays_and_loses_one_reference(simulation: Simulation) -> None:
    async with running(simulation) as plane:
        await plane.client.create(NAMESPACE, NAMESPACE.body("default"))
        await plane.make("owner")
        await plane.make("other")
        await plane.make("child", "owner", "other")
        await plane.delete("owner", "Foreground")
        assert await plane.left() == {"other": [], "child": ["other"]}


async def test_a_second_delete_can_change_the_mode(simulation: Simulation) -> None:
    async with running(simulation) as plane:
        await plane.client.create(NAMESPACE, NAMESPACE.body("default"))
        await plane.make("owner")
        await plane.make("child", "owner", finalizers=["x/y"])
        await plane.delete("owner", "Foreground")
        assert await plane.left() == {"-owner": [], "-child": ["owner"]}
        await plane.delete("owner", "Background")
        assert await plane.left() == {"-child": ["owner"]}


@pytest.mark.parametrize("policy", ["Orphan", "Foreground"])
async def test_a_restarted_process_completes_the_deletion(simulation: Simulation, policy: str) -> None:
    log = Log()
    engine = compute_engine(log, clock=simulation, uids=CountedUids(), generator=simulation.random)
    engine.serve("cell", CELL)
    stopped = Plane(engine, simulation)  # without a running collector
    await family(stopped)
    await stopped.delete("owner", policy)
    async with running(simulation, log) as plane:
        left = await plane.left()
    assert left == ({} if policy == "Foreground" else {"child": [], "grandchild": ["child"]})
