"""The embedded hub has one namespace per Cluster, like Karmada."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.api.karmada import CLUSTER
from datum_compute.federation.roles import HUB
from datum_compute.karmada.execution_spaces import ExecutionSpaces
from datum_compute.kube.client import Client
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness


@pytest.fixture
def hub(runner: asyncio.Runner, simulation: Simulation) -> Iterator[ControllerHarness]:
    hub = ControllerHarness(simulation, {"hub": HUB}, lambda fleet: ExecutionSpaces())
    runner.run(hub.run())
    yield hub
    runner.run(hub.stop())


async def spaces(client: Client) -> list[str]:
    return [namespace.name for namespace in (await client.list(NAMESPACE)).items if not namespace.metadata.deleting]


async def test_a_namespace_is_created_and_deleted_with_its_cluster(hub: ControllerHarness) -> None:
    client = hub.engine.client("hub")
    await client.create(CLUSTER, CLUSTER.body("cell-dfw"))
    await client.create(CLUSTER, CLUSTER.body("cell-ord"))
    await hub.settle()
    assert await spaces(client) == ["karmada-es-cell-dfw", "karmada-es-cell-ord"]
    await client.delete(CLUSTER, "cell-dfw")
    await hub.settle()
    assert await spaces(client) == ["karmada-es-cell-ord"]


async def test_a_deleted_execution_space_is_recreated(hub: ControllerHarness) -> None:
    client = hub.engine.client("hub")
    await client.create(CLUSTER, CLUSTER.body("cell-dfw"))
    await hub.settle()
    await client.delete(NAMESPACE, "karmada-es-cell-dfw")
    await hub.settle()
    assert await spaces(client) == ["karmada-es-cell-dfw"]


async def test_other_namespaces_are_left_alone(hub: ControllerHarness) -> None:
    client = hub.engine.client("hub")
    for name in ("default", "karmada-system"):
        await client.create(NAMESPACE, NAMESPACE.body(name))
    await hub.settle()
    assert await spaces(client) == ["default", "karmada-system"]
    assert hub.writes.total() == 0
