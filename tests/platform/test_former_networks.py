"""After the network built-in is switched off, what it created is deleted when unused, and nothing waits for it."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.api.labels import NETWORK_FINALIZER
from datum_compute.api.networking import NETWORK, NETWORK_BINDING, NETWORK_CONTEXT
from datum_compute.federation.roles import CELL
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.platform.former_networks import RECHECK_SECONDS, FormerNetworks
from datum_compute.platform.networks import NetworkController
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.events import warnings
from tests.harness import ControllerHarness


class Cell(ControllerHarness):
    """A cell in which the built-in created network `default` for a binding, and was switched off."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, {"cell": CELL}, lambda fleet: NetworkController())
        self.client = self.engine.client("cell")

    async def prepare(self) -> None:
        await self.client.create(NAMESPACE, NAMESPACE.body("ns"))
        await self.run()
        spec = {"network": {"name": "default"}, "location": {"name": "dfw", "namespace": ""}}
        await self.client.create(NETWORK_BINDING, NETWORK_BINDING.body("web-net-0", "ns") | {"spec": spec})
        await self.settle()
        assert await self.remaining() == (1, 1)
        await self.replace(lambda fleet: FormerNetworks())

    async def remaining(self) -> tuple[int, int]:
        """Number of networks and contexts."""
        return len((await self.client.list(NETWORK)).items), len((await self.client.list(NETWORK_CONTEXT)).items)


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation)
    runner.run(cell.prepare())
    yield cell
    runner.run(cell.stop())


async def test_a_network_in_use_stays(cell: Cell) -> None:
    await cell.start_controllers()
    await cell.simulation.advance(3600)
    assert await cell.remaining() == (1, 1)
    assert cell.writes.total() == 0


async def test_an_unused_network_is_deleted_with_its_contexts(cell: Cell) -> None:
    await cell.client.delete(NETWORK_BINDING, "web-net-0", "ns")
    await cell.start_controllers()
    await cell.simulation.advance(3 * RECHECK_SECONDS)
    assert await cell.remaining() == (0, 0)


async def test_a_deleted_network_is_released(cell: Cell) -> None:
    await cell.client.delete(NETWORK, "default", "ns")
    await cell.start_controllers()
    await cell.simulation.advance(2 * RECHECK_SECONDS)
    assert await cell.remaining() == (0, 0)


async def test_a_deleted_network_is_held_until_its_contexts_are_gone(cell: Cell) -> None:
    (context,) = (await cell.client.list(NETWORK_CONTEXT)).items
    stopping = [*context.metadata.finalizers, "example.com/stopping"]
    await cell.client.merge_patch(NETWORK_CONTEXT, context.name, "ns", {"metadata": {"finalizers": stopping}})
    await cell.client.delete(NETWORK, "default", "ns")
    await cell.start_controllers()
    await cell.simulation.advance(5 * RECHECK_SECONDS)
    assert await cell.remaining() == (1, 1)
    await cell.client.merge_patch(NETWORK_CONTEXT, context.name, "ns", {"metadata": {"finalizers": None}})
    await cell.simulation.advance(RECHECK_SECONDS)
    assert await cell.remaining() == (0, 0)


async def test_a_network_that_may_not_be_deleted_is_held_and_reported_once(cell: Cell) -> None:
    await cell.client.delete(NETWORK, "default", "ns")
    refusal = cell.faults["cell"].refuse(calls("DELETE", "networkcontexts"), Forbidden("not yours"))
    await cell.start_controllers()
    await cell.simulation.advance(600)
    assert await cell.remaining() == (1, 1)
    assert [(event.reason, event.count) for event in await warnings(cell.client, "default", "ns")] == [
        ("HeldByFormerSetup", 1)
    ]
    refusal.lift()
    await cell.simulation.advance(60)
    assert await cell.remaining() == (0, 0)


async def test_a_cell_that_may_not_read_networks_ignores_them(cell: Cell) -> None:
    cell.faults["cell"].refuse(calls("GET", "/networks"), Forbidden("not yours"))
    await cell.start_controllers()
    await cell.simulation.advance(3600)
    assert cell.controller.results["error"] == 0
    assert cell.controller.passes <= 7


async def test_a_network_created_by_somebody_else_is_left_to_the_network_operator(cell: Cell) -> None:
    body = NETWORK.body("theirs", "ns", finalizers=[NETWORK_FINALIZER])
    await cell.client.create(NETWORK, body | {"spec": {"ipam": {"mode": "Auto"}}})
    await cell.client.delete(NETWORK, "theirs", "ns")
    await cell.start_controllers()
    await cell.simulation.advance(3600)
    assert (await cell.client.get(NETWORK, "theirs", "ns")).metadata.finalizers == (NETWORK_FINALIZER,)
    assert [event.reason for event in await warnings(cell.client, "theirs", "ns")] == ["HeldByFormerSetup"]
