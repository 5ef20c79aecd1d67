"""Faults of the past that workload controller, federator and projector together could bring back.

All three run over two projects and a hub; the test plays the platform, Karmada and the cells.
"""

import asyncio
import random
from collections.abc import Iterator

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY
from datum_compute.api.networking import LOCATION_BINDING, NETWORK
from datum_compute.api.permissions import PERMISSIONS, On, Who
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.identity import bare_project
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict
from datum_compute.local.engine import compute_engine
from datum_compute.management.federator import Federator
from datum_compute.management.projector import Projector
from datum_compute.management.workload import WorkloadController
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet, NotEngaged
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request, Unfinished
from datum_compute.runtime.testing.faults import Faults, calls, merged
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.management.test_federator import TEMPLATE
from tests.management.test_workload import placements

GROUP = "compute.datumapis.com"
CITY = "topology.datum.net/city-code"
UPSTREAM_CLUSTER = "meta.datumapis.com/upstream-cluster-name"
UPSTREAM_NAMESPACE = "meta.datumapis.com/upstream-namespace"
DEPLOYMENT = "web-main-dfw"
INSTANCE_NAME = f"{DEPLOYMENT}-0"
COUNTERS = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")


class Management:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.writes = Writes()
        self.fleet = Fleet()
        self.faults: dict[str, Faults] = {}
        for name, role in {"demo": PROJECT, "other": PROJECT, "hub": HUB}.items():
            self.fleet.add(self.plane(name, role))
        self.federator = Federator(self.fleet)
        self.projector = Projector(self.fleet, "hub")
        workloads = WorkloadController()
        self.manager = Manager(self.fleet, [workloads, self.federator, self.projector], simulation)
        self.project, self.hub = self.engine.client("demo"), self.engine.client("hub")
        self._tasks: list[asyncio.Task[None]] = []

    def new_pass(self, reconciler: Reconciler, request: Request) -> Pass:
        return self.manager.controllers[reconciler.name].new_pass(request)

    def plane(self, name: str, role: str) -> Plane:
        generator: random.Random = self.simulation.random
        self.faults[name] = Faults(InProcess(self.engine.serve(name, role)), generator)
        return Plane(name, role, self.faults[name], writes=self.writes, generator=generator)

    async def start(self) -> None:
        for project in ("demo", "other"):
            client = self.engine.client(project)
            await client.create(NAMESPACE, NAMESPACE.body("default"))
            for city in ("AMS", "DFW"):
                spec = {"locationRef": {"name": city.lower()}, "topology": {CITY: city}}
                await client.create(LOCATION_BINDING, LOCATION_BINDING.body(city.lower()) | {"spec": spec})
        await self.hub.create(CLUSTER, CLUSTER.body("cell-dfw", labels={CITY: "DFW"}))
        self._tasks = [asyncio.create_task(self.engine.run()), asyncio.create_task(self.manager.run())]
        await self.settle()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.close()

    async def settle(self) -> None:
        await self.simulation.settle()
        for controller in self.manager.controllers.values():
            assert controller.crashes == []

    # The user

    async def deploy(self, *cities: str, name: str = "web", client: Client | None = None) -> None:
        spec = {"template": TEMPLATE, "placements": placements({"main": cities or ("DFW",)})}
        await (client or self.project).create(WORKLOAD, WORKLOAD.body(name, "default") | {"spec": spec})
        await self.settle()

    async def change(self, spec: Json) -> None:
        await self.project.merge_patch(WORKLOAD, "web", "default", {"spec": spec})
        await self.settle()

    async def workload(self) -> Workload:
        return await self.project.get(WORKLOAD, "web", "default")

    async def deployment(self, name: str = DEPLOYMENT) -> WorkloadDeployment:
        return await self.project.get(WORKLOAD_DEPLOYMENT, name, "default")

    # Karmada and the cell

    async def home(self) -> str:
        return f"ns-{(await self.project.get(NAMESPACE, 'default')).metadata.uid}"

    async def copy(self, name: str = DEPLOYMENT) -> WorkloadDeployment:
        return await self.hub.get(WORKLOAD_DEPLOYMENT, name, await self.home())

    async def report(self, counters: tuple[int, int, int, int, int], available: str = "True", **more: object) -> None:
        """Reports as the cell of DFW, for the generation that it received."""
        copy = await self.copy()
        generation = int(copy.metadata.annotations[f"{GROUP}/upstream-generation"])
        reason = "StableInstanceFound" if available == "True" else "InstancesProvisioning"
        fields = {"type": "Available", "status": available, "reason": reason, "message": "as it is"}
        condition = fields | {"lastTransitionTime": "2026-06-01T12:00:00Z", "observedGeneration": generation}
        status = dict(zip(COUNTERS, counters, strict=True)) | {"observedGeneration": generation}
        await self.hub.replace_status(WORKLOAD_DEPLOYMENT, copy, status | {"conditions": [condition]} | more)
        await self.settle()

    async def write_back(
        self, name: str = INSTANCE_NAME, cluster: str = "cluster-demo", deployment: str = DEPLOYMENT
    ) -> None:
        labels = {
            UPSTREAM_CLUSTER: cluster,
            UPSTREAM_NAMESPACE: "default",
            f"{GROUP}/workload-deployment-name": deployment,
            f"{GROUP}/workload-deployment-uid": "uid-in-the-cell",
        }
        body = INSTANCE.body(name, await self.home(), labels=labels) | {"spec": TEMPLATE["spec"]}
        await self.hub.create(INSTANCE, body)
        await self.settle()

    async def projections(self) -> list[str]:
        return [found.name for found in (await self.project.list(INSTANCE)).items]

    async def policies(self) -> list[str]:
        return [found.name for found in (await self.hub.list(PROPAGATION_POLICY)).items]


@pytest.fixture
def management(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Management]:
    management = Management(simulation)
    runner.run(management.start())
    yield management
    runner.run(management.stop())


async def test_a_hub_event_leads_to_the_project_that_the_hub_namespace_names(
    management: Management,
) -> None:
    await management.deploy()
    await management.deploy(client=management.engine.client("other"))
    await management.report((2, 2, 2, 2, 2))
    other = await management.engine.client("other").get(WORKLOAD_DEPLOYMENT, DEPLOYMENT, "default")
    assert (await management.deployment()).status is not None
    assert other.status is None


@pytest.mark.parametrize("label", ["cluster-org_demo", "cluster-_demo", "cluster-a_b_demo"])
async def test_an_organisation_in_the_label_leads_to_the_bare_project(management: Management, label: str) -> None:
    assert bare_project(label) == "demo"
    await management.deploy()
    wrong = {"metadata": {"labels": {UPSTREAM_CLUSTER: label}}}
    await management.hub.merge_patch(NAMESPACE, await management.home(), "", wrong)
    await management.report((2, 2, 2, 2, 2))
    assert (await management.deployment()).status is not None


async def test_an_event_of_a_project_that_is_not_engaged_is_dropped_without_an_error(management: Management) -> None:
    labels = {UPSTREAM_CLUSTER: "cluster-elsewhere", UPSTREAM_NAMESPACE: "default"}
    await management.hub.create(NAMESPACE, NAMESPACE.body("ns-1", labels=labels))
    await management.settle()
    body = WORKLOAD_DEPLOYMENT.body("web", "ns-1", labels={UPSTREAM_NAMESPACE: "default"})
    spec = {"workloadRef": {"name": "web", "uid": "1"}, "placementName": "main", "cityCode": "DFW"}
    spec |= {"template": TEMPLATE, "scaleSettings": {"minReplicas": 1}}
    await management.hub.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec})
    await management.settle()
    federator = management.manager.controllers["workload-deployment-federator"]
    assert federator.dropped == {"plane_not_engaged": 1}
    assert federator.results["error"] == 0


def test_a_request_without_a_plane_cannot_even_be_built() -> None:
    with pytest.raises(ValueError, match="needs the name of its plane"):
        Request("", "default", "web")


async def test_hub_status_reaches_the_project_without_a_resync(management: Management) -> None:
    await management.deploy()
    began = management.simulation.time()
    await management.report((2, 2, 2, 2, 2))
    workload = await management.workload()
    assert workload.status is not None
    assert workload.status.ready_replicas == 2
    assert management.simulation.time() == began


async def test_updated_replicas_dip_and_recover_during_a_rollout(management: Management) -> None:
    counters: list[tuple[int, int, int]] = []

    async def look() -> None:
        workload, deployment = await management.workload(), await management.deployment()
        assert workload.status is not None
        assert deployment.status is not None
        assert workload.status.observed_generation == workload.metadata.generation
        assert deployment.status.observed_generation <= deployment.metadata.generation
        counted = workload.status
        counters.append((counted.updated_replicas, counted.current_replicas, counted.ready_replicas))

    await management.deploy()
    await management.report((2, 2, 2, 2, 2))
    await look()
    await management.change({"template": {"metadata": {"labels": {"app": "changed"}}}})
    await look()
    for updated, current, ready in ((0, 0, 2), (1, 0, 1), (1, 1, 2), (2, 2, 2)):
        await management.report((2, current, updated, 2, ready))
        await look()
    deployment = await management.deployment()
    assert deployment.status is not None
    assert deployment.status.observed_generation == deployment.metadata.generation == 2
    assert counters == [(2, 2, 2), (0, 0, 2), (0, 0, 2), (1, 0, 1), (1, 1, 2), (2, 2, 2)]


@pytest.mark.parametrize("resource", ["namespaces", "workloaddeployments", "instances", "propagationpolicies"])
def test_the_management_role_allows_every_watch_on_the_hub(resource: str) -> None:
    verbs = {verb for rule in PERMISSIONS[Who.MANAGEMENT, On.HUB] if resource in rule.resources for verb in rule.verbs}
    assert verbs >= {"get", "list", "watch"}


async def test_an_unknown_status_field_reaches_the_project(management: Management) -> None:
    """The schema of this release prunes what it does not know, so it stands in one that it keeps."""
    await management.deploy()
    location = {"name": "dfw-1", "namespace": "sites"}
    await management.report((2, 2, 2, 2, 2), location=location)
    assert as_dict((await management.deployment()).status_json)["location"] == location


async def test_the_owner_of_a_projection_is_found_by_name(management: Management) -> None:
    await management.deploy()
    await management.write_back()
    owner = await management.deployment()
    projection = await management.project.get(INSTANCE, INSTANCE_NAME, "default")
    assert [reference.uid for reference in projection.metadata.owner_references] == [owner.metadata.uid]
    assert projection.metadata.labels[f"{GROUP}/workload-deployment-uid"] == owner.metadata.uid


async def test_without_its_deployment_nothing_is_projected(management: Management) -> None:
    await management.deploy()
    hub_copy = WORKLOAD_DEPLOYMENT.body("gone", await management.home())
    await management.hub.create(WORKLOAD_DEPLOYMENT, hub_copy | {"spec": (await management.copy()).spec_json})
    await management.write_back("orphan-0", deployment="gone")
    assert await management.projections() == []
    request = Request("hub", await management.home(), "orphan-0")
    with pytest.raises(Unfinished, match="deployment gone of orphan-0 is not in the project"):
        await management.projector.reconcile(management.new_pass(management.projector, request))


async def test_a_projection_of_a_project_with_an_organisation_is_shown(management: Management) -> None:
    home = await management.home()
    labels = {UPSTREAM_CLUSTER: "cluster-org_demo", UPSTREAM_NAMESPACE: "default"}
    await management.hub.create(NAMESPACE, NAMESPACE.body(home, labels=labels))
    spec = {"workloadRef": {"name": "web", "uid": "1"}, "placementName": "main", "cityCode": "DFW"}
    spec |= {"template": TEMPLATE, "scaleSettings": {"minReplicas": 1}}
    # Without a city the federator does nothing, so the label that another operator wrote stays.
    body = WORKLOAD_DEPLOYMENT.body(DEPLOYMENT, "default") | {"spec": spec}
    await management.project.create(WORKLOAD_DEPLOYMENT, body)
    await management.write_back(cluster="cluster-org_demo")
    assert await management.projections() == [INSTANCE_NAME]


async def test_at_rest_a_second_pass_of_every_controller_writes_nothing(management: Management) -> None:
    await management.deploy("DFW", "AMS", "SIN")
    await management.report((2, 2, 2, 2, 2))
    await management.write_back()
    await management.simulation.advance(90)  # a city without a site is reported by then
    before = management.writes.total()
    await management.simulation.advance(90)  # a repeated write would have another time
    passes = {name: controller.passes for name, controller in management.manager.controllers.items()}
    for name, request in {
        "workload": Request("demo", "default", "web"),
        "workload-deployment-federator": Request("demo", "default", DEPLOYMENT),
        "instance-projector": Request("hub", await management.home(), INSTANCE_NAME),
    }.items():
        management.manager.controllers[name].enqueue(request)
    await management.settle()
    after = {name: controller.passes for name, controller in management.manager.controllers.items()}
    assert after == {name: count + 1 for name, count in passes.items()}
    assert management.writes.total() == before


async def test_annotations_of_others_survive_on_every_object(management: Management) -> None:
    await management.deploy()
    theirs = {"metadata": {"annotations": {"theirs": "1"}, "labels": {"theirs": "2"}}}
    await management.project.merge_patch(WORKLOAD_DEPLOYMENT, DEPLOYMENT, "default", theirs)
    await management.hub.merge_patch(WORKLOAD_DEPLOYMENT, DEPLOYMENT, await management.home(), theirs)
    await management.change({"template": {"metadata": {"labels": {"app": "changed"}}}})
    for found in (await management.deployment(), await management.copy()):
        assert (found.metadata.annotations["theirs"], found.metadata.labels["theirs"]) == ("1", "2")
    before = management.writes.total()
    await management.settle()
    assert management.writes.total() == before


async def test_deleting_a_workload_whose_deployment_lost_its_city_removes_no_other_policy(
    management: Management,
) -> None:
    await management.deploy()
    await management.deploy("AMS", name="more")
    empty = merged({"spec": {"cityCode": ""}})
    management.faults["demo"].poison(calls(path="workloaddeployments"), DEPLOYMENT, empty)
    await management.project.delete(WORKLOAD, "web", "default")
    await management.settle()
    assert [workload.name for workload in (await management.project.list(WORKLOAD)).items] == ["more"]
    assert [deployment.name for deployment in (await management.hub.list(WORKLOAD_DEPLOYMENT)).items] == [
        "more-main-ams"
    ]
    assert await management.policies() == ["city-ams"]


async def test_a_configured_hub_that_is_unreachable_keeps_the_finalizer(management: Management) -> None:
    await management.deploy()
    management.fleet.remove("hub")
    await management.project.delete(WORKLOAD_DEPLOYMENT, DEPLOYMENT, "default")
    await management.settle()
    assert (await management.deployment()).metadata.finalizers == (f"{GROUP}/federator",)
    request = Request("demo", "default", DEPLOYMENT)
    with pytest.raises(NotEngaged):
        await management.federator.reconcile(management.new_pass(management.federator, request))

    management.fleet.add(management.plane("hub", HUB))
    uid = (await management.deployment()).metadata.uid

    async def made_anew() -> bool:
        found = (await management.project.list(WORKLOAD_DEPLOYMENT)).items
        return [item.metadata.uid != uid for item in found] == [True]

    await management.simulation.until(made_anew, within=31)


async def test_a_process_without_a_hub_removes_the_finalizer(management: Management) -> None:
    await management.deploy()
    management.fleet.remove("hub")
    await management.project.delete(WORKLOAD, "web", "default")
    await management.settle()
    request = Request("demo", "default", DEPLOYMENT)
    without_hub = Federator(management.fleet, federated=False)
    await without_hub.reconcile(management.new_pass(without_hub, request))
    with pytest.raises(NotFound):
        await management.deployment()


async def test_a_whole_namespace_can_be_deleted(management: Management) -> None:
    await management.deploy()
    home = await management.home()
    management.faults["demo"].fail(calls("GET", "/api/v1/namespaces/default"))
    await management.project.delete(NAMESPACE, "default")

    async def gone() -> bool:
        return "default" not in [namespace.name for namespace in (await management.project.list(NAMESPACE)).items]

    await management.simulation.until(gone, within=60)
    assert (await management.hub.list(WORKLOAD_DEPLOYMENT, home)).items == []
    assert await management.policies() == []


async def test_without_networking_a_missing_network_is_ignored(management: Management) -> None:
    assert (await management.project.list(NETWORK)).items == []
    await management.deploy()
    assert (await management.copy()).name == DEPLOYMENT


async def test_a_first_status_of_zeros_is_accepted(management: Management) -> None:
    await management.deploy()
    await management.report((0, 0, 0, 0, 0), "False")
    for found in (await management.deployment(), await management.workload()):
        assert {counter: as_dict(found.status_json)[counter] for counter in COUNTERS} == dict.fromkeys(COUNTERS, 0)


async def test_a_policy_is_kept_until_its_last_workload_is_deleted(management: Management) -> None:
    await management.deploy()
    await management.deploy(name="more")
    before = (await management.hub.list(PROPAGATION_POLICY)).items
    await management.project.delete(WORKLOAD, "web", "default")
    await management.settle()
    assert (await management.hub.list(PROPAGATION_POLICY)).items == before
    await management.project.delete(WORKLOAD, "more", "default")
    await management.settle()
    assert await management.policies() == []


async def test_no_projection_is_left_after_scaling_down(management: Management) -> None:
    await management.deploy()
    for name in (INSTANCE_NAME, f"{DEPLOYMENT}-1"):
        await management.write_back(name)
    await management.hub.delete(INSTANCE, f"{DEPLOYMENT}-1", await management.home())
    await management.settle()
    assert await management.projections() == [INSTANCE_NAME]


async def test_a_city_that_is_no_longer_offered_keeps_running(management: Management) -> None:
    await management.deploy()
    await management.report((2, 2, 2, 2, 2))
    await management.write_back()
    before = await management.copy()
    await management.project.delete(LOCATION_BINDING, "dfw")
    await management.settle()
    assert await management.copy() == before
    assert await management.projections() == [INSTANCE_NAME]
    await management.report((2, 0, 0, 2, 0), "False")
    status = as_dict((await management.workload()).status_json)
    sentence = 'City "DFW" is not offered to this project, which has AMS'
    assert {condition["type"]: (condition["reason"], condition["message"]) for condition in status["conditions"]} == {
        "Available": ("NoMatchingLocation", sentence),
        "Placed": ("NoMatchingLocation", sentence),
    }
    assert not (await management.deployment()).metadata.deleting
