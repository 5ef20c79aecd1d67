"""Quota: exhausted and freed, granted late, and granted without an event."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED, READY, Instance
from datum_compute.api.names import claim_name
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.quota import (
    ALLOWANCE_BUCKET,
    INSTANCES,
    RESOURCE_CLAIM,
    RESOURCE_GRANT,
    ResourceClaim,
    ResourceGrant,
)
from datum_compute.api.reasons import PENDING_EVALUATION, PENDING_QUOTA, QUOTA_EXCEEDED, QUOTA_NO_BUDGET
from datum_compute.api.services import SERVICE_ENTITLEMENT, SERVICE_OBJECT
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from datum_compute.kube.meta import Condition
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.federation import Federation, placement, template
from tests.scenarios.split import CELL_NAME, PROJECT_NAME, SplitFederation


def _condition(instance: Instance, type_: str) -> Condition:
    assert instance.status is not None
    found = conditions.find(instance.status.conditions, type_)
    assert found is not None
    return found


@pytest.fixture
def tight(runner: asyncio.Runner, federation: Federation) -> Iterator[Federation]:
    """A federation whose project `demo` may have three instances."""
    runner.run(_allow(federation, 3))
    yield federation
    runner.run(_allow(federation, DEFAULT_LIMITS[INSTANCES]))


async def _allow(federation: Federation, instances: int) -> None:
    client = federation.project().client

    async def grants() -> list[ResourceGrant]:
        found = (await client.list(RESOURCE_GRANT)).items
        return [grant for grant in found if grant.spec.allowances[0].resource_type == INSTANCES]

    async def granted() -> bool:
        return bool(await grants())

    await federation.until(granted, "instances are granted")
    (grant,) = await grants()
    allowances = [{"resourceType": INSTANCES, "buckets": [{"amount": instances}]}]
    await client.merge_patch(RESOURCE_GRANT, grant.name, grant.namespace, {"spec": {"allowances": allowances}})

    async def counts() -> bool:
        buckets = (await client.list(ALLOWANCE_BUCKET)).items
        return any(bucket.status and bucket.status.limit == instances for bucket in buckets)

    await federation.until(counts, f"{instances} instances are allowed")


async def _until_denied(federation: Federation, name: str) -> Instance:
    project = federation.project()
    found: list[Instance] = []

    async def denied() -> bool:
        try:
            instance = await project.client.get(INSTANCE, name, "default")
        except NotFound:
            return False
        found[:] = [instance]
        return _condition(instance, QUOTA_GRANTED).reason == QUOTA_EXCEEDED

    await federation.until(denied, f"{name} is denied, and the project sees it")
    return found[0]


async def test_an_instance_over_quota_waits_with_a_reason_and_runs_once_there_is_room(tight: Federation) -> None:
    project = tight.project()
    await project.deploy("big", ["DFW"], replicas=2)
    await project.until_ready("big", 2)
    await project.deploy("late", ["DFW"], replicas=2)

    denied = await _until_denied(tight, "late-main-dfw-1")
    ready = _condition(denied, READY)
    assert (ready.status, ready.reason) == ("False", PENDING_QUOTA)
    assert ready.message == "Requested 1 instance, 0 available."

    await project.place("big", ["DFW"], 1)
    await project.until_ready("big", 1)
    await project.until_ready("late", 2)


async def test_a_new_grant_opens_the_gate_of_what_was_denied(tight: Federation) -> None:
    project = tight.project()
    await project.deploy("web", ["DFW", "ORD"], replicas=2)

    async def three_ready() -> bool:
        workload = await project.workload("web")
        return workload is not None and workload.status is not None and workload.status.ready_replicas == 3

    await tight.until(three_ready, "three of four are ready")
    await _allow(tight, 4)
    await project.until_ready("web", 4)

    (bucket,) = [
        bucket
        for bucket in (await project.client.list(ALLOWANCE_BUCKET)).items
        if bucket.spec.resource_type == INSTANCES
    ]
    assert bucket.status is not None
    assert (bucket.status.limit, bucket.status.allocated, bucket.status.available) == (4, 4, 0)


async def test_a_rollout_at_full_quota_reuses_what_it_frees(tight: Federation) -> None:
    project = tight.project()
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)
    await project.set_image("web", "registry.example/hello:2")
    await project.until_ready("web", 3)


async def test_scaling_down_frees_the_quota_that_an_instance_which_stays_waits_for(tight: Federation) -> None:
    project = tight.project()
    await project.deploy("web", ["DFW"], replicas=4)
    await _until_denied(tight, "web-main-dfw-3")
    await project.set_image("web", "registry.example/hello:2")
    await project.place("web", ["DFW"], 2)  # web-main-dfw-3 takes what the replaced instance had
    await project.until_ready("web", 2)


async def test_a_deleted_workload_gives_its_quota_back(tight: Federation) -> None:
    project = tight.project()
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)
    await project.delete("web")
    await project.until_gone("web")

    async def free() -> bool:
        return (await project.client.list(RESOURCE_CLAIM)).items == []

    await tight.until(free, "no claim is left")


# A cell of its own, with the test as Milo


@asynccontextmanager
async def _waiting_instance(split: SplitFederation) -> AsyncIterator[None]:
    """A workload whose only instance waits for a claim that nobody has decided."""
    simulation = split.simulation
    await split.start()
    project = None

    async def project_is_open() -> bool:
        nonlocal project
        try:
            project = split.client(PROJECT_NAME)
        except KeyError:
            return False
        return True

    await simulation.until(project_is_open, 30, "the project is open")
    assert project is not None
    await simulation.advance(1)
    entitlement = SERVICE_ENTITLEMENT.body(SERVICE_OBJECT) | {"spec": {"serviceRef": {"name": SERVICE_OBJECT}}}
    await project.create(SERVICE_ENTITLEMENT, entitlement)

    async def offered() -> bool:
        return bool((await split.client(PROJECT_NAME).list(LOCATION_BINDING)).items)

    await simulation.until(offered, 30, "a city is offered")
    spec = {"template": template(), "placements": [placement("main", ["DFW"], 1)]}
    await project.create(WORKLOAD, WORKLOAD.body("web", "default") | {"spec": spec})

    async def claimed() -> bool:
        return bool((await split.client(PROJECT_NAME).list(RESOURCE_CLAIM)).items)

    await simulation.until(claimed, 30, "the instance asks for quota")
    try:
        yield
    finally:
        await split.stop()


async def _claim(split: SplitFederation) -> ResourceClaim:
    return await split.client(PROJECT_NAME).get(RESOURCE_CLAIM, claim_name("web-main-dfw-0"), "default")


async def _grant(split: SplitFederation) -> None:
    claim = await _claim(split)
    granted = conditions.condition(
        "Granted", True, "QuotaAvailable", "granted", generation=1, now=split.simulation.now()
    )
    status = {"conditions": conditions.to_json([granted])}
    await split.client(PROJECT_NAME).replace_status(RESOURCE_CLAIM, claim, status)


async def _instance(split: SplitFederation) -> Instance:
    (instance,) = (await split.client(CELL_NAME).list(INSTANCE)).items
    return instance


def _is_open(instance: Instance) -> bool:
    return instance.spec.controller is not None and instance.spec.controller.scheduling_gates == ()


async def _opened_after(split: SplitFederation, within: float) -> float:
    began = split.simulation.time()

    async def opened() -> bool:
        return _is_open(await _instance(split))

    await split.simulation.until(opened, within, "the gate is open")
    return split.simulation.time() - began


async def test_the_watch_notices_a_grant_at_once(simulation: Simulation) -> None:
    split = SplitFederation(simulation)
    async with _waiting_instance(split):
        await simulation.advance(700)  # the slowest tier would take five minutes
        await _grant(split)
        assert await _opened_after(split, within=1) == 0


@pytest.mark.parametrize(("age", "tier"), [(5, 1), (55, 1), (90, 15), (290, 15), (320, 60), (580, 60), (650, 300)])
async def test_a_grant_whose_event_is_lost_is_noticed_within_its_tier(
    simulation: Simulation, age: float, tier: float
) -> None:
    split = SplitFederation(simulation)
    async with _waiting_instance(split):
        lost = split.cell.faults[PROJECT_NAME].drop_event(calls(path="resourceclaims"))
        await simulation.advance(age)
        assert not _is_open(await _instance(split))
        await _grant(split)
        assert 0 < await _opened_after(split, within=tier) <= tier
        assert lost.fired


async def test_a_claim_that_nobody_decides_is_reported_as_a_missing_budget_after_a_minute(
    simulation: Simulation,
) -> None:
    split = SplitFederation(simulation)
    async with _waiting_instance(split):
        await simulation.advance(50)
        assert _condition(await _instance(split), QUOTA_GRANTED).reason == PENDING_EVALUATION
        await simulation.advance(30)
        assert _condition(await _instance(split), QUOTA_GRANTED).reason == QUOTA_NO_BUDGET


async def test_an_outage_of_the_quota_system_does_not_affect_running_instances(simulation: Simulation) -> None:
    split = SplitFederation(simulation)
    async with _waiting_instance(split):
        await _grant(split)
        await _opened_after(split, within=5)
        await simulation.advance(5)
        split.cell.faults[PROJECT_NAME].take_away()
        await split.client(CELL_NAME).merge_patch(
            INSTANCE,
            "web-main-dfw-0",
            (await _instance(split)).namespace,
            {"metadata": {"labels": {"touched": "yes"}}},
        )
        await simulation.advance(120)
        instance = await _instance(split)
        assert _condition(instance, READY).status == "True"
        assert _condition(instance, QUOTA_GRANTED).status == "True"


async def test_a_claim_that_is_being_deleted_grants_nothing(simulation: Simulation) -> None:
    split = SplitFederation(simulation)
    async with _waiting_instance(split):
        claim = await _claim(split)
        client = split.client(PROJECT_NAME)
        patch = {"metadata": {"finalizers": ["example.com/held"]}}
        await client.merge_patch(RESOURCE_CLAIM, claim.name, claim.namespace, patch)
        await client.delete(RESOURCE_CLAIM, claim.name, claim.namespace)
        await _grant(split)
        await simulation.advance(10)
        assert not _is_open(await _instance(split))
