"""The projector between the hub and projects. The test plays user, federator and cell."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.errors import Cause, Forbidden, Invalid
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict
from datum_compute.management.metrics import ManagementMetrics
from datum_compute.management.projector import Projector
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request, Unfinished
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.events import warnings
from tests.harness import ControllerHarness
from tests.management.test_federator import TEMPLATE, spec

GROUP = "compute.datumapis.com"
UPSTREAM_CLUSTER = "meta.datumapis.com/upstream-cluster-name"
UPSTREAM_NAMESPACE = "meta.datumapis.com/upstream-namespace"
UPSTREAM_GENERATION = f"{GROUP}/upstream-generation"
DEPLOYMENT_NAME = f"{GROUP}/workload-deployment-name"
DEPLOYMENT_UID = f"{GROUP}/workload-deployment-uid"
NAME = "web-0"


def condition(type_: str, status: str, reason: str, message: str = "as it is") -> Json:
    condition = {"type": type_, "status": status, "reason": reason, "message": message}
    return condition | {"lastTransitionTime": "2026-06-01T12:00:00Z"}


def status_of(reason: str, *others: Json, message: str = "as it is") -> Json:
    return {"conditions": [condition("Ready", str(reason == "Available"), reason, message), *others]}


def terminating(namespace: str) -> Forbidden:
    """How a server refuses a create in a terminating namespace."""
    cause = Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
    return Forbidden("unable to create new content", causes=[cause])


class Federation(ControllerHarness):
    """Projects `demo` and `other`, each with deployment web in namespace default, and a hub that knows of both."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, {"demo": PROJECT, "other": PROJECT, "hub": HUB}, self._build)
        self.project, self.hub = self.engine.client("demo"), self.engine.client("hub")

    def _build(self, fleet: Fleet) -> Projector:
        self.registry = CollectorRegistry()
        self.reconciler = Projector(fleet, "hub", metrics=ManagementMetrics(self.registry))
        return self.reconciler

    async def start(self) -> None:
        for project in ("demo", "other"):
            client = self.engine.client(project)
            await client.create(NAMESPACE, NAMESPACE.body("default"))
            await client.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", "default") | {"spec": spec("DFW")})
            labels = {UPSTREAM_CLUSTER: f"cluster-{project}", UPSTREAM_NAMESPACE: "default"}
            await self.hub.create(NAMESPACE, NAMESPACE.body(await self.home(project), labels=labels))
        await self.run()

    async def home(self, project: str = "demo") -> str:
        return f"ns-{(await self.engine.client(project).get(NAMESPACE, 'default')).metadata.uid}"

    # The cell

    async def write_back(
        self, name: str = NAME, labels: dict[str, str] | None = None, project: str = "demo", **metadata: Any
    ) -> None:
        identity = {UPSTREAM_CLUSTER: f"cluster-{project}", UPSTREAM_NAMESPACE: "default"}
        stamped = identity | {DEPLOYMENT_NAME: "web", DEPLOYMENT_UID: "uid-in-the-cell"} | (labels or {})
        body = INSTANCE.body(name, await self.home(project), labels=stamped, **metadata)
        await self.hub.create(INSTANCE, body | {"spec": TEMPLATE["spec"]})
        await self.settle()

    async def report(self, status: Json, name: str = NAME) -> None:
        await self.hub.replace_status(INSTANCE, await self.original(name), status)
        await self.settle()

    async def original(self, name: str = NAME) -> Instance:
        return await self.hub.get(INSTANCE, name, await self.home())

    async def relabel(self, labels: dict[str, str | None]) -> None:
        await self.hub.merge_patch(INSTANCE, NAME, await self.home(), {"metadata": {"labels": labels}})
        await self.settle()

    async def remove(self, name: str = NAME) -> None:
        await self.hub.delete(INSTANCE, name, await self.home())
        await self.settle()

    # The project

    async def projection(self, name: str = NAME) -> Instance:
        return await self.project.get(INSTANCE, name, "default")

    async def projections(self, project: str = "demo") -> list[str]:
        return [found.name for found in (await self.engine.client(project).list(INSTANCE)).items]

    async def deployment(self) -> WorkloadDeployment:
        return await self.project.get(WORKLOAD_DEPLOYMENT, "web", "default")

    async def projected(self) -> tuple[str, str] | None:
        found = conditions.find(conditions.of(await self.deployment()), "Projected")
        return (found.reason, found.message) if found is not None else None

    async def hand_on(self, finalizers: Sequence[str] = ()) -> None:
        """The federator's copy of the deployment."""
        body = WORKLOAD_DEPLOYMENT.body("web", await self.home(), finalizers=list(finalizers))
        await self.hub.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec("DFW")})
        await self.settle()

    async def uid(self) -> str:
        return (await self.project.get(NAMESPACE, "default")).metadata.uid

    async def warned_of_deployment(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in await warnings(self.project, "web")]

    async def warned(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in await warnings(self.project, NAME)]

    async def one_pass(self, name: str = NAME) -> None:
        request = Request("hub", await self.home(), name)
        await self.reconciler.reconcile(self.controller.new_pass(request))

    def hops(self) -> float:
        labels = {"hop": "hub_to_projection"}
        return self.registry.get_sample_value("compute_federation_hop_seconds_count", labels) or 0


@pytest.fixture
def federation(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Federation]:
    federation = Federation(simulation)
    runner.run(federation.start())
    yield federation
    runner.run(federation.stop())


# Projections


async def test_a_projection_has_every_field_of_its_original(federation: Federation) -> None:
    await federation.write_back(labels={"app": "hello"}, annotations={"theirs": "1"}, finalizers=["theirs/1"])
    await federation.report(status_of("Available"))
    original, projection, owner = (
        await federation.original(),
        await federation.projection(),
        await federation.deployment(),
    )
    assert projection.metadata.labels == original.metadata.labels | {DEPLOYMENT_UID: owner.metadata.uid}
    assert projection.spec_json == original.spec_json
    assert as_dict(projection.status_json) == as_dict(original.status_json)
    (reference,) = projection.metadata.owner_references
    assert (reference.kind, reference.name, reference.uid) == ("WorkloadDeployment", "web", owner.metadata.uid)
    assert not reference.controller
    assert (projection.metadata.annotations, projection.metadata.finalizers) == ({}, ())


async def test_a_change_is_one_write(federation: Federation) -> None:
    await federation.write_back()
    await federation.report(status_of("Available"))
    before = federation.writes.total()
    await federation.report(status_of("Stopped"))
    assert federation.writes.total() == before + 1
    assert federation.hops() == 3  # created, available, stopped


async def test_at_rest_a_later_pass_writes_nothing(federation: Federation) -> None:
    await federation.write_back()
    await federation.report(status_of("ImageUnavailable"))
    before, hops = federation.writes.total(), federation.hops()
    await federation.simulation.advance(90)  # a repeated write would have another time
    passes = federation.controller.passes
    federation.controller.enqueue(Request("hub", await federation.home(), NAME))
    await federation.settle()
    assert federation.controller.passes == passes + 1
    assert (federation.writes.total(), federation.hops()) == (before, hops)


async def test_an_instance_is_shown_until_its_deletion_is_complete(federation: Federation) -> None:
    await federation.write_back(finalizers=["theirs/1"])
    await federation.remove()
    assert await federation.projections() == [NAME]
    await federation.hub.merge_patch(INSTANCE, NAME, await federation.home(), {"metadata": {"finalizers": None}})
    await federation.settle()
    assert await federation.projections() == []


@pytest.mark.parametrize("on_hub", [True, False])
async def test_an_instance_whose_deployment_comes_late_is_projected_as_soon_as_it_does(
    federation: Federation, on_hub: bool
) -> None:
    await federation.project.delete(WORKLOAD_DEPLOYMENT, "web", "default")
    if on_hub:
        await federation.hand_on()
    await federation.write_back()
    await federation.simulation.advance(100)
    assert await federation.projections() == []
    body = WORKLOAD_DEPLOYMENT.body("web", "default") | {"spec": spec("DFW")}
    await federation.project.create(WORKLOAD_DEPLOYMENT, body)
    await federation.settle()
    assert await federation.projections() == [NAME]


@pytest.mark.parametrize("hub_copy", ["gone", "going"])
async def test_a_withdrawn_deployment_fails_no_pass_while_its_instances_are_deleted(
    federation: Federation, hub_copy: str
) -> None:
    await federation.hand_on(finalizers=["karmada.io/slow"] if hub_copy == "going" else [])
    await federation.write_back()
    await federation.hub.delete(WORKLOAD_DEPLOYMENT, "web", await federation.home())
    await federation.project.delete(WORKLOAD_DEPLOYMENT, "web", "default")
    await federation.settle()
    await federation.report(status_of("Stopping"))
    await federation.remove()
    assert await federation.projections() == []
    assert federation.controller.results["error"] == 0


async def test_a_deployment_that_is_missing_only_in_the_project_is_an_error(federation: Federation) -> None:
    await federation.hand_on()
    await federation.write_back()
    await federation.project.delete(WORKLOAD_DEPLOYMENT, "web", "default")
    await federation.settle()
    with pytest.raises(Unfinished, match="deployment web of web-0 is not in the project"):
        await federation.one_pass()


async def test_nothing_is_written_into_a_terminating_namespace(federation: Federation) -> None:
    await federation.hand_on()
    await federation.write_back()
    held = {"metadata": {"finalizers": ["example.com/mine"]}}
    await federation.project.merge_patch(WORKLOAD_DEPLOYMENT, "web", "default", held)
    await federation.project.delete(NAMESPACE, "default")
    await federation.settle()
    assert await federation.projections() == []
    before = len(federation.faults["demo"].written)
    await federation.report(status_of("Stopping"))
    federation.controller.enqueue(Request("hub", f"ns-{await federation.uid()}", NAME))
    await federation.settle()
    assert len(federation.faults["demo"].written) == before
    assert federation.controller.results["error"] == 0


async def test_nothing_is_written_into_a_terminating_namespace_that_still_has_its_deployment(
    federation: Federation,
) -> None:
    namespace = await federation.project.get(NAMESPACE, "default")
    metadata = replace(namespace.metadata, resource_version="1000", deletion_timestamp=federation.simulation.now())
    federation.fleet.plane("demo").informer(NAMESPACE).fold(replace(namespace, metadata=metadata))
    await federation.write_back()
    assert federation.faults["demo"].written == []
    assert federation.controller.results["error"] == 0


async def test_a_namespace_deleted_before_it_is_cached_fails_no_pass(federation: Federation) -> None:
    federation.faults["demo"].refuse(calls("POST", "/instances"), terminating("default"))
    await federation.write_back()
    await federation.simulation.advance(60)
    assert federation.controller.results["error"] == 0
    assert await federation.warned_of_deployment() == []


async def test_a_refused_projection_is_reported_once_on_its_deployment(federation: Federation) -> None:
    refusal = federation.faults["demo"].refuse(calls("POST", "/instances"), Invalid("metadata.labels: no"))
    await federation.write_back()
    federation.controller.enqueue(Request("hub", await federation.home(), NAME))
    await federation.simulation.advance(3600)
    assert await federation.warned_of_deployment() == [
        ("SpecRefused", "The view of instance web-0 was refused: metadata.labels: no")
    ]
    refusal.lift()
    federation.controller.enqueue(Request("hub", await federation.home(), NAME))
    await federation.settle()
    assert await federation.projections() == [NAME]


async def test_refused_projections_are_reported_on_their_deployment_until_all_are_shown(
    federation: Federation,
) -> None:
    refusal = federation.faults["demo"].refuse(calls("POST", "/instances"), Invalid("metadata.labels: no"))
    await federation.write_back("web-1")
    await federation.write_back("web-0")
    await federation.write_back("web-2")
    assert await federation.projected() == (
        "SpecRefused",
        "The view of instance web-0 was refused: metadata.labels: no",
    )
    before = (await federation.deployment()).metadata.resource_version
    await federation.simulation.advance(3600)
    assert (await federation.deployment()).metadata.resource_version == before
    refusal.lift()
    await federation.remove("web-0")
    assert await federation.projected() == (
        "SpecRefused",
        "The view of instance web-1 was refused: metadata.labels: no",
    )
    for name in ("web-1", "web-2"):
        federation.controller.enqueue(Request("hub", await federation.home(), name))
    await federation.settle()
    assert await federation.projections() == ["web-1", "web-2"]
    assert await federation.projected() is None


async def test_the_report_of_a_refused_projection_survives_a_restart(federation: Federation) -> None:
    federation.faults["demo"].refuse(calls("POST", "/instances"), Invalid("metadata.labels: no"))
    await federation.write_back()
    before = await federation.deployment()
    again = Projector(federation.fleet, "hub")
    await federation.write_back("web-1")
    body = INSTANCE.body("web-1", "default") | {"spec": TEMPLATE["spec"]}
    await federation.project.create(INSTANCE, body)
    await federation.settle()
    request = Request("hub", await federation.home(), "web-1")
    await again.reconcile(federation.controller.new_pass(request))
    assert (await federation.deployment()).status_json == before.status_json


async def test_a_recreated_deployment_owns_the_projections(federation: Federation) -> None:
    await federation.write_back()
    await federation.project.delete(WORKLOAD_DEPLOYMENT, "web", "default")
    body = WORKLOAD_DEPLOYMENT.body("web", "default") | {"spec": spec("DFW")}
    await federation.project.create(WORKLOAD_DEPLOYMENT, body)
    uid = (await federation.deployment()).metadata.uid

    async def owned() -> bool:
        found = (await federation.project.list(INSTANCE)).items
        return [[owner.uid for owner in item.metadata.owner_references] for item in found] == [[uid]]

    await federation.simulation.until(owned, within=31)
    assert (await federation.projection()).metadata.labels[DEPLOYMENT_UID] == uid


# Edits by users


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {UPSTREAM_CLUSTER: None, UPSTREAM_NAMESPACE: None}}},
        {"metadata": {"labels": None}},
        {"metadata": {"labels": {UPSTREAM_CLUSTER: "cluster-other"}}},
        {"metadata": {"ownerReferences": None}},
        {"spec": {"runtime": {"sandbox": {"containers": [{"name": "x", "image": "forged"}]}}}},
    ],
    ids=["identity taken away", "no labels", "another project's label", "no owner", "another image"],
)
async def test_an_edited_projection_is_repaired(federation: Federation, patch: Json) -> None:
    await federation.write_back()
    before = await federation.projection()
    await federation.project.merge_patch(INSTANCE, NAME, "default", patch)
    await federation.settle()
    after = await federation.projection()
    assert (after.metadata.labels, after.metadata.owner_references) == (
        before.metadata.labels,
        before.metadata.owner_references,
    )
    assert as_dict(after.spec_json) == as_dict(before.spec_json)


async def test_a_repaired_projection_reports_its_own_generation_as_observed(federation: Federation) -> None:
    await federation.write_back(annotations={UPSTREAM_GENERATION: "2"})
    ready = condition("Ready", "True", "Available") | {"observedGeneration": 2}
    await federation.report({"conditions": [ready]})
    for image in ("registry.example/edited:1", "registry.example/edited:2"):
        containers = [{"name": "web", "image": image}]
        patch = {"spec": {"runtime": {"sandbox": {"containers": containers}}}}
        await federation.project.merge_patch(INSTANCE, NAME, "default", patch)
        await federation.settle()
    projection = await federation.projection()
    assert projection.spec_json == (await federation.original()).spec_json
    assert (projection.metadata.generation, observed(projection)) == (5, 5)

    await federation.hub.merge_patch(
        INSTANCE, NAME, await federation.home(), {"metadata": {"annotations": {UPSTREAM_GENERATION: "3"}}}
    )
    await federation.settle()
    assert observed(await federation.projection()) == 4  # the cell has a newer spec, and has not answered it
    await federation.report({"conditions": [ready | {"observedGeneration": 3}]})
    assert observed(await federation.projection()) == 5
    before = federation.writes.total()
    await federation.one_pass()
    assert federation.writes.total() == before


def observed(instance: Instance) -> int:
    (ready,) = as_dict(instance.status_json)["conditions"]
    generation: int = ready["observedGeneration"]
    return generation


async def test_an_edited_status_is_repaired_and_a_deleted_projection_comes_back(federation: Federation) -> None:
    await federation.write_back()
    await federation.report(status_of("ImageUnavailable"))
    await federation.project.replace_status(INSTANCE, await federation.projection(), status_of("Available"))
    await federation.settle()
    assert as_dict((await federation.projection()).status_json) == status_of("ImageUnavailable")
    await federation.project.delete(INSTANCE, NAME, "default")
    await federation.settle()
    assert as_dict((await federation.projection()).status_json) == status_of("ImageUnavailable")


async def test_a_cells_own_instance_of_that_name_is_not_touched(federation: Federation) -> None:
    finalizers = [f"{GROUP}/instance-controller"]
    body = INSTANCE.body(NAME, "default", finalizers=finalizers) | {"spec": TEMPLATE["spec"]}
    await federation.project.create(INSTANCE, body)
    before = await federation.projection()
    await federation.write_back()
    await federation.remove()
    assert await federation.projection() == before


# Identity


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({UPSTREAM_CLUSTER: "cluster-other"}, "identity labels"),
        ({UPSTREAM_NAMESPACE: "kube-system"}, "identity labels"),
        ({UPSTREAM_CLUSTER: None}, "identity labels"),
        ({DEPLOYMENT_NAME: None}, "no label"),
    ],
)
async def test_wrong_or_missing_identity_labels_are_an_error_and_change_nothing(
    federation: Federation, labels: dict[str, str | None], says: str
) -> None:
    await federation.write_back()
    await federation.report(status_of("Available"))
    before = await federation.projection()
    await federation.relabel(labels)
    await federation.report(status_of("Stopped"))
    assert await federation.projection() == before
    assert await federation.projections("other") == []
    with pytest.raises(Unfinished, match=says):
        await federation.one_pass()


async def test_a_hub_namespace_cannot_claim_another_project(
    federation: Federation,
) -> None:
    """Its labels say other; its name says the uid of a namespace of demo."""
    home = await federation.home()
    lie = {"metadata": {"labels": {UPSTREAM_CLUSTER: "cluster-other"}}}
    await federation.hub.merge_patch(NAMESPACE, home, "", lie)
    with capture_logs() as logs:
        await federation.write_back(labels={UPSTREAM_CLUSTER: "cluster-other"})
        await federation.report(status_of("Available"))
    assert (await federation.projections(), await federation.projections("other")) == ([], [])
    # A projection there would be removed at once as a leftover, so the final state proves nothing.
    assert federation.faults["other"].written == []
    (line,) = [line for line in logs if line["log_level"] == "warning"]
    assert (line["namespace"], line["project"], line["named"]) == (home, "other", "default")
    truth = {"metadata": {"labels": {UPSTREAM_CLUSTER: "cluster-demo"}}}
    await federation.relabel({UPSTREAM_CLUSTER: "cluster-demo"})
    await federation.hub.merge_patch(NAMESPACE, home, "", truth)
    await federation.settle()
    assert (await federation.projections(), await federation.projections("other")) == ([NAME], [])


async def test_wrong_identity_labels_remove_nothing(federation: Federation) -> None:
    await federation.write_back(project="other")
    await federation.write_back()
    other = federation.engine.client("other")
    before = await other.get(INSTANCE, NAME, "default")
    home = await federation.home()
    lie = {"metadata": {"labels": {UPSTREAM_CLUSTER: "cluster-other"}}}
    await federation.hub.merge_patch(NAMESPACE, home, "", lie)
    written = len(federation.faults["other"].written)
    await federation.remove()
    # A removed one would be created again at once: it must be the same object, and nothing may have been written.
    assert await other.get(INSTANCE, NAME, "default") == before
    assert len(federation.faults["other"].written) == written


async def test_a_hub_namespace_that_names_no_project_is_logged_once(federation: Federation) -> None:
    await federation.hub.create(NAMESPACE, NAMESPACE.body("ns-stray"))
    with capture_logs() as logs:
        for number in range(3):
            body = INSTANCE.body(f"stray-{number}", "ns-stray") | {"spec": TEMPLATE["spec"]}
            await federation.hub.create(INSTANCE, body)
            await federation.settle()
    (line,) = [line for line in logs if line["log_level"] == "warning"]
    assert line["namespace"] == "ns-stray"


async def test_instances_of_a_namespace_that_is_cached_late_are_projected_then(federation: Federation) -> None:
    federation.faults["demo"].delay_watches(5, 5)
    await federation.project.create(NAMESPACE, NAMESPACE.body("late"))
    uid = (await federation.project.get(NAMESPACE, "late")).metadata.uid
    labels = {UPSTREAM_CLUSTER: "cluster-demo", UPSTREAM_NAMESPACE: "late"}
    body = WORKLOAD_DEPLOYMENT.body("web", "late") | {"spec": spec("DFW")}
    await federation.project.create(WORKLOAD_DEPLOYMENT, body)
    await federation.hub.create(NAMESPACE, NAMESPACE.body(f"ns-{uid}", labels=labels))
    instance = INSTANCE.body(NAME, f"ns-{uid}", labels=labels | {DEPLOYMENT_NAME: "web"})
    await federation.hub.create(INSTANCE, instance | {"spec": TEMPLATE["spec"]})
    await federation.settle()
    assert await federation.projections() == []

    async def is_projected() -> bool:
        return await federation.projections() == [NAME]

    await federation.simulation.until(is_projected, within=10)


# Removal


async def test_what_is_not_a_projection_stays(federation: Federation) -> None:
    """Its labels fit, but no deployment owns it."""
    identity = {UPSTREAM_CLUSTER: "cluster-demo", UPSTREAM_NAMESPACE: "default"}
    body = INSTANCE.body("by-hand", "default", labels=identity) | {"spec": TEMPLATE["spec"]}
    await federation.project.create(INSTANCE, body)
    await federation.settle()
    assert await federation.projections() == ["by-hand"]


async def test_a_projection_whose_original_was_deleted_unnoticed_is_swept_within_ten_minutes(
    federation: Federation,
) -> None:
    await federation.write_back()
    dropped = federation.faults["hub"].drop_event(calls(path="/instances"))
    await federation.hub.delete(INSTANCE, NAME, await federation.home())
    await federation.settle()
    assert dropped.fired
    assert await federation.projections() == [NAME]

    async def gone() -> bool:
        return await federation.projections() == []

    await federation.simulation.until(gone, within=1300)  # a relist and a sweep


async def test_a_sweep_covers_only_projections_without_an_original(federation: Federation) -> None:
    await federation.write_back()
    plane = federation.fleet.plane("demo")
    assert list(federation.reconciler.sweep(plane)) == []
    identity = {UPSTREAM_CLUSTER: "cluster-demo", UPSTREAM_NAMESPACE: "default"}
    for name, labels in {"ghost": identity, "not-one": {}}.items():
        body = INSTANCE.body(name, "default", labels=labels) | {"spec": TEMPLATE["spec"]}
        await federation.project.create(INSTANCE, body)
    await federation.settle()
    assert list(federation.reconciler.sweep(plane)) == [Request("hub", await federation.home(), "ghost")]


async def test_leftover_projections_of_an_unreachable_project_are_deleted_when_it_returns(
    federation: Federation,
) -> None:
    """A suspended project is disengaged; what it missed is handled when it returns."""
    await federation.write_back()
    await federation.write_back("web-1")
    federation.fleet.remove("demo")
    await federation.hub.delete(INSTANCE, NAME, await federation.home())
    await federation.report(status_of("Available"), "web-1")
    assert await federation.projections() == [NAME, "web-1"]
    transport = federation.faults["demo"]
    generator = federation.simulation.random
    federation.fleet.add(Plane("demo", PROJECT, transport, writes=federation.writes, generator=generator))

    async def caught_up() -> bool:
        return await federation.projections() == ["web-1"] and bool(
            as_dict((await federation.projection("web-1")).status_json)
        )

    await federation.simulation.until(caught_up, within=5)
    assert as_dict((await federation.projection("web-1")).status_json) == status_of("Available")


# Events


async def test_a_warning_in_the_cell_is_repeated_once_in_the_project(federation: Federation) -> None:
    await federation.write_back()
    await federation.report(status_of("Provisioning"))
    assert await federation.warned() == []
    await federation.report(status_of("ImageUnavailable", message="no such tag"))
    assert await federation.warned() == [("ImageUnavailable", "no such tag")]
    await federation.report(status_of("ImageUnavailable", condition("Other", "True", "Fine"), message="still none"))
    assert await federation.warned() == [("ImageUnavailable", "no such tag")]
    await federation.report(status_of("Available"))
    await federation.report(status_of("InstanceCrashing", message="exit 1"))
    assert await federation.warned() == [("ImageUnavailable", "no such tag"), ("InstanceCrashing", "exit 1")]


async def test_quota_warnings_come_from_the_quota_condition(federation: Federation) -> None:
    await federation.write_back()
    waiting = condition("QuotaGranted", "Unknown", "QuotaNoBudget", "no allowance")
    await federation.report(status_of("SchedulingGatesPresent", waiting))
    assert await federation.warned() == [("QuotaNoBudget", "no allowance")]


async def test_a_long_message_is_cut_and_never_formatted(federation: Federation) -> None:
    await federation.write_back()
    await federation.report(status_of("ImageUnavailable", message="%s %d {} " + "x" * 2000))
    ((_, message),) = await federation.warned()
    assert message.startswith("%s %d {} x")
    assert len(message) == 1024


async def test_an_event_that_cannot_be_written_fails_nothing(federation: Federation) -> None:
    await federation.write_back()
    federation.faults["demo"].fail(calls("POST", "/events"))
    await federation.report(status_of("ImageUnavailable"))
    assert as_dict((await federation.projection()).status_json) == status_of("ImageUnavailable")


async def test_instances_of_a_recreated_namespace_are_shown_even_if_only_a_list_reveals_it(
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
    home = f"ns-{(await project.get(NAMESPACE, 'team')).metadata.uid}"
    identity = {UPSTREAM_CLUSTER: "cluster-demo", UPSTREAM_NAMESPACE: "team"}
    await federation.hub.create(NAMESPACE, NAMESPACE.body(home, labels=identity))
    labels = identity | {DEPLOYMENT_NAME: "web", DEPLOYMENT_UID: "uid-in-the-cell"}
    await federation.hub.create(INSTANCE, INSTANCE.body(NAME, home, labels=labels) | {"spec": TEMPLATE["spec"]})

    async def is_projected() -> bool:
        return bool((await project.list(INSTANCE, "team")).items)

    await federation.simulation.until(is_projected, within=3600)


async def test_a_slow_project_holds_up_only_itself(federation: Federation) -> None:
    for number in range(20):
        await federation.write_back(f"web-{number}")
    await federation.write_back("web-0", project="other")
    federation.faults["demo"].slow_down(4.0)
    for number in range(20):
        await federation.hub.replace_status(
            INSTANCE, await federation.original(f"web-{number}"), status_of("Available")
        )
    theirs = await federation.hub.get(INSTANCE, "web-0", await federation.home("other"))
    await federation.hub.replace_status(INSTANCE, theirs, status_of("Available"))

    async def is_reported() -> bool:
        found = await federation.engine.client("other").get(INSTANCE, "web-0", "default")
        return found.status is not None and found.status.conditions[0].reason == "Available"

    await federation.simulation.until(is_reported, within=1)
