"""The federator between a project and the hub. The test plays user and Karmada."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY, RESOURCE_BINDING, PropagationPolicy
from datum_compute.federation.policy import city_policy
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict, controller_reference
from datum_compute.management.federator import UNANSWERED_SECONDS, Federator
from datum_compute.management.metrics import ManagementMetrics
from datum_compute.runtime.caches.informer import Change
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Drop, Request, Unfinished
from datum_compute.runtime.testing.faults import calls, merged
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count
from tests.events import ChangingRefusal, warnings
from tests.harness import ControllerHarness
from tests.karmada_objects import bind, names_of, serve

GROUP = "compute.datumapis.com"
CITY = "topology.datum.net/city-code"
UPSTREAM_CLUSTER = "meta.datumapis.com/upstream-cluster-name"
UPSTREAM_NAMESPACE = "meta.datumapis.com/upstream-namespace"
FINALIZER = f"{GROUP}/federator"
FEDERATION_NAMESPACE = f"{GROUP}/federation-namespace"
UPSTREAM_GENERATION = f"{GROUP}/upstream-generation"
UPSTREAM_UID = f"{GROUP}/upstream-uid"
SERVING_CLUSTER = f"{GROUP}/serving-cluster"
PAUSED = f"{GROUP}/rollout-paused"

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
STATUS: Json = {
    "replicas": 2,
    "currentReplicas": 1,
    "updatedReplicas": 1,
    "desiredReplicas": 2,
    "readyReplicas": 0,
    "observedGeneration": 7,
    "conditions": [
        {
            "type": "Available",
            "status": "False",
            "reason": "ImageUnavailable",
            "message": "The image cannot be pulled",
            "lastTransitionTime": "2026-06-01T12:00:00Z",
            "observedGeneration": 7,
        }
    ],
}


def spec(city: str) -> Json:
    return {
        "workloadRef": {"name": "hello", "uid": "uid-of-hello"},
        "placementName": "main",
        "cityCode": city,
        "template": TEMPLATE,
        "scaleSettings": {"minReplicas": 2, "instanceManagementPolicy": "OrderedReady"},
    }


class Federation(ControllerHarness):
    """Projects `demo` and `other`, a hub, and a cluster for DFW."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, {"demo": PROJECT, "other": PROJECT, "hub": HUB}, self._build)
        self.project, self.hub = self.engine.client("demo"), self.engine.client("hub")

    def _build(self, fleet: Fleet) -> Federator:
        self.registry = CollectorRegistry()
        self.reconciler = Federator(fleet, metrics=ManagementMetrics(self.registry))
        return self.reconciler

    def hops(self, hop: str) -> float:
        return self.registry.get_sample_value("compute_federation_hop_seconds_count", {"hop": hop}) or 0

    async def start(self) -> None:
        for project in ("demo", "other"):
            await self.engine.client(project).create(NAMESPACE, NAMESPACE.body("default"))
        await self.hub.create(CLUSTER, CLUSTER.body("cell-dfw", labels={CITY: "DFW"}))
        await self.run()

    # The user

    async def deploy(self, city: str = "DFW", name: str = "web", **metadata: Any) -> WorkloadDeployment:
        body = WORKLOAD_DEPLOYMENT.body(name, "default", **metadata) | {"spec": spec(city)}
        await self.project.create(WORKLOAD_DEPLOYMENT, body)
        await self.settle()
        return await self.deployment(name)

    async def change(self, patch: Json, name: str = "web") -> WorkloadDeployment:
        await self.project.merge_patch(WORKLOAD_DEPLOYMENT, name, "default", patch)
        await self.settle()
        return await self.deployment(name)

    async def strip_city(self) -> None:
        """Leaves web without a city, as one stored under an older schema."""
        empty = merged({"spec": {"cityCode": ""}})
        self.faults["demo"].poison(calls(path="workloaddeployments"), "web", empty)
        await self.change({"metadata": {"annotations": {"seen": "anew"}}})

    async def delete(self, name: str = "web") -> None:
        await self.project.delete(WORKLOAD_DEPLOYMENT, name, "default")
        await self.settle()

    async def deployment(self, name: str = "web") -> WorkloadDeployment:
        return await self.project.get(WORKLOAD_DEPLOYMENT, name, "default")

    # The hub

    async def home(self, project: str = "demo") -> str:
        """The hub namespace of a project's default one."""
        return f"ns-{(await self.engine.client(project).get(NAMESPACE, 'default')).metadata.uid}"

    async def copy(self, name: str = "web") -> WorkloadDeployment:
        return await self.hub.get(WORKLOAD_DEPLOYMENT, name, await self.home())

    async def edit_copy(self, patch: Json) -> WorkloadDeployment:
        await self.hub.merge_patch(WORKLOAD_DEPLOYMENT, "web", await self.home(), patch)
        await self.settle()
        return await self.copy()

    async def report(self, status: Json, name: str = "web") -> None:
        await self.hub.replace_status(WORKLOAD_DEPLOYMENT, await self.copy(name), status)
        await self.settle()

    async def policies(self) -> dict[str, PropagationPolicy]:
        return {found.name: found for found in (await self.hub.list(PROPAGATION_POLICY)).items}

    async def copies(self) -> list[str]:
        return [found.name for found in (await self.hub.list(WORKLOAD_DEPLOYMENT)).items]

    async def until_told(self, within: float) -> None:
        """Until the project deployment has an Available condition."""

        async def is_reported() -> bool:
            return available(await self.deployment()) is not None

        await self.simulation.until(is_reported, within)

    async def until_gone(self) -> None:
        async def gone() -> bool:
            return (await self.project.list(WORKLOAD_DEPLOYMENT)).items == []

        await self.simulation.until(gone, within=10)

    async def one_pass(self, name: str = "web") -> None:
        request = Request("demo", "default", name)
        await self.reconciler.reconcile(self.controller.new_pass(request))

    def map(self, copy: WorkloadDeployment) -> list[Request | Drop]:
        """What an event of a hub deployment leads to."""
        (source,) = [
            candidate
            for candidate in self.reconciler.sources()
            if (candidate.role, candidate.kind) == (HUB, WORKLOAD_DEPLOYMENT)
        ]
        assert source.map is not None
        return list(source.map(self.fleet.only(HUB), Change(None, copy)))

    def written(self) -> list[str]:
        """Writes, oldest first, without events."""
        return [line for line in self.writes.last if " Event " not in line]

    def planes(self) -> list[str]:
        """Planes of the writes, oldest first."""
        return [line.rsplit(" ", 1)[1] for line in self.written()]

    async def warnings(self) -> list[tuple[str, str]]:
        """Reason and message of each warning to users."""
        return [(event.reason, event.message) for event in await warnings(self.project, "web")]


@pytest.fixture
def federation(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Federation]:
    federation = Federation(simulation)
    runner.run(federation.start())
    yield federation
    runner.run(federation.stop())


def federated(deployment: WorkloadDeployment) -> tuple[str, str] | None:
    """Why a deployment cannot be sent to the hub; None when it can."""
    for condition in as_dict(deployment.status_json).get("conditions", ()):
        if condition["type"] == "Federated":
            assert condition["status"] == "False"
            return condition["reason"], condition["message"]
    return None


def available(deployment: WorkloadDeployment) -> tuple[str, str, str] | None:
    for condition in as_dict(deployment.status_json).get("conditions", ()):
        if condition["type"] == "Available":
            return condition["status"], condition["reason"], condition["message"]
    return None


# From the project to the hub


async def test_finalizer_and_hub_namespace_are_recorded_before_the_first_hub_write(federation: Federation) -> None:
    deployment = await federation.deploy(annotations={"mine": "stays"}, finalizers=["example.com/mine"])
    home = await federation.home()
    assert deployment.metadata.finalizers == ("example.com/mine", FINALIZER)
    assert deployment.metadata.annotations == {"mine": "stays", FEDERATION_NAMESPACE: home}
    assert federation.planes() == ["demo", "hub", "hub", "hub"]


async def test_nothing_is_written_to_the_hub_when_recording_fails(federation: Federation) -> None:
    federation.faults["demo"].fail(calls("PATCH"))
    await federation.deploy(finalizers=[FINALIZER])
    assert federation.planes() == ["demo"]
    assert await federation.copies() == []

    async def copied() -> bool:
        return await federation.copies() == ["web"]

    await federation.simulation.until(copied, within=1)


async def test_the_hub_namespace_names_project_and_namespace(federation: Federation) -> None:
    await federation.deploy()
    namespace = await federation.hub.get(NAMESPACE, await federation.home())
    assert (
        namespace.metadata.labels.items() >= {UPSTREAM_CLUSTER: "cluster-demo", UPSTREAM_NAMESPACE: "default"}.items()
    )


async def test_labels_of_the_hub_namespace_are_merged_and_restored(federation: Federation) -> None:
    home = await federation.home()
    await federation.hub.create(NAMESPACE, NAMESPACE.body(home, labels={"theirs": "1", UPSTREAM_NAMESPACE: "wrong"}))
    await federation.deploy()
    labels = (await federation.hub.get(NAMESPACE, home)).metadata.labels
    assert (labels["theirs"], labels[UPSTREAM_NAMESPACE]) == ("1", "default")
    await federation.hub.merge_patch(
        NAMESPACE, home, "", {"metadata": {"labels": {UPSTREAM_CLUSTER: "cluster-org_demo"}}}
    )
    await federation.settle()
    labels = (await federation.hub.get(NAMESPACE, home)).metadata.labels
    assert (labels["theirs"], labels[UPSTREAM_CLUSTER]) == ("1", "cluster-demo")


async def test_the_hub_copy_has_city_generation_and_spec(federation: Federation) -> None:
    deployment = await federation.deploy(labels={"theirs": "1"})
    copy = await federation.copy()
    assert as_dict(copy.spec_json) == as_dict(deployment.spec_json) == spec("DFW")
    assert copy.metadata.labels == {CITY: "DFW", UPSTREAM_NAMESPACE: "default"}
    assert copy.metadata.annotations == {
        UPSTREAM_GENERATION: "1",
        UPSTREAM_UID: deployment.metadata.uid,
        SERVING_CLUSTER: "cell-dfw",
    }
    assert copy.metadata.owner_references == ()
    assert copy.metadata.finalizers == ()
    assert as_dict(copy.status_json) == {}


async def test_only_the_policy_name_changes_the_case_of_a_city(federation: Federation) -> None:
    await federation.deploy("Dfw")
    home = await federation.home()
    assert (await federation.copy()).metadata.labels[CITY] == "Dfw"
    policies = await federation.policies()
    assert list(policies) == ["city-dfw"]
    assert as_dict(policies["city-dfw"].spec_json) == city_policy(home, "Dfw")["spec"]
    assert policies["city-dfw"].namespace == home


async def test_a_change_and_its_generation_travel_in_one_write(federation: Federation) -> None:
    await federation.deploy()
    before = federation.writes.total()
    await federation.change({"spec": {"scaleSettings": {"minReplicas": 5}}})
    copy = await federation.copy()
    assert copy.spec.scale_settings.min_replicas == 5
    assert copy.metadata.annotations[UPSTREAM_GENERATION] == "2"
    assert federation.writes.total() == before + 1


async def test_a_removed_field_is_removed_on_the_hub_as_well(federation: Federation) -> None:
    await federation.deploy()
    await federation.change({"spec": {"template": {"metadata": {"labels": None}}}})
    assert (await federation.copy()).spec.template.metadata.labels == {}


async def test_a_namespace_that_is_not_cached_yet_is_read_from_the_server(federation: Federation) -> None:
    dropped = federation.faults["demo"].drop_event(calls(path="/api/v1/namespaces"))
    await federation.project.create(NAMESPACE, NAMESPACE.body("late"))
    await federation.project.create(
        WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", "late") | {"spec": spec("DFW")}
    )
    await federation.settle()
    assert dropped.fired
    home = f"ns-{(await federation.project.get(NAMESPACE, 'late')).metadata.uid}"
    assert (await federation.hub.get(WORKLOAD_DEPLOYMENT, "web", home)).metadata.labels[UPSTREAM_NAMESPACE] == "late"


async def test_a_deployment_without_a_city_is_reported_and_nothing_is_written_to_the_hub(
    federation: Federation,
) -> None:
    await federation.deploy()
    await federation.strip_city()
    before = await federation.copy()
    with pytest.raises(Unfinished, match="no city code"):
        await federation.one_pass()
    assert await federation.copy() == before
    assert federated(await federation.deployment()) == ("FederationFailed", "The deployment has no city code")


async def test_at_rest_a_pass_over_every_object_writes_nothing_and_wakes_nobody(federation: Federation) -> None:
    await federation.deploy()
    await federation.deploy("AMS", "more")
    await federation.report(STATUS)
    await federation.simulation.advance(120)
    planes = [(federation.project, WORKLOAD_DEPLOYMENT), (federation.hub, WORKLOAD_DEPLOYMENT)]
    versions = [found.metadata.resource_version for client, kind in planes for found in (await client.list(kind)).items]
    before, passes = federation.writes.total(), federation.controller.passes
    for name in ("web", "more"):
        federation.controller.enqueue(Request("demo", "default", name))
    await federation.settle()
    assert federation.controller.passes == passes + 2
    assert federation.writes.total() == before
    again = [found.metadata.resource_version for client, kind in planes for found in (await client.list(kind)).items]
    assert again == versions


# Edits on the hub


async def test_a_hub_copy_edited_by_hand_is_restored(federation: Federation) -> None:
    uid = (await federation.deploy()).metadata.uid
    edited = {UPSTREAM_GENERATION: "9", UPSTREAM_UID: "another", SERVING_CLUSTER: "another", "theirs": "2"}
    marks = {"labels": {CITY: "AMS", "theirs": "1"}, "annotations": edited}
    copy = await federation.edit_copy({"metadata": marks, "spec": {"scaleSettings": {"minReplicas": 9}}})
    assert as_dict(copy.spec_json) == spec("DFW")
    assert copy.metadata.labels == {CITY: "DFW", UPSTREAM_NAMESPACE: "default", "theirs": "1"}
    assert copy.metadata.annotations == {
        UPSTREAM_GENERATION: "1",
        UPSTREAM_UID: uid,
        SERVING_CLUSTER: "cell-dfw",
        "theirs": "2",
    }
    assert list(await federation.policies()) == ["city-dfw"]


async def test_the_label_that_leads_to_the_project_is_restored_as_well(federation: Federation) -> None:
    await federation.deploy()
    copy = await federation.edit_copy({"metadata": {"labels": None}})
    assert copy.metadata.labels == {CITY: "DFW", UPSTREAM_NAMESPACE: "default"}


async def test_a_hub_copy_deleted_by_hand_comes_back(federation: Federation) -> None:
    await federation.deploy()
    uid = (await federation.copy()).metadata.uid
    await federation.hub.delete(WORKLOAD_DEPLOYMENT, "web", await federation.home())
    await federation.settle()
    assert (await federation.copy()).metadata.uid != uid


@pytest.mark.parametrize("seed", range(1, count(10, 300) + 1))
async def test_a_hub_namespace_deleted_by_hand_comes_back_with_its_contents(federation: Federation, seed: int) -> None:
    await federation.deploy()
    await federation.deploy("AMS", "more")
    await federation.hub.delete(NAMESPACE, await federation.home())

    async def back() -> bool:
        cities = ["city-ams", "city-dfw"]
        return await federation.copies() == ["more", "web"] and list(await federation.policies()) == cities

    await federation.simulation.until(back, within=1)
    await federation.settle()
    assert await back()


async def test_a_policy_deleted_by_hand_comes_back(federation: Federation) -> None:
    await federation.deploy()
    await federation.hub.delete(PROPAGATION_POLICY, "city-dfw", await federation.home())
    await federation.settle()
    assert list(await federation.policies()) == ["city-dfw"]


async def test_a_policy_edited_by_hand_is_restored_and_server_defaults_stay(
    federation: Federation,
) -> None:
    await federation.deploy()
    home = await federation.home()
    before = federation.writes.total()
    filled = {"priority": 0, "placement": {"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1}]}}
    await federation.hub.merge_patch(PROPAGATION_POLICY, "city-dfw", home, {"spec": filled})
    await federation.settle()
    assert federation.writes.total() == before
    elsewhere = {"placement": {"clusterAffinity": {"labelSelector": {"matchLabels": {CITY: "AMS"}}}}}
    await federation.hub.merge_patch(PROPAGATION_POLICY, "city-dfw", home, {"spec": elsewhere})
    await federation.settle()
    mended = as_dict((await federation.policies())["city-dfw"].spec_json)
    assert mended["placement"]["clusterAffinity"] == city_policy(home, "DFW")["spec"]["placement"]["clusterAffinity"]
    assert mended["priority"] == 0
    assert federation.writes.total() == before + 1


@pytest.mark.parametrize("seconds", [None, 300])
async def test_an_older_policy_is_updated_once_to_tolerate_an_unreachable_cell(
    federation: Federation, seconds: int | None
) -> None:
    """A policy of an earlier version, unchanged or as older webhooks of Karmada completed it."""
    await federation.deploy("DFW")
    await federation.deploy("dfw", "more")
    home = await federation.home()
    wanted = city_policy(home, "DFW")["spec"]["placement"]
    tolerations = wanted["clusterTolerations"]
    older = [toleration | {"tolerationSeconds": seconds} for toleration in tolerations] if seconds is not None else None
    before = federation.writes.total()
    patch = {"spec": {"placement": {"clusterTolerations": older}}}
    await federation.hub.merge_patch(PROPAGATION_POLICY, "city-dfw", home, patch)
    await federation.settle()
    assert as_dict((await federation.policies())["city-dfw"].spec_json)["placement"] == wanted
    await federation.simulation.advance(60)
    assert federation.writes.total() == before + 1


# From the hub to the project


async def test_hub_status_reaches_the_project_without_a_resync(federation: Federation) -> None:
    await federation.deploy()
    began = federation.simulation.time()
    await federation.report(STATUS)
    assert as_dict((await federation.deployment()).status_json) == STATUS
    again = STATUS | {"replicas": 0, "observedGeneration": 8}
    await federation.report(again)
    assert as_dict((await federation.deployment()).status_json) == again
    assert federation.simulation.time() == began


async def test_a_status_edited_in_the_project_is_restored(federation: Federation) -> None:
    await federation.deploy()
    await federation.report(STATUS)
    made_up = STATUS | {"readyReplicas": 99}
    await federation.project.replace_status(WORKLOAD_DEPLOYMENT, await federation.deployment(), made_up)
    await federation.settle()
    assert as_dict((await federation.deployment()).status_json) == STATUS


async def test_a_hub_event_always_leads_to_the_plane_of_its_project(federation: Federation) -> None:
    await federation.deploy()
    assert federation.map(await federation.copy()) == [Request("demo", "default", "web")]


def test_a_request_without_a_plane_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="needs the name of its plane"):
        Request("", "default", "web")


async def foreign_copy(federation: Federation, labels: dict[str, str], namespace_label: str = "default") -> Any:
    """A hub deployment in a namespace with these labels."""
    await federation.hub.create(NAMESPACE, NAMESPACE.body("ns-1", labels=labels))
    await federation.settle()
    body = WORKLOAD_DEPLOYMENT.body(
        "web", "ns-1", labels={UPSTREAM_NAMESPACE: namespace_label} if namespace_label else {}
    )
    copy = await federation.hub.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec("DFW")})
    await federation.settle()
    return copy


@pytest.mark.parametrize(
    ("label", "project"),
    [("cluster-demo", "demo"), ("cluster-org_demo", "demo"), ("cluster-_demo", "demo"), ("demo", "demo")],
)
async def test_a_project_path_with_an_organisation_leads_to_the_bare_project(
    federation: Federation, label: str, project: str
) -> None:
    copy = await foreign_copy(federation, {UPSTREAM_CLUSTER: label})
    assert federation.map(copy) == [Request(project, "default", "web")]
    assert federation.controller.dropped == {}


async def test_an_event_for_a_project_that_is_not_engaged_is_dropped(federation: Federation) -> None:
    passes = federation.controller.passes
    await foreign_copy(federation, {UPSTREAM_CLUSTER: "cluster-elsewhere"})
    assert federation.controller.dropped == {"plane_not_engaged": 1}
    assert federation.controller.passes == passes
    assert federation.writes.total() == 0


@pytest.mark.parametrize(
    ("labels", "namespace_label", "reason"),
    [
        ({}, "default", "unlabelled"),
        ({UPSTREAM_CLUSTER: "cluster-demo"}, "", "unlabelled"),
        ({UPSTREAM_CLUSTER: ""}, "default", "undecodable"),
    ],
)
async def test_an_event_without_identity_labels_is_dropped(
    federation: Federation, labels: dict[str, str], namespace_label: str, reason: str
) -> None:
    passes = federation.controller.passes
    with capture_logs() as logs:
        copy = await foreign_copy(federation, labels, namespace_label)
        await federation.hub.merge_patch(
            WORKLOAD_DEPLOYMENT, "web", "ns-1", {"metadata": {"labels": {"seen": "again"}}}
        )
        await federation.settle()
    (line,) = [line for line in logs if line["log_level"] == "warning"]
    assert (line["kind"], line["object"], line["reason"]) == ("WorkloadDeployment", "ns-1/web", reason)
    federation.controller.dropped.subtract({reason: 1})
    assert federation.map(copy) == [Drop(reason)]
    assert federation.controller.dropped == {reason: 1}
    assert federation.controller.passes == passes


async def test_an_event_dropped_for_a_missing_label_is_handled_once_the_label_is_set(federation: Federation) -> None:
    await federation.deploy()
    home = await federation.home()
    federation.faults["hub"].fail(calls("PATCH", home))
    federation.faults["hub"].fail(calls("PATCH", home), nth=2)
    await federation.hub.merge_patch(NAMESPACE, home, "", {"metadata": {"labels": {UPSTREAM_CLUSTER: None}}})
    await federation.report(STATUS)
    assert federation.controller.dropped == {"unlabelled": 1}

    async def mirrored() -> bool:
        return as_dict((await federation.deployment()).status_json) == STATUS

    await federation.simulation.until(mirrored, within=10)
    assert (await federation.hub.get(NAMESPACE, home)).metadata.labels[UPSTREAM_CLUSTER] == "cluster-demo"


async def test_a_copy_of_the_same_name_in_another_namespace_is_ignored(federation: Federation) -> None:
    """Its labels claim to be ours; the status still comes from the copy in our own hub namespace."""
    await federation.deploy()
    copy = await foreign_copy(federation, {UPSTREAM_CLUSTER: "cluster-demo"})
    await federation.hub.replace_status(WORKLOAD_DEPLOYMENT, copy, STATUS)
    await federation.settle()
    assert as_dict((await federation.deployment()).status_json) == {}


# What an earlier deployment of the same name left on the hub


async def test_a_binding_of_an_earlier_deployment_is_removed_when_nobody_answers(federation: Federation) -> None:
    """The hub's garbage collection overlooked it, and Karmada serves nothing of that name until it is gone."""
    await serve(federation.hub)
    await federation.deploy(name="other")
    home = await federation.home()
    await bind(federation.hub, "other", home, (await federation.copy("other")).metadata.uid)
    await bind(federation.hub, "web", home, "uid-of-an-earlier-one")
    await federation.deploy()
    await federation.simulation.advance(UNANSWERED_SECONDS - 1)
    assert await names_of(federation.hub, RESOURCE_BINDING) == ["other-workloaddeployment", "web-workloaddeployment"]
    await federation.simulation.advance(2)
    assert await names_of(federation.hub, RESOURCE_BINDING) == ["other-workloaddeployment"]


async def test_a_binding_that_meanwhile_belongs_to_the_deployment_stays(federation: Federation) -> None:
    await serve(federation.hub)
    await federation.deploy()
    home = await federation.home()
    await bind(federation.hub, "web", home, "uid-of-an-earlier-one")
    federation.faults["hub"].slow_down(1, calls("DELETE", "resourcebindings"))
    await federation.simulation.advance(UNANSWERED_SECONDS + 0.5)
    binding = await federation.hub.get(RESOURCE_BINDING, "web-workloaddeployment", home)
    owner = controller_reference(await federation.copy("web"))
    patch = {"metadata": {"ownerReferences": [owner]}}
    await federation.hub.merge_patch(RESOURCE_BINDING, binding.name, home, patch)
    await federation.simulation.advance(2 * UNANSWERED_SECONDS)
    assert await names_of(federation.hub, RESOURCE_BINDING) == ["web-workloaddeployment"]


async def test_bindings_of_a_deployment_with_an_answer_are_not_read(federation: Federation) -> None:
    await serve(federation.hub)
    await federation.deploy()
    await bind(federation.hub, "web", await federation.home(), "uid-of-an-earlier-one")
    await federation.report(STATUS)
    await federation.simulation.advance(10 * UNANSWERED_SECONDS)
    assert await names_of(federation.hub, RESOURCE_BINDING) == ["web-workloaddeployment"]


async def test_a_binding_of_a_copy_that_is_not_cached_yet_stays(federation: Federation) -> None:
    """Our cache of the hub is behind."""
    await serve(federation.hub)
    await federation.deploy()
    home = await federation.home()
    for nth in (1, 2):  # its end, and the one that comes in its place
        federation.faults["hub"].drop_event(calls(path="workloaddeployments"), nth)
    await federation.hub.delete(WORKLOAD_DEPLOYMENT, "web", home)
    body = WORKLOAD_DEPLOYMENT.body("web", home) | {"spec": spec("DFW")}
    later = await federation.hub.create(WORKLOAD_DEPLOYMENT, body)
    await bind(federation.hub, "web", home, later.metadata.uid)
    await federation.simulation.advance(2 * UNANSWERED_SECONDS)
    assert await names_of(federation.hub, RESOURCE_BINDING) == ["web-workloaddeployment"]


# A city without a cluster


async def test_a_city_without_a_cluster_is_reported_after_a_minute_and_not_before(federation: Federation) -> None:
    began = federation.simulation.time()
    deployment = await federation.deploy("AMS")
    assert available(deployment) is None
    await federation.until_told(within=61)
    assert 60 <= federation.simulation.time() - began <= 61
    deployment = await federation.deployment()
    sentence = 'No site serves city "AMS" at the moment'
    assert available(deployment) == ("False", "NoMatchingLocation", sentence)
    assert deployment.status is not None
    assert deployment.status.observed_generation == 1
    assert {condition.observed_generation for condition in deployment.status.conditions} == {1}
    assert (deployment.status.replicas, deployment.status.desired_replicas) == (0, 0)


@pytest.mark.parametrize("ahead", [-86400.0, 86400.0])
async def test_the_time_without_an_answer_is_measured_by_our_own_clock(federation: Federation, ahead: float) -> None:
    federation.clock.ahead = ahead
    await serve(federation.hub)
    await federation.deploy(name="other")
    await bind(federation.hub, "web", await federation.home(), "uid-of-an-earlier-one")
    began = federation.simulation.time()
    await federation.deploy("AMS")
    passes = federation.controller.passes
    await federation.simulation.advance(UNANSWERED_SECONDS - 1)
    assert await names_of(federation.hub, RESOURCE_BINDING) == ["web-workloaddeployment"]
    await federation.simulation.advance(2)
    assert await names_of(federation.hub, RESOURCE_BINDING) == []
    await federation.until_told(within=61)
    assert 60 <= federation.simulation.time() - began <= 61
    assert federation.controller.passes - passes < 10


async def test_a_city_without_a_cluster_is_reported_once(federation: Federation) -> None:
    await federation.deploy("AMS")
    await federation.until_told(within=61)
    before = federation.writes.total()
    federation.controller.enqueue(Request("demo", "default", "web"))
    await federation.settle()
    assert federation.writes.total() == before


async def test_a_city_without_a_cluster_is_no_longer_reported_once_a_site_answers(federation: Federation) -> None:
    await federation.deploy("AMS")
    await federation.until_told(within=61)
    await federation.report(STATUS)
    assert as_dict((await federation.deployment()).status_json) == STATUS


async def test_a_city_without_a_cluster_is_reported_even_when_bindings_are_unreadable(federation: Federation) -> None:
    """As after an upgrade that left the roles as they were."""
    for nth in range(1, 100):
        federation.faults["hub"].answer(calls("GET", "resourcebindings"), Forbidden("no right"), nth)
    await federation.deploy("AMS")
    await federation.until_told(within=61)


@pytest.mark.parametrize("change", ["goes", "serves another city"])
@pytest.mark.parametrize("after", [30.0, 90.0])
async def test_a_cluster_that_is_deleted_before_it_answered_is_reported_as_well(
    federation: Federation, change: str, after: float
) -> None:
    await federation.deploy("DFW")
    later = asyncio.Event()
    federation.simulation.call_later(after, later.set)
    await later.wait()
    assert available(await federation.deployment()) is None
    if change == "goes":
        await federation.hub.delete(CLUSTER, "cell-dfw")
    else:
        await federation.hub.merge_patch(CLUSTER, "cell-dfw", "", {"metadata": {"labels": {CITY: "AMS"}}})

    await federation.until_told(within=31)
    assert (available(await federation.deployment()) or ("", ""))[1] == "NoMatchingLocation"


async def test_a_status_update_of_a_cluster_starts_no_pass(federation: Federation) -> None:
    await federation.deploy("DFW")
    passes = federation.controller.passes
    await federation.hub.merge_patch(CLUSTER, "cell-dfw", "", {"metadata": {"annotations": {"heartbeat": "1"}}})
    await federation.settle()
    assert federation.controller.passes == passes


async def test_a_city_without_a_cluster_emits_one_event(federation: Federation) -> None:
    await federation.deploy("AMS")
    await federation.until_told(within=61)
    await federation.settle()
    reported = [("NoMatchingLocation", 'No site serves city "AMS" at the moment')]
    assert await federation.warnings() == reported
    await federation.change({"spec": {"scaleSettings": {"minReplicas": 5}}})
    assert await federation.warnings() == reported


# A paused rollout


async def test_a_pause_reaches_the_hub_and_a_resume_removes_it(federation: Federation) -> None:
    await federation.deploy(annotations={PAUSED: "true"})
    assert (await federation.copy()).metadata.annotations[PAUSED] == "true"
    await federation.change({"metadata": {"annotations": {PAUSED: None}}})
    assert PAUSED not in (await federation.copy()).metadata.annotations
    before = federation.writes.total()
    await federation.change({"metadata": {"annotations": {PAUSED: "true"}}})
    assert (await federation.copy()).metadata.annotations[PAUSED] == "true"
    assert federation.writes.total() == before + 1


# Reports of failures


async def test_a_lasting_outage_of_the_hub_is_reported_once_and_a_short_one_never(federation: Federation) -> None:
    await federation.deploy()
    federation.faults["hub"].take_away()
    await federation.change({"spec": {"scaleSettings": {"minReplicas": 5}}})
    await federation.simulation.advance(5)
    assert await federation.warnings() == []
    await federation.simulation.advance(120)
    ((reason, message),) = await federation.warnings()
    assert reason == "FederationFailed"
    assert "what runs goes on" in message
    federation.faults["hub"].bring_back()
    await federation.simulation.advance(40)
    assert (await federation.copy()).spec.scale_settings.min_replicas == 5
    assert len(await federation.warnings()) == 1

    federation.faults["hub"].take_away()
    await federation.change({"spec": {"scaleSettings": {"minReplicas": 6}}})
    await federation.simulation.advance(60)
    (again,) = await warnings(federation.project, "web")
    assert again.count == 2  # it set in again


async def test_an_error_that_a_retry_cannot_fix_is_reported_at_once(federation: Federation) -> None:
    await federation.deploy()
    await federation.strip_city()
    ((reason, message),) = await federation.warnings()
    assert (reason, message) == ("FederationFailed", "The deployment has no city code")
    await federation.simulation.advance(120)
    assert len(await federation.warnings()) == 1


async def test_a_refusal_of_a_new_deployment_is_reported_with_the_message_of_the_hub(federation: Federation) -> None:
    refusal = federation.faults["hub"].refuse(calls("POST", "workloaddeployments"), Invalid("spec.template: no"))
    deployment = await federation.deploy()
    sentence = "The deployment on the hub was refused: spec.template: no"
    assert available(deployment) == ("False", "SpecRefused", sentence)
    assert federated(deployment) == ("SpecRefused", sentence)
    assert await federation.warnings() == [("SpecRefused", sentence)]
    version = deployment.metadata.resource_version
    await federation.simulation.advance(3600)
    assert (await federation.deployment()).metadata.resource_version == version
    assert len(await federation.warnings()) == 1

    refusal.lift()
    deployment = await federation.change({"spec": {"scaleSettings": {"minReplicas": 3}}})
    assert await federation.copies() == ["web"]
    assert federated(deployment) is None
    assert available(deployment) is None  # until the site answers
    await federation.report(STATUS)
    assert as_dict((await federation.deployment()).status_json) == STATUS


@pytest.mark.parametrize("error", [Invalid("no"), Forbidden("no"), Unavailable("busy")])
async def test_status_is_mirrored_while_the_hub_refuses_new_specs(federation: Federation, error: ApiError) -> None:
    await federation.deploy()
    federation.faults["hub"].refuse(calls("PATCH", "workloaddeployments/web"), error)
    await federation.change({"spec": {"scaleSettings": {"minReplicas": 3}}})
    await federation.report(STATUS)
    deployment = await federation.deployment()
    assert deployment.status is not None
    assert deployment.status.replicas == STATUS["replicas"]
    assert available(deployment) == ("False", "ImageUnavailable", "The image cannot be pulled")
    condition = federated(deployment)
    assert condition is None if isinstance(error, Unavailable) else condition is not None


async def test_status_is_mirrored_before_the_spec_is_pushed(federation: Federation) -> None:
    await federation.deploy()
    federation.faults["hub"].slow_down(25, calls("PATCH", "workloaddeployments/web"))
    federation.faults["demo"].take_away()
    await federation.project.merge_patch(
        WORKLOAD_DEPLOYMENT, "web", "default", {"spec": {"scaleSettings": {"minReplicas": 3}}}
    )
    await federation.hub.replace_status(WORKLOAD_DEPLOYMENT, await federation.copy(), STATUS)
    federation.faults["demo"].bring_back()
    began = federation.simulation.time()

    async def mirrored() -> bool:
        status = (await federation.deployment()).status
        return status is not None and status.replicas == STATUS["replicas"]

    await federation.simulation.until(mirrored, within=60)
    assert (await federation.copy()).spec.scale_settings.min_replicas == 2  # the push is still under way
    assert federation.simulation.time() - began < 40


async def test_an_outdated_deployment_is_not_pushed(federation: Federation) -> None:
    await federation.deploy()
    federation.faults["demo"].refuse(calls("PUT", "workloaddeployments/web/status"), Conflict("changed"))
    await federation.report(STATUS)
    before = len(federation.faults["hub"].written)
    await federation.change({"spec": {"scaleSettings": {"minReplicas": 3}}})
    with pytest.raises(Conflict):
        await federation.one_pass()
    assert len(federation.faults["hub"].written) == before


async def test_a_refused_change_is_reported_beside_the_status_until_it_is_accepted(federation: Federation) -> None:
    await federation.deploy()
    await federation.report(STATUS)
    refusal = federation.faults["hub"].refuse(calls("PATCH", "workloaddeployments/web"), Forbidden("frozen"))
    deployment = await federation.change({"spec": {"scaleSettings": {"minReplicas": 3}}})
    assert federated(deployment) == ("WriteForbidden", "The deployment on the hub was refused: frozen")
    more = STATUS | {"replicas": 5}
    await federation.report(more)
    deployment = await federation.deployment()
    assert federated(deployment) == ("WriteForbidden", "The deployment on the hub was refused: frozen")
    assert deployment.status is not None
    assert deployment.status.replicas == 5
    refusal.lift()
    await federation.change({"spec": {"scaleSettings": {"minReplicas": 4}}})
    assert as_dict((await federation.deployment()).status_json) == more


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
async def test_the_report_of_a_refused_projection_is_left_to_the_projector(
    federation: Federation, answered: bool
) -> None:
    await federation.deploy()
    if answered:
        await federation.report(STATUS)
    refused = STATUS["conditions"][0] | {"type": "Projected", "reason": "SpecRefused"}
    reported = STATUS | {"conditions": [*(STATUS["conditions"] if answered else ()), refused]}
    await federation.project.replace_status(WORKLOAD_DEPLOYMENT, await federation.deployment(), reported)
    await federation.settle()
    assert as_dict((await federation.deployment()).status_json) == reported
    if answered:
        await federation.report(STATUS | {"replicas": 5})
        assert as_dict((await federation.deployment()).status_json) == reported | {"replicas": 5}


async def test_a_refusal_that_is_worded_differently_each_time_is_written_once(federation: Federation) -> None:
    refusal = federation.faults["hub"].refuse(calls("POST", "workloaddeployments"), ChangingRefusal())
    deployment = await federation.deploy()
    await federation.simulation.advance(600)
    assert refusal.times > 5
    assert (await federation.deployment()).metadata.resource_version == deployment.metadata.resource_version
    assert len(await federation.warnings()) == 1


async def test_a_refused_policy_does_not_hold_up_the_deployment(federation: Federation) -> None:
    federation.faults["hub"].refuse(calls("POST", "propagationpolicies"), Forbidden("no policies today"))
    deployment = await federation.deploy()
    assert await federation.copies() == ["web"]
    sentence = 'The policy of city "DFW" was refused: no policies today'
    assert federated(deployment) == ("WriteForbidden", sentence)


async def test_a_refused_hub_namespace_is_reported(federation: Federation) -> None:
    federation.faults["hub"].refuse(calls("POST", "/api/v1/namespaces"), Forbidden("no namespaces today"))
    deployment = await federation.deploy()
    sentence = f"Namespace {await federation.home()} on the hub was refused: no namespaces today"
    assert federated(deployment) == ("WriteForbidden", sentence)
    assert available(deployment) == ("False", "WriteForbidden", sentence)


# The owner of a hub namespace


async def test_a_hub_namespace_that_names_another_project_is_never_taken_over(federation: Federation) -> None:
    home = await federation.home()
    labels = {UPSTREAM_CLUSTER: "cluster-stranger", UPSTREAM_NAMESPACE: "default"}
    await federation.hub.create(NAMESPACE, NAMESPACE.body(home, labels=labels))
    theirs = WORKLOAD_DEPLOYMENT.body("web", home, labels={CITY: "DFW"}) | {"spec": spec("DFW")}
    copy = await federation.hub.create(WORKLOAD_DEPLOYMENT, theirs)
    await federation.hub.replace_status(WORKLOAD_DEPLOYMENT, copy, STATUS)
    before = await federation.hub.get(WORKLOAD_DEPLOYMENT, "web", home)

    deployment = await federation.deploy()
    sentence = f"Namespace {home} on the hub belongs to another project; the platform operator has to separate the two"
    assert federated(deployment) == ("HubNamespaceTaken", sentence)
    assert available(deployment) == ("False", "HubNamespaceTaken", sentence)
    assert await federation.warnings() == [("HubNamespaceTaken", sentence)]
    writes = federation.writes.total()
    await federation.simulation.advance(600)
    assert federation.writes.total() == writes
    assert federation.controller.passes < 100

    await federation.delete()
    await federation.until_gone()
    assert await federation.hub.get(WORKLOAD_DEPLOYMENT, "web", home) == before
    assert (await federation.hub.get(NAMESPACE, home)).metadata.labels.items() >= labels.items()


async def test_the_first_of_two_projects_with_one_namespace_uid_keeps_the_hub_namespace(
    federation: Federation,
) -> None:
    """As after a project was restored under another name from the backup of a first."""
    await federation.deploy()
    uid = (await federation.project.get(NAMESPACE, "default")).metadata.uid
    other = federation.engine.client("other")
    federation.faults["other"].poison(calls(path="/api/v1/namespaces"), "default", merged({"metadata": {"uid": uid}}))
    federation.faults["other"].cut_watches()
    await federation.simulation.advance(5)
    before = federation.writes.total()
    await other.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", "default") | {"spec": spec("DFW")})
    await federation.simulation.advance(600)
    assert federation.writes.total() - before < 10
    home = await federation.hub.get(NAMESPACE, f"ns-{uid}")
    assert home.metadata.labels[UPSTREAM_CLUSTER] == "cluster-demo"
    assert (federated(await other.get(WORKLOAD_DEPLOYMENT, "web", "default")) or ("",))[0] == "HubNamespaceTaken"
    await other.delete(WORKLOAD_DEPLOYMENT, "web", "default")
    await federation.simulation.advance(60)
    assert (await other.list(WORKLOAD_DEPLOYMENT)).items == []
    assert await federation.copies() == ["web"]


async def test_a_hub_namespace_that_is_handed_over_is_taken_at_once(federation: Federation) -> None:
    home = await federation.home()
    labels = {UPSTREAM_CLUSTER: "cluster-stranger", UPSTREAM_NAMESPACE: "default"}
    await federation.hub.create(NAMESPACE, NAMESPACE.body(home, labels=labels))
    await federation.deploy()
    assert await federation.copies() == []
    patch = {"metadata": {"labels": {UPSTREAM_CLUSTER: "cluster-demo"}}}
    await federation.hub.merge_patch(NAMESPACE, home, "", patch)
    await federation.settle()
    assert await federation.copies() == ["web"]
    assert federated(await federation.deployment()) is None


# Latency of hops


async def test_a_hop_is_measured_only_when_something_is_written(federation: Federation) -> None:
    await federation.deploy()
    assert (federation.hops("project_to_hub"), federation.hops("hub_to_project")) == (1, 0)
    await federation.report(STATUS)
    assert (federation.hops("project_to_hub"), federation.hops("hub_to_project")) == (1, 1)
    federation.controller.enqueue(Request("demo", "default", "web"))
    await federation.settle()
    assert (federation.hops("project_to_hub"), federation.hops("hub_to_project")) == (1, 1)
    await federation.change({"spec": {"scaleSettings": {"minReplicas": 5}}})
    assert (federation.hops("project_to_hub"), federation.hops("hub_to_project")) == (2, 1)


async def test_a_hop_is_measured_from_the_change_through_all_retries(federation: Federation) -> None:
    await federation.deploy()
    federation.faults["hub"].take_away()
    await federation.change({"spec": {"scaleSettings": {"minReplicas": 5}}})
    await federation.simulation.advance(60)
    federation.faults["hub"].bring_back()
    await federation.simulation.advance(40)
    labels = {"hop": "project_to_hub"}
    assert (federation.registry.get_sample_value("compute_federation_hop_seconds_sum", labels) or 0) >= 60


# A change of city


async def test_the_policy_of_the_old_city_is_deleted(federation: Federation) -> None:
    await federation.deploy("DFW")
    await federation.change({"spec": {"cityCode": "AMS"}})
    assert list(await federation.policies()) == ["city-ams"]
    assert (await federation.copy()).metadata.labels[CITY] == "AMS"


async def test_the_mark_of_the_old_citys_policy_is_removed_so_that_the_new_one_applies(
    federation: Federation,
) -> None:
    claim = "propagationpolicy.karmada.io/permanent-id"
    await federation.deploy("DFW")
    await federation.edit_copy({"metadata": {"labels": {claim: "of-city-dfw"}}})
    assert claim in (await federation.copy()).metadata.labels
    await federation.change({"spec": {"cityCode": "AMS"}})
    assert claim not in (await federation.copy()).metadata.labels


async def test_the_policy_of_the_old_city_stays_while_it_is_needed(federation: Federation) -> None:
    await federation.deploy("DFW")
    await federation.deploy("DFW", "more")
    await federation.change({"spec": {"cityCode": "AMS"}})
    assert list(await federation.policies()) == ["city-ams", "city-dfw"]


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_failed_write_during_a_change_of_city_leaves_nothing_behind(federation: Federation, nth: int) -> None:
    await federation.deploy("DFW")
    federation.faults["hub"].fail(lambda call: call.method != "GET", nth)
    await federation.change({"spec": {"cityCode": "AMS"}})

    async def moved() -> bool:
        return list(await federation.policies()) == ["city-ams"]

    await federation.simulation.until(moved, within=1)
    assert (await federation.copy()).metadata.labels[CITY] == "AMS"


# Deletion


async def test_deletion_removes_copy_policy_and_finalizer(federation: Federation) -> None:
    await federation.deploy()
    await federation.delete()
    assert await federation.copies() == []
    assert await federation.policies() == {}
    with pytest.raises(NotFound):
        await federation.deployment()
    assert await federation.hub.get(NAMESPACE, await federation.home())  # accepted to stay


async def test_a_deployment_without_our_finalizer_is_left_alone(federation: Federation) -> None:
    await federation.deploy()
    await federation.change({"metadata": {"finalizers": ["example.com/mine", FINALIZER]}})
    await federation.delete()
    before = federation.writes.total()
    assert (await federation.deployment()).metadata.finalizers == ("example.com/mine",)
    federation.controller.enqueue(Request("demo", "default", "web"))
    await federation.settle()
    assert federation.writes.total() == before


async def test_a_policy_is_kept_for_a_second_deployment_and_deleted_with_the_last(
    federation: Federation,
) -> None:
    await federation.deploy()
    await federation.deploy(name="more")
    before = await federation.policies()
    await federation.delete()
    assert await federation.copies() == ["more"]
    assert await federation.policies() == before  # the same object: a deleted one would be created again at once
    await federation.delete("more")
    assert await federation.policies() == {}


async def test_a_deployment_keeps_only_the_policy_of_its_own_city(federation: Federation) -> None:
    await federation.deploy()
    await federation.deploy("AMS", "more")
    before = await federation.policies()
    await federation.delete()
    assert await federation.policies() == {"city-ams": before["city-ams"]}


async def test_a_hub_copy_that_is_being_deleted_does_not_keep_the_policy(federation: Federation) -> None:
    await federation.deploy()
    await federation.deploy(name="more")
    await federation.edit_copy({"metadata": {"finalizers": ["karmada.io/slow"]}})
    await federation.delete()
    assert await federation.copies() == ["more", "web"]
    with pytest.raises(NotFound):
        await federation.deployment()
    await federation.delete("more")
    assert await federation.copies() == ["web"]
    assert await federation.policies() == {}


@pytest.mark.parametrize("nth", [1, 2])
async def test_a_failed_hub_write_is_repeated(federation: Federation, nth: int) -> None:
    await federation.deploy()
    federation.faults["hub"].fail(calls("DELETE"), nth)
    await federation.delete()

    async def gone() -> bool:
        return not await federation.copies() and not await federation.policies()

    await federation.simulation.until(gone, within=1)


async def test_the_finalizer_waits_for_an_unreachable_hub(federation: Federation) -> None:
    await federation.deploy()
    federation.faults["hub"].take_away()
    await federation.delete()
    assert (await federation.deployment()).metadata.finalizers == (FINALIZER,)
    federation.faults["hub"].bring_back()

    await federation.until_gone()
    assert await federation.copies() == []


async def test_the_annotation_is_used_when_the_namespace_cannot_be_read(federation: Federation) -> None:
    federation.faults["demo"].drop_event(calls(path="/api/v1/namespaces"))
    await federation.project.create(NAMESPACE, NAMESPACE.body("late"))
    await federation.project.create(
        WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", "late") | {"spec": spec("DFW")}
    )
    await federation.settle()
    assert await federation.copies() == ["web"]
    unread = federation.faults["demo"].fail(calls("GET", "/api/v1/namespaces/late"))
    await federation.project.delete(WORKLOAD_DEPLOYMENT, "web", "late")
    await federation.settle()
    assert await federation.copies() == []
    assert (await federation.project.list(WORKLOAD_DEPLOYMENT)).items == []
    assert not unread.fired


async def test_the_namespace_is_read_without_the_annotation(federation: Federation) -> None:
    home = await federation.home()
    await federation.deploy()
    federation.faults["hub"].take_away()
    await federation.delete()
    await federation.change({"metadata": {"annotations": {FEDERATION_NAMESPACE: None}}})
    federation.faults["hub"].bring_back()

    await federation.until_gone()
    assert (await federation.hub.list(WORKLOAD_DEPLOYMENT, home)).items == []


async def test_an_annotation_that_names_the_namespace_of_another_project_is_not_trusted(
    federation: Federation,
) -> None:
    other = federation.engine.client("other")
    await other.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", "default") | {"spec": spec("DFW")})
    await federation.deploy()
    theirs = await federation.home("other")
    before = await federation.hub.get(WORKLOAD_DEPLOYMENT, "web", theirs)

    federation.faults["hub"].take_away()
    await federation.delete()
    await federation.change({"metadata": {"annotations": {FEDERATION_NAMESPACE: theirs}}})
    federation.faults["hub"].bring_back()

    await federation.until_gone()
    assert await federation.hub.get(WORKLOAD_DEPLOYMENT, "web", theirs) == before
    assert await federation.hub.get(PROPAGATION_POLICY, "city-dfw", theirs)
    assert (await federation.hub.list(WORKLOAD_DEPLOYMENT, await federation.home())).items == []


@pytest.mark.parametrize("lost", ["nothing", "the label", "the copy"])
async def test_a_deployment_without_its_city_is_deleted_with_its_own_copy_and_policy_only(
    federation: Federation, lost: str
) -> None:
    await federation.deploy()
    await federation.deploy("AMS", "more")
    await federation.strip_city()
    home = await federation.home()
    if lost == "the label":
        await federation.hub.merge_patch(WORKLOAD_DEPLOYMENT, "web", home, {"metadata": {"labels": {CITY: None}}})
    elif lost == "the copy":
        await federation.hub.delete(WORKLOAD_DEPLOYMENT, "web", home)
    await federation.delete()
    assert await federation.copies() == ["more"]
    assert list(await federation.policies()) == ["city-ams"]
    assert [deployment.name for deployment in (await federation.project.list(WORKLOAD_DEPLOYMENT)).items] == ["more"]


async def test_a_deployment_without_its_city_leaves_the_policies_of_others_alone(federation: Federation) -> None:
    await federation.deploy()
    theirs = PROPAGATION_POLICY.body("theirs", await federation.home())
    placement = {"clusterAffinity": {"labelSelector": {"matchLabels": {"tier": "gold"}}}}
    selectors = [{"apiVersion": "v1", "kind": "ConfigMap"}]
    spec_ = {"resourceSelectors": selectors, "placement": placement}
    await federation.hub.create(PROPAGATION_POLICY, theirs | {"spec": spec_})
    await federation.strip_city()
    await federation.delete()
    assert list(await federation.policies()) == ["theirs"]


# Faults of the past


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"annotations": {FEDERATION_NAMESPACE: "x/../{home}"}}},
        {"metadata": {"annotations": {FEDERATION_NAMESPACE: "{home}"}}},
        {"spec": {"cityCode": "x/../../../{home}/propagationpolicies/city-dfw"}},
    ],
)
async def test_nothing_that_a_user_writes_leads_to_the_objects_of_another_project(
    federation: Federation, patch: Json
) -> None:
    theirs = federation.engine.client("other")
    await theirs.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", "default") | {"spec": spec("DFW")})
    await federation.deploy()
    home = await federation.home("other")
    before = [
        (await federation.hub.get(WORKLOAD_DEPLOYMENT, "web", home)).metadata.uid,
        (await federation.hub.get(PROPAGATION_POLICY, "city-dfw", home)).metadata.uid,
    ]
    text = msgspec.json.encode(patch).decode().replace("{home}", home)
    await federation.project.merge_patch(WORKLOAD_DEPLOYMENT, "web", "default", msgspec.json.decode(text))
    await federation.delete()
    await federation.until_gone()
    await federation.settle()
    after = [
        (await federation.hub.get(WORKLOAD_DEPLOYMENT, "web", home)).metadata.uid,
        (await federation.hub.get(PROPAGATION_POLICY, "city-dfw", home)).metadata.uid,
    ]
    assert before == after
    assert [deployment.namespace for deployment in (await federation.hub.list(WORKLOAD_DEPLOYMENT)).items] == [home]
    assert all("/.." not in line for line in federation.writes.last)


@pytest.mark.parametrize("away", [True, False])
async def test_a_deployment_deleted_right_after_a_change_of_city_leaves_no_policy(
    federation: Federation, away: bool
) -> None:
    await federation.deploy("DFW")
    if away:
        federation.faults["hub"].take_away()
    await federation.project.merge_patch(WORKLOAD_DEPLOYMENT, "web", "default", {"spec": {"cityCode": "AMS"}})
    await federation.delete()
    federation.faults["hub"].bring_back()
    await federation.until_gone()
    await federation.settle()
    assert await federation.policies() == {}


async def test_an_annotation_that_leads_nowhere_leaves_nothing_behind(federation: Federation) -> None:
    await federation.deploy()
    nowhere = {"metadata": {"annotations": {FEDERATION_NAMESPACE: "ns-nowhere"}}}
    await federation.project.merge_patch(WORKLOAD_DEPLOYMENT, "web", "default", nowhere)
    await federation.delete()
    await federation.until_gone()
    await federation.settle()
    assert await federation.copies() == []
    assert await federation.policies() == {}


async def test_the_answer_to_a_deleted_deployment_is_not_taken_for_that_to_its_successor(
    federation: Federation,
) -> None:
    await federation.deploy()
    await federation.report(STATUS)
    await federation.edit_copy({"metadata": {"finalizers": ["karmada.io/slow"]}})
    await federation.delete()
    assert as_dict((await federation.deploy()).status_json) == {}
    await federation.edit_copy({"metadata": {"finalizers": None}})
    assert await federation.copies() == ["web"]
    assert not (await federation.copy()).metadata.deleting
    assert as_dict((await federation.deployment()).status_json) == {}


async def test_two_spellings_of_a_city_do_not_fight_over_its_policy(federation: Federation) -> None:
    await federation.deploy("DFW")
    await federation.project.create(
        WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("more", "default") | {"spec": spec("dfw")}
    )
    await federation.simulation.advance(5)
    before = federation.writes.total()
    await federation.simulation.advance(300)
    assert federation.writes.total() == before


async def test_a_recreated_namespace_gets_a_new_hub_namespace_however_late_it_is_noticed(
    federation: Federation,
) -> None:
    project = federation.project
    await project.create(NAMESPACE, NAMESPACE.body("team"))
    await federation.settle()
    for number in (1, 2, 3):
        federation.faults["demo"].drop_event(calls(path="/api/v1/namespaces"), number)
    await project.delete(NAMESPACE, "team")
    await federation.settle()
    await project.create(NAMESPACE, NAMESPACE.body("team"))
    await project.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", "team") | {"spec": spec("DFW")})
    await federation.settle()
    home = f"ns-{(await project.get(NAMESPACE, 'team')).metadata.uid}"
    assert [deployment.namespace for deployment in (await federation.hub.list(WORKLOAD_DEPLOYMENT)).items] == [home]


@pytest.mark.parametrize("seed", range(count(10, 100)))
def test_the_last_of_several_deployments_deleted_at_once_removes_the_policy(seed: int) -> None:
    async def play(simulation: Simulation) -> None:
        federation = Federation(simulation)
        await federation.start()
        for number in range(4):
            await federation.deploy(name=f"web-{number}")
        for number in range(4):
            await federation.project.delete(WORKLOAD_DEPLOYMENT, f"web-{number}", "default")
        await federation.settle()
        await simulation.advance(60)
        assert await federation.copies() == []
        assert await federation.policies() == {}
        await federation.stop()

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        runner.run(play(loop))
