"""The quota gate: from claims to Instances, its tiers, and what a conflict or an outage must not break."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
import structlog

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.quota import QUOTA_GROUP, RESOURCE_CLAIM, ResourceClaim
from datum_compute.api.template import InstanceRuntime
from datum_compute.api.template_hash import template_hash
from datum_compute.cell.claims import Claims
from datum_compute.cell.deployment import DeploymentController
from datum_compute.cell.quota_gate import NAME, QuotaGate
from datum_compute.cell.sizing import requests
from datum_compute.kube.errors import Conflict, from_status
from datum_compute.kube.meta import Json, as_dict, decode, encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.caches.informer import Change
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Drop, Request
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import GROUP, LABELS, NAMESPACE_NAME, SPEC, TEMPLATE, Site
from tests.conftest import count

# From a claim to its Instance


def claim(name: str, labels: dict[str, str]) -> ResourceClaim:
    project = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
    granted = {"type": "Granted", "status": "True", "reason": "QuotaAvailable", "message": ""}
    body: Json = {
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"consumerRef": project, "resourceRef": project, "requests": []},
        "status": {"conditions": [granted | {"lastTransitionTime": "2026-06-01T12:00:00Z"}]},
    }
    return decode(encode(body), ResourceClaim)


OURS = {f"{GROUP}/source-cluster": "cell-dfw", f"{GROUP}/instance-namespace": "ns-1"}
CLAIMS: dict[str, tuple[ResourceClaim, list[Request | Drop]]] = {
    "by its labels, never by its resourceRef": (
        claim("instance-web-0", OURS),
        [Request("cell", "ns-1", "web-0")],
    ),
    "no prefix": (claim("web-0", OURS), [Drop("unlabelled", ordinary=True)]),
    "an instance that is called instance-0": (
        claim("instance-instance-0", OURS),
        [Request("cell", "ns-1", "instance-0")],
    ),
    "no namespace": (
        claim("instance-web-0", {f"{GROUP}/source-cluster": "cell-dfw"}),
        [Drop("unlabelled", ordinary=True)],
    ),
    "another cell": (claim("instance-web-0", OURS | {f"{GROUP}/source-cluster": "cell-ord"}), []),
}


@pytest.mark.parametrize(("changed", "expected"), CLAIMS.values(), ids=CLAIMS.keys())
async def test_a_claim_leads_to_its_instance(
    site: Site, changed: ResourceClaim, expected: list[Request | Drop]
) -> None:
    quota = Claims(site.fleet, cell_name, NAME)
    project = site.fleet.plane("demo")
    assert list(quota.to_instance(project, Change(None, changed))) == expected


# The floor


@pytest.mark.parametrize("conflict_in", ["status", "write-back"])
async def test_after_a_conflict_an_instance_is_evaluated_again_within_its_tier(site: Site, conflict_in: str) -> None:
    await site.hub_deployment()
    plane, path = ("cell", "status") if conflict_in == "status" else ("hub", "instances")
    attempts: list[float] = []

    async def conflict(call: Call) -> Answer | None:
        if call.method == "GET" or path not in call.path or "events" in call.path:
            return None
        attempts.append(site.simulation.time())
        status = {"kind": "Status", "status": "Failure", "message": "changed", "reason": "Conflict", "code": 409}
        return Answer(409, encode(status))

    site.faults[plane].instead = conflict
    await site.create()
    await site.advance(30)
    gaps = [later - earlier for earlier, later in pairwise(attempts)]
    assert len(attempts) > 25
    assert max(gaps) <= 1.01
    for controller in site.manager.controllers.values():
        assert controller.results["error"] == 0  # a conflict is none


async def test_a_pass_declares_its_tier_before_a_conflict_can_end_it(site: Site) -> None:
    """A conflict is tried again within a second anyway, so only the pass itself shows that its floor was not lost."""
    site.faults["cell"].refuse(calls("PUT", "instances/web-0/status"), Conflict("changed"))
    await site.create()
    await site.deny()
    gate = QuotaGate(site.fleet, site.simulation, Claims(site.fleet, cell_name, NAME))
    pass_ = site.manager.controllers[NAME].new_pass(Request("cell", NAMESPACE_NAME, "web-0"))
    with pytest.raises(Conflict):
        await gate.reconcile(pass_)
    assert pass_.floor == 1


@pytest.mark.parametrize("code", [403, 500, 503])
async def test_after_any_other_error_an_instance_is_evaluated_again_within_its_tier(site: Site, code: int) -> None:
    """The status cannot be written: how soon the quota system is asked again was settled before."""
    await site.create()
    reads: list[float] = []

    async def note(call: Call) -> Answer | None:
        if calls("GET", "resourceclaims/instance-web-0")(call):
            reads.append(site.simulation.time())
        return None

    site.faults["demo"].instead = note
    site.faults["cell"].refuse(calls("PUT", "instances/web-0/status"), from_status(code, b"", "cell"))
    await site.deny()
    await site.advance(50)
    gaps = [later - earlier for earlier, later in pairwise(reads)]
    assert len(reads) > 45
    assert max(gaps) <= 1.01
    assert site.manager.controllers["quota-gate"].results["error"] > 45


async def test_the_tier_depends_on_the_creation_time_not_on_the_condition(site: Site) -> None:
    """The schema dates the condition 1970 by default."""
    await site.create()
    instance = await site.instance()
    assert instance.status is not None
    assert {
        condition.last_transition_time.year
        for condition in instance.status.conditions
        if condition.type == "QuotaGranted"
    } == {1970}
    await site.advance(5)
    reads: list[float] = []

    async def note(call: Call) -> Answer | None:
        if calls("GET", "resourceclaims/instance-web-0")(call):
            reads.append(site.simulation.time())
        return None

    site.faults["demo"].instead = note
    await site.advance(10)
    assert 9 <= len(reads) <= 11


# Reasons and amounts


@pytest.mark.parametrize("reason", ["ImageUnavailable", "InstanceCrashing", "ConfigurationError"])
async def test_the_provider_s_reason_reaches_ready_and_emits_a_warning(site: Site, reason: str) -> None:
    await site.create()
    await site.grant()
    await site.report(Programmed=("Unknown", "ProgrammingInProgress"), Available=("Unknown", reason))
    assert await site.condition("Ready") == ("Unknown", reason, "as reported")
    assert await site.events() == [(reason, "as reported")]


def sandbox(*limits: Json) -> Json:
    containers = [
        {"name": f"c{index}", "image": "i", "resources": {"limits": limit}} for index, limit in enumerate(limits)
    ]
    return {"sandbox": {"containers": containers}}


CATALOG: Json = {"instanceType": "datumcloud/d1-standard-2"}
ASKED: Json = {"requests": {"cpu": "500m", "memory": "1Gi"}}
BOTH: Json = {"cpu": "1500m", "memory": "512Mi"}

SIZES: dict[str, tuple[Json, tuple[int, int] | None]] = {
    "d1-standard-2": ({"resources": CATALOG}, (1000, 2048)),
    "requests win over the catalog": ({"resources": CATALOG | ASKED}, (500, 1024)),
    "limits win over requests": ({"resources": CATALOG | ASKED} | sandbox(BOTH), (1500, 512)),
    "limits are summed": ({"resources": CATALOG} | sandbox(BOTH, {"cpu": 1, "memory": "1Gi"}), (2500, 1536)),
    "a container without limits: the catalog": ({"resources": CATALOG} | sandbox(BOTH, {}), (1000, 2048)),
    "one limit of two: the catalog": ({"resources": CATALOG} | sandbox({"cpu": 1}), (1000, 2048)),
    "cpu is rounded up, memory down": (
        {"resources": CATALOG} | sandbox({"cpu": "100.5m", "memory": "1048577"}),
        (101, 1),
    ),
    "a machine starts at its requests": (
        {"resources": CATALOG | ASKED, "virtualMachine": {"volumeAttachments": []}},
        (500, 1024),
    ),
    "what nobody can size is counted": ({"resources": {"instanceType": "mine/own"}}, None),
    "nor what cannot be read": (
        {"resources": {"instanceType": "mine/own", "requests": {"cpu": "much", "memory": "more"}}},
        None,
    ),
}


@pytest.mark.parametrize(("runtime", "expected"), SIZES.values(), ids=SIZES.keys())
def test_claimed_amounts_come_from_limits_then_requests_then_the_catalog(
    runtime: Json, expected: tuple[int, int] | None
) -> None:
    amounts = requests(decode(encode(runtime), InstanceRuntime))
    size = {f"{GROUP}/vcpus": expected[0], f"{GROUP}/memory": expected[1]} if expected else {}
    assert amounts == {f"{GROUP}/instances": 1} | size


# The template


async def test_building_an_instance_leaves_the_template_as_it_is(
    runner: asyncio.Runner, simulation: Simulation
) -> None:
    site = Site(simulation, lambda fleet: [DeploymentController(fleet)])
    await site.start()
    before = template_hash(encode(TEMPLATE))
    await site.deploy(1)
    instance = await site.instance()
    assert f"{GROUP}/instance-index" in instance.metadata.labels
    after = await site.deployment()
    assert template_hash(after.template_json) == before
    assert as_dict(after.template_json)["metadata"]["labels"] == {"app": "hello"}
    assert instance.spec.controller is not None
    assert instance.spec.controller.template_hash == before
    await site.stop()


# A plane without quota kinds


async def test_a_plane_without_the_quota_kinds_stops_nothing(runner: asyncio.Runner, simulation: Simulation) -> None:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name)

    async def unknown(call: Call) -> Answer | None:
        status = {
            "kind": "Status",
            "status": "Failure",
            "message": "no such resource",
            "reason": "NotFound",
            "code": 404,
        }
        return Answer(404, encode(status)) if QUOTA_GROUP in call.path else None

    site = Site(simulation, build)
    site.faults["demo"].instead = unknown
    await site.start()
    await site.hub_deployment()
    await site.create()
    assert (await site.condition("QuotaGranted"))[0] == "False"
    assert await site.copies() == ["web-0"]
    site.faults["demo"].instead = None
    await site.advance(5)  # the tier asks without the watch
    await site.grant()
    await site.advance(2)
    assert await site.gates() == []
    await site.stop()


# Earlier grants and outages


async def test_the_grant_of_an_earlier_instance_of_the_name_is_not_used(site: Site) -> None:
    await site.create()
    await site.grant()
    await site.runs()
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    await site.project.merge_patch(RESOURCE_CLAIM, "instance-web-0", "default", held)
    await site.delete()
    await site.create()
    old = await site.claim()
    assert old.metadata.deleting
    assert (await site.condition("QuotaGranted"))[:2] == ("Unknown", "PendingEvaluation")
    assert await site.gates() == ["Quota"]
    await site.project.merge_patch(RESOURCE_CLAIM, "instance-web-0", "default", {"metadata": {"finalizers": None}})
    await site.advance(2)
    new = await site.claim()
    assert new.metadata.uid != old.metadata.uid
    await site.grant()
    assert await site.gates() == []


async def test_a_quota_outage_does_not_affect_running_instances_and_is_reported_once(site: Site) -> None:
    await site.hub_deployment()
    await site.create()
    await site.grant()
    await site.runs()
    await site.advance(1)
    before = await site.instance()
    site.faults["demo"].take_away()
    await site.advance(1)
    for _ in range(5):
        site.ask_quota()
        await site.advance(20)
    after = await site.instance()
    assert as_dict(after.status_json) == as_dict(before.status_json)
    assert (await site.condition("Ready"))[0] == "True"
    assert await site.event_reasons() == ["QuotaBackendUnavailable"]
    site.faults["demo"].bring_back()
    await site.advance(10)
    passes = site.manager.controllers["quota-gate"].passes
    await site.advance(600)
    assert site.manager.controllers["quota-gate"].passes <= passes + 2  # nothing is retried for ever


# The log


async def test_each_requeue_is_logged_with_its_tier_and_age(site: Site) -> None:
    with structlog.testing.capture_logs() as logs:
        await site.create()
        await site.advance(100)
    decisions = [line for line in logs if line["event"] == "quota requeue"]
    passes = site.manager.controllers["quota-gate"].passes
    assert passes - 2 <= len(decisions) <= passes
    for line in decisions:
        assert line["tier"] == (1 if line["age"] < 60 else 15)
        assert line["request"] == f"cell:{NAMESPACE_NAME}/web-0"
    assert {line["tier"] for line in decisions} == {1, 15}


async def test_conflicts_are_logged_too(site: Site) -> None:
    async def conflict(call: Call) -> Answer | None:
        status = {"kind": "Status", "status": "Failure", "message": "changed", "reason": "Conflict", "code": 409}
        return Answer(409, encode(status)) if call.method == "PUT" else None

    site.faults["cell"].instead = conflict
    with structlog.testing.capture_logs() as logs:
        await site.create()
        await site.grant()
    assert [line for line in logs if line["event"] == "conflict, requeue after"]


# A burst of grants without events


@pytest.mark.parametrize("seed", range(1, count(1, 20) + 1))
async def test_a_burst_of_200_grants_without_events_is_admitted_within_two_seconds(site: Site, seed: int) -> None:
    names = [f"web-{ordinal}" for ordinal in range(200)]
    opened: dict[str, float] = {}

    def note(change: Change[Instance]) -> None:
        controller = change.object.spec.controller
        if controller is not None and not controller.scheduling_gates:
            opened.setdefault(change.object.name, site.simulation.time())

    site.fleet.plane("cell").informer(INSTANCE).subscribe(note)
    site.faults["demo"].silence_watches()  # nothing arrives, and nothing says so
    for name in names:
        controller = {"controller": {"templateHash": "0", "schedulingGates": [{"name": "Quota"}]}}
        finalizers = [f"{GROUP}/instance-controller", f"quota.{GROUP}/claim-cleanup"]
        labels = LABELS | {f"{GROUP}/instance-index": name.removeprefix("web-")}
        body = INSTANCE.body(name, NAMESPACE_NAME, labels=labels, finalizers=finalizers)
        await site.cell.create(INSTANCE, body | {"spec": SPEC | controller})
    await site.advance(1)
    assert len(await site.claims()) == 200

    site.simulation.random.shuffle(names)
    granted: dict[str, float] = {}
    for age, some in ((2, names[:120]), (15, names[120:180]), (54, names[180:])):
        await site.advance(age - site.simulation.time())
        for name in some:
            await site.grant(name)
            granted[name] = site.simulation.time()
    await site.advance(3)
    assert set(opened) == set(names)
    assert {name: opened[name] - at for name, at in granted.items() if opened[name] - at > 2} == {}
