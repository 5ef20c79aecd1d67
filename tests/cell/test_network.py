"""The network objects that a deployment needs. The test plays the network operator."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.networking import (
    LOCATION,
    NETWORK_BINDING,
    NETWORK_CONTEXT,
    NETWORKING_GROUP,
    SUBNET,
    SUBNET_CLAIM,
)
from datum_compute.cell.deployment import DeploymentController
from datum_compute.kube import conditions
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, as_dict, encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import NAMESPACE_NAME, Site

CITY = "topology.datum.net/city-code"
PLACE = {"name": "dfw-1", "namespace": ""}


def _site(runner: asyncio.Runner, simulation: Simulation, *, networking: bool) -> Site:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name, networking=networking, quota=False, write_back=False)

    site = Site(simulation, build)
    runner.run(site.start())
    return site


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Site]:
    site = _site(runner, simulation, networking=True)
    yield site
    runner.run(site.stop())


async def _location(cell: Site, city: str = "DFW", name: str = "dfw-1") -> None:
    spec = {"locationClassName": "datum-managed", "topology": {CITY: city}, "provider": {}}
    await cell.cell.create(LOCATION, LOCATION.body(name) | {"spec": spec})
    await cell.settle()


async def _set(cell: Site, kind: Kind[Any], name: str, ready: str, reason: str, **status: Any) -> None:
    object_ = await cell.cell.get(kind, name, NAMESPACE_NAME)
    condition = conditions.condition("Ready", ready, reason, f"about {reason}", generation=1, now=cell.simulation.now())
    whole = as_dict(object_.status_json) | {"conditions": conditions.to_json([condition])} | status
    await cell.cell.replace_status(kind, object_, whole)
    await cell.settle()


async def _bound(cell: Site, index: int = 0) -> None:
    """Creates the context of the first binding, and reports both as ready."""
    body = NETWORK_CONTEXT.body("default-dfw", NAMESPACE_NAME)
    await cell.cell.create(NETWORK_CONTEXT, body | {"spec": {"network": {"name": "default"}, "location": PLACE}})
    await _set(cell, NETWORK_CONTEXT, "default-dfw", "True", "Ready")
    reference = {"name": "default-dfw", "namespace": NAMESPACE_NAME}
    await _set(cell, NETWORK_BINDING, f"web-net-{index}", "True", "NetworkContextReady", networkContextRef=reference)


async def _allocated(cell: Site) -> None:
    """Creates the claimed subnet."""
    claim = await cell.cell.get(SUBNET_CLAIM, "default-dfw-0", NAMESPACE_NAME)
    spec = as_dict(claim.spec_json) | {"startAddress": "10.128.0.0", "prefixLength": 20}
    await cell.cell.create(SUBNET, SUBNET.body("default-dfw-0", NAMESPACE_NAME) | {"spec": spec})
    await _set(cell, SUBNET, "default-dfw-0", "True", "Ready")
    await _set(cell, SUBNET_CLAIM, "default-dfw-0", "True", "SubnetReady", subnetRef={"name": "default-dfw-0"})


async def _available(cell: Site) -> tuple[str, str, str]:
    status = (await cell.deployment()).status
    found = conditions.find(status.conditions, "Available") if status else None
    assert found is not None
    return found.status, found.reason, found.message


async def test_without_a_location_nothing_is_created_and_the_instance_waits_at_its_gate(cell: Site) -> None:
    await _location(cell, "dfw", "lower-case")
    await cell.deploy(2)
    assert await _available(cell) == ("False", "NoMatchingLocation", 'No Location matches city code "DFW"')
    assert await cell.gates() == ["Network"]
    assert (await cell.cell.list(NETWORK_BINDING)).items == []


async def test_the_gates_of_a_new_instance_are_network_then_quota(
    runner: asyncio.Runner, simulation: Simulation
) -> None:
    site = Site(simulation, lambda fleet: [DeploymentController(fleet, networking=True)])
    await site.start()
    await site.deploy()
    assert await site.gates() == ["Network", "Quota"]
    await site.stop()


async def test_the_gate_opens_once_binding_context_claim_and_subnet_are_ready(cell: Site) -> None:
    await cell.deploy(1)
    await _location(cell)  # an event that resumes, like every other below
    deployment = await cell.deployment()
    assert deployment.status is not None
    assert deployment.status.location is not None
    assert deployment.status.location.name == "dfw-1"
    assert await _available(cell) == ("False", "NetworkProvisioning", "Network is being provisioned")

    binding = await cell.cell.get(NETWORK_BINDING, "web-net-0", NAMESPACE_NAME)
    assert as_dict(binding.spec_json) == {"network": {"name": "default"}, "location": PLACE}
    assert binding.metadata.controller is not None
    assert binding.metadata.controller.uid == deployment.metadata.uid

    await _bound(cell)
    claim = await cell.cell.get(SUBNET_CLAIM, "default-dfw-0", NAMESPACE_NAME)
    assert as_dict(claim.spec_json) == {
        "subnetClass": "private",
        "ipFamily": "IPv4",
        "networkContext": {"name": "default-dfw"},
        "location": PLACE,
    }
    assert claim.metadata.controller is None
    assert [owner.kind for owner in claim.metadata.owner_references] == ["NetworkContext"]
    assert await cell.gates() == ["Network"]

    await _allocated(cell)
    assert await cell.gates() == []
    assert (await _available(cell))[1] == "InstancesProvisioning"


async def test_a_matching_subnet_claim_is_shared(cell: Site) -> None:
    await _location(cell)
    body = SUBNET_CLAIM.body("made-by-others", NAMESPACE_NAME)
    shape = {"subnetClass": "private", "ipFamily": "IPv4", "networkContext": {"name": "default-dfw"}}
    await cell.cell.create(SUBNET_CLAIM, body | {"spec": shape | {"location": PLACE}})
    await cell.deploy(1)
    await _bound(cell)
    assert [claim.name for claim in (await cell.cell.list(SUBNET_CLAIM)).items] == ["made-by-others"]


@pytest.mark.parametrize("kind", [NETWORK_BINDING, NETWORK_CONTEXT, SUBNET_CLAIM, SUBNET])
async def test_a_network_that_is_not_ready_holds_up_only_new_instances(cell: Site, kind: Kind[Any]) -> None:
    await _location(cell)
    await cell.deploy(1)
    await _bound(cell)
    await _allocated(cell)
    await cell.runs("web-0")
    names: dict[str, str] = {NETWORK_BINDING.name: "web-net-0", NETWORK_CONTEXT.name: "default-dfw"}
    await _set(cell, kind, names.get(kind.name, "default-dfw-0"), "False", "NotNow")
    grown = {"spec": {"scaleSettings": {"minReplicas": 2}}}
    await cell.cell.merge_patch(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME, grown)
    await cell.advance(1)
    assert await cell.gates("web-1") == ["Network"]
    assert await cell.gates("web-0") == []
    assert (await cell.condition("Ready", "web-0"))[0] == "True"


async def test_a_ready_network_holds_up_no_instance(cell: Site) -> None:
    await _location(cell)
    await cell.deploy(2)
    await _bound(cell)
    await _allocated(cell)
    await cell.runs("web-0")
    second = await cell.instance("web-1")
    assert second.spec.controller is not None
    assert second.spec.controller.scheduling_gates == ()
    assert second.spec.location is not None
    assert second.spec.location.name == "dfw-1"


async def test_a_network_that_could_not_be_created_is_the_reason(cell: Site) -> None:
    await _location(cell)
    await cell.deploy(1)
    await _set(cell, NETWORK_BINDING, "web-net-0", "False", "NetworkFailedToCreate")
    await cell.advance(1)
    expected = ("False", "NetworkFailedToCreate", "about NetworkFailedToCreate")
    assert await cell.condition("Ready") == expected
    assert await _available(cell) == expected
    assert await cell.events() == [("NetworkFailedToCreate", "about NetworkFailedToCreate")]


async def test_a_restart_at_rest_writes_nothing(cell: Site) -> None:
    await _location(cell)
    await cell.deploy(2)
    await _bound(cell)
    await _allocated(cell)
    await cell.runs("web-0")
    await cell.runs("web-1")
    await cell.advance(90)  # a repeated write would have another time
    assert cell.writes.total()
    await cell.restart()
    await cell.advance(5)
    passes = {name: controller.passes for name, controller in cell.manager.controllers.items()}
    assert all(passes.values()), passes
    assert cell.writes.total() == 0


async def test_kinds_that_are_not_served_hold_nothing_else_up(runner: asyncio.Runner, simulation: Simulation) -> None:
    """A cell without the network operator: deployments are reconciled, and report what they wait for."""
    site = Site(
        simulation,
        lambda fleet: cell_controllers(fleet, simulation, cell_name, networking=True, quota=False, write_back=False),
    )

    async def unknown(call: Call) -> Answer | None:
        status = {
            "kind": "Status",
            "status": "Failure",
            "message": "no such resource",
            "reason": "NotFound",
            "code": 404,
        }
        return Answer(404, encode(status)) if NETWORKING_GROUP in call.path else None

    site.faults["cell"].instead = unknown
    await site.start()
    await site.deploy(1)
    await site.advance(2)
    assert await site.gates() == ["Network"]
    assert (await _available(site))[1] == "NoMatchingLocation"
    site.faults["cell"].instead = None
    await _location(site)
    await site.advance(700)  # looked at again every five minutes
    assert (await _available(site))[1] == "NetworkProvisioning"
    await site.stop()


async def test_networking_off_makes_no_networking_call_at_all(runner: asyncio.Runner, simulation: Simulation) -> None:
    paths: list[str] = []

    async def note(call: Call) -> Answer | None:
        paths.append(call.path)
        return None

    site = Site(
        simulation,
        lambda fleet: cell_controllers(fleet, simulation, cell_name, quota=False, write_back=False),
    )
    for faults in site.faults.values():
        faults.instead = note
    await site.start()
    await site.deploy(1)
    controller: Json = {"controller": {"schedulingGates": [{"name": "Network"}]}}
    await site.cell.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, {"spec": controller})
    await site.advance(1)
    assert await site.gates() == []
    await site.runs("web-0")
    await site.advance(1000)
    assert paths
    assert [path for path in paths if NETWORKING_GROUP in path] == []
    await site.stop()
