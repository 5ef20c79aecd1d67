"""Locations on offer, in installs without the service catalog."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION, LOCATION_BINDING, LocationBinding
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.platform.locations import CellLocations, LocationBindings
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness
from tests.scenarios.federation import template


class Catalog(ControllerHarness):
    def __init__(self, simulation: Simulation) -> None:
        planes = {"hub": HUB, "demo": PROJECT, "other": PROJECT}
        super().__init__(simulation, planes, lambda fleet: LocationBindings(fleet))
        self.hub = self.engine.client("hub")

    async def add_cluster(self, name: str, city: str) -> None:
        await self.hub.create(CLUSTER, CLUSTER.body(name, labels={TOPOLOGY_CITY: city} if city else {}))
        await self.settle()

    async def offered(self, project: str) -> dict[str, LocationBinding]:
        return {binding.name: binding for binding in (await self.engine.client(project).list(LOCATION_BINDING)).items}


def available(binding: LocationBinding) -> tuple[str, str]:
    condition = conditions.find(conditions.of(binding), "Available")
    assert condition is not None
    return condition.status, condition.reason


@pytest.fixture
def catalog(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Catalog]:
    catalog = Catalog(simulation)
    runner.run(catalog.run())
    yield catalog
    runner.run(catalog.stop())


async def test_every_project_is_offered_the_city_of_every_cluster(catalog: Catalog) -> None:
    await catalog.add_cluster("cell-1", "DFW")
    await catalog.add_cluster("cell-2", "NYC")
    await catalog.add_cluster("no-city", "")
    for project in ("demo", "other"):
        offered = await catalog.offered(project)
        assert sorted(offered) == ["dfw", "nyc"]
        binding = offered["nyc"]
        assert binding.spec.location_ref.name == "nyc"
        assert binding.spec.location_class_name == "datum-managed"
        assert binding.spec.topology == {TOPOLOGY_CITY: "NYC"}
        assert available(binding) == ("True", "AllGatesOpen")
        assert binding.metadata.labels["networking.datumapis.com/location"] == "nyc"
        assert binding.metadata.labels["networking.datumapis.com/class"] == "datum-managed"


async def test_two_clusters_of_a_city_lead_to_one_binding(catalog: Catalog) -> None:
    await catalog.add_cluster("cell-1", "DFW")
    await catalog.add_cluster("cell-2", "DFW")
    await catalog.hub.delete(CLUSTER, "cell-1")
    await catalog.settle()
    assert available((await catalog.offered("demo"))["dfw"]) == ("True", "AllGatesOpen")


async def test_a_city_that_is_no_longer_served_becomes_unavailable(catalog: Catalog) -> None:
    await catalog.add_cluster("cell-1", "DFW")
    await catalog.hub.delete(CLUSTER, "cell-1")
    await catalog.settle()
    assert available((await catalog.offered("demo"))["dfw"]) == ("False", "LocationNotReady")
    await catalog.add_cluster("cell-2", "DFW")
    assert available((await catalog.offered("demo"))["dfw"]) == ("True", "AllGatesOpen")


async def test_a_deleted_binding_is_created_again_and_those_of_others_are_untouched(catalog: Catalog) -> None:
    demo = catalog.engine.client("demo")
    spec = {"locationRef": {"name": "ams"}, "topology": {TOPOLOGY_CITY: "AMS"}}
    await demo.create(LOCATION_BINDING, LOCATION_BINDING.body("ams") | {"spec": spec})
    await catalog.add_cluster("cell-1", "DFW")
    await catalog.add_cluster("cell-2", "AMS")
    await demo.delete(LOCATION_BINDING, "dfw")
    await catalog.settle()
    offered = await catalog.offered("demo")
    assert sorted(offered) == ["ams", "dfw"]
    assert offered["ams"].status is None or offered["ams"].status.conditions == ()


async def test_nothing_is_written_at_rest(catalog: Catalog) -> None:
    await catalog.add_cluster("cell-1", "DFW")
    before = catalog.writes.total()
    await catalog.simulation.advance(3600)
    assert catalog.writes.total() == before == 4


async def test_a_cell_gets_a_location_for_each_city_with_a_deployment(simulation: Simulation) -> None:
    cell = ControllerHarness(simulation, {"cell": CELL}, lambda fleet: CellLocations())
    client = cell.engine.client("cell")
    await client.create(NAMESPACE, NAMESPACE.body("ns"))
    theirs = {"locationClassName": "self-managed", "topology": {TOPOLOGY_CITY: "AMS"}, "provider": {}}
    await client.create(LOCATION, LOCATION.body("amsterdam") | {"spec": theirs})
    await cell.run()
    for number, city in enumerate(["DFW", "DFW", "AMS"]):
        spec = {
            "workloadRef": {"name": "web", "uid": "1234"},
            "placementName": "main",
            "cityCode": city,
            "template": template(),
            "scaleSettings": {"minReplicas": 1},
        }
        await client.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body(f"web-{number}", "ns") | {"spec": spec})
        await cell.settle()
    locations = (await client.list(LOCATION)).items
    assert {location.name: location.spec.topology[TOPOLOGY_CITY] for location in locations} == {
        "amsterdam": "AMS",
        "dfw": "DFW",
    }
    await client.delete(LOCATION, "dfw")
    await cell.settle()
    assert sorted(location.name for location in (await client.list(LOCATION)).items) == ["amsterdam", "dfw"]
    await cell.stop()
