"""Addresses of Instances in a cell without the network operator. The test plays compute's own controllers."""

import asyncio
import json
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import NETWORK_ADDRESSES
from datum_compute.api.networking import NETWORK, NETWORK_CONTEXT, SUBNET, SUBNET_CLAIM
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import Kind
from datum_compute.platform.addresses import AddressController
from datum_compute.runtime.caches.informer import UNSERVED_SECONDS
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.platform.cell import LOCATION, Cell, ready


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation)
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


async def test_addresses_start_after_the_gateway_and_are_written_on_the_instance(cell: Cell) -> None:
    await cell.prepare()
    await cell.create("web-0")
    await cell.create("web-1")
    start = ip_address((await cell.subnet()).spec.start_address)
    assert await cell.addresses("web-0") == [str(start + 2)]
    assert await cell.addresses("web-1") == [str(start + 3)]
    instance = await cell.instance("web-0")
    assert json.loads(instance.metadata.annotations[NETWORK_ADDRESSES]) == [str(start + 2)]


async def test_an_instance_older_than_its_network_gets_an_address_once_the_subnet_exists(cell: Cell) -> None:
    await cell.create("web-0")
    assert await cell.addresses("web-0") == []
    await cell.prepare()
    assert len(await cell.addresses("web-0")) == 1


async def test_each_interface_gets_an_address_in_order(cell: Cell) -> None:
    await cell.prepare("front")
    await cell.create("web-0", "front", "back", "front")
    assert await cell.addresses("web-0") == []
    await cell.prepare("back", startAddress="10.250.0.0", prefixLength=24)
    addresses = await cell.addresses("web-0")
    assert len(addresses) == 3
    assert addresses[1] == "10.250.0.2"
    assert addresses[0] != addresses[2]


async def test_a_dual_stack_network_gives_one_address_per_family(cell: Cell) -> None:
    await cell.network(ipFamilies=["IPv4", "IPv6"])
    await cell.prepare()
    await cell.create("web-0")
    first, second = await cell.addresses("web-0")
    assert (ip_address(first).version, ip_address(second).version) == (4, 6)
    text = (await cell.instance("web-0")).metadata.annotations[NETWORK_ADDRESSES]
    assert json.loads(text) == [[first, second]]


async def test_an_ipv6_network_gives_only_ipv6_addresses(cell: Cell) -> None:
    await cell.network(ipFamilies=["IPv6"])
    await cell.prepare()
    await cell.create("web-0")
    (address,) = await cell.addresses("web-0")
    assert ip_address(address) in ip_network("fd20::/20")


async def test_an_address_is_in_use_until_the_instance_is_gone(cell: Cell) -> None:
    await cell.prepare(prefixLength=30)
    await cell.create("web-0")
    (address,) = await cell.addresses("web-0")
    await cell.client.merge_patch(INSTANCE, "web-0", "ns", {"metadata": {"finalizers": ["example.com/held"]}})
    await cell.delete(INSTANCE, "web-0")
    await cell.create("web-1")
    assert await cell.addresses("web-1") == []
    await cell.client.merge_patch(INSTANCE, "web-0", "ns", {"metadata": {"finalizers": None}})
    await cell.settle()
    assert await cell.addresses("web-1") == [address]


async def test_a_full_subnet_is_reported_until_an_address_is_released(cell: Cell) -> None:
    await cell.prepare(startAddress="10.128.0.0", prefixLength=29)
    for number in range(6):
        await cell.create(f"web-{number}")
    assert await cell.addresses("web-5") == []
    assert await cell.assigned("web-5") == (
        "False",
        "NetworkFailedToCreate",
        'Subnet default-dfw-0 (10.128.0.0/29) of network "default" is full: all of its 5 addresses are in use. '
        "Run fewer instances in this network here.",
    )
    assert [await cell.assigned(f"web-{number}") for number in range(5)] == [None] * 5
    before = cell.writes.total()
    await cell.simulation.advance(3600)
    assert cell.writes.total() == before
    await cell.delete(INSTANCE, "web-2")
    assert await cell.addresses("web-5") == ["10.128.0.4"]
    condition = await cell.assigned("web-5")
    assert condition is not None
    assert condition[0] == "True"


async def test_addresses_survive_a_restart_and_are_not_given_again(cell: Cell) -> None:
    await cell.prepare()
    for number in range(3):
        await cell.create(f"web-{number}")
    before = await cell.all_addresses()
    writes = cell.writes.total()
    await cell.restart()
    assert await cell.all_addresses() == before
    assert cell.writes.total() == writes
    await cell.create("web-3")
    assert len(set(await cell.all_addresses())) == 4


async def test_a_lost_answer_does_not_give_an_address_twice(cell: Cell) -> None:
    """The first address is not visible for five seconds, and the second is chosen in between."""
    await cell.prepare()
    lost = cell.faults["cell"].lose_answer(calls("PATCH", "instances"))
    cell.faults["cell"].delay_watches(5, 5)
    await cell.restart()
    await cell.create("web-0")
    await cell.create("web-1")
    await cell.finish()
    assert lost.fired
    assert len(await cell.all_addresses()) == 2
    cell.check_history()


@pytest.mark.parametrize("kind", [NETWORK, NETWORK_CONTEXT, SUBNET], ids=lambda kind: kind.plural)
async def test_a_cell_that_lacks_a_kind_is_engaged_and_addresses_are_assigned_once_it_has_it(
    simulation: Simulation, kind: Kind[Any]
) -> None:
    cell = Cell(simulation)
    missing = cell.faults["cell"].refuse(calls(path=f"/{kind.plural}"), NotFound("no such kind"))
    await cell.start()
    await cell.create("web-0")
    assert cell.fleet.has("cell")
    missing.lift()
    await simulation.advance(2 * UNSERVED_SECONDS)
    await cell.prepare()
    assert len(await cell.addresses("web-0")) == 1
    await cell.stop()


async def test_addresses_forged_in_a_template_are_replaced(cell: Cell) -> None:
    await cell.prepare(startAddress="10.128.0.0", prefixLength=24)
    await cell.create("web-0")
    for number, forged in enumerate(('["10.128.0.2"]', '["10.9.9.9"]', '["10.128.0.1"]', "[]", "what?"), start=1):
        await cell.simulation.advance(1)
        await cell.create(f"web-{number}", annotations={NETWORK_ADDRESSES: forged})
    addresses = await cell.all_addresses()
    assert addresses[0] == "10.128.0.2"
    assert len(addresses) == len(set(addresses)) == 6
    assert all(ip_address(address) in ip_network("10.128.0.0/24") for address in addresses)
    assert "10.128.0.1" not in addresses


async def test_nothing_is_written_at_rest(cell: Cell) -> None:
    await cell.prepare()
    await cell.create("web-0")
    before = cell.writes.total()
    await cell.simulation.advance(36_000)
    assert cell.writes.total() == before


async def test_an_instance_costs_one_write(cell: Cell) -> None:
    await cell.prepare()
    before = cell.writes.total()
    await cell.create("web-0")
    assert cell.writes.total() - before == 1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.sampled_from(["restart", "fail", "lose"]), st.just(0)),
    ),
    max_size=25,
)


@given(steps=steps, seed=st.integers(0, 1000))
def test_no_address_is_ever_given_twice_or_lost(steps: list[tuple[str, int]], seed: int) -> None:
    """The subnet has five addresses for up to ten instances."""

    async def play(simulation: Simulation) -> None:
        cell = Cell(simulation)
        await cell.start()
        await cell.prepare(startAddress="10.128.0.0", prefixLength=29)
        assigned: dict[int, str] = {}
        for step, number in steps:
            match step:
                case "create" if number not in assigned:
                    await cell.create(f"web-{number}")
                    assigned[number] = ""
                case "delete" if number in assigned:
                    await cell.delete(INSTANCE, f"web-{number}")
                    del assigned[number]
                case "restart":
                    await cell.restart()
                case "fail":
                    cell.faults["cell"].fail(calls("PATCH", "instances"))
                case "lose":
                    cell.faults["cell"].lose_answer(calls("PATCH", "instances"))
            for ordinal in assigned:
                now = "".join(await cell.addresses(f"web-{ordinal}"))
                assert now == assigned[ordinal] or not assigned[ordinal], "an address never changes"
                assigned[ordinal] = now
        await cell.finish()
        assert len(await cell.all_addresses()) == min(len(assigned), 5)
        cell.check_history()
        await cell.stop()

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        runner.run(play(loop))


async def test_another_subnet_of_the_context_changes_no_address(cell: Cell) -> None:
    await cell.prepare()
    await cell.create("web-0")
    before = await cell.addresses("web-0")
    spec = {
        "subnetClass": "public",
        "networkContext": {"name": "default-dfw"},
        "location": LOCATION,
        "ipFamily": "IPv4",
        "prefixLength": 26,
    }
    await cell.client.create(SUBNET_CLAIM, SUBNET_CLAIM.body("another", "ns") | {"spec": spec})
    await cell.settle()
    assert await cell.addresses("web-0") == before


async def test_addresses_survive_the_deletion_of_a_network_in_use(cell: Cell) -> None:
    await cell.prepare()
    await cell.create("web-0")
    before = await cell.addresses("web-0")
    await cell.delete(NETWORK, "default")
    await cell.finish()
    assert ready(await cell.binding("default-net-0")) == ("True", "NetworkContextReady")
    await cell.client.delete(SUBNET_CLAIM, "default-dfw-0", "ns")
    await cell.claim()
    assert before == await cell.addresses("web-0") != []


async def test_addresses_come_from_any_ready_subnet_whoever_created_it(simulation: Simulation) -> None:
    cell = Cell(simulation, AddressController)
    await cell.start()
    await cell.network()
    spec = {"network": {"name": "default"}, "location": LOCATION}
    await cell.client.create(NETWORK_CONTEXT, NETWORK_CONTEXT.body("default-dfw", "ns") | {"spec": spec})
    subnet_spec = {
        "subnetClass": "private",
        "networkContext": {"name": "default-dfw"},
        "location": LOCATION,
        "ipFamily": "IPv4",
        "startAddress": "192.0.2.0",
        "prefixLength": 24,
    }
    subnet = await cell.client.create(SUBNET, SUBNET.body("mine", "ns") | {"spec": subnet_spec})
    await cell.create("web-0")
    assert await cell.addresses("web-0") == []
    update = conditions.condition("Ready", True, "Ready", "", generation=1, now=simulation.now())
    await cell.client.replace_status(SUBNET, subnet, conditions.status_with(subnet, [update]))
    await cell.settle()
    assert await cell.addresses("web-0") == ["192.0.2.2"]
    await cell.stop()
