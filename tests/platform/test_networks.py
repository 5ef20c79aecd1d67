"""platform.md 4.9: the network built-in alone in a cell. The test plays the controllers of compute."""

import asyncio
import json
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.api.addresses import addresses_of
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import NETWORK_ADDRESSES
from datum_compute.api.networking import (
    NETWORK,
    NETWORK_BINDING,
    NETWORK_CONTEXT,
    SUBNET,
    SUBNET_CLAIM,
    NetworkBinding,
    Subnet,
)
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json
from datum_compute.platform.networks import ADDRESSES_ASSIGNED, NetworkController
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness

LOCATION = {"name": "dfw", "namespace": ""}
RUNTIME = {"resources": {"instanceType": "datumcloud/d1-standard-2"}}


class Cell(ControllerHarness):
    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, {"cell": CELL}, self._build)
        self.client = self.engine.client("cell")

    def _build(self, fleet: Fleet) -> NetworkController:
        return NetworkController()

    async def start(self) -> None:
        for name in ("ns", "ns-other"):
            await self.client.create(NAMESPACE, NAMESPACE.body(name))
        await self.run()

    async def restart(self) -> None:
        """A new process that knows nothing but what the plane tells it."""
        manager = self._tasks[1]
        manager.cancel()
        await asyncio.gather(manager, return_exceptions=True)
        fleet = Fleet()
        transport = self.faults["cell"]
        fleet.add(Plane("cell", CELL, transport, writes=self.writes, generator=self.simulation.random))
        self.manager = Manager(fleet, [NetworkController()], self.simulation)
        (self.controller,) = self.manager.controllers.values()
        self._tasks[1] = asyncio.create_task(self.manager.run())
        await self.settle()

    # Compute's part

    async def network(self, name: str = "default", **spec: object) -> None:
        await self.client.create(NETWORK, NETWORK.body(name, "ns") | {"spec": {"ipam": {"mode": "Auto"}} | spec})
        await self.settle()

    async def bind(self, deployment: str = "web", network: str = "default", namespace: str = "ns", **ref: str) -> None:
        spec = {"network": {"name": network} | ref, "location": LOCATION}
        body = NETWORK_BINDING.body(f"{deployment}-net-0", namespace)
        await self.client.create(NETWORK_BINDING, body | {"spec": spec})
        await self.settle()

    async def claim(self, network: str = "default", namespace: str = "ns", **also: object) -> None:
        spec = {
            "subnetClass": "private",
            "networkContext": {"name": f"{network}-dfw"},
            "location": LOCATION,
            "ipFamily": "IPv4",
        }
        body = SUBNET_CLAIM.body(f"{network}-dfw-0", namespace)
        await self.client.create(SUBNET_CLAIM, body | {"spec": spec | also})
        await self.settle()

    async def prepare(self, network: str = "default", namespace: str = "ns", **claim: object) -> None:
        await self.bind(network=network, namespace=namespace, deployment=network)
        await self.claim(network, namespace, **claim)

    async def create(
        self, name: str, *networks: str, namespace: str = "ns", annotations: dict[str, str] | None = None
    ) -> None:
        interfaces = [{"network": {"name": network}} for network in networks or ("default",)]
        spec = {"runtime": RUNTIME, "networkInterfaces": interfaces, "location": LOCATION}
        body = INSTANCE.body(name, namespace, annotations=annotations)
        await self.client.create(INSTANCE, body | {"spec": spec})
        await self.settle()

    async def delete(self, kind: Kind[Any], name: str, namespace: str = "ns") -> None:
        await self.client.delete(kind, name, namespace)
        await self.settle()

    async def finished(self) -> None:
        """Longer than any retry."""
        await self.simulation.advance(60)
        await self.settle()

    # What there is

    async def binding(self, name: str = "web-net-0", namespace: str = "ns") -> NetworkBinding:
        return await self.client.get(NETWORK_BINDING, name, namespace)

    async def subnet(self, name: str = "default-dfw-0", namespace: str = "ns") -> Subnet:
        return await self.client.get(SUBNET, name, namespace)

    async def instance(self, name: str, namespace: str = "ns") -> Instance:
        return await self.client.get(INSTANCE, name, namespace)

    async def addresses(self, name: str, namespace: str = "ns") -> list[str]:
        entries = addresses_of(await self.instance(name, namespace)) or ()
        return [address for entry in entries for address in entry]

    async def all_addresses(self) -> list[str]:
        return [
            address
            for one in (await self.client.list(INSTANCE, "ns")).items
            for entry in addresses_of(one) or ()
            for address in entry
        ]

    def check_history(self) -> None:
        """At no time since the beginning had two Instances the same address."""
        held: dict[str, str | None] = {}
        for row in self.engine.log.rows():
            if row.resource == INSTANCE.resource:
                metadata = json.loads(row.value)["metadata"]
                held[row.name] = metadata.get("annotations", {}).get(NETWORK_ADDRESSES)
                if row.type == "DELETED":
                    del held[row.name]
            given = [text for text in held.values() if text]
            assert len(given) == len(set(given)), f"{held} at revision {row.revision}"

    async def assigned(self, name: str) -> tuple[str, str, str] | None:
        status = (await self.instance(name)).status
        found = conditions.find(status.conditions if status else (), ADDRESSES_ASSIGNED)
        return (found.status, found.reason, found.message) if found else None


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation)
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


def ready(object_: object) -> tuple[str, str]:
    found = conditions.find(object_.status.conditions, "Ready")  # type: ignore[attr-defined]
    assert found is not None
    return found.status, found.reason


# From binding to subnet


async def test_4_9_1_a_network_that_nobody_made_is_made_and_bound(cell: Cell) -> None:
    await cell.bind()
    network = await cell.client.get(NETWORK, "default", "ns")
    assert network.spec.ipam.mode == "Auto"
    binding = await cell.binding()
    assert ready(binding) == ("True", "NetworkContextReady")
    assert binding.status is not None
    assert binding.status.network_context_ref is not None
    assert (binding.status.network_context_ref.namespace, binding.status.network_context_ref.name) == (
        "ns",
        "default-dfw",
    )


async def test_4_9_2_the_context_is_owned_by_its_network_and_ready(cell: Cell) -> None:
    await cell.bind()
    context = await cell.client.get(NETWORK_CONTEXT, "default-dfw", "ns")
    assert context.metadata.controller is not None
    assert (context.metadata.controller.kind, context.metadata.controller.name) == ("Network", "default")
    assert ready(context) == ("True", "Ready")
    assert context.status is not None
    assert conditions.is_true(context.status.conditions, "Programmed")


async def test_4_9_3_a_claim_leads_to_a_subnet_of_its_name(cell: Cell) -> None:
    await cell.prepare()
    subnet = await cell.subnet()
    assert subnet.status is not None
    assert ready(subnet) == ("True", "Ready")
    allocated = conditions.find(subnet.status.conditions, "Allocated")
    assert allocated is not None
    assert allocated.reason == "PrefixAllocated"
    prefix = ip_network(f"{subnet.status.start_address}/{subnet.status.prefix_length}")
    assert prefix.prefixlen == 20
    assert prefix.subnet_of(ip_network("10.128.0.0/9"))  # type: ignore[arg-type]
    claim = await cell.client.get(SUBNET_CLAIM, "default-dfw-0", "ns")
    assert ready(claim) == ("True", "SubnetReady")
    assert claim.status is not None
    assert claim.status.subnet_ref is not None
    assert claim.status.subnet_ref.name == "default-dfw-0"


async def test_4_9_3_the_range_of_the_network_and_what_the_claim_asks_for_are_honoured(cell: Cell) -> None:
    await cell.network(ipam={"mode": "Auto", "ipv4Range": "192.0.2.0/24"})
    await cell.prepare(startAddress="192.0.2.64", prefixLength=27)
    subnet = await cell.subnet()
    assert (subnet.spec.start_address, subnet.spec.prefix_length) == ("192.0.2.64", 27)


async def test_4_9_3_two_subnets_of_a_network_do_not_overlap(cell: Cell) -> None:
    await cell.network(ipam={"mode": "Auto", "ipv4Range": "192.0.2.0/25"})
    await cell.prepare(prefixLength=26)
    body = SUBNET_CLAIM.body("another", "ns")
    claim = await cell.client.get(SUBNET_CLAIM, "default-dfw-0", "ns")
    spec: Json = {
        "subnetClass": "private",
        "networkContext": {"name": claim.spec.network_context.name},
        "location": LOCATION,
        "ipFamily": "IPv4",
        "prefixLength": 26,
    }
    await cell.client.create(SUBNET_CLAIM, body | {"spec": spec})
    await cell.settle()
    starts = {(await cell.subnet(name)).spec.start_address for name in ("default-dfw-0", "another")}
    assert starts == {"192.0.2.0", "192.0.2.64"}


@pytest.mark.parametrize(
    ("network", "claim", "said"),
    [
        ({"ipv4Range": "banana"}, {}, "spec.ipam.ipv4Range is 'banana'"),
        ({"ipv4Range": "192.0.2.0/28"}, {"prefixLength": 24}, "A subnet of /24 does not fit into 192.0.2.0/28."),
        ({}, {"startAddress": "172.16.0.0"}, "lies outside 10.128.0.0/9"),
    ],
)
async def test_a_network_that_cannot_be_is_a_failed_binding_with_a_sentence(
    cell: Cell, network: dict[str, str], claim: dict[str, Any], said: str
) -> None:
    await cell.network(ipam={"mode": "Auto"} | network)
    await cell.bind()
    await cell.claim(**claim)
    binding = await cell.binding()
    assert ready(binding) == ("False", "NetworkFailedToCreate")
    assert binding.status is not None
    message = binding.status.conditions[0].message
    assert message.startswith('Network "default" cannot be set up here. ')
    assert said in message


async def test_a_network_that_is_mended_is_bound(cell: Cell) -> None:
    await cell.network(ipam={"mode": "Auto", "ipv4Range": "banana"})
    await cell.bind()
    await cell.client.merge_patch(NETWORK, "default", "ns", {"spec": {"ipam": {"ipv4Range": "192.0.2.0/24"}}})
    await cell.settle()
    assert ready(await cell.binding()) == ("True", "NetworkContextReady")


async def test_a_binding_never_reaches_into_another_namespace(cell: Cell) -> None:
    """Another namespace is another project."""
    await cell.bind(namespace="ns-other")
    await cell.bind(**{"namespace": "ns"})
    with pytest.raises(NotFound):
        await cell.client.get(NETWORK_CONTEXT, "default-dfw", "nowhere")
    spec = {"network": {"name": "default", "namespace": "ns-other"}, "location": LOCATION}
    await cell.client.create(NETWORK_BINDING, NETWORK_BINDING.body("sly-net-0", "ns") | {"spec": spec})
    await cell.settle()
    binding = await cell.binding("sly-net-0")
    assert binding.status is not None
    assert binding.status.network_context_ref is not None
    assert binding.status.network_context_ref.namespace == "ns"


# Going away


async def test_4_9_5_a_network_made_here_goes_with_its_last_binding_and_takes_everything_along(cell: Cell) -> None:
    await cell.prepare()
    await cell.bind("second")
    await cell.delete(NETWORK_BINDING, "default-net-0")
    assert (await cell.client.list(NETWORK)).items != []
    await cell.delete(NETWORK_BINDING, "second-net-0")
    await cell.finished()
    kinds: tuple[Kind[Any], ...] = (NETWORK, NETWORK_CONTEXT, SUBNET)
    for kind in kinds:
        assert (await cell.client.list(kind)).items == [], kind.name


async def test_4_9_5_a_network_that_somebody_else_made_stays(cell: Cell) -> None:
    await cell.network()
    await cell.bind()
    await cell.delete(NETWORK_BINDING, "web-net-0")
    assert [one.name for one in (await cell.client.list(NETWORK)).items] == ["default"]


async def test_4_9_5_a_network_that_is_deleted_in_use_comes_back_and_addresses_stay(cell: Cell) -> None:
    await cell.prepare()
    await cell.create("web-0")
    before = await cell.addresses("web-0")
    await cell.delete(NETWORK, "default")
    await cell.finished()
    assert ready(await cell.binding("default-net-0")) == ("True", "NetworkContextReady")
    await cell.client.delete(SUBNET_CLAIM, "default-dfw-0", "ns")
    await cell.claim()
    assert before == await cell.addresses("web-0") != []


# Addresses


async def test_4_9_6_addresses_begin_behind_the_gateway_and_stand_on_the_instance(cell: Cell) -> None:
    await cell.prepare()
    await cell.create("web-0")
    await cell.create("web-1")
    start = ip_address((await cell.subnet()).spec.start_address)
    assert await cell.addresses("web-0") == [str(start + 2)]
    assert await cell.addresses("web-1") == [str(start + 3)]
    instance = await cell.instance("web-0")
    assert json.loads(instance.metadata.annotations[NETWORK_ADDRESSES]) == [str(start + 2)]


async def test_an_instance_that_came_before_its_network_gets_its_address_with_the_subnet(cell: Cell) -> None:
    await cell.create("web-0")
    assert await cell.addresses("web-0") == []
    await cell.prepare()
    assert len(await cell.addresses("web-0")) == 1


async def test_one_address_an_interface_in_their_order(cell: Cell) -> None:
    await cell.prepare("front")
    await cell.create("web-0", "front", "back", "front")
    assert await cell.addresses("web-0") == []
    await cell.prepare("back", startAddress="10.250.0.0", prefixLength=24)
    addresses = await cell.addresses("web-0")
    assert len(addresses) == 3
    assert addresses[1] == "10.250.0.2"
    assert addresses[0] != addresses[2]


async def test_a_network_with_both_families_gives_both(cell: Cell) -> None:
    await cell.network(ipFamilies=["IPv4", "IPv6"])
    await cell.prepare()
    await cell.create("web-0")
    first, second = await cell.addresses("web-0")
    assert (ip_address(first).version, ip_address(second).version) == (4, 6)
    text = (await cell.instance("web-0")).metadata.annotations[NETWORK_ADDRESSES]
    assert json.loads(text) == [[first, second]]


async def test_a_network_with_ipv6_only_gives_no_other(cell: Cell) -> None:
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


async def test_a_full_subnet_is_a_reason_with_a_sentence_and_heals(cell: Cell) -> None:
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
    said = await cell.assigned("web-5")
    assert said is not None
    assert said[0] == "True"


async def test_addresses_are_the_same_after_a_restart_and_new_ones_are_new(cell: Cell) -> None:
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


async def test_an_answer_that_is_lost_gives_no_address_twice(cell: Cell) -> None:
    """Nobody hears of the first address for five seconds, and the second is asked for in between."""
    await cell.prepare()
    lost = cell.faults["cell"].lose_answer(calls("PATCH", "instances"))
    cell.faults["cell"].delay_watches(5, 5)
    await cell.restart()
    await cell.create("web-0")
    await cell.create("web-1")
    await cell.finished()
    assert lost.fired
    assert len(await cell.all_addresses()) == 2
    cell.check_history()


async def test_an_address_that_a_template_brings_along_is_not_believed(cell: Cell) -> None:
    await cell.prepare(startAddress="10.128.0.0", prefixLength=24)
    await cell.create("web-0")
    for number, forged in enumerate(('["10.128.0.2"]', '["10.9.9.9"]', '["10.128.0.1"]', "[]", "what?"), start=1):
        await cell.simulation.advance(1)
        await cell.create(f"web-{number}", annotations={NETWORK_ADDRESSES: forged})
    addresses = await cell.all_addresses()
    assert addresses[0] == "10.128.0.2"
    assert len(addresses) == len(set(addresses)) == 6
    assert all(ip_address(one) in ip_network("10.128.0.0/24") for one in addresses)
    assert "10.128.0.1" not in addresses


async def test_invariant_4_at_rest_nothing_is_written(cell: Cell) -> None:
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
def test_no_address_is_ever_given_twice_and_none_is_lost(steps: list[tuple[str, int]], seed: int) -> None:
    """A subnet for five, and up to ten that want one."""

    async def play(simulation: Simulation) -> None:
        cell = Cell(simulation)
        await cell.start()
        await cell.prepare(startAddress="10.128.0.0", prefixLength=29)
        there: dict[int, str] = {}
        for step, number in steps:
            match step:
                case "create" if number not in there:
                    await cell.create(f"web-{number}")
                    there[number] = ""
                case "delete" if number in there:
                    await cell.delete(INSTANCE, f"web-{number}")
                    del there[number]
                case "restart":
                    await cell.restart()
                case "fail":
                    cell.faults["cell"].fail(calls("PATCH", "instances"))
                case "lose":
                    cell.faults["cell"].lose_answer(calls("PATCH", "instances"))
            for one in there:
                now = "".join(await cell.addresses(f"web-{one}"))
                assert now == there[one] or not there[one], "an address never changes"
                there[one] = now
        await cell.finished()
        assert len(await cell.all_addresses()) == min(len(there), 5)
        cell.check_history()
        await cell.stop()

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        runner.run(play(loop))


async def test_4_5_another_subnet_of_the_context_moves_nobody(cell: Cell) -> None:
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
