"""Objects of a renamed or replaced cell get the name of the one that serves its city now."""

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, execution_space
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.kinds import LEASE, NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.management.handover import Handover
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness
from tests.scenarios.federation import template

GROUP = "compute.datumapis.com"
SOURCE, CITY = f"{GROUP}/source-cluster", f"{GROUP}/city-code"
LEASE_SECONDS = 60
SWEEP_SECONDS = 600


class Management(ControllerHarness):
    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, {"hub": HUB, "demo": PROJECT}, Handover)
        self.hub, self.project = self.engine.client("hub"), self.engine.client("demo")

    async def start(self) -> None:
        await self.project.create(NAMESPACE, NAMESPACE.body("default"))
        await self.run()

    async def cluster(self, name: str, city: str = "DFW") -> None:
        await self.hub.create(CLUSTER, CLUSTER.body(name, labels={"topology.datum.net/city-code": city}))
        await self.hub.create(NAMESPACE, NAMESPACE.body(execution_space(name)))
        await self.simulation.advance(1)

    async def lease(self, name: str, seconds: int = LEASE_SECONDS) -> None:
        """A lease that is held and never renewed."""
        spec = {"holderIdentity": f"uid-of-{name}", "leaseDurationSeconds": seconds, "renewTime": "long ago"}
        await self.hub.create(LEASE, LEASE.body(name, execution_space(name)) | {"spec": spec})

    async def claim(self, source: str, **labels: str) -> None:
        project = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
        spec: Json = {
            "consumerRef": project,
            "resourceRef": project,
            "requests": [{"resourceType": f"{GROUP}/instances", "amount": 1}],
        }
        all_labels = {SOURCE: source, f"{GROUP}/instance-namespace": "ns-1"} | labels
        body = RESOURCE_CLAIM.body("instance-web-main-dfw-0", "default", labels=all_labels)
        claim = await self.project.create(RESOURCE_CLAIM, body | {"spec": spec})
        granted = conditions.condition("Granted", "True", "QuotaAvailable", "", generation=1, now=self.simulation.now())
        await self.project.replace_status(RESOURCE_CLAIM, claim, {"conditions": conditions.to_json([granted])})

    async def source(self) -> str:
        claim = await self.project.get(RESOURCE_CLAIM, "instance-web-main-dfw-0", "default")
        assert conditions.is_true(conditions.of(claim), "Granted"), "the grant survives"
        return claim.metadata.labels[SOURCE]

    async def sweep(self) -> None:
        await self.simulation.advance(SWEEP_SECONDS + LEASE_SECONDS)
        await self.settle()


@pytest.fixture
def management(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Management]:
    management = Management(simulation)
    runner.run(management.start())
    yield management
    runner.run(management.stop())


@pytest.mark.parametrize("former", ["dfw-old", "single"])
async def test_a_name_that_nobody_holds_is_replaced_by_that_of_the_serving_cell(
    management: Management, former: str
) -> None:
    await management.claim(former, **{CITY: "DFW"})
    await management.cluster("dfw-new")
    await management.lease("dfw-new", 3600)
    await management.sweep()
    assert await management.source() == "dfw-new"
    writes = management.writes.total()
    await management.sweep()
    assert management.writes.total() == writes == 1


async def test_a_name_whose_lease_is_alive_keeps_its_claims(management: Management) -> None:
    await management.claim("dfw-old", **{CITY: "DFW"})
    await management.cluster("dfw-new")
    await management.lease("dfw-new", 3600)
    await management.hub.create(NAMESPACE, NAMESPACE.body(execution_space("dfw-old")))
    await management.lease("dfw-old", 3600)
    await management.sweep()
    assert await management.source() == "dfw-old"


async def test_a_lease_has_expired_when_it_did_not_change_for_its_duration(management: Management) -> None:
    """By the clock of this process, because the times in the lease come from another clock."""
    await management.claim("dfw-old", **{CITY: "DFW"})
    await management.hub.create(NAMESPACE, NAMESPACE.body(execution_space("dfw-old")))
    await management.lease("dfw-old")
    await management.cluster("dfw-new")
    await management.lease("dfw-new", 3600)
    await management.simulation.advance(LEASE_SECONDS - 2)
    assert await management.source() == "dfw-old"
    await management.simulation.advance(2)
    assert await management.source() == "dfw-new"


async def test_nothing_is_handed_to_a_cell_that_does_not_hold_its_name(management: Management) -> None:
    """As of cells without a configured name."""
    await management.claim("dfw-old", **{CITY: "DFW"})
    await management.cluster("dfw-new")
    await management.sweep()
    assert await management.source() == "dfw-old"


async def test_the_serving_cell_keeps_its_claims_while_it_is_unreachable(management: Management) -> None:
    await management.claim("dfw-old", **{CITY: "DFW"})
    await management.cluster("dfw-old")
    await management.cluster("dfw-new")
    await management.lease("dfw-new", 3600)
    await management.sweep()
    assert await management.source() == "dfw-old", "it is the older one"
    await management.hub.delete(CLUSTER, "dfw-old")
    await management.settle()
    assert await management.source() == "dfw-new", "at once, when its Cluster is removed"


async def test_claims_of_other_cities_stay(management: Management) -> None:
    await management.claim("ams-1", **{CITY: "AMS"})
    await management.cluster("dfw-new")
    await management.lease("dfw-new", 3600)
    await management.sweep()
    assert await management.source() == "ams-1"


async def test_the_city_of_an_older_claim_is_that_of_its_deployment(management: Management) -> None:
    await management.claim("single")
    spec = {
        "workloadRef": {"name": "web", "uid": "1"},
        "placementName": "main",
        "cityCode": "DFW",
        "template": template(),
        "scaleSettings": {"minReplicas": 1},
    }
    body = WORKLOAD_DEPLOYMENT.body("web-main-dfw", "default")
    await management.project.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec})
    await management.cluster("dfw-new")
    await management.lease("dfw-new", 3600)
    await management.sweep()
    assert await management.source() == "dfw-new"


async def test_without_permission_to_list_claims_the_rest_continues(management: Management) -> None:
    refusal = management.faults["demo"].refuse(calls("GET", "resourceclaims"), Forbidden("not yours"))
    await management.claim("single", **{CITY: "DFW"})
    await management.cluster("dfw-new")
    await management.lease("dfw-new", 3600)
    await management.sweep()
    assert management.controller.results["error"] == 0
    refusal.lift()
    await management.sweep()
    assert await management.source() == "dfw-new"


async def test_a_project_that_is_engaged_again_is_warned_about_again(management: Management) -> None:
    """Earlier warnings are forgotten when a project leaves."""

    def warned() -> list[str]:
        return [log["plane"] for log in logs if log["event"] == "claims cannot be handed over"]

    management.faults["demo"].refuse(calls("GET", "resourceclaims"), Forbidden("not yours"))
    with capture_logs() as logs:
        await management.cluster("dfw-new")
        await management.sweep()
        assert warned() == ["demo"]
        management.fleet.remove("demo")
        transport, writes, generator = management.faults["demo"], management.writes, management.simulation.random
        management.fleet.add(Plane("demo", PROJECT, transport, writes=writes, generator=generator))
        await management.sweep()
        assert warned() == ["demo", "demo"]


# Copies on the hub


@pytest.mark.parametrize(("lease", "expected"), [(True, "dfw-new"), (False, "dfw-old")])
async def test_a_copy_on_the_hub_is_handed_over_like_a_claim(
    management: Management, lease: bool, expected: str
) -> None:
    await management.hub.create(NAMESPACE, NAMESPACE.body("ns-1"))
    body = INSTANCE.body("web-main-dfw-0", "ns-1", labels={SOURCE: "dfw-old", CITY: "DFW"})
    await management.hub.create(INSTANCE, body | {"spec": template()["spec"]})
    await management.cluster("dfw-new")
    if lease:
        await management.lease("dfw-new", 3600)
    await management.sweep()
    copy = await management.hub.get(INSTANCE, "web-main-dfw-0", "ns-1")
    assert copy.metadata.labels == {SOURCE: expected, CITY: "DFW"}
