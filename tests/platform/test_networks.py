"""The network built-in alone in a cell: contexts and subnets. The test plays compute's own controllers."""

import asyncio
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import pytest

from datum_compute.api.networking import NETWORK, NETWORK_BINDING, NETWORK_CONTEXT, SUBNET, SUBNET_CLAIM
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json
from datum_compute.platform.networks import NetworkController
from datum_compute.runtime.testing.simulation import Simulation
from tests.platform.cell import LOCATION, Cell, ready


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation, NetworkController)
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


async def test_a_missing_network_is_created_and_bound(cell: Cell) -> None:
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


async def test_the_context_is_ready_and_owned_by_its_network(cell: Cell) -> None:
    await cell.bind()
    context = await cell.client.get(NETWORK_CONTEXT, "default-dfw", "ns")
    assert context.metadata.controller is not None
    assert (context.metadata.controller.kind, context.metadata.controller.name) == ("Network", "default")
    assert ready(context) == ("True", "Ready")
    assert context.status is not None
    assert conditions.is_true(context.status.conditions, "Programmed")


async def test_a_claim_gets_a_subnet_of_the_same_name(cell: Cell) -> None:
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


async def test_a_subnet_respects_the_range_of_the_network_and_the_spec_of_the_claim(cell: Cell) -> None:
    await cell.network(ipam={"mode": "Auto", "ipv4Range": "192.0.2.0/24"})
    await cell.prepare(startAddress="192.0.2.64", prefixLength=27)
    subnet = await cell.subnet()
    assert (subnet.spec.start_address, subnet.spec.prefix_length) == ("192.0.2.64", 27)


async def test_subnets_of_a_network_do_not_overlap(cell: Cell) -> None:
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
    ("network", "claim", "cause"),
    [
        ({"ipv4Range": "banana"}, {}, "spec.ipam.ipv4Range is 'banana'"),
        ({"ipv4Range": "192.0.2.0/28"}, {"prefixLength": 24}, "A subnet of /24 does not fit into 192.0.2.0/28."),
        ({}, {"startAddress": "172.16.0.0"}, "lies outside 10.128.0.0/9"),
    ],
)
async def test_a_network_that_cannot_be_set_up_fails_its_binding_with_the_cause(
    cell: Cell, network: dict[str, str], claim: dict[str, Any], cause: str
) -> None:
    await cell.network(ipam={"mode": "Auto"} | network)
    await cell.bind()
    await cell.claim(**claim)
    binding = await cell.binding()
    assert ready(binding) == ("False", "NetworkFailedToCreate")
    assert binding.status is not None
    message = binding.status.conditions[0].message
    assert message.startswith('Network "default" cannot be set up here. ')
    assert cause in message


async def test_a_corrected_network_is_bound(cell: Cell) -> None:
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


async def test_a_network_created_here_is_deleted_with_its_last_binding_and_all_it_contains(cell: Cell) -> None:
    await cell.prepare()
    await cell.bind("second")
    await cell.delete(NETWORK_BINDING, "default-net-0")
    assert (await cell.client.list(NETWORK)).items != []
    await cell.delete(NETWORK_BINDING, "second-net-0")
    await cell.finish()
    kinds: tuple[Kind[Any], ...] = (NETWORK, NETWORK_CONTEXT, SUBNET)
    for kind in kinds:
        assert (await cell.client.list(kind)).items == [], kind.name


async def test_a_network_created_by_somebody_else_stays(cell: Cell) -> None:
    await cell.network()
    await cell.bind()
    await cell.delete(NETWORK_BINDING, "web-net-0")
    assert [network.name for network in (await cell.client.list(NETWORK)).items] == ["default"]


async def test_a_network_at_rest_is_not_written(cell: Cell) -> None:
    await cell.prepare()
    before = cell.writes.total()
    await cell.simulation.advance(36_000)
    assert cell.writes.total() == before


async def test_instances_do_not_concern_the_network_controller(cell: Cell) -> None:
    await cell.prepare()
    passes = cell.controller.passes
    await cell.create("web-0")
    assert cell.controller.passes == passes
