"""The simulated provider alone in a cell. The test plays compute's own controllers."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from datum_compute.api.instance import INITIAL_STATUS, INSTANCE, Instance
from datum_compute.api.labels import NETWORK_ADDRESSES, SIMULATE
from datum_compute.api.labels import SIMULATED_FINALIZER as FINALIZER
from datum_compute.federation.roles import CELL
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict
from datum_compute.providers.simulated import (
    CRASHING,
    IMAGE_UNAVAILABLE,
    MISCONFIGURED,
    Behaviour,
    Failure,
    SimulatedProvider,
)
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Request
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness

COMPUTE = "compute.datumapis.com/instance-controller"
HASH = "0123456789"

SPEC: Json = {
    "runtime": {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
    },
    "networkInterfaces": [{"network": {"name": "default"}}],
}

NOT_SEEN_YET = {"Programmed": ("Unknown", "Pending"), "Available": ("Unknown", "Pending")}
STARTING = {"Programmed": ("Unknown", "ProgrammingInProgress"), "Available": ("Unknown", "Provisioning")}
STOPPING = {"Programmed": ("False", "Stopping"), "Available": ("False", "Stopping")}
RUNNING = {"Programmed": ("True", "Programmed"), "Available": ("True", "Available")}


class Cell(ControllerHarness):
    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, {"cell": CELL}, self._build)
        self.client = self.engine.client("cell")

    def _build(self, fleet: Fleet) -> SimulatedProvider:
        self.provider = SimulatedProvider(Behaviour())
        return self.provider

    async def start(self) -> None:
        await self.client.create(NAMESPACE, NAMESPACE.body("ns"))
        await self.run()

    async def create(
        self, gates: Sequence[str] | None = (), *, annotations: dict[str, str] | None = None, image: str = ""
    ) -> Instance:
        spec = SPEC
        if image:
            containers = [{"name": "web", "image": image}]
            spec = SPEC | {"runtime": SPEC["runtime"] | {"sandbox": {"containers": containers}}}
        if gates is not None:
            controller = {"templateHash": HASH, "schedulingGates": [{"name": gate} for gate in gates]}
            spec = spec | {"controller": controller}
        body = INSTANCE.body("web-0", "ns", finalizers=[COMPUTE], annotations=annotations)
        await self.client.create(INSTANCE, body | {"spec": spec})
        await self.settle()
        return await self.instance()

    async def patch(self, patch: Json) -> None:
        await self.client.merge_patch(INSTANCE, "web-0", "ns", patch)
        await self.settle()

    async def delete(self) -> None:
        await self.client.delete(INSTANCE, "web-0", "ns")
        await self.settle()

    async def look_again(self) -> None:
        """Causes a pass without a change that matters."""
        passes = self.controller.passes
        self.controller.enqueue(Request("cell", "ns", "web-0"))
        await self.settle()
        assert self.controller.passes > passes

    async def instance(self) -> Instance:
        return await self.client.get(INSTANCE, "web-0", "ns")

    async def conditions(self) -> dict[str, tuple[str, str]]:
        """Programmed and Available, each with status and reason."""
        status = (await self.instance()).status
        assert status is not None
        return {entry.type: (entry.status, entry.reason) for entry in status.conditions if entry.type in RUNNING}

    async def hash(self) -> str | None:
        status = (await self.instance()).status
        return status.controller.observed_template_hash if status and status.controller else None

    async def until_said(self, expected: dict[str, tuple[str, str]], within: float) -> None:
        async def is_reported() -> bool:
            return await self.conditions() == expected

        await self.simulation.until(is_reported, within)


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation)
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


# Gates


@pytest.mark.parametrize("gates", [["Quota"], ["Network", "Quota"], ["SomethingNew"]])
async def test_nothing_happens_while_a_gate_is_left(cell: Cell, gates: list[str]) -> None:
    instance = await cell.create(gates)
    assert instance.metadata.finalizers == (COMPUTE,)
    assert await cell.conditions() == NOT_SEEN_YET
    assert cell.writes.total() == 0


async def test_an_instance_starts_when_the_last_gate_is_removed(cell: Cell) -> None:
    await cell.create(["Network", "Quota"])
    await cell.patch({"spec": {"controller": {"schedulingGates": [{"name": "Network"}]}}})
    assert cell.writes.total() == 0
    await cell.patch({"spec": {"controller": {"schedulingGates": []}}})
    assert await cell.conditions() == RUNNING


async def test_an_instance_without_controller_fields_has_no_gates(cell: Cell) -> None:
    await cell.create(None)
    assert await cell.conditions() == RUNNING
    assert await cell.hash() is None


# Finalizer and teardown


async def test_the_finalizer_is_set_before_anything_starts(cell: Cell) -> None:
    instance = await cell.create()
    assert instance.metadata.finalizers == (COMPUTE, FINALIZER)
    assert [line.split(" ")[1] for line in cell.writes.last] == ["patch", "status"]


async def test_the_finalizer_is_held_until_the_instance_has_stopped(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(stop_seconds=20)
    await cell.create()
    began = cell.simulation.time()
    await cell.delete()
    assert (await cell.instance()).metadata.finalizers == (COMPUTE, FINALIZER)

    async def released() -> bool:
        return (await cell.instance()).metadata.finalizers == (COMPUTE,)

    await cell.simulation.until(released, within=20)
    assert cell.simulation.time() - began == pytest.approx(20)


async def test_another_pass_does_not_make_a_stop_longer(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(stop_seconds=20)
    await cell.create()
    began = cell.simulation.time()
    await cell.delete()
    cell.simulation.call_later(15, cell.controller.enqueue, Request("cell", "ns", "web-0"))

    async def released() -> bool:
        return (await cell.instance()).metadata.finalizers == (COMPUTE,)

    await cell.simulation.until(released, within=20)
    assert cell.simulation.time() - began == pytest.approx(20)


async def test_without_a_delay_only_its_own_finalizer_is_removed_at_once(cell: Cell) -> None:
    await cell.create()
    await cell.delete()
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)


async def test_an_instance_that_never_started_is_not_held(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(stop_seconds=20)
    await cell.create(["Quota"])
    await cell.delete()
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)
    assert cell.writes.total() == 0


async def test_an_instance_deleted_while_starting_stops(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(start_seconds=60, stop_seconds=5)
    await cell.create()
    await cell.delete()

    async def released() -> bool:
        return (await cell.instance()).metadata.finalizers == (COMPUTE,)

    await cell.simulation.until(released, within=5)
    assert await cell.conditions() == STOPPING


async def test_a_replacement_of_the_same_name_starts_anew(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(start_seconds=10)
    await cell.create()
    await cell.until_said(RUNNING, within=10)
    await cell.delete()
    await cell.patch({"metadata": {"finalizers": None}})
    await cell.create()
    assert await cell.conditions() == STARTING
    await cell.until_said(RUNNING, within=10)


# Status


async def test_a_start_takes_the_configured_time(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(start_seconds=30)
    began = cell.simulation.time()
    await cell.create()
    assert await cell.conditions() == STARTING
    assert await cell.hash() is None
    await cell.until_said(RUNNING, within=30)
    assert cell.simulation.time() - began == pytest.approx(30)
    assert await cell.hash() == HASH


@pytest.mark.parametrize(
    ("failure", "reason", "sentence"),
    [
        (IMAGE_UNAVAILABLE, "ImageUnavailable", "The image registry.example/hello:1 cannot be pulled"),
        (CRASHING, "InstanceCrashing", "The instance keeps failing to start"),
        (MISCONFIGURED, "ConfigurationError", "The instance was refused because of its configuration"),
    ],
)
async def test_a_failure_is_reported_by_its_reason(cell: Cell, failure: Failure, reason: str, sentence: str) -> None:
    cell.provider.behaviour = Behaviour(fails=lambda instance: failure)
    instance = await cell.create()
    assert await cell.conditions() == {
        "Programmed": ("Unknown", "ProgrammingInProgress"),
        "Available": ("Unknown", reason),
    }
    assert await cell.hash() is None
    assert instance.status is not None
    assert {entry.message for entry in instance.status.conditions if entry.type in RUNNING} == {sentence}


async def test_a_failure_is_reported_without_waiting_for_the_start(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(start_seconds=30, fails=lambda instance: IMAGE_UNAVAILABLE)
    await cell.create()
    assert (await cell.conditions())["Available"] == ("Unknown", "ImageUnavailable")


async def test_an_instance_recovers_when_its_failure_ends(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(fails=lambda instance: CRASHING)
    await cell.create()
    cell.provider.behaviour = Behaviour()
    await cell.look_again()
    assert await cell.conditions() == RUNNING
    assert await cell.hash() == HASH


async def test_a_failure_affects_only_the_chosen_instances(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(fails=lambda instance: CRASHING if instance.name == "web-1" else None)
    await cell.create()
    assert await cell.conditions() == RUNNING


@pytest.mark.parametrize("fails", [None, IMAGE_UNAVAILABLE])
async def test_conditions_of_compute_are_never_changed(cell: Cell, fails: Failure | None) -> None:
    cell.provider.behaviour = Behaviour(fails=lambda instance: fails)
    instance = await cell.create()
    own = ("Ready", "QuotaGranted")
    after = [entry for entry in as_dict(instance.status_json)["conditions"] if entry["type"] in own]
    assert after == [entry for entry in INITIAL_STATUS["conditions"] if entry["type"] in own]


async def test_conditions_have_the_generation_they_describe(cell: Cell) -> None:
    await cell.create(["Quota"])
    await cell.patch({"spec": {"controller": {"schedulingGates": []}}})
    instance = await cell.instance()
    assert instance.status is not None
    answered = {entry.observed_generation for entry in instance.status.conditions if entry.type in RUNNING}
    assert answered == {instance.metadata.generation} == {2}


# Stopping


async def test_a_stopping_instance_is_reported_without_a_template_hash(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(stop_seconds=20)
    await cell.create()
    await cell.delete()
    assert await cell.conditions() == STOPPING
    assert await cell.hash() is None


async def test_a_slow_stop_takes_longer(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(stop_seconds=1, slow_stop_seconds=90)
    await cell.create(annotations={SIMULATE: "slow-stop"})
    assert await cell.conditions() == RUNNING
    began = cell.simulation.time()
    await cell.delete()

    async def released() -> bool:
        return (await cell.instance()).metadata.finalizers == (COMPUTE,)

    await cell.simulation.until(released, within=90)
    assert cell.simulation.time() - began == pytest.approx(90)


# Failures chosen by an Instance


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("image-unavailable", "ImageUnavailable"),
        ("crashing", "InstanceCrashing"),
        ("configuration-error", "ConfigurationError"),
    ],
)
async def test_a_failure_can_be_chosen_by_annotation_or_by_the_tag_of_the_image(
    cell: Cell, name: str, reason: str
) -> None:
    await cell.create(annotations={SIMULATE: name})
    assert (await cell.conditions())["Available"] == ("Unknown", reason)
    await cell.delete()
    await cell.patch({"metadata": {"finalizers": None}})
    await cell.create(image=f"registry.example:5000/hello:{name}")
    assert (await cell.conditions())["Available"] == ("Unknown", reason)


@pytest.mark.parametrize("name", ["", "something-new", "Crashing"])
async def test_unknown_failures_are_ignored(cell: Cell, name: str) -> None:
    await cell.create(annotations={SIMULATE: name}, image=f"registry.example/hello:{name}")
    assert await cell.conditions() == RUNNING


# Random choices


async def test_random_choices_are_the_same_for_a_seed(cell: Cell) -> None:
    outcomes: dict[int, str] = {}
    for seed in (1, 2, 3, 4, 5, 6, 7, 8, 1):
        cell.provider.behaviour = Behaviour(crash_rate=0.5, seed=seed)
        instance = await cell.create()
        uid = instance.metadata.uid
        reason = (await cell.conditions())["Available"][1]
        again = SimulatedProvider(cell.provider.behaviour)
        assert again._failure(instance) == cell.provider._failure(instance), uid
        outcomes.setdefault(seed, reason)
        await cell.delete()
        await cell.patch({"metadata": {"finalizers": None}})
    assert set(outcomes.values()) == {"Available", "InstanceCrashing"}


async def test_jitter_makes_a_start_longer_but_never_shorter(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(start_seconds=10, jitter=0.5, seed=3)
    began = cell.simulation.time()
    await cell.create()
    await cell.until_said(RUNNING, within=15)
    assert 10 < cell.simulation.time() - began < 15


# Addresses


async def test_addresses_are_reported_one_per_interface(cell: Cell) -> None:
    instance = await cell.create(annotations={NETWORK_ADDRESSES: '["10.128.0.2"]'})
    assert instance.status is not None
    assert [interface.assignments.network_ip for interface in instance.status.network_interfaces] == ["10.128.0.2"]
    assert [line.split(" ")[1] for line in cell.writes.last] == ["patch", "status"]


async def test_the_first_address_of_two_families_is_reported(cell: Cell) -> None:
    instance = await cell.create(annotations={NETWORK_ADDRESSES: '[["10.128.0.2", "fd20::2"]]'})
    assert instance.status is not None
    assert [interface.assignments.network_ip for interface in instance.status.network_interfaces] == ["10.128.0.2"]


async def test_interfaces_are_not_reported_before_an_address_is_known(cell: Cell) -> None:
    instance = await cell.create()
    assert "networkInterfaces" not in as_dict(instance.status_json)
    await cell.patch({"metadata": {"annotations": {NETWORK_ADDRESSES: '["10.128.0.2"]'}}})
    status = (await cell.instance()).status
    assert status is not None
    assert [interface.assignments.network_ip for interface in status.network_interfaces] == ["10.128.0.2"]


async def test_an_instance_waits_for_its_addresses_where_they_are_assigned(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(wait_for_addresses=True)
    await cell.create()
    assert await cell.conditions() == NOT_SEEN_YET
    assert cell.writes.total() == 0
    await cell.patch({"metadata": {"annotations": {NETWORK_ADDRESSES: '["10.128.0.2"]'}}})
    assert await cell.conditions() == RUNNING


async def test_nothing_is_written_at_rest(cell: Cell) -> None:
    cell.provider.behaviour = Behaviour(start_seconds=1, stop_seconds=1)
    await cell.create()
    await cell.until_said(RUNNING, within=1)
    before = cell.writes.total()
    await cell.look_again()
    await cell.patch({"metadata": {"labels": {"by": "hand"}}})
    assert cell.writes.total() == before == 3  # finalizer, starting, running
