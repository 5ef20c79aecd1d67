"""The instance controller and the quota gate in a cell without a hub. The test plays everybody else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.cell.instance import InstanceController
from datum_compute.cell.quota import Disabled, LeftBehind, Quota
from datum_compute.cell.quota_gate import QuotaGate
from datum_compute.cell.verdict import Verdict
from datum_compute.cell.write_delay import DELAY_SECONDS
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.errors import Conflict, NotFound, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Condition, Json, as_dict, decode
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count
from tests.harness import ControllerHarness

GROUP = "compute.datumapis.com"
FINALIZERS = (f"{GROUP}/instance-controller", f"quota.{GROUP}/claim-cleanup")
PROVIDER = "provider.example/finalizer"

SPEC: Json = {
    "runtime": {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
    },
    "networkInterfaces": [{"network": {"name": "default"}}],
}


class Interrupted:
    """A transport that lets the test act just before a call reaches the server, and keeps what was written."""

    def __init__(self, transport: Transport) -> None:
        self.writes: list[tuple[Call, int]] = []  # with the code of the answer
        self.before: Callable[[Call], Awaitable[None]] | None = None
        self._transport = transport

    async def call(self, call: Call) -> Answer:
        if self.before is not None:
            await self.before(call)
        if call.method == "GET":
            return await self._transport.call(call)
        place = len(self.writes)
        self.writes.append((call, 0))  # in the order sent: answers may be heard in another
        answer = await self._transport.call(call)
        self.writes[place] = (call, answer.code)
        return answer

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._transport.stream(call)


class Ledger:
    """A quota system controlled by the test."""

    def __init__(self) -> None:
        self.verdict = Verdict("False", "QuotaExceeded", "2 of 1 instances")
        self.away = False

    async def evaluate(self, cell: Plane, instance: Instance, age: timedelta) -> Verdict:
        return self.verdict

    def forget(self, request: Request) -> None: ...

    async def sweep(self, cell: Plane, request: Request) -> None: ...

    async def release(self, cell: Plane, instance: Instance) -> LeftBehind | None:
        if self.away:
            raise Unavailable("the quota system is away")
        return None


class Cell(ControllerHarness):
    def __init__(self, simulation: Simulation, quota: Quota) -> None:
        self._quota = quota
        super().__init__(simulation, {"cell": CELL}, self._build)
        self.client = self.engine.client("cell")

    def _build(self, fleet: Fleet) -> Sequence[Reconciler]:
        self.quota_gate = QuotaGate(fleet, self.simulation, self._quota)
        return [InstanceController(), self.quota_gate]

    def transport(self, plane: str, server: InProcess) -> Transport:
        self.interrupted = Interrupted(server)
        return self.interrupted

    async def start(self) -> None:
        """Fills the caches; nothing is done before `work`."""
        await self.client.create(NAMESPACE, NAMESPACE.body("ns"))
        self._tasks += [asyncio.create_task(self.engine.run()), asyncio.create_task(self.fleet.run())]
        await self.simulation.settle()

    async def work(self) -> None:
        self._tasks += [asyncio.create_task(controller.run()) for controller in self.manager.controllers.values()]
        await self.settle()

    async def create(
        self, gates: Sequence[str] | None = ("Quota",), finalizers: Sequence[str] = FINALIZERS
    ) -> Instance:
        spec = SPEC
        if gates is not None:
            controller = {"templateHash": "0123456789", "schedulingGates": [{"name": gate} for gate in gates]}
            spec = SPEC | {"controller": controller}
        body = INSTANCE.body("web-0", "ns", finalizers=list(finalizers))
        await self.client.create(INSTANCE, body | {"spec": spec})
        await self.simulation.advance(DELAY_SECONDS)
        await self.settle()
        return await self.instance()

    async def report(self, **reported: tuple[str, str]) -> None:
        """Sets the provider's conditions: type to status and reason."""
        instance = await self.instance()
        before = instance.status.conditions if instance.status else ()
        now = self.simulation.now()
        wanted = [
            conditions.condition(type_, *fields, "as reported", generation=1, now=now)
            for type_, fields in reported.items()
        ]
        status = as_dict(instance.status_json) | {"conditions": conditions.to_json(conditions.updated(before, wanted))}
        await self.client.replace_status(INSTANCE, instance, status)
        await self.settle()

    async def delete(self) -> None:
        await self.client.delete(INSTANCE, "web-0", "ns")
        await self.settle()

    async def instance(self) -> Instance:
        return await self.client.get(INSTANCE, "web-0", "ns")

    async def gates(self) -> list[str]:
        controller = (await self.instance()).spec.controller
        return [gate.name for gate in controller.scheduling_gates] if controller else []

    async def condition(self, type_: str) -> Condition:
        status = (await self.instance()).status
        found = conditions.find(status.conditions, type_) if status else None
        assert found is not None
        return found

    async def remove_gate(self, name: str) -> None:
        """Removes a gate as another controller does: from the list that it read, retried on a conflict."""
        instance = await self.instance()
        assert instance.spec.controller is not None
        left = [{"name": gate.name} for gate in instance.spec.controller.scheduling_gates if gate.name != name]
        metadata = {"resourceVersion": instance.metadata.resource_version}
        patch = {"metadata": metadata, "spec": {"controller": {"schedulingGates": left}}}
        try:
            await self.client.merge_patch(INSTANCE, "web-0", "ns", patch)
        except Conflict:
            await self.remove_gate(name)

    def gate_patches(self) -> list[tuple[Json, int]]:
        written = [(decode(call.body, dict), code) for call, code in self.interrupted.writes if call.method == "PATCH"]
        return [(patch, code) for patch, code in written if "schedulingGates" in str(patch)]


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    """Without quota."""
    cell = Cell(simulation, Disabled())
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def metered(runner: asyncio.Runner, simulation: Simulation, ledger: Ledger) -> Iterator[Cell]:
    """With quota as the `ledger` has it."""
    cell = Cell(simulation, ledger)
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


# The quota gate


async def test_one_pass_writes_the_status_and_opens_the_gate(cell: Cell) -> None:
    await cell.create()
    gate = cell.manager.controllers[cell.quota_gate.name]
    await cell.quota_gate.reconcile(gate.new_pass(Request("cell", "ns", "web-0")))
    granted = await cell.condition("QuotaGranted")
    assert (granted.status, granted.reason) == ("True", "QuotaDisabled")
    assert granted.message == "Quota enforcement disabled: no credential configured"
    assert await cell.gates() == []
    assert cell.writes.total() == 2


async def test_other_gates_are_left_alone(cell: Cell) -> None:
    await cell.work()
    await cell.create(["Network", "Quota", "ReferencedData"])
    assert await cell.gates() == ["Network", "ReferencedData"]
    ready = await cell.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "SchedulingGatesPresent")
    assert ready.message == "Scheduling gates present: Network, ReferencedData"


async def test_the_gate_patch_carries_the_resource_version(cell: Cell) -> None:
    await cell.work()
    await cell.create(["Network", "Quota"])
    ((patch, code),) = cell.gate_patches()
    assert code == 200
    assert patch["metadata"]["resourceVersion"]
    assert patch["spec"]["controller"]["schedulingGates"] == [{"name": "Network"}]


async def test_a_gate_removed_in_between_stays_gone(cell: Cell) -> None:
    async def network_is_ready(call: Call) -> None:
        if call.method == "PATCH" and b"schedulingGates" in call.body:
            cell.interrupted.before = None
            await cell.remove_gate("Network")

    cell.interrupted.before = network_is_ready
    await cell.work()
    await cell.create(["Network", "Quota"])

    async def open_() -> bool:
        return await cell.gates() == []

    await cell.simulation.until(open_, within=1)
    codes = [code for _, code in cell.gate_patches()]
    assert (codes[0], codes[-1]) == (409, 200)


@pytest.mark.parametrize("seed", range(1, count(10, 300) + 1))
async def test_network_and_quota_gates_removed_at_once_both_stay_gone(cell: Cell, seed: int) -> None:
    await cell.create(["Network", "Quota"])
    working = asyncio.create_task(cell.work())
    await cell.remove_gate("Network")
    await working

    async def open_() -> bool:
        return await cell.gates() == []

    await cell.simulation.until(open_, within=1)
    await cell.settle()
    assert await cell.gates() == []


async def test_a_denial_keeps_the_gate_until_it_is_lifted(metered: Cell, ledger: Ledger) -> None:
    await metered.work()
    await metered.create()
    assert await metered.gates() == ["Quota"]
    for type_ in ("Ready", "Programmed", "Available"):
        condition = await metered.condition(type_)
        assert (condition.status, condition.reason, condition.message) == ("False", "PendingQuota", "2 of 1 instances")

    ledger.verdict = Verdict("True", "QuotaAvailable", "granted")

    async def open_() -> bool:
        return await metered.gates() == []

    await metered.simulation.until(open_, within=2)  # by polling, without an event
    assert (await metered.condition("QuotaGranted")).reason == "QuotaAvailable"
    assert (await metered.condition("Programmed")).reason == "Pending"


# Ready


async def test_ready_follows_the_provider(cell: Cell) -> None:
    await cell.work()
    await cell.create()
    assert (await cell.condition("Ready")).reason == "PendingProgramming"
    await cell.report(Programmed=("Unknown", "ProgrammingInProgress"), Available=("Unknown", "ImageUnavailable"))
    ready = await cell.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == ("Unknown", "ImageUnavailable", "as reported")
    await cell.report(Programmed=("True", "Programmed"), Available=("True", "Available"))
    ready = await cell.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == ("True", "Available", "Instance is ready")


async def test_ready_and_quota_carry_the_observed_generation(cell: Cell) -> None:
    await cell.work()
    instance = await cell.create()
    assert instance.metadata.generation == 2  # the gate is part of the spec
    assert (await cell.condition("Ready")).observed_generation == 2
    assert (await cell.condition("QuotaGranted")).observed_generation == 2


async def test_the_provider_s_conditions_and_its_report_survive(cell: Cell) -> None:
    await cell.work()
    instance = await cell.create()
    addresses = [{"assignments": {"networkIP": "10.0.0.1", "externalIP": ""}}]
    report = {"controller": {"observedTemplateHash": "0123456789"}, "networkInterfaces": addresses}
    await cell.client.replace_status(INSTANCE, instance, as_dict(instance.status_json) | report)
    await cell.report(Programmed=("True", "Programmed"), Available=("True", "Available"))
    status = as_dict((await cell.instance()).status_json)
    assert {key: status[key] for key in report} == report
    assert (await cell.condition("Programmed")).message == "as reported"


@pytest.mark.parametrize("gates", [None, []])
async def test_no_controller_block_means_no_gates(cell: Cell, gates: Sequence[str] | None) -> None:
    await cell.work()
    await cell.create(gates)
    assert (await cell.condition("Ready")).reason == "PendingProgramming"
    assert (await cell.condition("QuotaGranted")).status == "True"


async def test_at_rest_a_later_pass_writes_nothing(cell: Cell) -> None:
    await cell.work()
    await cell.create()
    await cell.report(Programmed=("True", "Programmed"), Available=("True", "Available"))
    controllers, before = cell.manager.controllers.values(), cell.writes.total()
    await cell.simulation.advance(90)  # a repeated write would have another time
    passes = [controller.passes for controller in controllers]
    for controller in controllers:
        controller.enqueue(Request("cell", "ns", "web-0"))
    await cell.settle()
    assert [controller.passes for controller in controllers] == [number + 1 for number in passes]
    assert cell.writes.total() == before


# Finalizers


async def test_an_instance_created_by_hand_gets_its_finalizers_first(cell: Cell) -> None:
    await cell.work()
    instance = await cell.create(finalizers=[PROVIDER])
    assert instance.metadata.finalizers == (PROVIDER, *FINALIZERS)
    first, _ = cell.interrupted.writes[0]
    assert decode(first.body, dict)["metadata"]["finalizers"] == [PROVIDER, *FINALIZERS]
    assert await cell.gates() == []


async def test_both_finalizers_stay_until_the_provider_has_stopped_the_instance(cell: Cell) -> None:
    await cell.work()
    await cell.create(finalizers=[PROVIDER, *FINALIZERS])
    await cell.delete()
    await cell.simulation.advance(600)
    assert (await cell.instance()).metadata.finalizers == (PROVIDER, *FINALIZERS)
    cell.interrupted.writes.clear()
    await cell.client.merge_patch(INSTANCE, "web-0", "ns", {"metadata": {"finalizers": list(FINALIZERS)}})
    await cell.simulation.advance(0.1)  # one of the two may have had a conflict
    assert [code for _, code in cell.interrupted.writes if code != 409] == [200, 200]
    with pytest.raises(NotFound):
        await cell.instance()


async def test_an_instance_deleted_while_no_controller_ran_is_released_after_its_stop(cell: Cell) -> None:
    await cell.create(finalizers=[PROVIDER, *FINALIZERS])
    await cell.delete()
    await cell.work()
    await cell.client.merge_patch(INSTANCE, "web-0", "ns", {"metadata": {"finalizers": list(FINALIZERS)}})
    await cell.simulation.advance(0.1)
    with pytest.raises(NotFound):
        await cell.instance()


async def test_ready_reports_a_slow_stop_whatever_the_provider_reports(cell: Cell) -> None:
    await cell.work()
    await cell.create(finalizers=[PROVIDER, *FINALIZERS])
    await cell.report(Programmed=("True", "Programmed"), Available=("True", "Available"))
    await cell.delete()
    before = cell.writes.total()
    await cell.simulation.advance(DELAY_SECONDS / 2)
    assert cell.writes.total() == before, "most stop in a moment"
    await cell.simulation.advance(DELAY_SECONDS)
    ready = await cell.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == ("False", "Stopping", "The instance is stopping")
    await cell.simulation.advance(600)
    assert cell.writes.total() == before + 1


async def test_an_instance_deleted_before_its_first_pass_is_released(cell: Cell) -> None:
    await cell.create(finalizers=[])
    await cell.delete()
    await cell.work()
    assert cell.writes.total() == 0


async def test_only_the_finalizer_of_the_failed_cleanup_stays(metered: Cell, ledger: Ledger) -> None:
    await metered.work()
    await metered.create()
    ledger.away = True
    await metered.delete()
    assert (await metered.instance()).metadata.finalizers == FINALIZERS[1:]
    ledger.away = False

    async def gone() -> bool:
        return (await metered.client.list(INSTANCE)).items == []

    await metered.simulation.until(gone, within=31)
