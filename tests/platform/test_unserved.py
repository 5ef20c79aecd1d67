"""Built-ins on planes that lack some of their kinds: they begin when the kinds are served."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import (
    LOCATION,
    LOCATION_BINDING,
    NETWORK,
    NETWORK_BINDING,
    NETWORK_CONTEXT,
    SUBNET,
    SUBNET_CLAIM,
)
from datum_compute.api.quota import (
    ALLOWANCE_BUCKET,
    INSTANCES,
    QUOTA_NAMESPACE,
    RESOURCE_CLAIM,
    RESOURCE_GRANT,
    RESOURCE_REGISTRATION,
)
from datum_compute.api.services import SERVICE_ENTITLEMENT, SERVICE_OBJECT
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json
from datum_compute.platform.entitlement import EntitlementController
from datum_compute.platform.locations import CellLocations, LocationBindings
from datum_compute.platform.networks import NetworkController
from datum_compute.platform.quota import QuotaBroker
from datum_compute.runtime.caches.informer import UNSERVED_SECONDS
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness
from tests.scenarios.federation import template

PLACE = {"name": "dfw", "namespace": ""}
SPEC = {
    "workloadRef": {"name": "web", "uid": "1234"},
    "placementName": "main",
    "cityCode": "DFW",
    "template": template(),
    "scaleSettings": {"minReplicas": 1},
}


class Case(Struct, frozen=True):
    """A built-in with its plane, the objects it acts on, and the kind it creates."""

    plane: str
    kinds: tuple[Kind[Any], ...]  # any of which the plane may lack
    build: Callable[[Fleet, Simulation], Reconciler]
    objects: tuple[tuple[str, Kind[Any], Json], ...]
    made: Kind[Any]


def binding(network: str) -> Json:
    return {"spec": {"network": {"name": network}, "location": PLACE}}


CASES = {
    "quota": Case(
        "demo",
        (RESOURCE_REGISTRATION, RESOURCE_GRANT, RESOURCE_CLAIM, ALLOWANCE_BUCKET),
        lambda fleet, clock: QuotaBroker(),
        (("demo", NAMESPACE, NAMESPACE.body(QUOTA_NAMESPACE)),),
        RESOURCE_REGISTRATION,
    ),
    "entitlement": Case(
        "demo",
        (LOCATION_BINDING, RESOURCE_GRANT),
        lambda fleet, clock: EntitlementController(cities=["DFW"], limits={INSTANCES: 5}),
        (
            (
                "demo",
                SERVICE_ENTITLEMENT,
                SERVICE_ENTITLEMENT.body(SERVICE_OBJECT) | {"spec": {"serviceRef": {"name": SERVICE_OBJECT}}},
            ),
        ),
        RESOURCE_GRANT,
    ),
    "locations": Case(
        "demo",
        (LOCATION_BINDING,),
        lambda fleet, clock: LocationBindings(fleet),
        (("hub", CLUSTER, CLUSTER.body("cell-1", labels={TOPOLOGY_CITY: "DFW"})),),
        LOCATION_BINDING,
    ),
    "cell locations": Case(
        "cell",
        (LOCATION,),
        lambda fleet, clock: CellLocations(),
        (
            ("cell", NAMESPACE, NAMESPACE.body("ns")),
            (
                "cell",
                WORKLOAD_DEPLOYMENT,
                WORKLOAD_DEPLOYMENT.body("web", "ns") | {"spec": SPEC},
            ),
        ),
        LOCATION,
    ),
    "network": Case(
        "cell",
        (NETWORK, NETWORK_BINDING, NETWORK_CONTEXT, SUBNET_CLAIM, SUBNET),
        lambda fleet, clock: NetworkController(),
        (
            ("cell", NAMESPACE, NAMESPACE.body("ns")),
            ("cell", NETWORK_BINDING, NETWORK_BINDING.body("web-net-0", "ns") | binding("default")),
        ),
        NETWORK_CONTEXT,
    ),
}


@pytest.mark.parametrize(
    ("case", "lacking"),
    [(case, kind) for case in CASES.values() for kind in case.kinds],
    ids=lambda value: value.plural if isinstance(value, Kind) else value.made.plural,
)
async def test_a_plane_that_lacks_a_kind_is_engaged_and_served_once_it_has_it(
    simulation: Simulation, case: Case, lacking: Kind[Any]
) -> None:
    planes = {"hub": HUB, "demo": PROJECT, "cell": CELL}
    harness = ControllerHarness(simulation, planes, lambda fleet: case.build(fleet, simulation))
    refusal = harness.faults[case.plane].refuse(
        calls(path=f"/{lacking.plural}"), NotFound("the server could not find the requested resource")
    )
    await harness.run()
    for plane, kind, body in case.objects:
        await harness.engine.client(plane).create(kind, body)
    await harness.settle()
    assert harness.fleet.has(case.plane)
    await simulation.advance(3 * UNSERVED_SECONDS)
    assert harness.controller.results["error"] == 0
    refusal.lift()
    await simulation.advance(2 * UNSERVED_SECONDS)
    await harness.settle()
    assert (await harness.engine.client(case.plane).list(case.made)).items
    assert harness.controller.results["error"] == 0
    await harness.stop()


async def test_an_entitlement_becomes_active_without_quota_kinds(simulation: Simulation) -> None:
    case = CASES["entitlement"]
    harness = ControllerHarness(simulation, {"demo": PROJECT}, lambda fleet: case.build(fleet, simulation))
    harness.faults["demo"].refuse(calls(path=f"/{RESOURCE_GRANT.plural}"), NotFound("no such kind"))
    await harness.run()
    client = harness.engine.client("demo")
    for _, kind, body in case.objects:
        await client.create(kind, body)
    await harness.settle()
    entitlement = await client.get(SERVICE_ENTITLEMENT, SERVICE_OBJECT)
    assert entitlement.status is not None
    assert entitlement.status.phase == "Active"
    assert [binding.name for binding in (await client.list(LOCATION_BINDING)).items] == ["dfw"]
    await harness.stop()
