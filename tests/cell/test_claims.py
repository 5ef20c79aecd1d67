"""The claim, its evaluation, the tiers, and denied claims that are recreated."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Gauge

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.quota import RESOURCE_CLAIM, RESOURCE_GRANT
from datum_compute.cell.claims import Claims
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.quota import Disabled
from datum_compute.cell.quota_gate import NAME
from datum_compute.cell.verdict import Verdict, reported_verdict, tier
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.errors import Cause, Forbidden, NotFound, from_status
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import CONFIG_MAP, NAMESPACE
from datum_compute.kube.meta import Json, as_dict, decode, encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.operator.controllers import cell_controllers
from datum_compute.platform.quota import QuotaBroker
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.clock import ShiftedClock
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.cell.conftest import cell_name
from tests.cell.site import FINALIZERS, GROUP, NAMESPACE_NAME, SPEC, Site

WAITING = "Waiting for quota evaluation"
PENDING = ("Unknown", "PendingEvaluation", WAITING)
NO_BUDGET = "ResourceClaim is pending: no AllowanceBucket configured for this project"


def failures(registry: CollectorRegistry) -> dict[str, float]:
    """Failures by reason, without those that never happened."""
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    counted = [sample for sample in samples if sample.name == "compute_quota_eval_failures_total"]
    return {sample.labels["reason"]: sample.value for sample in counted if sample.value}


def value_of(metric: Gauge) -> float:
    (family,) = metric.collect()
    return family.samples[0].value


# Disabled


async def test_everything_is_granted_while_quota_is_disabled(simulation: Simulation) -> None:
    assert await Disabled().evaluate(None, None, timedelta(0)) == Verdict(  # type: ignore[arg-type]
        "True", "QuotaDisabled", "Quota enforcement disabled: no credential configured"
    )


def test_disabled_quota_is_logged_once_as_an_error() -> None:
    with structlog.testing.capture_logs() as logs:
        Disabled()
    assert [line["log_level"] for line in logs] == ["error"]


def test_the_gauge_shows_whether_quota_is_enforced() -> None:
    metrics = Metrics()
    assert value_of(metrics.enforcement_enabled) == 0
    Claims(Fleet(), cell_name, NAME, metrics=metrics)
    assert value_of(metrics.enforcement_enabled) == 1


# The claim


async def test_the_claim_names_project_instance_and_amounts(site: Site) -> None:
    await site.create()
    claim = await site.claim()
    assert claim.metadata.labels == {
        f"{GROUP}/source-cluster": "cell-dfw",
        f"{GROUP}/instance-namespace": NAMESPACE_NAME,
        f"{GROUP}/city-code": "DFW",
        f"{GROUP}/workload-uid": "uid-of-hello",
    }
    project = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
    spec = as_dict(claim.spec_json)
    assert (spec["consumerRef"], spec["resourceRef"]) == (project, project)
    assert {request["resourceType"]: request["amount"] for request in spec["requests"]} == {
        f"{GROUP}/instances": 1,
        f"{GROUP}/vcpus": 1000,
        f"{GROUP}/memory": 2048,
    }


async def test_a_claim_that_can_only_count_the_instance_is_logged(site: Site) -> None:
    with structlog.testing.capture_logs() as logs:
        await site.create(spec=SPEC | {"runtime": SPEC["runtime"] | {"resources": {"instanceType": "example/unknown"}}})
    assert [request["resourceType"] for request in as_dict((await site.claim()).spec_json)["requests"]] == [
        f"{GROUP}/instances"
    ]
    assert [line["instance"] for line in logs if line["event"] == "claim of unknown size"] == [
        f"{NAMESPACE_NAME}/web-0"
    ]


async def test_a_claim_is_never_changed_and_is_deleted_with_its_instance(site: Site) -> None:
    await site.create()
    before = await site.claim()
    await site.grant()
    await site.runs()
    after = await site.claim()
    assert (after.metadata.uid, after.spec_json) == (before.metadata.uid, before.spec_json)
    await site.delete()
    assert await site.claims() == []
    assert await site.instances() == []


async def test_the_claim_of_an_instance_that_still_runs_is_kept(site: Site) -> None:
    await site.create()
    await site.grant()
    await site.runs()
    before = await site.claim()
    provider = {"metadata": {"finalizers": ["provider.example/finalizer", *FINALIZERS]}}
    await site.cell.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, provider)
    await site.delete()
    await site.advance(600)
    await site.restart()
    await site.advance(600)
    assert (await site.claim()).metadata.uid == before.metadata.uid
    await site.cell.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, {"metadata": {"finalizers": list(FINALIZERS)}})
    await site.advance(1)
    assert (await site.claims(), await site.instances()) == ([], [])


# The verdict: what the claim says, QuotaGranted, the event, and the metric

DECIDED: dict[str, tuple[tuple[str, str, str], tuple[str, str, str]]] = {
    "ValidationFailed": (("False", "ValidationFailed", "no such type"), ("False", "ValidationFailed", "no such type")),
    "QuotaExceeded": (("False", "QuotaExceeded", "0 left"), ("False", "QuotaExceeded", "0 left")),
    "denied for another reason": (("False", "Whatever", "no"), ("False", "QuotaExceeded", "no")),
    "True": (("True", "QuotaAvailable", "fits"), ("True", "QuotaAvailable", "fits")),
}


@pytest.mark.parametrize(("decision", "expected"), DECIDED.values(), ids=DECIDED.keys())
async def test_a_decided_claim_sets_the_verdict(
    site: Site, registry: CollectorRegistry, decision: tuple[str, str, str], expected: tuple[str, str, str]
) -> None:
    await site.create()
    await site.decide(*decision)
    assert await site.condition("QuotaGranted") == expected
    assert await site.gates() == ([] if expected[0] == "True" else ["Quota"])
    assert failures(registry) == {}
    assert await site.event_reasons() == []


async def test_a_claim_just_created_is_pending(site: Site) -> None:
    await site.create()
    assert await site.condition("QuotaGranted") == PENDING
    assert await site.gates() == ["Quota"]


async def test_an_undecided_claim_is_pending_for_a_minute_and_then_lacks_a_budget(
    site: Site, registry: CollectorRegistry
) -> None:
    await site.create()
    await site.advance(50)
    assert await site.condition("QuotaGranted") == PENDING
    assert await site.event_reasons() == []
    await site.advance(200)
    assert await site.condition("QuotaGranted") == ("Unknown", "QuotaNoBudget", NO_BUDGET)
    assert await site.events() == [("QuotaNoBudget", NO_BUDGET)]  # once, although it is polled
    assert failures(registry)["no_budget"] > 5
    assert await site.gates() == ["Quota"]


async def test_a_claim_without_a_granted_condition_is_pending(site: Site) -> None:
    await site.create()
    claim = await site.claim()
    await site.project.replace_status(RESOURCE_CLAIM, claim, {"conditions": []})
    await site.advance(120)
    assert (await site.condition("QuotaGranted"))[:2] == ("Unknown", "PendingEvaluation")


async def test_a_failed_read_of_the_claim_makes_the_backend_unavailable(
    site: Site, registry: CollectorRegistry
) -> None:
    site.faults["demo"].take_away()
    await site.create()
    await site.advance(5)
    status, reason, message = await site.condition("QuotaGranted")
    assert (status, reason) == ("False", "QuotaBackendUnavailable")
    assert message == "The quota system cannot be reached; the instance waits until it can"
    assert await site.event_reasons() == ["QuotaBackendUnavailable"]
    assert set(failures(registry)) == {"backend_unavailable"}
    site.faults["demo"].bring_back()
    await site.advance(10)
    assert await site.condition("QuotaGranted") == PENDING


async def test_a_missing_project_namespace_is_reported(site: Site, registry: CollectorRegistry) -> None:
    labels = {"meta.datumapis.com/upstream-namespace": "elsewhere"}
    await site.cell.merge_patch(NAMESPACE, NAMESPACE_NAME, "", {"metadata": {"labels": labels}})
    await site.create()
    sentence = "Namespace elsewhere does not exist in project demo"
    assert await site.condition("QuotaGranted") == ("False", "QuotaNamespaceNotFound", sentence)
    assert await site.events() == [("QuotaNamespaceNotFound", sentence)]
    assert set(failures(registry)) == {"namespace_not_found"}


@pytest.mark.parametrize("code", [403, 422])
async def test_a_refused_claim_is_reported_as_misconfigured(site: Site, registry: CollectorRegistry, code: int) -> None:
    async def refuse(call: Call) -> Answer | None:
        status = {"kind": "Status", "status": "Failure", "message": "not like this", "code": code}
        return Answer(code, encode(status)) if calls("POST", "resourceclaims")(call) else None

    site.faults["demo"].instead = refuse
    await site.create()
    status, reason, message = await site.condition("QuotaGranted")
    assert (status, reason) == ("False", "QuotaMisconfigured")
    assert message == "The quota system refused the claim: not like this"
    assert await site.event_reasons() == ["QuotaMisconfigured"]
    assert set(failures(registry)) == {"misconfigured"}
    site.faults["demo"].instead = None
    await site.advance(2)
    assert await site.condition("QuotaGranted") == PENDING


async def test_a_suspended_project_is_the_reason_and_polled_by_the_tiers(
    site: Site, registry: CollectorRegistry
) -> None:
    causes = [Cause("ProjectSuspended", "project demo is suspended: unpaid")]
    refusal = site.faults["demo"].refuse(calls("POST", "resourceclaims"), Forbidden("not now", causes=causes))
    await site.create()
    sentence = "Project demo is suspended; the instance waits until it is active again"
    assert await site.condition("QuotaGranted") == ("False", "ProjectSuspended", sentence)
    assert await site.events() == [("ProjectSuspended", sentence)]
    assert set(failures(registry)) == {"project_suspended"}
    await site.advance(700)
    assert site.manager.controllers["quota-gate"].results["error"] == 0
    assert refusal.times < 100  # by the tiers
    assert await site.event_reasons() == ["ProjectSuspended"]
    refusal.lift()
    await site.advance(300)
    await site.grant()
    assert await site.gates() == []


async def test_a_suspended_project_does_not_affect_running_instances(site: Site) -> None:
    await site.create()
    await site.grant()
    await site.runs()
    causes = [Cause("ProjectSuspended", "project demo is suspended: unpaid")]
    refusal = site.faults["demo"].refuse(calls("POST", "resourceclaims"), Forbidden("not now", causes=causes))
    await site.project.delete(RESOURCE_CLAIM, "instance-web-0", "default")
    await site.advance(100)
    assert (await site.condition("Ready"))[0] == "True"
    assert (await site.condition("QuotaGranted"))[:2] == ("True", "QuotaAvailable")
    assert await site.event_reasons() == ["ProjectSuspended"]
    refusal.lift()
    await site.advance(300)
    assert await site.claims() == ["instance-web-0"]


async def test_a_terminating_project_namespace_is_tried_once_without_a_warning(
    site: Site, registry: CollectorRegistry
) -> None:
    await site.project.create(CONFIG_MAP, CONFIG_MAP.body("held", "default", finalizers=["example.com/held"]))
    await site.project.delete(NAMESPACE, "default")
    await site.settle()
    for number in range(5):
        await site.create(f"web-{number}")
    await site.advance(30)
    tries = [call for call in site.faults["demo"].written if calls("POST", "resourceclaims")(call)]
    assert 1 <= len(tries) <= 5  # each may be under way when the first is refused
    assert site.manager.controllers["quota-gate"].results["error"] == 0
    assert failures(registry) == {}
    for number in range(5):
        assert await site.event_reasons(f"web-{number}") == []
        assert await site.condition("QuotaGranted", f"web-{number}") == PENDING


async def test_the_lost_claim_of_a_running_instance_is_created_again_after_a_moment(site: Site) -> None:
    """If it was deleted with the project's namespace, the Instance is deleted within that time."""
    await site.create()
    await site.grant()
    await site.runs()
    await site.advance(700)  # on the slowest tier
    before = len(site.faults["demo"].written)
    await site.project.delete(RESOURCE_CLAIM, "instance-web-0", "default")
    await site.advance(4)
    assert len(site.faults["demo"].written) == before
    assert (await site.condition("QuotaGranted"))[:2] == ("True", "QuotaAvailable")
    assert await site.event_reasons() == []
    await site.advance(2)
    assert await site.claims() == ["instance-web-0"]


async def test_nothing_is_claimed_for_instances_of_a_terminating_namespace(site: Site) -> None:
    namespace = await site.cell.get(NAMESPACE, NAMESPACE_NAME)
    metadata = replace(namespace.metadata, resource_version="1000", deletion_timestamp=site.simulation.now())
    site.fleet.plane("cell").informer(NAMESPACE).fold(replace(namespace, metadata=metadata))
    await site.create()
    await site.advance(30)
    assert site.faults["demo"].written == []
    assert site.manager.controllers["quota-gate"].results["error"] == 0
    assert (await site.gates(), await site.event_reasons()) == (["Quota"], [])


async def test_a_failed_creation_of_the_claim_makes_the_backend_unavailable(
    site: Site, registry: CollectorRegistry
) -> None:
    site.faults["demo"].fail(calls("POST", "resourceclaims"))
    await site.create()
    assert await site.event_reasons() == ["QuotaBackendUnavailable"]
    await site.advance(2)
    assert await site.condition("QuotaGranted") == PENDING
    assert set(failures(registry)) == {"backend_unavailable"}


async def test_a_claim_that_already_exists_is_read_and_evaluated(site: Site) -> None:
    """The answer to the first create was lost; the claim was created, and has been granted since."""
    lost = site.faults["demo"].lose_answer(calls("POST", "resourceclaims"))
    await site.create()
    assert lost.fired
    await site.grant()
    await site.advance(2)
    assert (await site.condition("QuotaGranted"))[1] == "QuotaAvailable"
    assert await site.gates() == []


async def test_an_instance_without_an_identity_continues_as_soon_as_it_has_one(
    site: Site, registry: CollectorRegistry
) -> None:
    labels = {"meta.datumapis.com/upstream-cluster-name": None}
    await site.cell.merge_patch(NAMESPACE, NAMESPACE_NAME, "", {"metadata": {"labels": labels}})
    await site.settle()
    await site.create()
    sentence = f"Namespace {NAMESPACE_NAME} does not say which project it belongs to"
    assert await site.condition("QuotaGranted") == ("False", "QuotaProjectIDUnresolvable", sentence)
    assert await site.events() == [("QuotaProjectIDUnresolvable", sentence)]
    assert set(failures(registry)) == {"project_id_unresolvable"}
    await site.advance(1000)  # the next tier would be five minutes away
    named = {"meta.datumapis.com/upstream-cluster-name": "cluster-demo"}
    await site.cell.merge_patch(NAMESPACE, NAMESPACE_NAME, "", {"metadata": {"labels": named}})
    await site.advance(1)
    assert (await site.condition("QuotaGranted"))[0] == "Unknown"


# The tiers

NOT_GRANTED = [Verdict(status, "Any", "") for status in ("Unknown", "False")]


@pytest.mark.parametrize("verdict", NOT_GRANTED)
@pytest.mark.parametrize(
    ("age", "expected"), [(0, 1), (59, 1), (60, 15), (299, 15), (300, 60), (599, 60), (600, 300), (10**6, 300)]
)
def test_pending_quota_is_polled_by_age(verdict: Verdict, age: int, expected: int) -> None:
    assert tier(verdict, timedelta(seconds=age)) == expected


def test_a_granted_claim_is_not_polled() -> None:
    assert tier(Verdict("True", "QuotaAvailable", ""), timedelta(0)) is None


# What a condition keeps saying


def instance_saying(status: str, reason: str, gates: Sequence[str]) -> Instance:
    condition = {"type": "QuotaGranted", "status": status, "reason": reason, "message": "before"}
    controller = {"templateHash": "h", "schedulingGates": [{"name": gate} for gate in gates]}
    body: Json = {
        "metadata": {"name": "web-0", "namespace": "ns"},
        "spec": {"runtime": {"resources": {}}, "networkInterfaces": [], "controller": controller},
        "status": {"conditions": [condition | {"lastTransitionTime": "2026-06-01T12:00:00Z"}]},
    }
    return decode(encode(body), Instance)


UNREACHABLE = Verdict("False", "QuotaBackendUnavailable", "away", failed=True)
UNDECIDED = Verdict("Unknown", "PendingEvaluation", "Waiting for quota evaluation", fresh=True)
DENIED = Verdict("False", "QuotaExceeded", "now")
GRANTED = Verdict("True", "QuotaAvailable", "now")

KEPT: dict[str, tuple[Instance, Verdict, Verdict]] = {
    "admitted, no answer": (
        instance_saying("True", "QuotaAvailable", []),
        UNREACHABLE,
        Verdict("True", "QuotaAvailable", "before", failed=True),
    ),
    "admitted, but the gate still stands": (
        instance_saying("True", "QuotaAvailable", ["Quota"]),
        UNREACHABLE,
        UNREACHABLE,
    ),
    "a real verdict counts": (instance_saying("True", "QuotaAvailable", []), DENIED, DENIED),
    "runs, not decided yet, no answer": (
        instance_saying("Unknown", "PendingEvaluation", []),
        UNREACHABLE,
        Verdict("Unknown", "PendingEvaluation", "before", failed=True),
    ),
    "not admitted, no answer": (
        instance_saying("Unknown", "PendingEvaluation", ["Quota"]),
        UNREACHABLE,
        UNREACHABLE,
    ),
    "denied, asked anew": (
        instance_saying("False", "QuotaExceeded", ["Quota"]),
        UNDECIDED,
        Verdict("False", "QuotaExceeded", "before"),
    ),
    "denied, then granted": (instance_saying("False", "QuotaExceeded", ["Quota"]), GRANTED, GRANTED),
    "denied again": (instance_saying("False", "QuotaExceeded", ["Quota"]), DENIED, DENIED),
    "refused otherwise, then undecided": (
        instance_saying("False", "QuotaMisconfigured", ["Quota"]),
        UNDECIDED,
        UNDECIDED,
    ),
}


@pytest.mark.parametrize(("instance", "verdict", "expected"), KEPT.values(), ids=KEPT.keys())
def test_the_condition_stays_when_the_new_verdict_is_no_better_answer(
    instance: Instance, verdict: Verdict, expected: Verdict
) -> None:
    assert reported_verdict(instance, verdict) == expected


@given(
    st.sampled_from(["True", "False", "Unknown"]),
    st.sampled_from(["QuotaAvailable", "QuotaExceeded", "PendingEvaluation"]),
    st.lists(st.sampled_from(["Network", "Quota"]), unique=True),
    st.sampled_from([UNREACHABLE, UNDECIDED, DENIED, GRANTED]),
)
def test_nothing_but_a_grant_ever_opens_a_gate(status: str, reason: str, gates: list[str], verdict: Verdict) -> None:
    after = reported_verdict(instance_saying(status, reason, gates), verdict)
    if "Quota" in gates:
        assert after.granted == verdict.granted


# Denied claims


async def _denied(site: Site, age: float) -> str:
    """Creates an Instance of that age whose claim was denied at once. Returns the uid of the claim."""
    await site.create()
    await site.deny()
    uid = (await site.claim()).metadata.uid
    await site.advance(age)
    return uid


async def _uid(site: Site) -> str:
    return (await site.claim()).metadata.uid


@pytest.mark.parametrize("age", [10, 100, 290])
async def test_on_the_fast_tiers_a_denied_claim_is_left_alone(site: Site, age: float) -> None:
    assert await _denied(site, age) == await _uid(site)


async def test_on_the_slow_tiers_a_denied_claim_is_recreated_once_per_tier(site: Site) -> None:
    first = await _denied(site, 320)
    second = await _uid(site)
    assert second != first
    await site.deny()
    made = 0
    for _ in range(10):
        before = await _uid(site)
        await site.advance(60)
        if await _uid(site) != before:
            made += 1
            await site.deny()
    # Four or five in the minutes up to the tenth, then one every five minutes.
    assert 5 <= made <= 7
    for claim in (await site.project.list(RESOURCE_CLAIM)).items:
        assert claim.name == "instance-web-0"


async def test_the_denial_stays_while_the_recreated_claim_is_undecided(site: Site) -> None:
    await site.hub_deployment()
    await _denied(site, 290)
    before = await site.instance()
    copy = await site.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    first = await _uid(site)
    await site.advance(120)
    assert await _uid(site) != first
    after = await site.instance()
    assert after.metadata.resource_version == before.metadata.resource_version
    assert await site.condition("QuotaGranted") == ("False", "QuotaExceeded", "Requested 1 instance, 0 available.")
    assert await site.event_reasons() == []
    assert (await site.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)).metadata.resource_version == (
        copy.metadata.resource_version
    )


async def test_a_recreated_claim_opens_the_gate_as_soon_as_it_is_granted(site: Site) -> None:
    await _denied(site, 320)
    await site.grant()
    assert await site.gates() == []
    assert (await site.condition("QuotaGranted"))[:2] == ("True", "QuotaAvailable")
    assert (await site.condition("Programmed"))[1] == "Pending"


async def test_a_claim_is_not_recreated_before_it_is_as_old_as_its_tier(site: Site) -> None:
    """Constant events of the Instance must not recreate a claim every second."""
    await _denied(site, 320)
    await site.deny()
    before = await _uid(site)
    for _ in range(40):
        site.ask_quota()
        await site.advance(1)
    assert await _uid(site) == before


async def test_a_crash_between_deleting_and_recreating_a_claim_only_delays(site: Site) -> None:
    failing = site.faults["demo"].fail(calls("POST", "resourceclaims"), nth=2)
    await _denied(site, 320)
    assert failing.fired
    await site.advance(70)
    assert await site.claims() == ["instance-web-0"]


async def test_a_grant_at_the_moment_of_recreation_is_kept(site: Site) -> None:
    """Between reading the denied claim and deleting it somebody grants it."""
    await site.create()
    await site.deny()
    uid = await _uid(site)

    async def grant_first(call: Call) -> Answer | None:
        if call.method == "DELETE":
            site.faults["demo"].instead = None
            claim = await site.claim()
            granted = {"type": "Granted", "status": "True", "reason": "QuotaAvailable", "message": "granted"}
            status = {"conditions": [granted | {"lastTransitionTime": "2026-06-01T12:00:00Z"}]}
            await site.project.replace_status(RESOURCE_CLAIM, claim, status)
        return None

    site.faults["demo"].instead = grant_first
    await site.advance(330)
    assert await _uid(site) == uid
    assert await site.gates() == []


@pytest.fixture
def skewed(request: pytest.FixtureRequest, runner: asyncio.Runner, simulation: Simulation) -> Iterator[Site]:
    """A cell whose own clock differs from that of its servers."""
    clock = ShiftedClock(simulation, request.param)
    site = Site(simulation, lambda fleet: cell_controllers(fleet, clock, cell_name), clock=clock)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


@pytest.mark.parametrize("skewed", [301, 86_400, -301, -86_400], indirect=True)
async def test_however_clocks_differ_a_denied_claim_is_recreated_at_its_pace(skewed: Site) -> None:
    await skewed.create()
    made: list[float] = []
    latest = ""
    for _ in range(900):
        await skewed.advance(1)
        if (uid := await _uid(skewed)) != latest:
            latest = uid
            made.append(skewed.simulation.time())
            await skewed.deny()
    gaps = [later - earlier for earlier, later in pairwise(made)]
    assert made[0] < 5
    assert 298 < gaps[0] < 365  # on the slow tiers only, with a pass every second
    assert min(gaps) > 58


@pytest.mark.parametrize("skewed", [301, 86_400, -301, -86_400], indirect=True)
async def test_however_clocks_differ_pending_quota_is_polled_by_the_same_tiers(skewed: Site) -> None:
    reads: list[float] = []

    async def note(call: Call) -> Answer | None:
        if calls("GET", "resourceclaims/instance-web-0")(call):
            reads.append(skewed.simulation.time())
        return None

    skewed.faults["demo"].instead = note
    await skewed.create()
    began = skewed.simulation.time()
    await skewed.advance(800)
    tiers = ((0, 60, 1), (60, 300, 15), (300, 600, 60))
    polls = [sum(start <= at - began < end for at in reads) for start, end, _ in tiers]
    for (start, end, again), number in zip(tiers, polls, strict=True):
        assert number == pytest.approx((end - start) / again, abs=2)


@pytest.mark.parametrize("reason", ["ValidationFailed", "PendingEvaluation"])
async def test_only_a_denied_claim_is_recreated(site: Site, reason: str) -> None:
    await site.create()
    await site.decide("False", reason, "so it is")
    uid = await _uid(site)
    await site.advance(2000)
    assert await _uid(site) == uid


@pytest.fixture
def patient(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Site]:
    """A site where denied claims are left as they are."""

    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name, recreate_denied=False, write_back=False)

    site = Site(simulation, build)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


async def test_recreating_denied_claims_can_be_turned_off(patient: Site) -> None:
    uid = await _denied(patient, 2000)
    assert await _uid(patient) == uid
    await patient.grant()
    assert await patient.gates() == []


# A quota system that decides as Milo does: a denial is final


async def test_a_finally_denied_instance_runs_once_capacity_is_freed(site: Site) -> None:
    """Two instances, room for one: the second is denied for good, and admitted with a recreated claim."""
    await site.project.create(NAMESPACE, NAMESPACE.body("milo-system"))
    consumer = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
    limits = {"instances": 1, "vcpus": 4000, "memory": 8192}
    for name, amount in limits.items():
        allowance = {"resourceType": f"{GROUP}/{name}", "buckets": [{"amount": amount}]}
        body = RESOURCE_GRANT.body(f"grant-{name}", "milo-system")
        await site.project.create(RESOURCE_GRANT, body | {"spec": {"consumerRef": consumer, "allowances": [allowance]}})
    milo = Fleet()
    server = InProcess(site.engine.serve("demo", PROJECT))
    milo.add(Plane("demo", PROJECT, server, writes=Writes(), generator=site.simulation.random))
    running = asyncio.create_task(Manager(milo, [QuotaBroker(strict=True)], site.simulation).run())
    await site.advance(2)

    await site.create("web-0")
    await site.advance(2)
    await site.create("web-1")
    await site.advance(2)
    assert (await site.gates("web-0"), await site.gates("web-1")) == ([], ["Quota"])
    assert (await site.condition("QuotaGranted", "web-1"))[:2] == ("False", "QuotaExceeded")

    await site.delete("web-0")
    await site.advance(100)
    assert await site.gates("web-1") == ["Quota"]  # not recreated on the fast tiers
    await site.advance(300)
    assert await site.gates("web-1") == []
    assert await site.event_reasons("web-1") == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# While the project's plane is not engaged


async def test_a_plane_about_to_be_discovered_is_waited_for_silently(site: Site, registry: CollectorRegistry) -> None:
    site.leave("demo")
    await site.create()
    await site.advance(1)
    assert await site.gates() == ["Quota"]
    site.engage("demo")
    await site.advance(0.5)
    await site.grant()
    assert await site.gates() == []
    assert await site.event_reasons() == []
    assert failures(registry) == {}
    assert site.manager.controllers["quota-gate"].results["error"] == 0


async def test_a_plane_being_engaged_is_waited_for_silently(site: Site, registry: CollectorRegistry) -> None:
    site.leave("demo")
    site.engage("demo")
    slowness = site.faults["demo"].slow_down(5, calls("GET", "resourceclaims"))
    await site.create()
    await site.advance(4)
    assert await site.claims() == []
    slowness.lift()
    await site.advance(2)
    await site.grant()
    await site.advance(1)
    assert await site.gates() == []
    assert await site.event_reasons() == []
    assert failures(registry) == {}
    assert site.manager.controllers["quota-gate"].results["error"] == 0


async def test_after_a_restart_running_instances_stay_unchanged_while_planes_are_engaged(site: Site) -> None:
    await site.create()
    await site.grant()
    await site.runs()
    before = await site.instance()
    site.leave("demo")
    site.ask_quota()
    await site.advance(1)
    site.engage("demo")
    await site.advance(5)
    assert (await site.instance()).metadata.resource_version == before.metadata.resource_version
    assert await site.event_reasons() == []


async def test_without_an_engaged_plane_no_gate_opens_and_one_warning_is_emitted(site: Site) -> None:
    site.leave("demo")
    await site.create()
    await site.advance(7200)
    assert await site.gates() == ["Quota"]
    assert (await site.condition("QuotaGranted"))[:2] == ("False", "QuotaBackendUnavailable")
    assert await site.event_reasons() == ["QuotaBackendUnavailable"]
    site.engage("demo")
    await site.advance(1)  # at once, not when its tier is over
    await site.grant()
    assert await site.gates() == []


@pytest.mark.parametrize("code", [401, 403, 404])
async def test_without_a_watch_on_claims_they_are_read_and_written_on_the_tiers(site: Site, code: int) -> None:
    """A credential that may only get, create and delete claims, by name."""
    site.leave("demo")
    site.engage("demo")
    whole = calls("GET", "resourceclaims")
    refusal = from_status(code, b'{"message": "not the whole list"}', "demo")
    site.faults["demo"].refuse(lambda call: whole(call) and call.path.endswith("resourceclaims"), refusal)
    await site.create()
    await site.advance(1)
    await site.grant()
    await site.advance(1.1)
    assert await site.gates() == []
    await site.delete()
    await site.advance(1)
    assert (await site.instances(), await site.claims()) == ([], [])


# Release


async def test_a_claim_that_cannot_be_located_is_left_behind_and_reported(
    site: Site, registry: CollectorRegistry
) -> None:
    await site.create()
    await site.grant()
    gone = {"meta.datumapis.com/upstream-cluster-name": None}
    await site.cell.merge_patch(NAMESPACE, NAMESPACE_NAME, "", {"metadata": {"labels": gone}})
    await site.settle()
    await site.delete()
    with pytest.raises(NotFound):
        await site.instance()
    assert "QuotaClaimOrphaned" in await site.event_reasons()
    assert registry.get_sample_value("compute_quota_claim_orphaned_total") == 1


async def test_an_unreachable_quota_system_keeps_the_claim_s_finalizer(site: Site) -> None:
    await site.create()
    await site.grant()
    site.faults["demo"].take_away()
    await site.delete()
    assert (await site.instance()).metadata.finalizers == (f"quota.{GROUP}/claim-cleanup",)
    site.faults["demo"].bring_back()
    await site.advance(10)
    assert await site.instances() == []
    assert await site.claims() == []


# While the quota system is unreachable


async def test_an_outage_is_reported_once_however_long_it_lasts(site: Site) -> None:
    await site.hub_deployment()
    site.faults["demo"].take_away()
    for number in range(3):
        await site.create(f"web-{number}")
    await site.advance(5)
    before = site.writes.total()
    await site.advance(600)
    assert site.writes.total() == before


async def test_failed_evaluations_run_again_as_soon_as_the_quota_system_is_back(site: Site) -> None:
    site.faults["demo"].take_away()
    await site.create()
    await site.advance(700)  # by now it would be tried again only after half a minute
    site.faults["demo"].bring_back()

    async def is_read_again() -> bool:
        return bool(await site.claims())

    await site.simulation.until(is_read_again, within=6)  # the longest that a watch waits before it is tried again


async def test_a_running_instance_keeps_running_while_its_new_claim_is_undecided(site: Site) -> None:
    await site.hub_deployment()
    await site.create()
    await site.grant()
    await site.runs()
    await site.project.delete(RESOURCE_CLAIM, "instance-web-0", "default")
    await site.advance(2)
    site.faults["demo"].take_away()
    await site.advance(20)
    assert (await site.condition("Ready"))[0] == "True"
