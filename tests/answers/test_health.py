"""What conditions mean, in plain words."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from msgspec import Raw

from datum_compute.answers.health import Block, Health, block, instance_health, workload_health
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import INITIAL_STATUS, Instance
from datum_compute.api.workload import Workload
from datum_compute.kube import conditions as kube_conditions
from datum_compute.kube.meta import Condition, Json, ObjectMeta, encode
from tests.cli.conftest import NOW, condition, placement, template


def instance(*conditions: Json, deleted: datetime | None = None, status: Json | None = None) -> Instance:
    status_json = Raw(encode({"conditions": list(conditions)} if status is None else status))
    return Instance(ObjectMeta(name="shop-default-dfw-0", deletion_timestamp=deleted), status_json=status_json)


def ready(status: str, reason: str, message: str = "why") -> Json:
    return condition("Ready", status, reason, message)


def quota(status: str, reason: str, message: str = "why") -> Json:
    return condition("QuotaGranted", status, reason, message)


def programmed(status: str, reason: str, message: str = "why") -> Json:
    return condition("Programmed", status, reason, message)


NOT_TRUE = ("False", "Unknown")


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        ([ready("True", "Available")], "Available"),
        ([ready("True", "Available"), quota("False", "QuotaExceeded")], "Available"),
        ([quota("False", "QuotaExceeded"), ready("False", "PendingQuota")], "Pending (quota exceeded)"),
        ([quota("False", "ValidationFailed"), ready("False", "PendingQuota")], "Pending (quota validation failed)"),
        ([quota("Unknown", "PendingEvaluation"), ready("Unknown", "Pending")], "Pending (quota evaluation)"),
        *(
            ([quota(s, "QuotaNoBudget"), ready("Unknown", "Pending")], "Pending (no quota configured)")
            for s in NOT_TRUE
        ),
        *(([programmed(s, "ImageUnavailable"), ready("False", "X")], "Failed (image unavailable)") for s in NOT_TRUE),
        *(([programmed(s, "InstanceCrashing"), ready("False", "X")], "Failed (crashing)") for s in NOT_TRUE),
        *(([programmed(s, "ConfigurationError")], "Failed (configuration error)") for s in NOT_TRUE),
        *(([programmed(s, "PendingProgramming"), ready("False", "PendingProgramming")], "Starting") for s in NOT_TRUE),
        *(([programmed(s, "ProgrammingInProgress"), ready(s, "Pending")], "Starting") for s in NOT_TRUE),
        *(
            ([ready(s, "ImageUnavailable"), programmed("Unknown", "Pending")], "Failed (image unavailable)")
            for s in NOT_TRUE
        ),
        *(([ready(s, "InstanceCrashing")], "Failed (crashing)") for s in NOT_TRUE),
        *(([ready(s, "ConfigurationError")], "Failed (configuration error)") for s in NOT_TRUE),
        *(([ready(s, "Failed")], "Failed") for s in NOT_TRUE),
        *(([ready(s, "Provisioning")], "Starting") for s in NOT_TRUE),
        *(([ready(s, reason)], "Pending") for s in NOT_TRUE for reason in ("Pending", "", "Starting", "Stopped")),
        *(([ready(s, "Stopping"), programmed("False", "Stopping")], "Stopping") for s in NOT_TRUE),
        *(([ready(s, "SchedulingGatesPresent")], "Pending (SchedulingGatesPresent)") for s in NOT_TRUE),
        *(([ready(s, "SourceNotFound")], "Pending (SourceNotFound)") for s in NOT_TRUE),
        ([], "Pending"),
        ([condition("Available", "False", "Whatever")], "Pending"),
    ],
)
def test_the_status_of_an_instance_in_lists(conditions: list[Json], status: str) -> None:
    assert instance_health(instance(*conditions)).status == status


def test_a_deleted_instance_is_terminating_whatever_it_reports() -> None:
    health = instance_health(instance(ready("True", "Available"), deleted=NOW))
    assert (health.status, health.line) == ("Terminating", "Terminating")


def test_a_fresh_instance_waits_for_quota() -> None:
    assert instance_health(instance(status=INITIAL_STATUS)).status == "Pending (quota evaluation)"


def test_a_failure_on_ready_takes_precedence_over_progress_on_programmed() -> None:
    health = instance_health(
        instance(programmed("Unknown", "ProgrammingInProgress"), ready("Unknown", "ImageUnavailable", "no such tag"))
    )
    assert (health.status, health.message) == ("Failed (image unavailable)", "no such tag")


@pytest.mark.parametrize(
    ("conditions", "line", "detail"),
    [
        ([ready("True", "Available")], "Available", ""),
        ([quota("False", "QuotaExceeded")], "Not available — quota exceeded", "why"),
        ([quota("False", "ValidationFailed")], "Not available — quota validation failed", "why"),
        ([quota("Unknown", "PendingEvaluation")], "Pending — quota evaluation", ""),
        *(([quota(s, "QuotaNoBudget")], "Pending — no quota configured", "why") for s in NOT_TRUE),
        *(([programmed(s, "ImageUnavailable")], "Not available — image unavailable", "why") for s in NOT_TRUE),
        *(([ready(s, "ImageUnavailable")], "Not available — image unavailable", "why") for s in NOT_TRUE),
        *(([programmed(s, "InstanceCrashing")], "Not available — instance crashing", "why") for s in NOT_TRUE),
        *(([ready(s, "ConfigurationError")], "Not available — configuration error", "why") for s in NOT_TRUE),
        *(([programmed(s, "PendingProgramming")], "Starting", "") for s in NOT_TRUE),
        *(([programmed(s, "ProgrammingInProgress")], "Starting", "") for s in NOT_TRUE),
        *(([ready(s, "SchedulingGatesPresent")], "Pending — SchedulingGatesPresent", "why") for s in NOT_TRUE),
        *(([ready(s, "Provisioning")], "Pending — Provisioning", "why") for s in NOT_TRUE),
        ([ready("Unknown", "Pending")], "Pending", ""),
        ([], "Pending", ""),
    ],
)
def test_the_line_and_message_of_one_instance(conditions: list[Json], line: str, detail: str) -> None:
    health = instance_health(instance(*conditions))
    assert (health.line, health.message) == (line, detail)


def available(status: str, reason: str = "") -> list[Condition]:
    return [Condition("Available", status, reason, "", NOW)]


def deployed(ready: int, desired: int, *, city: str = "DFW", generation: int = 1) -> WorkloadDeployment:
    spec = {
        "cityCode": city,
        "placementName": "default",
        "workloadRef": {"name": "shop", "uid": "u"},
        "scaleSettings": {"minReplicas": desired},
        "template": template(),
    }
    numbers = {"replicas": ready, "currentReplicas": ready, "updatedReplicas": ready}
    status = numbers | {"desiredReplicas": desired, "readyReplicas": ready, "observedGeneration": generation}
    metadata = ObjectMeta(name=f"shop-default-{city.lower()}", generation=1)
    return WorkloadDeployment(metadata, Raw(encode(spec)), Raw(encode(status)))


def workload(
    conditions: list[Condition],
    desired: int,
    *,
    cities: Sequence[str] = ("DFW",),
    updated: int | None = None,
    **metadata: Any,
) -> Workload:
    """The status is current, unless `metadata` has a newer generation."""
    spec = {"template": template(), "placements": [placement("default", list(cities), desired)]}
    status = {
        "deployments": 1,
        "replicas": desired,
        "currentReplicas": desired,
        "updatedReplicas": desired * len(cities) if updated is None else updated,
        "desiredReplicas": desired * len(cities),
        "readyReplicas": desired,
        "observedGeneration": 1,
        "conditions": kube_conditions.to_json(conditions),
    }
    named: dict[str, Any] = {"name": "shop", "generation": 1} | metadata
    return Workload(ObjectMeta(**named), Raw(encode(spec)), Raw(encode(status)))


YES = available("True", "AvailablePlacementFound")


@pytest.mark.parametrize(
    ("conditions", "ready_", "desired", "health"),
    [
        ([], 0, 0, "Unknown"),
        (available("Unknown", "X"), 2, 2, "Unknown"),
        (available("False", "QuotaNotGranted"), 0, 2, "Unavailable — QuotaNotGranted"),
        (available("False"), 0, 2, "Unavailable — no healthy instances"),
        (YES, 2, 2, "Available — all placements at desired replicas"),
        (available("True"), 3, 2, "Available — 1 instances above desired count"),
        (available("True"), 1, 4, "Degraded — 3 instances below desired count"),
    ],
)
def test_the_health_of_a_workload(conditions: list[Condition], ready_: int, desired: int, health: str) -> None:
    assert str(workload_health(workload(conditions, desired), [deployed(ready_, desired)])) == health


def test_the_first_word_of_health_is_its_state() -> None:
    health = workload_health(workload(available("True"), 1), [deployed(0, 1)])
    assert health == Health("Degraded", "1 instances below desired count")


def test_a_workload_that_is_being_deleted_says_what_it_waits_for() -> None:
    gone = workload(YES, 2, cities=("DFW", "AMS"), deletion_timestamp=NOW, finalizers=("a.test/x",))
    left = [deployed(2, 2), deployed(2, 2, city="AMS")]
    assert str(workload_health(gone, left)) == "Deleting — waiting for AMS, DFW"
    assert str(workload_health(gone, [])) == "Deleting — waiting for finalizer a.test/x"


def test_a_paused_workload_says_how_far_its_rollout_has_come() -> None:
    paused = {"compute.datumapis.com/rollout-paused": "true"}
    assert str(workload_health(workload(YES, 2, updated=0, annotations=paused), [deployed(2, 2)])) == (
        "Paused — 0 of 2 instances on the newest version"
    )
    assert str(workload_health(workload(YES, 2, annotations=paused), [deployed(2, 2)])) == (
        "Paused — no instance is replaced until the rollout is resumed"
    )


def test_a_pause_hides_no_trouble() -> None:
    paused = {"compute.datumapis.com/rollout-paused": "true"}
    assert str(workload_health(workload(YES, 2, annotations=paused), [deployed(1, 2)])) == (
        "Degraded — 1 instances below desired count; the rollout is paused"
    )


def test_instances_in_a_city_that_is_no_longer_requested_do_not_count() -> None:
    deployments = [deployed(1, 2), deployed(2, 2, city="AMS")]
    assert workload_health(workload(YES, 2), deployments).state == "Degraded"


def test_a_city_without_a_deployment_is_not_at_its_desired_replicas() -> None:
    health = workload_health(workload(YES, 2, cities=("DFW", "AMS")), [deployed(2, 2)])
    assert str(health) == "Degraded — 2 instances below desired count"


def test_a_change_that_is_not_rolled_out_is_not_reported_as_done() -> None:
    assert str(workload_health(workload(YES, 2, updated=1), [deployed(2, 2)])) == (
        "Available — 1 of 2 instances on the newest version"
    )
    newer = workload(YES, 2, generation=2)
    assert str(workload_health(newer, [deployed(2, 2)])) == "Available — the newest change is not reported yet"


def test_a_city_that_has_not_reported_on_the_newest_change_is_named() -> None:
    """Its earlier report does not reflect the change, so no numbers are shown."""
    deployments = [deployed(2, 2), deployed(2, 2, city="AMS", generation=0)]
    both = workload(YES, 2, cities=("DFW", "AMS"), updated=2)
    assert str(workload_health(both, deployments)) == "Available — AMS did not report on the newest change yet"
    annotations = {"compute.datumapis.com/rollout-paused": "true"}
    paused = workload(YES, 2, cities=("DFW", "AMS"), updated=2, annotations=annotations)
    assert str(workload_health(paused, deployments)) == "Paused — AMS did not report on the newest change yet"


def test_a_workload_that_is_scaled_to_zero_is_not_in_trouble() -> None:
    assert str(workload_health(workload(available("False", "ScaledToZero"), 0), [])) == "Idle — scaled to zero"


def test_a_city_that_is_not_offered_is_named_beside_the_one_that_runs() -> None:
    refused = Condition("Placed", "False", "NoMatchingLocation", 'City "AMS" is not offered', NOW)
    health = workload_health(workload([*YES, refused], 2, cities=("DFW", "AMS")), [deployed(2, 2)])
    assert str(health) == 'Degraded — 2 instances below desired count; City "AMS" is not offered'


def test_instances_that_the_site_does_not_know_of_yet_count_as_missing() -> None:
    """The workload was scaled up, and the site still reports the earlier number."""
    assert workload_health(workload(YES, 4, generation=2), [deployed(2, 2)]).state == "Degraded"


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], None),
        (available("True", "Fine"), None),
        (available("False", "Odd"), Block("Odd", "")),
        (available("Unknown", "Odder"), Block("Odder", "")),
    ],
)
def test_a_condition_blocks_when_it_is_present_and_not_true(
    conditions: list[Condition], expected: Block | None
) -> None:
    assert block(conditions, "Available") == expected
