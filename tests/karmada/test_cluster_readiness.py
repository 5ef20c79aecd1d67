"""The embedded hub reports an unreachable cell as Karmada 1.18.1 was observed to."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.api.karmada import CLUSTER
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.roles import CELL, HUB
from datum_compute.karmada.cluster_readiness import TAINT, ClusterReadiness
from datum_compute.karmada.propagation import NamespacePropagation
from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.meta import Json, as_dict
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes

OTHER_TAINT: Json = {"key": "example.test/other", "effect": "NoSchedule"}


class Hub:
    def __init__(self, simulation: Simulation) -> None:
        self.writes = Writes()
        self.engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.fleet = Fleet()
        # Whether a cell answers is known from the propagation's caches of it.
        propagation = NamespacePropagation(self.fleet, "hub", self.engine.has_deleted)
        self.manager = Manager(self.fleet, [propagation, ClusterReadiness(self.fleet)], simulation)
        self.wires: dict[str, Faults] = {}
        for name, role in {"hub": HUB, "cell-dfw": CELL}.items():
            self.wires[name] = Faults(InProcess(self.engine.serve(name, role)), simulation.random)
            self.fleet.add(Plane(name, role, self.wires[name], writes=self.writes, generator=simulation.random))
        self.client: Client = self.engine.client("hub")
        self._runs: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.client.create(CLUSTER, CLUSTER.body("cell-dfw") | {"spec": {"taints": [OTHER_TAINT]}})
        self._runs = [asyncio.create_task(work.run()) for work in (self.engine, self.manager)]
        await asyncio.sleep(20)

    async def stop(self) -> None:
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        assert [crash for controller in self.manager.controllers.values() for crash in controller.crashes] == []

    async def readiness(self) -> tuple[str, str, list[Json]]:
        cluster = await self.client.get(CLUSTER, "cell-dfw")
        ready = conditions.find(cluster.status.conditions if cluster.status else (), "Ready")
        taints: list[Json] = as_dict(cluster.spec_json).get("taints") or []
        return (ready.status, ready.reason, taints) if ready else ("", "", taints)


@pytest.fixture
def hub(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Hub]:
    hub = Hub(simulation)
    runner.run(hub.start())
    yield hub
    runner.run(hub.stop())


async def test_a_cell_that_answers_is_ready_and_not_tainted(hub: Hub) -> None:
    assert await hub.readiness() == ("True", "ClusterReady", [OTHER_TAINT])


async def test_a_cell_that_does_not_answer_is_not_ready_and_tainted_until_it_is_back(hub: Hub) -> None:
    hub.wires["cell-dfw"].take_away()
    await asyncio.sleep(60)
    assert await hub.readiness() == ("False", "ClusterNotReachable", [OTHER_TAINT, TAINT])
    assert TAINT == {"key": "cluster.karmada.io/not-ready", "effect": "NoSchedule"}

    hub.wires["cell-dfw"].bring_back()
    await asyncio.sleep(60)
    assert await hub.readiness() == ("True", "ClusterReady", [OTHER_TAINT])


async def test_a_short_silence_changes_nothing(hub: Hub) -> None:
    hub.wires["cell-dfw"].take_away()
    await asyncio.sleep(20)
    assert (await hub.readiness())[0] == "True"


async def test_readiness_is_written_once(hub: Hub) -> None:
    revision, written = hub.engine.store.revision, hub.writes.total()
    await asyncio.sleep(3600)
    assert (hub.engine.store.revision, hub.writes.total()) == (revision, written)
    hub.wires["cell-dfw"].take_away()
    await asyncio.sleep(3600)
    assert hub.writes.total() == written + 2


async def test_a_cluster_without_a_plane_is_not_reachable(hub: Hub) -> None:
    await hub.client.create(CLUSTER, CLUSTER.body("cell-far"))
    await asyncio.sleep(60)
    far = await hub.client.get(CLUSTER, "cell-far")
    assert far.status is not None
    assert conditions.is_false(far.status.conditions, "Ready")
