"""Quota as Milo really decides it: a denial is final, and what a denied claim was granted in part stays reserved.

The cell copes: it makes a denied claim again, slowly, until it is granted.
"""

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial

import pytest

from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED
from datum_compute.api.quota import ALLOWANCE_BUCKET, INSTANCES, MEMORY, RESOURCE_CLAIM, VCPUS
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from datum_compute.local import federation as local
from datum_compute.platform.quota import QuotaBroker
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation
from tests.scenarios.life import BEHAVIOUR

SLOWEST = 900.0  # until the slow tier, and once more


def _started(runner: asyncio.Runner, simulation: Simulation, limits: Mapping[str, int]) -> Iterator[EmbeddedFederation]:
    async def build() -> EmbeddedFederation:
        engine = EmbeddedFederation(simulation, BEHAVIOUR, limits=limits)
        await engine.start()
        return engine

    engine = runner.run(build())
    yield engine
    runner.run(engine.stop())


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "QuotaBroker", partial(QuotaBroker, strict=True))


@pytest.fixture
def three(runner: asyncio.Runner, simulation: Simulation) -> Iterator[EmbeddedFederation]:
    yield from _started(runner, simulation, {INSTANCES: 3, VCPUS: 40_000, MEMORY: 81_920})


@pytest.fixture
def half_a_cpu_short(runner: asyncio.Runner, simulation: Simulation) -> Iterator[EmbeddedFederation]:
    yield from _started(runner, simulation, {INSTANCES: 3, VCPUS: 1500, MEMORY: 81_920})


async def _reason(engine: EmbeddedFederation, name: str) -> str:
    try:
        instance = await engine.project_client("demo").get(INSTANCE, name, "default")
    except NotFound:
        return ""
    found = conditions.find(instance.status.conditions if instance.status else (), QUOTA_GRANTED)
    return found.reason if found else ""


async def _until_denied(engine: EmbeddedFederation, name: str) -> None:
    async def denied() -> bool:
        return await _reason(engine, name) == "QuotaExceeded"

    await engine.until(denied, 30, f"{name} is denied")


async def _allocated(engine: EmbeddedFederation, resource_type: str) -> int:
    buckets = (await engine.project_client("demo").list(ALLOWANCE_BUCKET)).items
    (bucket,) = [item for item in buckets if item.spec.resource_type == resource_type]
    assert bucket.status is not None
    return bucket.status.allocated


async def test_instances_within_quota_run_as_with_any_other_broker(three: EmbeddedFederation) -> None:
    project = Federation(three).project()
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)


async def test_a_finally_denied_claim_is_recreated_and_granted_once_there_is_room(
    three: EmbeddedFederation, simulation: Simulation
) -> None:
    project = Federation(three).project()
    await project.deploy("big", ["DFW"], replicas=2)
    await project.until_ready("big", 2)
    await project.deploy("late", ["DFW"], replicas=2)
    await _until_denied(three, "late-main-dfw-1")

    await project.place("big", ["DFW"], 1)
    await project.until_ready("big", 1)
    assert await _reason(three, "late-main-dfw-1") == "QuotaExceeded"  # nobody looks at it again by itself

    async def runs() -> bool:
        return await _reason(three, "late-main-dfw-1") == "QuotaAvailable"

    await three.until(runs, SLOWEST, "the claim was made again, and granted")
    await project.until_ready("late", 2)
    assert await _allocated(three, INSTANCES) == 3


async def test_a_denied_instance_keeps_its_reason_while_its_claim_is_recreated(
    three: EmbeddedFederation, simulation: Simulation
) -> None:
    project = Federation(three).project()
    await project.deploy("big", ["DFW"], replicas=3)
    await project.until_ready("big", 3)
    await project.deploy("late", ["DFW"], replicas=1)
    await _until_denied(three, "late-main-dfw-0")
    first = (await project.client.get(RESOURCE_CLAIM, "instance-late-main-dfw-0", "default")).metadata.uid
    observed: set[str] = set()
    for _ in range(1200):
        await simulation.advance(1)
        observed.add(await _reason(three, "late-main-dfw-0"))
    assert observed == {"QuotaExceeded"}
    again = (await project.client.get(RESOURCE_CLAIM, "instance-late-main-dfw-0", "default")).metadata.uid
    assert again != first


async def test_a_partially_granted_claim_blocks_others_until_its_instance_is_deleted(
    half_a_cpu_short: EmbeddedFederation,
) -> None:
    engine = half_a_cpu_short
    project = Federation(engine).project()
    await project.deploy("web", ["DFW"], replicas=2)
    await _until_denied(engine, "web-main-dfw-1")
    assert await _allocated(engine, INSTANCES) == 2  # the second one holds its part, and does not run
    assert await _allocated(engine, VCPUS) == 1000

    await project.delete("web")
    await project.until_gone("web")

    async def free() -> bool:
        return await _allocated(engine, INSTANCES) == 0

    await engine.until(free, 60, "nothing is reserved any more")
