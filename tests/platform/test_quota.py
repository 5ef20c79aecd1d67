"""The quota broker alone on a project plane, lenient and strict. The test plays the users of quota."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.api.quota import (
    ALLOWANCE_BUCKET,
    INSTANCES,
    RESOURCE_CLAIM,
    RESOURCE_GRANT,
    VCPUS,
    ConsumerRef,
    ResourceClaim,
    bucket_name,
)
from datum_compute.federation.roles import PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.platform.quota import QuotaBroker
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness

DEMO: Json = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
GRANTED, DENIED, OPEN, WRONG = "QuotaAvailable", "QuotaExceeded", "PendingEvaluation", "ValidationFailed"


class Broker(ControllerHarness):
    def __init__(self, simulation: Simulation, *, strict: bool) -> None:
        self._strict = strict
        super().__init__(simulation, {"demo": PROJECT}, self._build)
        self.client = self.engine.client("demo")

    def _build(self, fleet: Fleet) -> QuotaBroker:
        return QuotaBroker(strict=self._strict)

    async def start(self) -> None:
        for name in ("default", "milo-system"):
            await self.client.create(NAMESPACE, NAMESPACE.body(name))
        await self.run()

    async def allow(self, **amounts: int) -> None:
        """Creates or changes one grant per type: `instances=3`."""
        for plain, amount in amounts.items():
            allowance = {"resourceType": _type(plain), "buckets": [{"amount": amount}]}
            spec = {"consumerRef": DEMO, "allowances": [allowance]}
            existing = [grant.name for grant in (await self.client.list(RESOURCE_GRANT)).items]
            if plain in existing:
                await self.client.merge_patch(RESOURCE_GRANT, plain, "milo-system", {"spec": spec})
            else:
                await self.client.create(RESOURCE_GRANT, RESOURCE_GRANT.body(plain, "milo-system") | {"spec": spec})
        await self.settle()

    async def claim(self, name: str, consumer: Json = DEMO, **amounts: int) -> None:
        requests = [{"resourceType": _type(plain), "amount": amount} for plain, amount in amounts.items()]
        spec = {"consumerRef": consumer, "resourceRef": DEMO, "requests": requests}
        await self.client.create(RESOURCE_CLAIM, RESOURCE_CLAIM.body(name, "default") | {"spec": spec})
        await self.settle()

    async def release(self, name: str) -> None:
        await self.client.delete(RESOURCE_CLAIM, name, "default")
        await self.settle()

    async def get(self, name: str) -> ResourceClaim:
        return await self.client.get(RESOURCE_CLAIM, name, "default")

    async def decision(self, name: str) -> str:
        status = (await self.get(name)).status
        assert status is not None
        granted = conditions.find(status.conditions, "Granted")
        assert granted is not None
        assert (granted.status == "True") == (granted.reason == GRANTED)
        return granted.reason

    async def bucket(self, plain: str) -> tuple[int, int, int]:
        """Limit, allocated, available."""
        name = bucket_name(_type(plain), ConsumerRef("Project", "demo"))
        status = (await self.client.get(ALLOWANCE_BUCKET, name, "milo-system")).status
        assert status is not None
        return status.limit, status.allocated, status.available


def _type(plain: str) -> str:
    return {"instances": INSTANCES, "vcpus": VCPUS}[plain]


def _built(runner: asyncio.Runner, simulation: Simulation, *, strict: bool) -> Iterator[Broker]:
    broker = Broker(simulation, strict=strict)
    runner.run(broker.start())
    yield broker
    runner.run(broker.stop())


@pytest.fixture
def lenient(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Broker]:
    yield from _built(runner, simulation, strict=False)


@pytest.fixture
def strict(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Broker]:
    yield from _built(runner, simulation, strict=True)


# In both modes


@pytest.fixture(params=[False, True], ids=["lenient", "strict"])
def broker(request: pytest.FixtureRequest, runner: asyncio.Runner, simulation: Simulation) -> Iterator[Broker]:
    yield from _built(runner, simulation, strict=request.param)


async def test_a_claim_that_fits_is_granted_and_shown_in_the_bucket(broker: Broker) -> None:
    await broker.allow(instances=3, vcpus=5000)
    await broker.claim("a", instances=1, vcpus=1000)
    assert await broker.decision("a") == GRANTED
    assert await broker.bucket("instances") == (3, 1, 2)
    assert await broker.bucket("vcpus") == (5000, 1000, 4000)
    claim = await broker.get("a")
    assert claim.status is not None
    assert [(entry.status, entry.allocated_amount) for entry in claim.status.allocations] == [
        ("Granted", 1),
        ("Granted", 1000),
    ]
    assert claim.status.allocations[0].allocating_bucket == bucket_name(INSTANCES, ConsumerRef("Project", "demo"))


async def test_the_last_unit_is_granted_only_once(broker: Broker) -> None:
    await broker.allow(instances=1)
    await broker.claim("a", instances=1)
    await broker.claim("b", instances=1)
    assert (await broker.decision("a"), await broker.decision("b")) == (GRANTED, DENIED)


async def test_a_lowered_limit_revokes_nothing(broker: Broker) -> None:
    await broker.allow(instances=2)
    await broker.claim("a", instances=2)
    await broker.allow(instances=1)
    assert await broker.decision("a") == GRANTED
    assert await broker.bucket("instances") == (1, 2, 0)


async def test_deleting_a_claim_frees_its_quota_for_the_next(broker: Broker) -> None:
    await broker.allow(instances=1)
    await broker.claim("a", instances=1)
    await broker.release("a")
    assert await broker.bucket("instances") == (1, 0, 1)
    await broker.claim("b", instances=1)
    assert await broker.decision("b") == GRANTED


async def test_nothing_is_written_at_rest(broker: Broker) -> None:
    await broker.allow(instances=1)
    await broker.claim("a", instances=1)
    await broker.claim("b", instances=1)
    before = broker.writes.total()
    await broker.simulation.advance(36_000)
    assert broker.writes.total() == before


async def test_claims_stay_pending_without_the_namespace_of_buckets(
    runner: asyncio.Runner, simulation: Simulation
) -> None:
    for strict in (False, True):
        broker = Broker(simulation, strict=strict)
        await broker.client.create(NAMESPACE, NAMESPACE.body("default"))
        await broker.run()
        await broker.claim("a", instances=1)
        assert await broker.decision("a") == OPEN
        await broker.stop()


# In lenient mode


async def test_a_denied_claim_is_granted_when_capacity_appears(lenient: Broker) -> None:
    await lenient.allow(instances=1)
    await lenient.claim("a", instances=1)
    await lenient.claim("b", instances=1)
    assert await lenient.decision("b") == DENIED
    await lenient.allow(instances=2)
    assert await lenient.decision("b") == GRANTED


async def test_a_claim_is_granted_as_a_whole_or_not_at_all(lenient: Broker) -> None:
    await lenient.allow(instances=5, vcpus=500)
    await lenient.claim("a", instances=1, vcpus=1000)
    assert await lenient.decision("a") == DENIED
    assert await lenient.bucket("instances") == (5, 0, 5)


async def test_an_invalid_claim_is_refused_with_the_rule_and_holds_nothing(lenient: Broker) -> None:
    await lenient.allow(instances=5)
    await lenient.claim("a", DEMO | {"apiGroup": "elsewhere.example"}, instances=1)
    assert await lenient.decision("a") == WRONG
    assert await lenient.bucket("instances") == (5, 0, 5)
    claim = await lenient.get("a")
    assert claim.status is not None
    assert "spec.consumerRef must be a Project" in claim.status.conditions[0].message


async def test_claims_of_other_consumers_are_ignored(lenient: Broker) -> None:
    await lenient.allow(instances=5)
    await lenient.claim("a", DEMO | {"name": "other"}, instances=1)
    assert await lenient.decision("a") == OPEN


# In strict mode


async def test_in_strict_mode_a_denial_is_final_until_the_claim_is_created_again(strict: Broker) -> None:
    await strict.allow(instances=1)
    await strict.claim("a", instances=1)
    await strict.claim("b", instances=1)
    await strict.release("a")
    await strict.allow(instances=5)
    await strict.simulation.advance(3600)
    assert await strict.decision("b") == DENIED
    await strict.release("b")
    await strict.claim("b", instances=1)
    assert await strict.decision("b") == GRANTED


async def test_in_strict_mode_a_partly_granted_claim_keeps_its_share_until_it_is_deleted(strict: Broker) -> None:
    await strict.allow(instances=1, vcpus=500)
    await strict.claim("a", instances=1, vcpus=1000)
    assert await strict.decision("a") == DENIED
    assert await strict.bucket("instances") == (1, 1, 0)
    assert await strict.bucket("vcpus") == (500, 0, 500)
    await strict.claim("b", instances=1)
    assert await strict.decision("b") == DENIED
    await strict.release("a")
    await strict.claim("c", instances=1)
    assert await strict.decision("c") == GRANTED


@pytest.mark.parametrize("part", [{"apiGroup": ""}, {"namespace": "default"}])
async def test_in_strict_mode_a_consumer_that_differs_from_the_grants_waits_forever(strict: Broker, part: Json) -> None:
    await strict.allow(instances=5)
    await strict.claim("a", DEMO | part, instances=1)
    await strict.simulation.advance(3600)
    assert await strict.decision("a") == OPEN
    assert await strict.bucket("instances") == (5, 0, 5)


async def test_in_strict_mode_a_claim_older_than_its_grant_stays_denied(strict: Broker) -> None:
    await strict.claim("a", instances=1)
    assert await strict.decision("a") == DENIED
    assert await strict.bucket("instances") == (0, 0, 0)
    await strict.allow(instances=5)
    assert await strict.decision("a") == DENIED


async def test_in_strict_mode_the_bucket_is_written_before_the_claim(strict: Broker) -> None:
    await strict.allow(instances=1)
    before = len(strict.writes.last)
    await strict.claim("a", instances=1)
    updates = [line for line in list(strict.writes.last)[before:] if " status " in line]
    assert [line.split(" status ")[1].split(" ")[0] for line in updates] == ["AllowanceBucket", "ResourceClaim"]


async def test_in_strict_mode_a_crash_between_bucket_and_claim_loses_nothing(strict: Broker) -> None:
    await strict.allow(instances=1)
    fault = strict.faults["demo"].fail(calls("PUT", "resourceclaims"))
    await strict.claim("a", instances=1)

    async def is_granted() -> bool:
        return await strict.decision("a") == GRANTED

    await strict.simulation.until(is_granted, 30)
    assert fault.fired
    assert await strict.bucket("instances") == (1, 1, 0)


async def test_a_bucket_without_grants_shows_a_limit_of_zero(lenient: Broker) -> None:
    await lenient.allow(instances=10)
    await lenient.claim("a", instances=1)
    await lenient.client.delete(RESOURCE_GRANT, "instances", "milo-system")
    await lenient.settle()
    assert await lenient.bucket("instances") == (0, 1, 0)


async def test_a_granted_claim_keeps_its_amount_whatever_it_requests_later(broker: Broker) -> None:
    await broker.allow(instances=10)
    await broker.claim("a", instances=1)
    more = {"requests": [{"resourceType": _type("instances"), "amount": 1000}]}
    await broker.client.merge_patch(RESOURCE_CLAIM, "a", "default", {"spec": more})
    await broker.settle()
    status = (await broker.get("a")).status
    assert status is not None
    assert [entry.allocated_amount for entry in status.allocations] == [1]
    assert await broker.bucket("instances") == (10, 1, 9)
