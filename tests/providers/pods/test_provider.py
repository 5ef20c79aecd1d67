"""The pods provider alone in a cell. The test plays compute's own controllers and those of the site."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from structlog.testing import capture_logs

from datum_compute.api.instance import INITIAL_STATUS, INSTANCE, Instance
from datum_compute.api.labels import PODS_FINALIZER as FINALIZER
from datum_compute.api.labels import WORKLOAD_NAME
from datum_compute.federation.roles import CELL
from datum_compute.kube.errors import Forbidden, Invalid, NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict
from datum_compute.providers.pods.policy import NETWORK_POLICY
from datum_compute.providers.pods.provider import PodsProvider, wait_after
from datum_compute.providers.pods.state import POD, Pod
from datum_compute.runtime.caches.informer import RELIST_SECONDS
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness
from tests.providers.site import with_pods

COMPUTE = "compute.datumapis.com/instance-controller"
HASH = "0123456789"
RUNTIME: Json = {
    "resources": {"instanceType": "datumcloud/d1-standard-2"},
    "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
}
MACHINE: Json = {
    "resources": {"instanceType": "datumcloud/d1-standard-2"},
    "virtualMachine": {"volumeAttachments": [{"name": "boot"}]},
}

NOT_SEEN_YET = {"Programmed": ("Unknown", "Pending"), "Available": ("Unknown", "Pending")}
STARTING = {"Programmed": ("Unknown", "ProgrammingInProgress"), "Available": ("Unknown", "Provisioning")}
RUNNING = {"Programmed": ("True", "Programmed"), "Available": ("True", "Available")}
STOPPING = {"Programmed": ("False", "Stopping"), "Available": ("False", "Stopping")}
CRASHED = {"Programmed": ("False", "InstanceCrashing"), "Available": ("False", "InstanceCrashing")}
REFUSED = {"Programmed": ("Unknown", "ProgrammingInProgress"), "Available": ("Unknown", "ConfigurationError")}


class Cell(ControllerHarness):
    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, {"cell": CELL}, lambda fleet: PodsProvider())
        self.client = self.engine.client("cell")

    async def start(self) -> None:
        await self.client.create(NAMESPACE, NAMESPACE.body("ns"))
        await self.run()

    # Compute

    async def create(
        self,
        gates: Sequence[str] = (),
        *,
        runtime: Json = RUNTIME,
        networks: Sequence[str] = ("default",),
        volumes: Sequence[Json] = (),
        policy: Json | None = None,
    ) -> Instance:
        spec = {
            "runtime": runtime,
            "volumes": list(volumes),
            "networkInterfaces": [
                {"network": {"name": network}} | ({"networkPolicy": policy} if policy is not None else {})
                for network in networks
            ],
            "controller": {"templateHash": HASH, "schedulingGates": [{"name": gate} for gate in gates]},
        }
        body = INSTANCE.body("web-0", "ns", finalizers=[COMPUTE], labels={WORKLOAD_NAME: "web"})
        await self.client.create(INSTANCE, body | {"spec": spec})
        await self.settle()
        return await self.instance()

    async def patch(self, patch: Json) -> None:
        await self.client.merge_patch(INSTANCE, "web-0", "ns", patch)
        await self.settle()

    async def delete(self) -> None:
        await self.client.delete(INSTANCE, "web-0", "ns")
        await self.settle()

    # The site

    async def report(self, phase: str, state: Json | None = None, **also: object) -> None:
        """Sets the status of the Pod, as the kubelet does."""
        state = state if state is not None else {"running": {}}
        container = {"name": "web", "ready": "running" in state, "state": state}
        status = {"phase": phase, "containerStatuses": [container]} | also
        await self.client.replace_status(POD, await self.pod(), status)
        await self.settle()

    async def hold(self) -> None:
        """Makes the deletion of the Pod take a while."""
        await self.client.merge_patch(POD, "web-0", "ns", {"metadata": {"finalizers": ["example.com/stopping"]}})
        await self.settle()

    async def let_go(self) -> None:
        await self.client.merge_patch(POD, "web-0", "ns", {"metadata": {"finalizers": None}})
        await self.settle()

    # Reading

    async def instance(self) -> Instance:
        return await self.client.get(INSTANCE, "web-0", "ns")

    async def pod(self) -> Pod:
        return await self.client.get(POD, "web-0", "ns")

    async def pods(self) -> int:
        return len((await self.client.list(POD)).items)

    async def conditions(self) -> dict[str, tuple[str, str]]:
        status = (await self.instance()).status
        assert status is not None
        return {entry.type: (entry.status, entry.reason) for entry in status.conditions if entry.type in RUNNING}


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    with with_pods():
        cell = Cell(simulation)
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


# Starting


@pytest.mark.parametrize("gates", [["Quota"], ["Network", "Quota"], ["SomethingNew"]])
async def test_nothing_happens_while_a_gate_is_left(cell: Cell, gates: list[str]) -> None:
    instance = await cell.create(gates)
    assert instance.metadata.finalizers == (COMPUTE,)
    assert await cell.pods() == 0
    assert await cell.conditions() == NOT_SEEN_YET
    assert cell.writes.total() == 0


async def test_an_instance_starts_when_the_last_gate_is_removed(cell: Cell) -> None:
    await cell.create(["Quota"])
    await cell.patch({"spec": {"controller": {"schedulingGates": []}}})
    assert await cell.pods() == 1
    assert await cell.conditions() == STARTING


async def test_virtual_machines_are_left_to_other_providers(cell: Cell) -> None:
    instance = await cell.create(runtime=MACHINE)
    assert instance.metadata.finalizers == (COMPUTE,)
    assert cell.writes.total() == 0


async def test_the_finalizer_is_set_before_the_pod_is_created(cell: Cell) -> None:
    await cell.create()
    assert (await cell.instance()).metadata.finalizers == (COMPUTE, FINALIZER)
    assert [line.split(" ")[1] for line in cell.writes.last] == ["patch", "create", "status"]


# Running


async def test_a_running_pod_makes_a_running_instance(cell: Cell) -> None:
    await cell.create()
    await cell.report("Pending", {"waiting": {"reason": "ContainerCreating"}})
    assert await cell.conditions() == STARTING
    await cell.report("Running", podIP="192.0.2.7", podIPs=[{"ip": "192.0.2.7"}])
    assert await cell.conditions() == RUNNING
    status = (await cell.instance()).status
    assert status is not None
    assert status.controller is not None
    assert status.controller.observed_template_hash == HASH
    assert [interface.assignments.network_ip for interface in status.network_interfaces] == ["192.0.2.7"]


async def test_the_first_of_several_interfaces_has_the_address(cell: Cell) -> None:
    await cell.create(networks=["front", "back"])
    await cell.report("Running", podIP="192.0.2.7")
    status = as_dict((await cell.instance()).status_json)
    assert status["networkInterfaces"] == [{"assignments": {"networkIP": "192.0.2.7"}}, {}]


async def test_a_crash_loop_in_a_running_pod_is_reported_without_a_template_hash(cell: Cell) -> None:
    await cell.create()
    await cell.report("Running")
    await cell.report("Running", {"waiting": {"reason": "CrashLoopBackOff"}})
    assert (await cell.conditions())["Available"] == ("Unknown", "InstanceCrashing")
    status = (await cell.instance()).status
    assert status is not None
    assert status.controller is None
    await cell.report("Running")
    assert await cell.conditions() == RUNNING


async def test_conditions_of_compute_are_never_changed(cell: Cell) -> None:
    await cell.create()
    await cell.report("Running")
    own = ("Ready", "QuotaGranted")
    after = [entry for entry in as_dict((await cell.instance()).status_json)["conditions"] if entry["type"] in own]
    assert after == [entry for entry in INITIAL_STATUS["conditions"] if entry["type"] in own]


async def test_labels_follow_the_instance(cell: Cell) -> None:
    await cell.create()
    await cell.patch({"metadata": {"labels": {WORKLOAD_NAME: "renamed"}}})
    assert (await cell.pod()).metadata.labels[WORKLOAD_NAME] == "renamed"
    await cell.patch({"metadata": {"labels": {WORKLOAD_NAME: None}}})
    assert WORKLOAD_NAME not in (await cell.pod()).metadata.labels
    assert (await cell.pod()).metadata.labels["upstream.instance"] == "web-0"


async def test_nothing_is_written_at_rest(cell: Cell) -> None:
    await cell.create()
    await cell.report("Running", podIP="192.0.2.7")
    before = cell.writes.total()
    await cell.simulation.advance(36_000)
    assert cell.writes.total() == before == 4  # finalizer, pod, starting, running


# Stopping


async def test_the_finalizer_is_held_until_the_pod_is_gone(cell: Cell) -> None:
    await cell.create()
    await cell.report("Running")
    await cell.hold()
    await cell.delete()
    assert (await cell.pod()).metadata.deleting
    assert await cell.conditions() == STOPPING
    assert (await cell.instance()).metadata.finalizers == (COMPUTE, FINALIZER)
    await cell.let_go()
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)
    assert await cell.pods() == 0


async def test_an_instance_that_never_started_is_not_held(cell: Cell) -> None:
    await cell.create(["Quota"])
    await cell.delete()
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)
    assert cell.writes.total() == 0


async def test_a_replacement_waits_for_the_pod_of_its_predecessor(cell: Cell) -> None:
    await cell.create()
    await cell.hold()
    await cell.client.delete(INSTANCE, "web-0", "ns")
    await cell.patch({"metadata": {"finalizers": None}})
    await cell.create()
    assert (await cell.conditions())["Available"] == ("Unknown", "Provisioning")
    old = (await cell.pod()).metadata.uid
    await cell.let_go()

    async def fresh() -> bool:
        try:
            return (await cell.pod()).metadata.uid != old
        except NotFound:
            return False

    await cell.simulation.until(fresh, within=60)


# Changes by others


async def test_a_deleted_pod_is_created_again(cell: Cell) -> None:
    await cell.create()
    await cell.report("Running")
    first = (await cell.pod()).metadata.uid
    await cell.client.delete(POD, "web-0", "ns")
    await cell.settle()
    assert (await cell.pod()).metadata.uid != first
    assert await cell.conditions() == STARTING


async def test_a_pod_of_somebody_else_is_not_touched(cell: Cell) -> None:
    theirs = await cell.client.create(POD, POD.body("web-0", "ns") | {"spec": {"containers": []}})
    instance = await cell.create()
    assert (await cell.pod()).metadata.uid == theirs.metadata.uid
    assert await cell.conditions() == STARTING
    assert instance.status is not None
    assert (
        "pod" not in {entry.message for entry in instance.status.conditions if entry.type == "Available"}.pop().lower()
    )
    await cell.delete()
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)
    assert (await cell.pod()).metadata.uid == theirs.metadata.uid


async def test_a_pod_that_the_server_refuses_is_reported_as_a_configuration_error(cell: Cell) -> None:
    refused = cell.faults["cell"].refuse(calls("POST", "pods"), Invalid("the Pod is invalid"))
    instance = await cell.create()
    assert await cell.conditions() == REFUSED
    assert instance.status is not None
    messages = {entry.message for entry in instance.status.conditions if entry.type == "Available"}
    assert messages == {"The instance was refused because of its configuration"}
    refused.lift()

    async def made() -> bool:
        return await cell.pods() == 1

    await cell.simulation.until(made, within=2 * RELIST_SECONDS)


# Failed Pods


async def test_a_failed_pod_is_replaced_at_once_and_then_ever_more_slowly(cell: Cell) -> None:
    await cell.create()
    waits: list[float] = []
    for _ in range(7):
        uid, began = (await cell.pod()).metadata.uid, cell.simulation.time()
        await cell.report("Failed", {"terminated": {"exitCode": 1}})

        async def replaced(uid: str = uid) -> bool:
            try:
                return (await cell.pod()).metadata.uid != uid
            except NotFound:
                return False

        if not await replaced():
            assert await cell.conditions() == CRASHED
        await cell.simulation.until(replaced, within=700)
        waits.append(round(cell.simulation.time() - began))
    assert waits == [0, 30, 60, 120, 240, 480, 600]


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 30), (1, 60), (4, 480), (5, 600), (1_023, 600), (1_024, 600), (1_000_000, 600)]
)
def test_the_wait_between_replacements_is_bounded(failures: int, seconds: float) -> None:
    assert wait_after(failures) == seconds


async def test_an_instance_that_ran_again_starts_counting_anew(cell: Cell) -> None:
    await cell.create()
    for _ in range(3):
        uid = (await cell.pod()).metadata.uid
        await cell.report("Failed", {"terminated": {"exitCode": 1}})
        assert (await cell.pod()).metadata.uid != uid
        await cell.report("Running")


async def test_a_pod_that_has_succeeded_is_not_replaced(cell: Cell) -> None:
    await cell.create()
    uid = (await cell.pod()).metadata.uid
    await cell.report("Succeeded", {"terminated": {"exitCode": 0}})
    await cell.simulation.advance(3600)
    assert (await cell.pod()).metadata.uid == uid
    assert await cell.conditions() == STOPPING


@pytest.mark.parametrize("cpu", ["1e99", "1e1.5"])
async def test_an_invalid_amount_is_a_configuration_error(cell: Cell, cpu: str) -> None:
    resources = {"instanceType": "datumcloud/d1-standard-2", "requests": {"cpu": cpu, "memory": "1Gi"}}
    await cell.create(runtime=RUNTIME | {"resources": resources})
    assert await cell.conditions() == REFUSED
    assert await cell.pods() == 0


async def test_an_instance_is_held_while_a_pod_missing_from_the_cache_exists(cell: Cell) -> None:
    cell.faults["cell"].lose_answer(calls("POST", "pods"))
    cell.faults["cell"].drop_event(calls("GET", "pods"))
    await cell.create()
    await cell.simulation.advance(60)
    await cell.client.delete(INSTANCE, "web-0", "ns")
    await cell.simulation.advance(5)
    assert await cell.pods() == 0 or FINALIZER in (await cell.instance()).metadata.finalizers


async def test_disks_are_left_out_and_logged(cell: Cell) -> None:
    disk = {"name": "data", "disk": {"template": {"spec": {"type": "pd-standard"}}}}
    with capture_logs() as logs:
        await cell.create(volumes=[disk])
    assert [(entry["instance"], entry["volumes"]) for entry in logs if entry["event"] == "disks not supported"] == [
        ("ns/web-0", ["data"])
    ]
    assert "volumes" not in as_dict((await cell.pod()).spec_json)


# Network policies

SSH: Json = {"ingress": [{"ports": [{"port": 22}]}]}
SSH_RULES: list[Json] = [{"ports": [{"protocol": "TCP", "port": 22}]}]


async def _rules(cell: Cell) -> list[Json]:
    policy = await cell.client.get(NETWORK_POLICY, "web-0", "ns")
    rules: list[Json] = as_dict(policy.spec_json)["ingress"]
    return rules


async def test_a_network_policy_exists_before_the_pod_and_is_deleted_with_the_instance(cell: Cell) -> None:
    await cell.create(policy=SSH)
    created = [line for line in cell.writes.last if " create " in line]
    assert [line.split(" ")[2] for line in created] == ["NetworkPolicy", "Pod"]
    assert await _rules(cell) == SSH_RULES
    await cell.report("Running")
    await cell.delete()
    assert (await cell.client.list(NETWORK_POLICY)).items == []
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)


async def test_an_edited_or_deleted_network_policy_is_restored(cell: Cell) -> None:
    await cell.create(policy=SSH)
    await cell.report("Running")
    await cell.client.merge_patch(NETWORK_POLICY, "web-0", "ns", {"spec": {"ingress": [{}]}})
    await cell.settle()
    assert await _rules(cell) == SSH_RULES
    await cell.client.delete(NETWORK_POLICY, "web-0", "ns")
    await cell.settle()
    assert await _rules(cell) == SSH_RULES
    before = cell.writes.total()
    await cell.simulation.advance(36_000)
    assert cell.writes.total() == before


async def test_an_instance_whose_policy_is_refused_does_not_start_unprotected(cell: Cell) -> None:
    refused = cell.faults["cell"].refuse(calls("POST", "networkpolicies"), Forbidden("not yours"))
    await cell.create(policy=SSH)
    assert await cell.pods() == 0
    assert (await cell.conditions())["Available"] == ("Unknown", "NetworkFailedToCreate")
    refused.lift()
    await cell.simulation.advance(31)
    assert await cell.pods() == 1


async def test_an_invalid_policy_is_a_configuration_error(cell: Cell) -> None:
    cell.faults["cell"].refuse(calls("POST", "networkpolicies"), Invalid("not a range of addresses"))
    await cell.create(policy=SSH)
    assert await cell.pods() == 0
    assert await cell.conditions() == REFUSED


async def test_a_running_pod_continues_while_its_policy_cannot_be_restored(cell: Cell) -> None:
    await cell.create(policy=SSH)
    await cell.report("Running")
    cell.faults["cell"].refuse(calls("POST", "networkpolicies"), Forbidden("not yours"))
    await cell.client.delete(NETWORK_POLICY, "web-0", "ns")
    await cell.settle()
    assert await cell.conditions() == RUNNING
    await cell.report("Running", {"waiting": {"reason": "CrashLoopBackOff"}})
    assert (await cell.conditions())["Available"] == ("Unknown", "InstanceCrashing")


async def test_a_replacement_does_not_adopt_the_policy_of_its_predecessor(cell: Cell) -> None:
    theirs = NETWORK_POLICY.body("web-0", "ns") | {"spec": {"podSelector": {}}}
    await cell.client.create(NETWORK_POLICY, theirs)
    await cell.create(policy=SSH)
    assert await cell.pods() == 0
    await cell.client.delete(NETWORK_POLICY, "web-0", "ns")
    await cell.simulation.advance(31)
    assert await _rules(cell) == SSH_RULES
    assert await cell.pods() == 1


async def test_a_site_that_may_not_read_network_policies_runs_instances_without_one(
    runner: asyncio.Runner, simulation: Simulation
) -> None:
    """As after an update of the program, before its roles are updated."""
    with with_pods():
        cell = Cell(simulation)
    cell.faults["cell"].refuse(calls(path="networkpolicies"), Forbidden("not yours"))
    await cell.start()
    await cell.create()
    assert await cell.pods() == 1
    await cell.delete()
    await cell.patch({"metadata": {"finalizers": None}})
    await cell.create(policy=SSH)
    assert await cell.pods() == 0
    assert (await cell.conditions())["Available"] == ("Unknown", "NetworkFailedToCreate")
    await cell.stop()
