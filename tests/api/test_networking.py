"""The fields of the network operator's kinds that are read here, and what a plane serves."""

import json
from typing import Any, TypeVar

import pytest

from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.names import binding_name, subnet_claim_name
from datum_compute.api.networking import (
    IPV4,
    LOCATION,
    LOCATION_BINDING,
    NETWORK,
    NETWORK_BINDING,
    NETWORK_CONTEXT,
    PRIVATE,
    READY,
    SUBNET,
    SUBNET_CLAIM,
    Location,
    LocationBinding,
    NetworkBinding,
    Subnet,
    SubnetClaim,
)
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Invalid
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, KubeObject, as_dict, decode
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import Simulation

T = TypeVar("T", bound=KubeObject)

HOME = "ns-1"
CONDITION = {"status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-06-10T12:00:00Z"}


def read(type_: type[T], **parts: Any) -> T:
    return decode(json.dumps({"metadata": {"name": "x"}, **parts}).encode(), type_)


def test_a_location_binding_offers_a_location() -> None:
    binding = read(
        LocationBinding,
        spec={
            "locationRef": {"name": "dfw-1"},
            "locationClassName": "datum-managed",
            "displayName": "Dallas",
            "topology": {TOPOLOGY_CITY: "DFW"},
        },
        status={"conditions": [CONDITION | {"type": "Available"}]},
    )
    assert binding.spec.location_ref.name == "dfw-1"
    assert binding.spec.topology[TOPOLOGY_CITY] == "DFW"
    assert binding.status is not None
    assert conditions.is_true(binding.status.conditions, "Available")


def test_a_location_without_topology_offers_no_city() -> None:
    assert read(LocationBinding, spec={}).spec.topology == {}
    assert read(Location, spec={"provider": {"gcp": {"projectId": "p"}}}).spec.topology == {}


@pytest.mark.parametrize("location", [{"name": "dfw-1"}, {"name": "dfw-1", "namespace": ""}])
def test_a_reference_to_a_location_may_have_an_empty_namespace(location: Json) -> None:
    binding = read(NetworkBinding, spec={"network": {"name": "default"}, "location": location})
    assert (binding.spec.location.name, binding.spec.location.namespace) == ("dfw-1", "")
    assert binding.spec.network.namespace == ""


def test_a_binding_refers_to_its_context_and_a_claim_to_its_subnet() -> None:
    context = {"name": "default--dfw-1", "namespace": HOME}
    binding = read(NetworkBinding, status={"networkContextRef": context, "conditions": [CONDITION | {"type": READY}]})
    assert binding.status is not None
    assert binding.status.network_context_ref is not None
    assert binding.status.network_context_ref.name == "default--dfw-1"
    claim = read(SubnetClaim, status={"subnetRef": {"name": "default--dfw-1-0"}})
    assert claim.status is not None
    assert claim.status.subnet_ref is not None
    assert claim.status.subnet_ref.name == subnet_claim_name("default--dfw-1")
    subnet = read(Subnet, status={"startAddress": "10.128.0.0", "prefixLength": 20})
    assert subnet.status is not None
    assert (subnet.status.start_address, subnet.status.prefix_length) == ("10.128.0.0", 20)


def test_group_version_and_scope() -> None:
    kinds: list[Kind[Any]] = [NETWORK, NETWORK_BINDING, NETWORK_CONTEXT, SUBNET_CLAIM, SUBNET]
    assert LOCATION_BINDING.path() == "/apis/networking.datumapis.com/v1alpha/locationbindings"
    assert LOCATION.path("ignored", "dfw-1") == "/apis/networking.datumapis.com/v1alpha/locations/dfw-1"
    assert [kind.path(HOME) for kind in kinds] == [
        f"/apis/networking.datumapis.com/v1alpha/namespaces/{HOME}/{plural}"
        for plural in ("networks", "networkbindings", "networkcontexts", "subnetclaims", "subnets")
    ]


@pytest.fixture
def cell(simulation: Simulation) -> Client:
    engine = compute_engine(clock=simulation)
    engine.serve("cell", CELL)
    return engine.client("cell")


LOCATION_REF = {"name": "dfw-1", "namespace": ""}
CLAIM = {"subnetClass": PRIVATE, "ipFamily": IPV4, "networkContext": {"name": "c"}, "location": LOCATION_REF}


async def test_a_cell_serves_what_compute_writes_and_preserves_unknown_fields(cell: Client) -> None:
    await cell.create(NAMESPACE, NAMESPACE.body(HOME))
    network = await cell.create(NETWORK, NETWORK.body("default", HOME) | {"spec": {"ipam": {"mode": "Auto"}}})
    assert (network.spec.ipam.mode, network.spec.ip_families, network.spec.mtu) == ("Auto", (IPV4,), 1460)
    spec = {"network": {"name": "default"}, "location": LOCATION_REF, "consumer": {"kind": "WorkloadDeployment"}}
    binding = await cell.create(NETWORK_BINDING, NETWORK_BINDING.body(binding_name("web", 0), HOME) | {"spec": spec})
    assert as_dict(binding.spec_json)["consumer"] == {"kind": "WorkloadDeployment"}
    assert binding.status is not None
    assert [(entry.type, entry.status, entry.reason) for entry in binding.status.conditions] == [
        (READY, "Unknown", "Pending")
    ]
    claim = await cell.create(SUBNET_CLAIM, SUBNET_CLAIM.body(subnet_claim_name("c"), HOME) | {"spec": CLAIM})
    assert claim.status is not None
    assert len(claim.status.conditions) == 3
    subnet = await cell.create(
        SUBNET, SUBNET.body(claim.name, HOME) | {"spec": CLAIM | {"startAddress": "", "prefixLength": 0}}
    )
    assert subnet.spec.network_context.name == "c"


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        (NETWORK, {"mtu": 100}, "spec.mtu"),
        (NETWORK, {"ipam": {"mode": "Magic"}}, "spec.ipam.mode"),
        (SUBNET_CLAIM, CLAIM | {"ipFamily": "IPv5"}, "spec.ipFamily"),
        (NETWORK_BINDING, {"network": {"name": "default"}}, "spec.location"),
    ],
)
async def test_values_that_the_network_operator_refuses_are_refused(
    cell: Client, kind: Kind[Any], spec: Json, field: str
) -> None:
    await cell.create(NAMESPACE, NAMESPACE.body(HOME))
    with pytest.raises(Invalid) as refused:
        await cell.create(kind, kind.body("x", HOME) | {"spec": spec})
    assert [cause.field for cause in refused.value.causes] == [field]
