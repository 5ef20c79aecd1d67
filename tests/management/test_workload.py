"""The workload controller on a project. The test plays user, platform and federator."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.networking import LOCATION, LOCATION_BINDING, NETWORK
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.errors import Forbidden, Invalid, NotFound, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict, encode
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.management.workload import WorkloadController
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Request, Unfinished
from datum_compute.runtime.testing.faults import Match, calls, merged
from datum_compute.runtime.testing.simulation import Simulation
from tests.events import ChangingRefusal, warnings
from tests.harness import ControllerHarness

GROUP = "compute.datumapis.com"
CITY = "topology.datum.net/city-code"
WORKLOAD_FINALIZER = f"{GROUP}/workload-controller"
FEDERATOR_FINALIZER = f"{GROUP}/federator"
RESTARTED_AT = f"{GROUP}/restartedAt"
PAUSED = f"{GROUP}/rollout-paused"
COUNTERS = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")

TEMPLATE: Json = {
    "metadata": {"labels": {"app": "hello"}},
    "spec": {
        "runtime": {
            "resources": {"instanceType": "datumcloud/d1-standard-2"},
            "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
        },
        "networkInterfaces": [{"network": {"name": "default"}}],
    },
}
SCALE: Json = {"minReplicas": 2, "instanceManagementPolicy": "OrderedReady"}


def placements(cities: Mapping[str, Sequence[str]]) -> list[Json]:
    return [{"name": name, "cityCodes": list(codes), "scaleSettings": SCALE} for name, codes in cities.items()]


class Without:
    """A plane that does not serve some kinds, named by their plural."""

    def __init__(self, transport: Transport, kinds: Sequence[str]) -> None:
        self.kinds = list(kinds)
        self.paths: list[str] = []
        self._transport = transport

    async def call(self, call: Call) -> Answer:
        self.paths.append(call.path)
        if call.path.rpartition("/")[2] in self.kinds:
            return Answer(404, encode(NotFound("the server could not find the requested resource").status()))
        return await self._transport.call(call)

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        self.paths.append(call.path)
        return self._transport.stream(call)


class Project(ControllerHarness):
    def __init__(self, simulation: Simulation, *, networking: bool = False, unserved: Sequence[str] = ()) -> None:
        self._networking, self._unserved = networking, unserved
        super().__init__(simulation, {"demo": PROJECT}, self._build)
        self.client = self.engine.client("demo")

    def _build(self, fleet: Fleet) -> WorkloadController:
        self.reconciler = WorkloadController(networking=self._networking)
        return self.reconciler

    def transport(self, plane: str, server: InProcess) -> Transport:
        self.without = Without(super().transport(plane, server), self._unserved)
        return self.without

    async def start(self) -> None:
        await self.client.create(NAMESPACE, NAMESPACE.body("default"))
        for city in ("AMS", "DFW"):
            await self.offer(city)
        await self.run()

    # The platform

    async def offer(self, city: str) -> None:
        spec = {"locationRef": {"name": city.lower()}, "topology": {CITY: city}}
        await self.client.create(LOCATION_BINDING, LOCATION_BINDING.body(city.lower()) | {"spec": spec})
        await self.simulation.settle()

    async def locate(self, city: str) -> None:
        spec = {"locationClassName": "datum-managed", "topology": {CITY: city}, "provider": {}}
        await self.client.create(LOCATION, LOCATION.body(city.lower()) | {"spec": spec})
        await self.simulation.settle()

    async def create_network(self, name: str, namespace: str = "default") -> None:
        await self.client.create(NETWORK, NETWORK.body(name, namespace) | {"spec": {"ipam": {"mode": "Auto"}}})
        await self.simulation.settle()

    async def withdraw(self, city: str) -> None:
        await self.client.delete(LOCATION_BINDING, city.lower())
        await self.settle()

    # The user

    async def deploy(self, cities: Sequence[str], name: str = "web") -> Workload:
        spec = {"template": TEMPLATE, "placements": placements({"main": cities})}
        await self.client.create(WORKLOAD, WORKLOAD.body(name, "default") | {"spec": spec})
        await self.settle()
        return await self.workload(name)

    async def change(self, spec: Json) -> Workload:
        await self.client.merge_patch(WORKLOAD, "web", "default", {"spec": spec})
        await self.settle()
        return await self.workload()

    async def delete(self) -> None:
        await self.client.delete(WORKLOAD, "web", "default")
        await self.settle()

    async def pause(self, value: str | None = "true") -> Workload:
        await self.client.merge_patch(WORKLOAD, "web", "default", {"metadata": {"annotations": {PAUSED: value}}})
        await self.settle()
        return await self.workload()

    async def workload(self, name: str = "web") -> Workload:
        return await self.client.get(WORKLOAD, name, "default")

    # The federator

    async def create_deployment(self, name: str, workload_uid: str, city: str = "DFW", **metadata: Any) -> None:
        spec = {
            "workloadRef": {"name": "web", "uid": workload_uid},
            "placementName": "main",
            "cityCode": city,
            "template": TEMPLATE,
            "scaleSettings": SCALE,
        }
        body = WORKLOAD_DEPLOYMENT.body(name, "default", **metadata)
        await self.client.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec})
        await self.settle()

    async def change_deployment(self, name: str, patch: Json) -> WorkloadDeployment:
        await self.client.merge_patch(WORKLOAD_DEPLOYMENT, name, "default", patch)
        await self.settle()
        return await self.deployment(name)

    async def report(
        self, name: str, counters: Sequence[int], available: tuple[str, str], *failures: tuple[str, str, str]
    ) -> None:
        """`failures` are further conditions that are False: type, reason and message."""
        deployment = await self.deployment(name)
        generation = deployment.metadata.generation
        found = [("Available", *available, f"about {name}"), *((item[0], "False", *item[1:]) for item in failures)]
        conditions = [
            dict(zip(("type", "status", "reason", "message"), fields, strict=True))
            | {"lastTransitionTime": "2026-06-01T12:00:00Z", "observedGeneration": generation}
            for fields in found
        ]
        status: Json = dict(zip(COUNTERS, counters, strict=True))
        status |= {"observedGeneration": generation, "conditions": conditions}
        await self.client.replace_status(WORKLOAD_DEPLOYMENT, deployment, status)
        await self.settle()

    async def release(self, name: str) -> None:
        await self.client.merge_patch(WORKLOAD_DEPLOYMENT, name, "default", {"metadata": {"finalizers": None}})
        await self.settle()

    async def deployment(self, name: str) -> WorkloadDeployment:
        return await self.client.get(WORKLOAD_DEPLOYMENT, name, "default")

    async def deployments(self) -> dict[str, WorkloadDeployment]:
        return {found.name: found for found in (await self.client.list(WORKLOAD_DEPLOYMENT)).items}


@pytest.fixture
def project(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Project]:
    """It offers AMS and DFW."""
    project = Project(simulation)
    runner.run(project.start())
    yield project
    runner.run(project.stop())


def available(workload: Workload) -> tuple[str, str, str]:
    (found,) = [
        condition for condition in as_dict(workload.status_json)["conditions"] if condition["type"] == "Available"
    ]
    return found["status"], found["reason"], found["message"]


def progressing(workload: Workload) -> tuple[str, str] | None:
    for condition in as_dict(workload.status_json)["conditions"]:
        if condition["type"] == "Progressing":
            return condition["status"], condition["reason"]
    return None


def placed(workload: Workload) -> tuple[str, str, str] | None:
    """The Placed condition; None while every city is placed."""
    for condition in as_dict(workload.status_json)["conditions"]:
        if condition["type"] == "Placed":
            return condition["status"], condition["reason"], condition["message"]
    return None


def about(name: str) -> Match:
    """Writes of the deployment of this name."""
    return lambda call: (
        call.method != "GET"
        and "workloaddeployments" in call.path
        and (f"/{name}" in call.path or f'"{name}"'.encode() in call.body)
    )


def placement_available(workload: Workload) -> tuple[str, str, str]:
    (placement,) = as_dict(workload.status_json)["placements"]
    (found,) = placement["conditions"]
    return found["status"], found["reason"], found["message"]


# Deployments


async def test_there_is_one_deployment_per_placement_and_city(project: Project) -> None:
    await project.deploy(["DFW"])
    await project.change({"placements": placements({"main": ["DFW", "AMS"], "more": ["DFW"]})})
    assert list(await project.deployments()) == ["web-main-ams", "web-main-dfw", "web-more-dfw"]


async def test_a_new_deployment_has_owner_label_finalizer_and_spec(project: Project) -> None:
    workload = await project.deploy(["DFW"])
    deployment = await project.deployment("web-main-dfw")
    assert deployment.metadata.labels == {f"{GROUP}/workload-uid": workload.metadata.uid}
    assert deployment.metadata.finalizers == (FEDERATOR_FINALIZER,)
    (owner,) = deployment.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid) == ("Workload", "web", workload.metadata.uid)
    assert owner.controller
    assert as_dict(deployment.spec_json) == {
        "workloadRef": {"name": "web", "uid": workload.metadata.uid},
        "placementName": "main",
        "cityCode": "DFW",
        "template": TEMPLATE,
        "scaleSettings": SCALE,
    }


async def test_the_finalizer_is_added_before_the_first_deployment(project: Project) -> None:
    workload = await project.deploy(["DFW"])
    assert workload.metadata.finalizers == (WORKLOAD_FINALIZER,)
    assert [" ".join(line.split(" ")[1:3]) for line in project.writes.last if " Event " not in line] == [
        "patch Workload",
        "create WorkloadDeployment",
        "status Workload",
    ]


async def test_a_change_reaches_every_deployment_in_one_write_each(project: Project) -> None:
    await project.deploy(["DFW", "AMS"])
    before = project.writes.total()
    changed = TEMPLATE | {"metadata": {"labels": {"app": "changed"}}}
    await project.change({"template": changed, "placements": placements({"main": ["DFW", "AMS"]})})
    assert all(as_dict(found.template_json) == changed for found in (await project.deployments()).values())
    assert project.writes.total() == before + 3  # two deployments, and the status


async def test_labels_and_annotations_of_others_survive(project: Project) -> None:
    await project.deploy(["DFW"])
    marks = {"labels": {"theirs": "1"}, "annotations": {f"{GROUP}/federation-namespace": "ns-1", "theirs": "2"}}
    await project.change_deployment("web-main-dfw", {"metadata": marks})
    await project.change({"template": {"metadata": {"labels": {"app": "changed"}}}})
    deployment = await project.deployment("web-main-dfw")
    assert deployment.spec.template.metadata.labels == {"app": "changed"}
    assert deployment.metadata.annotations == marks["annotations"]
    assert deployment.metadata.labels["theirs"] == "1"


async def test_an_edited_deployment_is_restored(project: Project) -> None:
    workload = await project.deploy(["DFW"])
    changes = {"metadata": {"labels": {f"{GROUP}/workload-uid": None}}, "spec": {"scaleSettings": {"minReplicas": 9}}}
    deployment = await project.change_deployment("web-main-dfw", changes)
    assert deployment.spec.scale_settings.min_replicas == 2
    assert deployment.metadata.labels == {f"{GROUP}/workload-uid": workload.metadata.uid}


async def test_no_deployment_is_created_for_a_workload_that_only_the_cache_has(project: Project) -> None:
    """As after a restore of the project: it would be garbage-collected at once, and what runs withdrawn."""
    await project.deploy(["DFW"])
    project.faults["demo"].drop_event(calls(path="/workloads"), 1)
    project.faults["demo"].drop_event(calls(path="/workloads"), 2)
    await project.client.merge_patch(WORKLOAD, "web", "default", {"metadata": {"finalizers": None}})
    await project.client.delete(WORKLOAD, "web", "default")
    await project.client.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", {"metadata": {"finalizers": None}})
    await project.simulation.advance(5)
    assert await project.deployments() == {}
    before = len(project.faults["demo"].written)
    await project.simulation.advance(60)
    assert project.fleet.plane("demo").informer(WORKLOAD).get("default", "web") is not None
    assert await project.deployments() == {}
    assert len(project.faults["demo"].written) == before


async def test_no_deployment_is_changed_or_removed_for_an_outdated_workload(project: Project) -> None:
    await project.deploy(["DFW", "AMS"])
    before = await project.deployments()
    for number in (1, 2, 3, 4):
        project.faults["demo"].drop_event(calls(path="/workloads"), number)
    await project.change(
        {"placements": placements({"main": ["DFW"]}), "template": {"metadata": {"labels": {"a": "b"}}}}
    )
    await project.change({"placements": placements({"main": ["DFW", "AMS"]}), "template": TEMPLATE})
    stale = {"metadata": {"labels": {f"{GROUP}/workload-uid": "another"}}}
    await project.change_deployment("web-main-dfw", stale)  # which starts a pass with a write that has to wait
    after = await project.deployments()
    assert after.keys() == before.keys()
    assert after["web-main-dfw"].metadata.labels[f"{GROUP}/workload-uid"] == "another"
    await project.simulation.advance(700)  # until the next list
    found = (await project.deployments())["web-main-dfw"]
    assert found.metadata.labels[f"{GROUP}/workload-uid"] != "another"


async def test_a_restart_of_one_city_survives_until_a_newer_one_of_all(project: Project) -> None:
    await project.deploy(["DFW", "AMS"])
    restart = {"metadata": {"annotations": {RESTARTED_AT: "2026-06-01T12:00:00Z"}}}
    await project.change_deployment("web-main-dfw", {"spec": {"template": restart}})
    await project.change({"template": {"metadata": {"labels": {"app": "changed"}}}})

    async def restarts() -> dict[str, str]:
        found = (await project.deployments()).items()
        return {name: one.spec.template.metadata.annotations.get(RESTARTED_AT, "") for name, one in found}

    assert await restarts() == {"web-main-ams": "", "web-main-dfw": "2026-06-01T12:00:00Z"}
    newer = {"metadata": {"annotations": {RESTARTED_AT: "2026-06-01T13:00:00Z"}}}
    await project.change({"template": newer})
    assert await restarts() == dict.fromkeys(["web-main-ams", "web-main-dfw"], "2026-06-01T13:00:00Z")


async def test_a_restart_of_one_city_reaches_only_its_deployment(project: Project) -> None:
    await project.deploy(["DFW", "AMS"])

    async def note(restarts: dict[str, str]) -> dict[str, tuple[str, int]]:
        annotations = {f"{GROUP}/city-restarts": json.dumps(restarts)}
        await project.client.merge_patch(WORKLOAD, "web", "default", {"metadata": {"annotations": annotations}})
        await project.settle()
        return {
            name: (one.spec.template.metadata.annotations.get(RESTARTED_AT, ""), one.metadata.generation)
            for name, one in (await project.deployments()).items()
        }

    assert await note({"DFW": "2026-06-01T12:00:00Z"}) == {
        "web-main-ams": ("", 1),
        "web-main-dfw": ("2026-06-01T12:00:00Z", 2),
    }
    assert (
        await note({"DFW": "2026-06-01T11:00:00Z"})
        == await note({})
        == {  # an earlier one is no restart
            "web-main-ams": ("", 1),
            "web-main-dfw": ("2026-06-01T12:00:00Z", 2),
        }
    )


async def test_a_deployment_deleted_by_hand_is_recreated_once_it_is_gone(project: Project) -> None:
    await project.deploy(["DFW"])
    uid = (await project.deployment("web-main-dfw")).metadata.uid
    await project.client.delete(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default")
    await project.settle()
    await project.change({"template": {"metadata": {"labels": {"app": "changed"}}}})
    going = await project.deployment("web-main-dfw")
    assert (going.metadata.uid, going.spec.template.metadata.labels) == (uid, {"app": "hello"})
    await project.release("web-main-dfw")
    assert (await project.deployment("web-main-dfw")).metadata.uid != uid


async def test_a_city_that_is_no_longer_requested_is_removed(project: Project) -> None:
    await project.deploy(["DFW", "AMS"])
    workload = await project.change({"placements": placements({"main": ["DFW"]})})
    going = {name: found.metadata.deleting for name, found in (await project.deployments()).items()}
    assert going == {"web-main-ams": True, "web-main-dfw": False}
    assert workload.status is not None
    assert workload.status.deployments == 2  # counted until it is gone
    await project.change({"template": {"metadata": {"labels": {"app": "changed"}}}})
    assert [line.split(" ")[1] for line in project.writes.last].count("delete") == 1
    await project.release("web-main-ams")
    workload = await project.workload()
    assert workload.status is not None
    assert workload.status.deployments == 1


# Ownership


async def test_a_name_that_another_workload_has_is_not_touched(project: Project) -> None:
    await project.create_deployment("web-main-dfw", "uid-of-another")
    before = await project.deployment("web-main-dfw")
    workload = await project.deploy(["DFW", "AMS"])
    assert await project.deployment("web-main-dfw") == before
    assert list(await project.deployments()) == ["web-main-ams", "web-main-dfw"]
    assert workload.status is not None
    assert workload.status.deployments == 1
    sentence = (
        "Deployment web-main-dfw belongs to workload web (uid uid-of-another); "
        "rename this workload or its placement, or remove the other"
    )
    assert placement_available(workload) == ("False", "DeploymentNameTaken", sentence)
    assert available(workload) == ("False", "DeploymentNameTaken", sentence)

    request = Request("demo", "default", "web")
    with pytest.raises(Unfinished, match=r"web-main-dfw belongs to workload web \(uid uid-of-another\); rename"):
        await project.reconciler.reconcile(project.controller.new_pass(request))


async def test_a_name_that_becomes_free_is_taken(project: Project) -> None:
    await project.create_deployment("web-main-dfw", "uid-of-another")
    workload = await project.deploy(["DFW"])
    await project.client.delete(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default")

    async def taken() -> bool:
        found = (await project.deployments()).get("web-main-dfw")
        return found is not None and found.spec.workload_ref.uid == workload.metadata.uid

    await project.simulation.until(taken, within=31)


async def test_a_deployment_without_a_uid_belongs_to_nobody(project: Project) -> None:
    await project.create_deployment("stray", "")
    await project.deploy(["DFW"])
    await project.change({"placements": placements({"main": ["AMS"]})})
    assert not (await project.deployment("stray")).metadata.deleting


async def test_a_taken_name_hides_nothing_that_runs(project: Project) -> None:
    await project.create_deployment("web-main-dfw", "uid-of-another")
    await project.deploy(["DFW", "AMS"])
    await project.report("web-main-ams", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    assert available(await project.workload())[:2] == ("True", "AvailablePlacementFound")


async def test_the_first_of_two_workloads_with_colliding_names_keeps_its_deployment(project: Project) -> None:
    """web with placement main-x in DFW, and web-main with placement x, both want web-main-x-dfw."""
    await project.deploy(["DFW"])
    await project.change({"placements": placements({"main-x": ["DFW"]})})
    first = await project.deployment("web-main-x-dfw")
    spec = {"template": TEMPLATE, "placements": placements({"x": ["DFW"]})}
    await project.client.create(WORKLOAD, WORKLOAD.body("web-main", "default") | {"spec": spec})
    await project.settle()
    assert available(await project.workload("web-main"))[:2] == ("False", "DeploymentNameTaken")
    assert await project.deployment("web-main-x-dfw") == first
    await project.client.delete(WORKLOAD, "web-main", "default")
    await project.settle()
    assert await project.deployment("web-main-x-dfw") == first


# Refusals

REFUSED = 'WorkloadDeployment.compute.datumapis.com "web-main-ams" is invalid: spec: Invalid value'


async def test_a_refused_deployment_holds_up_neither_the_other_cities_nor_the_status(project: Project) -> None:
    project.faults["demo"].refuse(about("web-main-ams"), Invalid(REFUSED))
    workload = await project.deploy(["AMS", "DFW"])
    assert list(await project.deployments()) == ["web-main-dfw"]
    sentence = f"Deployment web-main-ams was refused: {REFUSED}"
    assert placed(workload) == ("False", "SpecRefused", sentence)
    assert available(workload) == ("False", "SpecRefused", sentence)
    assert placement_available(workload) == ("False", "SpecRefused", sentence)
    assert workload.status is not None
    assert (workload.status.deployments, workload.status.observed_generation) == (1, 1)

    await project.report("web-main-dfw", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    workload = await project.workload()
    assert available(workload)[:2] == ("True", "AvailablePlacementFound")
    assert placed(workload) == ("False", "SpecRefused", sentence)


async def test_a_refused_deployment_emits_one_event(project: Project) -> None:
    project.faults["demo"].refuse(about("web-main-ams"), Invalid(REFUSED))
    await project.deploy(["AMS", "DFW"])
    await project.report("web-main-dfw", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    await project.simulation.advance(120)
    (event,) = await warnings(project.client, "web")
    assert (event.reason, event.count) == ("SpecRefused", 1)
    assert event.message == f"Deployment web-main-ams was refused: {REFUSED}"


async def test_a_refused_deployment_is_retried_and_its_condition_removed_once_accepted(project: Project) -> None:
    refusal = project.faults["demo"].refuse(about("web-main-ams"), Forbidden("exceeded quota"))
    workload = await project.deploy(["AMS", "DFW"])
    assert placed(workload) == ("False", "WriteForbidden", "Deployment web-main-ams was refused: exceeded quota")
    refusal.lift()
    await project.simulation.until(lambda: accepted(project), within=700)
    assert placed(await project.workload()) is None


async def accepted(project: Project) -> bool:
    return list(await project.deployments()) == ["web-main-ams", "web-main-dfw"]


async def test_a_refused_pass_names_the_refusal_and_repeats_no_write_that_changes_nothing(project: Project) -> None:
    project.faults["demo"].refuse(about("web-main-ams"), Invalid(REFUSED))
    await project.deploy(["AMS", "DFW"])
    before = await project.workload()
    request = Request("demo", "default", "web")
    with pytest.raises(Invalid, match="is invalid"):
        await project.reconciler.reconcile(project.controller.new_pass(request))
    assert (await project.workload()).metadata.resource_version == before.metadata.resource_version


async def test_a_refusal_that_is_worded_differently_each_time_is_written_once(project: Project) -> None:
    refusal = project.faults["demo"].refuse(about("web-main-ams"), ChangingRefusal())
    await project.deploy(["AMS", "DFW"])
    before = (await project.workload()).metadata.resource_version
    await project.simulation.advance(600)
    assert refusal.times > 5
    assert (await project.workload()).metadata.resource_version == before
    assert len(await warnings(project.client, "web")) == 1


async def test_a_change_that_is_refused_for_one_city_reaches_the_others_and_counts_as_not_updated(
    project: Project,
) -> None:
    await project.deploy(["AMS", "DFW"])
    for name in ("web-main-ams", "web-main-dfw"):
        await project.report(name, (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    project.faults["demo"].refuse(about("web-main-ams"), Invalid(REFUSED))
    await project.change({"template": {"metadata": {"labels": {"app": "changed"}}}})
    await project.report("web-main-dfw", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    labels = {name: found.spec.template.metadata.labels["app"] for name, found in (await project.deployments()).items()}
    assert labels == {"web-main-ams": "hello", "web-main-dfw": "changed"}
    workload = await project.workload()
    assert workload.status is not None
    assert (workload.status.replicas, workload.status.updated_replicas) == (4, 2)
    assert placed(workload) == ("False", "SpecRefused", f"Deployment web-main-ams was refused: {REFUSED}")


async def test_a_refused_removal_of_one_city_holds_up_no_other(project: Project) -> None:
    await project.deploy(["AMS"])
    project.faults["demo"].refuse(calls("DELETE", "web-main-ams"), Forbidden("no deletion today"))
    workload = await project.change({"placements": placements({"main": ["DFW"]})})
    assert list(await project.deployments()) == ["web-main-ams", "web-main-dfw"]
    assert placed(workload) == ("False", "WriteForbidden", "Deployment web-main-ams was refused: no deletion today")


async def test_a_refused_deletion_of_one_city_holds_up_no_other_when_the_workload_is_deleted(project: Project) -> None:
    await project.deploy(["AMS", "DFW"])
    refusal = project.faults["demo"].refuse(calls("DELETE", "web-main-ams"), Forbidden("no deletion today"))
    await project.client.delete(WORKLOAD, "web", "default")
    await project.settle()
    going = {name: found.metadata.deleting for name, found in (await project.deployments()).items()}
    assert going == {"web-main-ams": False, "web-main-dfw": True}
    refusal.lift()
    await project.simulation.advance(31)
    assert all(found.metadata.deleting for found in (await project.deployments()).values())


async def test_an_outage_during_a_pass_leaves_no_condition_behind(project: Project) -> None:
    project.faults["demo"].answer(about("web-main-ams"), Unavailable("busy"))
    workload = await project.deploy(["AMS", "DFW"])
    assert placed(workload) is None
    assert "web-main-dfw" in await project.deployments()
    await project.simulation.until(lambda: accepted(project), within=60)


async def test_a_refusal_by_site_or_hub_is_reported_on_the_workload_while_another_city_serves(
    project: Project,
) -> None:
    await project.deploy(["AMS", "DFW"])
    await project.report("web-main-ams", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    sentence = "Instance web-main-dfw-1 was refused: metadata.labels: Invalid value"
    await project.report(
        "web-main-dfw", (1, 1, 1, 2, 1), ("True", "StableInstanceFound"), ("ReplicasReady", "SpecRefused", sentence)
    )
    workload = await project.workload()
    assert available(workload)[:2] == ("True", "AvailablePlacementFound")
    assert placed(workload) == ("False", "SpecRefused", sentence)
    (event,) = await warnings(project.client, "web")
    assert (event.reason, event.message) == ("SpecRefused", sentence)


async def test_nothing_is_created_in_a_terminating_namespace(project: Project) -> None:
    """Its deployments may be deleted before the workload is."""
    await project.deploy(["DFW"])
    await project.client.merge_patch(WORKLOAD, "web", "default", {"metadata": {"labels": {"seen": "again"}}})
    deleting = merged({"metadata": {"deletionTimestamp": "2026-06-01T12:00:00Z"}})
    project.faults["demo"].poison(calls(path="/api/v1/namespaces"), "default", deleting)
    await project.client.merge_patch(NAMESPACE, "default", "", {"metadata": {"labels": {"seen": "again"}}})
    await project.settle()
    before = project.writes.total()
    await project.client.delete(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default")
    await project.release("web-main-dfw")
    assert await project.deployments() == {}
    assert project.writes.total() == before
    assert project.controller.results["error"] == 0


# Locations


async def test_a_city_that_is_no_longer_offered_keeps_its_deployment(project: Project) -> None:
    await project.deploy(["DFW"])
    await project.report("web-main-dfw", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    await project.withdraw("DFW")
    workload = await project.workload()
    assert not (await project.deployment("web-main-dfw")).metadata.deleting
    assert available(workload)[0] == "True"
    await project.change({"template": {"metadata": {"labels": {"app": "changed"}}}})
    deployment = await project.deployment("web-main-dfw")
    assert deployment.spec.template.metadata.labels == {"app": "changed"}  # kept, and updated


async def test_a_city_that_is_no_longer_offered_and_no_longer_runs_is_reported(project: Project) -> None:
    await project.deploy(["DFW"])
    await project.report("web-main-dfw", (2, 0, 0, 2, 0), ("False", "InstancesProvisioning"))
    await project.withdraw("DFW")
    workload = await project.workload()
    sentence = 'City "DFW" is not offered to this project, which has AMS'
    assert placement_available(workload) == ("False", "NoMatchingLocation", sentence)
    assert available(workload) == ("False", "NoMatchingLocation", sentence)
    assert not (await project.deployment("web-main-dfw")).metadata.deleting


async def test_a_new_city_that_is_not_offered_gets_no_deployment_and_is_reported(project: Project) -> None:
    workload = await project.deploy(["SIN"])
    sentence = 'City "SIN" is not offered to this project, which has AMS, DFW'
    assert await project.deployments() == {}
    assert placement_available(workload) == ("False", "NoMatchingLocation", sentence)
    assert available(workload) == ("False", "NoMatchingLocation", sentence)


async def test_a_city_that_is_not_offered_is_named_while_the_other_is_available(project: Project) -> None:
    await project.deploy(["DFW", "SIN"])
    await project.report("web-main-dfw", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    workload = await project.workload()
    assert available(workload)[0] == "True"
    sentence = 'City "SIN" is not offered to this project, which has AMS, DFW'
    assert placed(workload) == ("False", "NoMatchingLocation", sentence)
    await project.offer("SIN")
    assert placed(await project.workload()) is None


async def test_the_case_of_a_city_counts(project: Project) -> None:
    workload = await project.deploy(["dfw"])
    assert await project.deployments() == {}
    assert available(workload)[1] == "NoMatchingLocation"


async def test_a_city_gets_its_deployment_when_it_is_offered(project: Project) -> None:
    await project.deploy(["SIN"])
    await project.offer("SIN")
    assert list(await project.deployments()) == ["web-main-sin"]
    assert available(await project.workload())[1] == "NoAvailablePlacements"


async def test_a_project_without_any_location_is_no_error(project: Project) -> None:
    for city in ("AMS", "DFW"):
        await project.withdraw(city)
    workload = await project.deploy(["DFW"])
    sentence = 'No locations are offered to this project, so city "DFW" cannot be served'
    assert available(workload) == ("False", "NoMatchingLocation", sentence)
    assert await project.deployments() == {}
    await project.offer("DFW")
    assert list(await project.deployments()) == ["web-main-dfw"]


# Where bindings are not served


@pytest.fixture
def bare(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Project]:
    """A project that does not serve LocationBinding."""
    project = Project(simulation, unserved=["locationbindings"])
    runner.run(project.start())
    yield project
    runner.run(project.stop())


async def test_locations_are_offered_where_bindings_are_not_served(bare: Project) -> None:
    workload = await bare.deploy(["SIN"])
    sentence = 'No locations are offered to this project, so city "SIN" cannot be served'
    assert available(workload) == ("False", "NoMatchingLocation", sentence)
    await bare.locate("SIN")
    assert list(await bare.deployments()) == ["web-main-sin"]


async def test_bindings_that_come_later_take_over(bare: Project) -> None:
    await bare.locate("SIN")
    await bare.deploy(["SIN", "DFW"])
    assert list(await bare.deployments()) == ["web-main-sin"]
    bare.without.kinds.clear()

    async def both() -> bool:
        return list(await bare.deployments()) == ["web-main-dfw", "web-main-sin"]

    await bare.simulation.until(both, within=400)


# Networks


@pytest.fixture
def networked(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Project]:
    project = Project(simulation, networking=True)
    runner.run(project.start())
    yield project
    runner.run(project.stop())


async def test_nothing_is_created_until_the_networks_exist(networked: Project) -> None:
    workload = await networked.deploy(["DFW"])
    assert available(workload) == ("False", "NetworkNotFound", "Unable to find networks: default")
    assert await networked.deployments() == {}
    before = networked.writes.total()
    await networked.create_network("other")
    await networked.client.create(NAMESPACE, NAMESPACE.body("elsewhere"))
    await networked.create_network("default", "elsewhere")
    assert networked.writes.total() == before
    await networked.create_network("default")
    assert list(await networked.deployments()) == ["web-main-dfw"]
    assert available(await networked.workload())[1] == "NoAvailablePlacements"


async def test_missing_networks_are_named_once_and_sorted(networked: Project) -> None:
    interfaces = [{"network": {"name": name}} for name in ("zulu", "alpha", "zulu", "default")]
    await networked.create_network("default")
    await networked.deploy(["DFW"])
    workload = await networked.change({"template": {"spec": {"networkInterfaces": interfaces}}})
    assert available(workload) == ("False", "NetworkNotFound", "Unable to find networks: alpha, zulu")


async def test_a_deleted_network_leaves_counters_and_deployments_as_they_were(networked: Project) -> None:
    await networked.create_network("default")
    await networked.deploy(["DFW"])
    await networked.report("web-main-dfw", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    before = as_dict((await networked.workload()).status_json)
    await networked.client.delete(NETWORK, "default", "default")
    await networked.settle()
    after = as_dict((await networked.workload()).status_json)
    assert available(await networked.workload())[1] == "NetworkNotFound"
    assert after | {"conditions": []} == before | {"conditions": []}
    assert not (await networked.deployment("web-main-dfw")).metadata.deleting


async def test_a_workload_without_its_network_can_still_be_deleted(networked: Project) -> None:
    await networked.deploy(["DFW"])
    await networked.delete()
    assert (await networked.client.list(WORKLOAD)).items == []


async def test_with_networking_off_no_network_is_required(project: Project) -> None:
    await project.deploy(["DFW"])
    assert not [path for path in project.without.paths if "networks" in path]


# A paused rollout

CHANGED = {"template": {"metadata": {"labels": {"app": "changed"}}}}


async def test_a_pause_is_confirmed_and_passed_on(project: Project) -> None:
    await project.deploy(["DFW"])
    workload = await project.pause()
    assert progressing(workload) == ("Unknown", "RolloutPaused")
    assert (await project.deployment("web-main-dfw")).metadata.annotations == {PAUSED: "true"}
    workload = await project.pause(None)
    assert progressing(workload) is None
    assert (await project.deployment("web-main-dfw")).metadata.annotations == {}


async def test_while_paused_templates_stay_and_scale_and_placements_change(project: Project) -> None:
    await project.deploy(["DFW"])
    await project.report("web-main-dfw", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    await project.pause()
    more = placements({"main": ["DFW", "AMS"]})
    more[0]["scaleSettings"] = SCALE | {"minReplicas": 5}
    workload = await project.change(CHANGED | {"placements": more})
    held = await project.deployment("web-main-dfw")
    assert held.spec.template.metadata.labels == {"app": "hello"}
    assert held.spec.scale_settings.min_replicas == 5
    new = await project.deployment("web-main-ams")
    assert (new.spec.template.metadata.labels, new.metadata.annotations) == ({"app": "changed"}, {PAUSED: "true"})
    assert workload.status is not None
    assert (workload.status.updated_replicas, workload.status.ready_replicas) == (0, 2)

    before = project.writes.total()
    await project.pause(None)
    resumed = await project.deployment("web-main-dfw")
    assert (resumed.spec.template.metadata.labels, resumed.metadata.annotations) == ({"app": "changed"}, {})
    assert project.writes.total() == before + 3  # each deployment once, and the status


async def test_while_paused_nothing_is_held_when_nothing_changed(project: Project) -> None:
    await project.deploy(["DFW"])
    await project.report("web-main-dfw", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    workload = await project.pause()
    assert workload.status is not None
    assert workload.status.updated_replicas == 2
    before = project.writes.total()
    project.controller.enqueue(Request("demo", "default", "web"))
    await project.settle()
    assert project.writes.total() == before


@pytest.mark.parametrize("value", ["false", "True", "yes", ""])
async def test_only_the_value_true_pauses(project: Project, value: str) -> None:
    await project.deploy(["DFW"])
    assert progressing(await project.pause(value)) is None
    assert (await project.deployment("web-main-dfw")).metadata.annotations == {}


async def test_a_paused_workload_can_be_deleted(project: Project) -> None:
    await project.deploy(["DFW"])
    await project.pause()
    await project.delete()
    assert (await project.deployment("web-main-dfw")).metadata.deleting


# Status


async def test_each_counter_is_the_sum_over_the_deployments(project: Project) -> None:
    await project.deploy(["DFW", "AMS"])
    await project.report("web-main-dfw", (5, 1, 2, 4, 3), ("True", "StableInstanceFound"))
    await project.report("web-main-ams", (50, 10, 20, 40, 30), ("True", "StableInstanceFound"))
    workload = await project.workload()
    assert available(workload)[:2] == ("True", "AvailablePlacementFound")
    assert tuple(as_dict(workload.status_json)[counter] for counter in COUNTERS) == (55, 11, 22, 44, 33)
    assert as_dict(workload.status_json)["observedGeneration"] == workload.metadata.generation


async def test_after_a_change_nothing_counts_as_updated_until_a_site_answers(project: Project) -> None:
    await project.deploy(["DFW"])
    await project.report("web-main-dfw", (5, 3, 4, 2, 1), ("True", "StableInstanceFound"))
    workload = await project.change({"template": {"metadata": {"labels": {"app": "changed"}}}})
    assert workload.metadata.generation == as_dict(workload.status_json)["observedGeneration"] == 2
    assert tuple(as_dict(workload.status_json)[counter] for counter in COUNTERS) == (5, 0, 0, 2, 1)
    await project.report("web-main-dfw", (5, 1, 2, 4, 3), ("True", "StableInstanceFound"))
    workload = await project.workload()
    assert tuple(as_dict(workload.status_json)[counter] for counter in COUNTERS) == (5, 1, 2, 4, 3)


async def test_the_first_status_has_every_counter(project: Project) -> None:
    workload = await project.deploy(["SIN"])
    assert {counter: as_dict(workload.status_json)[counter] for counter in COUNTERS} == dict.fromkeys(COUNTERS, 0)


async def test_at_rest_a_later_pass_writes_nothing(project: Project) -> None:
    await project.deploy(["DFW", "AMS", "SIN"])
    await project.report("web-main-dfw", (2, 2, 2, 2, 2), ("True", "StableInstanceFound"))
    before = project.writes.total()
    await project.simulation.advance(90)  # a repeated write would have another time
    passes = project.controller.passes
    project.controller.enqueue(Request("demo", "default", "web"))
    await project.settle()
    assert project.controller.passes == passes + 1
    assert project.writes.total() == before


# Deletion


async def test_deletion_waits_for_the_deployments(project: Project) -> None:
    await project.deploy(["DFW", "AMS"])
    await project.delete()
    assert all(found.metadata.deleting for found in (await project.deployments()).values())
    await project.release("web-main-ams")
    assert (await project.workload()).metadata.finalizers == (WORKLOAD_FINALIZER,)
    await project.release("web-main-dfw")
    assert (await project.client.list(WORKLOAD)).items == []


async def test_deletion_without_deployments_is_done_at_once(project: Project) -> None:
    await project.deploy(["SIN"])
    await project.delete()
    assert (await project.client.list(WORKLOAD)).items == []


async def test_deletion_waits_for_a_deployment_created_by_hand_as_well(project: Project) -> None:
    workload = await project.deploy(["SIN"])
    await project.create_deployment("by-hand", workload.metadata.uid, "SIN", finalizers=[FEDERATOR_FINALIZER])
    await project.delete()
    assert (await project.deployment("by-hand")).metadata.deleting
    assert (await project.workload()).metadata.deleting
    await project.release("by-hand")
    assert (await project.client.list(WORKLOAD)).items == []


async def test_deletion_leaves_the_deployments_of_others_alone(project: Project) -> None:
    await project.create_deployment("web-main-dfw", "uid-of-another")
    await project.deploy(["DFW"])
    await project.delete()
    assert (await project.client.list(WORKLOAD)).items == []
    assert not (await project.deployment("web-main-dfw")).metadata.deleting


async def test_a_deployment_with_an_edited_reference_stays_with_its_owner_and_is_repaired(project: Project) -> None:
    await project.deploy(["DFW"])
    before = await project.deployment("web-main-dfw")
    evil = {"workloadRef": {"uid": "x"}, "scaleSettings": {"minReplicas": 5000}}
    await project.change_deployment("web-main-dfw", {"spec": evil})
    after = await project.deployment("web-main-dfw")
    assert as_dict(after.spec_json) == as_dict(before.spec_json)
    assert "DeploymentNameTaken" not in available(await project.workload())


async def test_our_own_deployment_that_is_still_being_deleted_is_not_taken_for_another_workloads(
    project: Project,
) -> None:
    await project.deploy(["DFW"])
    await project.change_deployment("web-main-dfw", {"spec": {"cityCode": "AMS"}})  # deleted and recreated
    assert (await project.deployment("web-main-dfw")).metadata.deleting
    assert "DeploymentNameTaken" not in available(await project.workload())
