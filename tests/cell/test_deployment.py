"""The deployment controller in a cell. The test plays Karmada, quota and the provider."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.template_hash import template_hash
from datum_compute.cell.deployment import STOPPING_SECONDS, DeploymentController
from datum_compute.federation.roles import CELL, PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.errors import Conflict, Forbidden, Invalid
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict, encode
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.testing.faults import Match, calls, merged
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count
from tests.events import ChangingRefusal, warnings
from tests.harness import ControllerHarness

GROUP = "compute.datumapis.com"
RESTARTED_AT = f"{GROUP}/restartedAt"
ROLLOUT_PAUSED = f"{GROUP}/rollout-paused"
UPSTREAM_GENERATION = f"{GROUP}/upstream-generation"
WORKLOAD_FINALIZER = f"{GROUP}/workload-controller"

TEMPLATE: Json = {
    "metadata": {"labels": {"app": "hello"}, "annotations": {RESTARTED_AT: "2026-06-01T12:00:00Z"}},
    "spec": {
        "runtime": {
            "resources": {"instanceType": "datumcloud/d1-standard-2"},
            "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
        },
        "networkInterfaces": [{"network": {"name": "default"}}],
    },
}


class Cell(ControllerHarness):
    def __init__(self, simulation: Simulation, also: Iterable[str] = ()) -> None:
        super().__init__(simulation, {"cell": CELL}, lambda fleet: DeploymentController(fleet))
        self.fleet.remove("cell")
        transport = self.faults["cell"]
        self.fleet.add(Plane("cell", CELL, transport, writes=self.writes, generator=simulation.random, also=also))
        self.client = self.engine.client("cell")

    async def start(self) -> None:
        await self.client.create(NAMESPACE, NAMESPACE.body("ns"))
        await self.run()

    async def wait(self, seconds: float) -> None:
        """Simulated seconds."""
        later = asyncio.Event()
        self.simulation.call_later(seconds, later.set)
        await later.wait()

    # Deliveries by Karmada

    async def deploy(
        self, replicas: int = 1, *, annotations: Mapping[str, str] | None = None, template: Json = TEMPLATE
    ) -> WorkloadDeployment:
        spec = {
            "workloadRef": {"name": "hello", "uid": "uid-of-hello"},
            "placementName": "main",
            "cityCode": "DFW",
            "template": template,
            "scaleSettings": {"minReplicas": replicas},
        }
        body = WORKLOAD_DEPLOYMENT.body("web", "ns", annotations=dict(annotations or {}))
        await self.client.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec})
        await self.settle()
        return await self.deployment()

    async def running(self, replicas: int) -> WorkloadDeployment:
        await self.deploy(replicas)
        for ordinal in range(replicas):
            await self.report(f"web-{ordinal}", "True")
        assert [instance.name for instance in await self.instances()] == [f"web-{n}" for n in range(replicas)]
        return await self.deployment()

    async def change(self, patch: Json) -> WorkloadDeployment:
        await self.client.merge_patch(WORKLOAD_DEPLOYMENT, "web", "ns", patch)
        await self.settle()
        return await self.deployment()

    async def scale(self, replicas: int) -> None:
        await self.change({"spec": {"scaleSettings": {"minReplicas": replicas}}})

    async def set_image(self, image: str) -> str:
        """The hash of the template with this image."""
        containers = [{"name": "web", "image": image}]
        deployment = await self.change(
            {"spec": {"template": {"spec": {"runtime": {"sandbox": {"containers": containers}}}}}}
        )
        return template_hash(deployment.template_json)

    async def deployment(self) -> WorkloadDeployment:
        return await self.client.get(WORKLOAD_DEPLOYMENT, "web", "ns")

    # Instance controller and provider

    async def counted(self) -> tuple[int, int, int, int]:
        """Replicas that exist, are updated, current and ready."""
        status = (await self.deployment()).status
        assert status is not None
        return status.replicas, status.updated_replicas, status.current_replicas, status.ready_replicas

    async def report(self, name: str, ready: str, reason: str = "Available", runs: str = "") -> None:
        """Sets Ready and Programmed, and reports a template hash: by default that of its own template."""
        instance = await self.client.get(INSTANCE, name, "ns")
        fields = {
            "status": ready,
            "reason": reason,
            "message": "as reported",
            "lastTransitionTime": "2026-06-01T12:00:00Z",
        }
        status: Json = {"conditions": [{"type": "Programmed"} | fields, {"type": "Ready"} | fields]}
        if instance.spec.controller is not None:
            status["controller"] = {"observedTemplateHash": runs or instance.spec.controller.template_hash}
        await self.client.replace_status(INSTANCE, instance, status)
        await self.settle()

    async def release(self, name: str) -> None:
        """Removes the finalizers of an Instance."""
        await self.client.merge_patch(INSTANCE, name, "ns", {"metadata": {"finalizers": None}})
        await self.settle()

    async def instances(self) -> list[Instance]:
        return (await self.client.list(INSTANCE)).items

    async def names(self) -> dict[str, str]:
        """Template hash by name; "" for an Instance that is being deleted."""
        return {
            found.name: ""
            if found.metadata.deleting or not found.spec.controller
            else found.spec.controller.template_hash
            for found in await self.instances()
        }

    def verbs(self) -> list[str]:
        """What the controller wrote, oldest first, as `create Instance`."""
        return [" ".join(line.split(" ")[1:3]) for line in self.writes.last]


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation)
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


def reported(deployment: WorkloadDeployment, type_: str) -> tuple[str, str, str]:
    (found,) = [condition for condition in as_dict(deployment.status_json)["conditions"] if condition["type"] == type_]
    return found["status"], found["reason"], found["message"]


def available(deployment: WorkloadDeployment) -> tuple[str, str]:
    (found,) = [
        condition for condition in as_dict(deployment.status_json)["conditions"] if condition["type"] == "Available"
    ]
    return found["status"], found["reason"]


# New Instances


async def test_a_new_instance_has_labels_gates_owner_and_finalizers(cell: Cell) -> None:
    deployment = await cell.deploy()
    (instance,) = await cell.instances()
    metadata = instance.metadata
    assert (metadata.namespace, metadata.name) == ("ns", "web-0")
    assert metadata.labels == {
        "app": "hello",
        f"{GROUP}/workload-uid": "uid-of-hello",
        f"{GROUP}/workload-deployment-uid": deployment.metadata.uid,
        f"{GROUP}/workload-deployment-name": "web",
        f"{GROUP}/workload-name": "hello",
        f"{GROUP}/placement-name": "main",
        f"{GROUP}/city-code": "DFW",
        f"{GROUP}/instance-index": "0",
    }
    assert metadata.annotations == {RESTARTED_AT: "2026-06-01T12:00:00Z"}
    assert metadata.finalizers == (f"{GROUP}/instance-controller", f"quota.{GROUP}/claim-cleanup")
    (owner,) = metadata.owner_references
    assert (owner.kind, owner.name, owner.uid) == ("WorkloadDeployment", "web", deployment.metadata.uid)
    assert owner.controller
    assert as_dict(instance.spec_json) == TEMPLATE["spec"] | {
        "controller": {
            "templateHash": template_hash(encode(TEMPLATE)),
            "schedulingGates": [{"name": "Quota"}],
        }
    }


async def test_a_template_cannot_override_the_labels_of_compute(cell: Cell) -> None:
    await cell.deploy()
    stamped = {
        "labels": {"app": "hello", f"{GROUP}/source-cluster": "elsewhere"},
        "annotations": {"team": "red", f"{GROUP}/network-addresses": '[{"ip": "10.0.0.1"}]', f"{GROUP}/simulate": "x"},
    }
    await cell.change({"spec": {"template": {"metadata": stamped}}})
    await cell.release("web-0")

    (instance,) = await cell.instances()
    assert f"{GROUP}/source-cluster" not in instance.metadata.labels
    assert instance.metadata.annotations == {
        RESTARTED_AT: "2026-06-01T12:00:00Z",
        "team": "red",
        f"{GROUP}/simulate": "x",
    }


async def test_creating_an_instance_leaves_the_template_hash_unchanged(cell: Cell) -> None:
    deployment = await cell.deploy()
    assert as_dict(deployment.template_json) == TEMPLATE
    assert template_hash(deployment.template_json) == template_hash(encode(TEMPLATE))


async def test_a_known_location_is_passed_on_to_new_instances(cell: Cell) -> None:
    deployment = await cell.running(1)
    status = as_dict(deployment.status_json) | {"location": {"name": "dfw", "namespace": ""}}
    await cell.client.replace_status(WORKLOAD_DEPLOYMENT, deployment, status)
    await cell.scale(2)
    first, second = await cell.instances()
    assert first.spec.location is None
    assert second.spec.location is not None
    assert second.spec.location.name == "dfw"


# The order


async def test_ordinal_1_is_created_after_0_is_ready(cell: Cell) -> None:
    await cell.deploy(3)
    assert list(await cell.names()) == ["web-0"]
    await cell.report("web-0", "False")
    assert list(await cell.names()) == ["web-0"]
    await cell.report("web-0", "True")
    assert list(await cell.names()) == ["web-0", "web-1"]


async def test_a_new_template_replaces_instances_from_the_highest_ordinal(cell: Cell) -> None:
    await cell.running(2)
    old = (await cell.names())["web-0"]
    before = {instance.name: instance.metadata.uid for instance in await cell.instances()}
    new = await cell.set_image("registry.example/hello:2")
    assert await cell.names() == {"web-0": old, "web-1": ""}
    await cell.release("web-1")
    assert await cell.names() == {"web-0": old, "web-1": new}
    await cell.report("web-1", "True")
    assert await cell.names() == {"web-0": "", "web-1": new}
    await cell.release("web-0")
    await cell.report("web-0", "True")
    assert await cell.names() == {"web-0": new, "web-1": new}
    after = {instance.name: instance.metadata.uid for instance in await cell.instances()}
    assert all(after[name] != before[name] for name in before)


async def test_updated_replicas_count_what_runs_not_what_was_created(cell: Cell) -> None:
    await cell.running(2)
    old = template_hash((await cell.deployment()).template_json)
    new = await cell.set_image("registry.example/hello:2")
    assert await cell.counted() == (2, 0, 0, 1)
    await cell.release("web-1")
    assert (await cell.names())["web-1"] == new
    assert await cell.counted() == (2, 0, 0, 1)  # created from the new template, and not running yet
    await cell.report("web-1", "False", "Starting", runs=old)
    assert await cell.counted() == (2, 0, 0, 1)
    await cell.report("web-1", "False", "Starting")
    assert await cell.counted() == (2, 1, 0, 1)
    await cell.report("web-1", "True")
    assert await cell.counted() == (2, 1, 1, 1)
    deployment = await cell.deployment()
    assert deployment.status is not None
    assert deployment.status.observed_generation == deployment.metadata.generation == 2


async def test_a_broken_instance_never_blocks_its_fix(cell: Cell) -> None:
    await cell.deploy(2)
    await cell.report("web-0", "Unknown", "ImageUnavailable")
    fixed = await cell.set_image("registry.example/hello:2")
    assert await cell.names() == {"web-0": ""}
    await cell.release("web-0")
    assert await cell.names() == {"web-0": fixed}


async def test_scaling_down_deletes_the_highest_ordinal_one_at_a_time(cell: Cell) -> None:
    await cell.running(3)
    await cell.scale(1)
    assert [name for name, hash_ in (await cell.names()).items() if not hash_] == ["web-1", "web-2"]
    assert [line for line in cell.verbs() if line.startswith("delete")] == ["delete Instance"] * 2


async def test_a_deployment_scaled_to_zero_reports_only_that_before_and_after_instances(cell: Cell) -> None:
    deployment = await cell.deploy(0)
    assert reported(deployment, "Available") == ("False", "ScaledToZero", "No instances are requested")
    await cell.scale(1)
    await cell.report("web-0", "True")
    await cell.scale(0)
    assert reported(await cell.deployment(), "Available") == (
        "False",
        "ScaledToZero",
        "No instances are requested; 1 is still stopping",
    )
    await cell.release("web-0")
    assert reported(await cell.deployment(), "Available") == ("False", "ScaledToZero", "No instances are requested")
    assert await warnings(cell.client, "web", "ns") == []


async def test_a_stray_is_deleted_first(cell: Cell) -> None:
    deployment = await cell.deploy(2)
    labels = {f"{GROUP}/workload-deployment-uid": deployment.metadata.uid, f"{GROUP}/instance-index": "odd"}
    await cell.client.create(INSTANCE, INSTANCE.body("odd", "ns", labels=labels) | {"spec": TEMPLATE["spec"]})
    await cell.settle()
    assert list(await cell.names()) == ["web-0"]


async def test_an_index_that_contradicts_the_name_does_not_block_the_rollout(cell: Cell) -> None:
    await cell.running(1)
    uid = (await cell.instances())[0].metadata.uid
    await cell.client.merge_patch(INSTANCE, "web-0", "ns", {"metadata": {"labels": {f"{GROUP}/instance-index": "7"}}})
    await cell.settle()
    await cell.release("web-0")
    (instance,) = await cell.instances()
    assert instance.metadata.uid != uid
    assert instance.metadata.labels[f"{GROUP}/instance-index"] == "0"


# Labels and gates are repaired whatever the order


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("workload-uid", None),
        ("workload-deployment-uid", None),
        ("workload-deployment-uid", "spoiled"),
        ("placement-name", "spoiled"),
        ("city-code", ""),
        ("instance-index", None),
        ("instance-index", "01"),
    ],
)
async def test_labels_are_repaired_whatever_the_order(cell: Cell, label: str, value: str | None) -> None:
    await cell.running(1)
    await cell.scale(3)
    (_, second) = await cell.instances()
    wanted = second.metadata.labels
    changes = {f"{GROUP}/{label}": value, "mine": "stays"}
    await cell.client.merge_patch(INSTANCE, "web-1", "ns", {"metadata": {"labels": changes}})
    await cell.settle()
    (_, mended) = await cell.instances()
    assert mended.metadata.labels == wanted | {"mine": "stays"}
    assert mended.metadata.uid == second.metadata.uid
    assert cell.verbs().count("patch Instance") == 1


async def test_with_networking_off_a_network_gate_is_opened_and_no_other(cell: Cell) -> None:
    await cell.deploy()
    gates = {"spec": {"controller": {"schedulingGates": [{"name": "Network"}, {"name": "Quota"}]}}}
    await cell.client.merge_patch(INSTANCE, "web-0", "ns", gates)
    await cell.settle()
    (instance,) = await cell.instances()
    assert instance.spec.controller is not None
    assert [gate.name for gate in instance.spec.controller.scheduling_gates] == ["Quota"]


@pytest.mark.parametrize("seed", range(1, count(10, 300) + 1))
async def test_a_quota_gate_removed_at_the_same_time_stays_gone(cell: Cell, seed: int) -> None:
    await cell.deploy()
    gates = {"spec": {"controller": {"schedulingGates": [{"name": "Network"}, {"name": "Quota"}]}}}
    instance = await cell.client.merge_patch(INSTANCE, "web-0", "ns", gates)
    metadata = {"resourceVersion": instance.metadata.resource_version}
    left = {"metadata": metadata, "spec": {"controller": {"schedulingGates": [{"name": "Network"}]}}}
    try:
        await cell.client.merge_patch(INSTANCE, "web-0", "ns", left)
    except Conflict:  # already removed by somebody else
        left = {"spec": {"controller": {"schedulingGates": []}}}
        await cell.client.merge_patch(INSTANCE, "web-0", "ns", left)

    async def open_() -> bool:
        (found,) = await cell.instances()
        return found.spec.controller is not None and found.spec.controller.scheduling_gates == ()

    await cell.simulation.until(open_, within=1)
    await cell.settle()
    assert await open_()


async def test_an_instance_that_is_being_deleted_is_not_repaired(cell: Cell) -> None:
    await cell.running(1)
    await cell.client.delete(INSTANCE, "web-0", "ns")
    await cell.settle()
    before = cell.verbs().count("patch Instance")
    changes: Json = {"metadata": {"labels": {f"{GROUP}/placement-name": "spoiled"}}}
    await cell.client.merge_patch(INSTANCE, "web-0", "ns", changes)
    await cell.settle()
    assert cell.verbs().count("patch Instance") == before


async def test_an_instance_without_a_controller_block_is_counted_and_replaced(cell: Cell) -> None:
    deployment = await cell.deploy(0)
    labels = {f"{GROUP}/workload-deployment-uid": deployment.metadata.uid}
    await cell.client.create(INSTANCE, INSTANCE.body("web-0", "ns", labels=labels) | {"spec": TEMPLATE["spec"]})
    await cell.scale(1)
    (instance,) = await cell.instances()
    assert instance.spec.controller is not None
    assert instance.spec.controller.template_hash == template_hash(encode(TEMPLATE))
    assert (await cell.deployment()).status is not None


# What a pass survives


async def test_an_instance_that_is_not_cached_yet_is_no_failure(cell: Cell) -> None:
    deployment = await cell.deploy(0)
    dropped = cell.faults["cell"].drop_event(calls(path="instances"))
    labels = {f"{GROUP}/workload-deployment-uid": deployment.metadata.uid}
    await cell.client.create(INSTANCE, INSTANCE.body("web-0", "ns", labels=labels) | {"spec": TEMPLATE["spec"]})
    await cell.settle()
    assert dropped.fired
    passes = cell.controller.passes
    await cell.scale(1)
    assert cell.verbs()[-2:] == ["create Instance", "status WorkloadDeployment"]
    assert available(await cell.deployment()) == ("False", "InstancesProvisioning")
    await cell.wait(60)
    assert cell.controller.passes == passes + 1


async def test_an_instance_of_something_else_in_the_way_is_reported_and_waited_for(cell: Cell) -> None:
    await cell.client.create(INSTANCE, INSTANCE.body("web-0", "ns") | {"spec": TEMPLATE["spec"]})
    deployment = await cell.deploy()
    sentence = "An instance web-0 that belongs to something else is in the way; it has to be removed by hand"
    assert reported(deployment, "Available") == ("False", "InstanceNameTaken", sentence)
    assert [(event.reason, event.message) for event in await warnings(cell.client, "web", "ns")] == [
        ("InstanceNameTaken", sentence)
    ]
    await cell.client.delete(INSTANCE, "web-0", "ns")

    async def made() -> bool:
        return [instance.metadata.controller is not None for instance in await cell.instances()] == [True]

    await cell.simulation.until(made, within=60)


async def test_the_status_is_written_even_when_the_action_failed(cell: Cell) -> None:
    cell.faults["cell"].fail(calls("POST", "instances"))
    await cell.deploy()
    assert cell.verbs() == ["patch WorkloadDeployment", "create Instance", "status WorkloadDeployment"]
    assert available(await cell.deployment()) == ("False", "InstancesProvisioning")

    async def created() -> bool:
        return bool(await cell.instances())

    await cell.simulation.until(created, within=1)


# Refusals by the cell

REFUSED = 'Instance.compute.datumapis.com "web-0" is invalid: metadata.labels: Invalid value: "hello world"'


def refused(name: str = "web-0") -> Match:
    return lambda call: call.method == "POST" and "/instances" in call.path and f'"{name}"'.encode() in call.body


async def test_a_refused_instance_is_reported_with_the_message_of_the_server(cell: Cell) -> None:
    refusal = cell.faults["cell"].refuse(refused(), Invalid(REFUSED))
    deployment = await cell.deploy()
    sentence = f"Instance web-0 was refused: {REFUSED}"
    assert reported(deployment, "Available") == ("False", "SpecRefused", sentence)
    assert reported(deployment, "ReplicasReady") == ("False", "SpecRefused", sentence)
    assert [(event.reason, event.message, event.count) for event in await warnings(cell.client, "web", "ns")] == [
        ("SpecRefused", sentence, 1)
    ]
    version = deployment.metadata.resource_version
    await cell.simulation.advance(3600)
    assert (await cell.deployment()).metadata.resource_version == version  # nothing more is written meanwhile
    assert [event.count for event in await warnings(cell.client, "web", "ns")] == [1]

    refusal.lift()
    await cell.change({"metadata": {"annotations": {UPSTREAM_GENERATION: "2"}}})
    await cell.report("web-0", "True")
    assert reported(await cell.deployment(), "ReplicasReady") == ("True", "ReplicasAvailable", "1/1 replicas available")


async def test_a_refusal_that_is_worded_differently_each_time_is_written_once(cell: Cell) -> None:
    refusal = cell.faults["cell"].refuse(refused(), ChangingRefusal())
    deployment = await cell.deploy()
    await cell.simulation.advance(600)
    assert refusal.times > 5
    assert (await cell.deployment()).metadata.resource_version == deployment.metadata.resource_version
    assert len(await warnings(cell.client, "web", "ns")) == 1


async def test_invalid_template_labels_are_reported_and_fixed_by_the_next_template(cell: Cell) -> None:
    template = TEMPLATE | {"metadata": {"labels": {"app": "hello world"}}}
    deployment = await cell.deploy(template=template)
    status, reason, message = reported(deployment, "Available")
    assert (status, reason) == ("False", "SpecRefused")
    assert "hello world" in message
    await cell.change({"spec": {"template": {"metadata": {"labels": {"app": "hello"}}}}})
    assert list(await cell.names()) == ["web-0"]
    assert reported(await cell.deployment(), "Available")[1] == "InstancesProvisioning"


async def test_a_refusal_during_a_rollout_is_reported_while_the_others_serve(cell: Cell) -> None:
    await cell.running(2)
    cell.faults["cell"].refuse(refused("web-1"), Forbidden("exceeded quota: instances"))
    await cell.set_image("registry.example/hello:2")
    await cell.release("web-1")
    deployment = await cell.deployment()
    assert reported(deployment, "Available")[:2] == ("True", "StableInstanceFound")
    sentence = "Instance web-1 was refused: exceeded quota: instances"
    assert reported(deployment, "ReplicasReady") == ("False", "WriteForbidden", sentence)


async def test_labels_that_cannot_be_repaired_on_one_instance_hold_up_nothing_else(cell: Cell) -> None:
    await cell.running(2)
    cell.faults["cell"].refuse(calls("PATCH", "instances/web-0"), Forbidden("web-0 is frozen"))
    for name in ("web-0", "web-1"):
        patch = {"metadata": {"labels": {f"{GROUP}/city-code": "edited"}}}
        await cell.client.merge_patch(INSTANCE, name, "ns", patch)
    await cell.scale(3)
    found = {instance.name: instance.metadata.labels[f"{GROUP}/city-code"] for instance in await cell.instances()}
    assert found == {"web-0": "edited", "web-1": "DFW", "web-2": "DFW"}
    sentence = "Instance web-0 was refused: web-0 is frozen"
    assert reported(await cell.deployment(), "ReplicasReady") == ("False", "WriteForbidden", sentence)


async def test_an_instance_that_cannot_be_deleted_holds_up_no_other(cell: Cell) -> None:
    await cell.running(2)
    cell.faults["cell"].refuse(calls("DELETE", "instances/web-0"), Forbidden("web-0 is frozen"))
    await cell.client.delete(WORKLOAD_DEPLOYMENT, "web", "ns")
    await cell.settle()
    assert [instance.name for instance in await cell.instances() if instance.metadata.deleting] == ["web-1"]


async def test_nothing_is_created_in_a_terminating_namespace(cell: Cell) -> None:
    """Its Instances may be deleted before their deployment is."""
    await cell.running(1)
    deleting = merged({"metadata": {"deletionTimestamp": "2026-06-01T12:00:00Z"}})
    cell.faults["cell"].poison(calls(path="/api/v1/namespaces"), "ns", deleting)
    await cell.client.merge_patch(NAMESPACE, "ns", "", {"metadata": {"labels": {"seen": "again"}}})
    await cell.settle()
    await cell.client.delete(INSTANCE, "web-0", "ns")
    await cell.release("web-0")
    assert await cell.instances() == []
    assert "create Instance" not in cell.verbs()[-3:]
    assert cell.controller.results["error"] == 0


# What starts a pass


async def test_a_status_write_starts_no_pass(cell: Cell) -> None:
    deployment = await cell.running(1)
    passes = cell.controller.passes
    status = as_dict(deployment.status_json) | {"location": {"name": "dfw", "namespace": ""}}
    await cell.client.replace_status(WORKLOAD_DEPLOYMENT, deployment, status)
    await cell.change({"metadata": {"annotations": {"note": "by hand"}, "labels": {"by": "hand"}}})
    assert cell.controller.passes == passes


async def test_its_own_writes_start_no_more_passes_than_its_instances_do(cell: Cell) -> None:
    await cell.deploy()
    assert cell.controller.passes == 2  # the deployment, and the Instance it created


async def test_a_new_generation_in_the_project_starts_a_pass_and_is_observed(cell: Cell) -> None:
    deployment = await cell.deploy(annotations={UPSTREAM_GENERATION: "4"})
    assert deployment.status is not None
    assert deployment.status.observed_generation == 4
    deployment = await cell.change({"metadata": {"annotations": {UPSTREAM_GENERATION: "5"}}})
    assert deployment.status is not None
    assert deployment.status.observed_generation == 5
    assert {condition.observed_generation for condition in deployment.status.conditions} == {5}


async def test_at_rest_a_later_pass_writes_nothing(cell: Cell) -> None:
    await cell.running(2)
    before = cell.writes.total()
    await cell.simulation.advance(90)  # a repeated write would have another time
    cell.controller.enqueue(Request("cell", "ns", "web"))
    passes = cell.controller.passes
    await cell.settle()
    assert cell.controller.passes == passes + 1
    assert cell.writes.total() == before


# A pause


async def test_a_pause_stops_the_rollout_and_nothing_else(cell: Cell) -> None:
    await cell.running(3)
    new = await cell.set_image("registry.example/hello:2")
    await cell.release("web-2")
    await cell.change({"metadata": {"annotations": {ROLLOUT_PAUSED: "true"}}})
    await cell.report("web-2", "True")
    names = await cell.names()
    assert names["web-2"] == new
    assert "" not in names.values()
    await cell.scale(4)
    assert "web-3" in await cell.names()
    await cell.scale(2)
    await cell.report("web-3", "True")
    assert {name for name, hash_ in (await cell.names()).items() if not hash_} == {"web-2", "web-3"}
    deployment = await cell.deployment()
    progressing = [
        condition for condition in as_dict(deployment.status_json)["conditions"] if condition["type"] == "Progressing"
    ]
    assert [(item["status"], item["reason"]) for item in progressing] == [("Unknown", "RolloutPaused")]
    await cell.release("web-2")
    await cell.release("web-3")
    await cell.change({"metadata": {"annotations": {ROLLOUT_PAUSED: None}}})
    assert await cell.names() == {"web-0": (await cell.names())["web-0"], "web-1": ""}
    assert "Progressing" not in {
        condition["type"] for condition in as_dict((await cell.deployment()).status_json)["conditions"]
    }


# One API server that is a cell and a project


@pytest.fixture
def combined(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation, also=[PROJECT])
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


async def test_where_a_cell_is_a_project_too_only_deployments_from_the_hub_run(combined: Cell) -> None:
    await combined.deploy(1)
    assert (await combined.names(), combined.writes.total()) == ({}, 0)
    labels = {"meta.datumapis.com/upstream-cluster-name": "cluster-single"}
    await combined.client.merge_patch(NAMESPACE, "ns", "", {"metadata": {"labels": labels}})
    await combined.settle()
    assert list(await combined.names()) == ["web-0"]


# Deletion


async def test_the_finalizer_is_added_before_the_first_instance(cell: Cell) -> None:
    deployment = await cell.deploy()
    assert deployment.metadata.finalizers == (WORKLOAD_FINALIZER,)
    assert cell.verbs()[:2] == ["patch WorkloadDeployment", "create Instance"]


async def test_deletion_deletes_all_instances_at_once_and_waits_for_them(cell: Cell) -> None:
    await cell.running(3)
    await cell.client.delete(WORKLOAD_DEPLOYMENT, "web", "ns")
    await cell.settle()
    assert set((await cell.names()).values()) == {""}
    for name in ("web-1", "web-0"):
        await cell.release(name)
    assert list(await cell.names()) == ["web-2"]
    assert (await cell.deployment()).metadata.finalizers == (WORKLOAD_FINALIZER,)
    await cell.release("web-2")
    assert (await cell.client.list(WORKLOAD_DEPLOYMENT)).items == []
    assert cell.verbs().count("delete Instance") == 3


async def test_a_slow_deletion_reports_what_a_successor_waits_for(cell: Cell) -> None:
    await cell.running(2)
    await cell.client.delete(WORKLOAD_DEPLOYMENT, "web", "ns")
    await cell.settle()
    assert (await cell.counted())[3] == 2, "most are gone in a moment, and nobody looks"
    await cell.simulation.advance(STOPPING_SECONDS)
    deployment = await cell.deployment()
    status = deployment.status
    assert status is not None
    assert (status.observed_generation, status.ready_replicas, status.desired_replicas, status.replicas) == (0, 0, 0, 2)
    available = conditions.find(status.conditions, "Available")
    assert available is not None
    sentence = "Waiting for an earlier deployment of this name: 2 instances are still stopping"
    assert (available.status, available.reason, available.message) == ("False", "Stopping", sentence)
    before = cell.writes.total()
    await cell.simulation.advance(600)
    assert cell.writes.total() == before
    for name in ("web-0", "web-1"):
        await cell.release(name)
    assert (await cell.client.list(WORKLOAD_DEPLOYMENT)).items == []


async def test_a_deletion_is_reported_at_once_when_a_successor_waits(cell: Cell) -> None:
    """Karmada writes a successor's spec over that of its predecessor, and takes the status for an answer."""
    await cell.deploy(1, annotations={f"{GROUP}/upstream-uid": "first"})
    await cell.report("web-0", "True")
    await cell.client.delete(WORKLOAD_DEPLOYMENT, "web", "ns")
    deployment = await cell.change({"metadata": {"annotations": {f"{GROUP}/upstream-uid": "second"}}})
    assert deployment.status is not None
    assert (deployment.status.observed_generation, deployment.status.ready_replicas) == (0, 0)


async def test_deletion_without_instances_is_done_at_once(cell: Cell) -> None:
    await cell.deploy(0)
    await cell.client.delete(WORKLOAD_DEPLOYMENT, "web", "ns")
    await cell.settle()
    assert (await cell.client.list(WORKLOAD_DEPLOYMENT)).items == []


async def test_an_instance_that_lost_its_label_is_waited_for_as_well(cell: Cell) -> None:
    await cell.running(1)
    await cell.client.delete(WORKLOAD_DEPLOYMENT, "web", "ns")
    label: dict[str, Any] = {f"{GROUP}/workload-deployment-uid": None}
    await cell.client.merge_patch(INSTANCE, "web-0", "ns", {"metadata": {"labels": label}})
    await cell.settle()
    assert (await cell.deployment()).metadata.finalizers == (WORKLOAD_FINALIZER,)
    await cell.release("web-0")
    assert (await cell.client.list(WORKLOAD_DEPLOYMENT)).items == []
