"""The tables of the contract, sections 4.1 to 4.4."""

from datetime import datetime

import pytest
from msgspec import Raw

from datum_compute.api.instance import INITIAL_STATUS, Instance
from datum_compute.cli.health import Block, Health, block, judge, workload_health
from datum_compute.kube.meta import Condition, Json, ObjectMeta, encode
from tests.cli.conftest import NOW, condition


def instance(*conditions: Json, deleted: datetime | None = None, status: Json | None = None) -> Instance:
    said = Raw(encode({"conditions": list(conditions)} if status is None else status))
    return Instance(ObjectMeta(name="shop-default-dfw-0", deletion_timestamp=deleted), status_json=said)


def ready(status: str, reason: str, message: str = "why") -> Json:
    return condition("Ready", status, reason, message)


def quota(status: str, reason: str, message: str = "why") -> Json:
    return condition("QuotaGranted", status, reason, message)


def programmed(status: str, reason: str, message: str = "why") -> Json:
    return condition("Programmed", status, reason, message)


NOT_TRUE = ("False", "Unknown")


@pytest.mark.parametrize(
    ("row", "conditions", "status"),
    [
        (1, [ready("True", "Available")], "Available"),
        (1, [ready("True", "Available"), quota("False", "QuotaExceeded")], "Available"),
        (2, [quota("False", "QuotaExceeded"), ready("False", "PendingQuota")], "Pending (quota exceeded)"),
        (3, [quota("False", "ValidationFailed"), ready("False", "PendingQuota")], "Pending (quota validation failed)"),
        (4, [quota("Unknown", "PendingEvaluation"), ready("Unknown", "Pending")], "Pending (quota evaluation)"),
        *(
            (5, [quota(s, "QuotaNoBudget"), ready("Unknown", "Pending")], "Pending (no quota configured)")
            for s in NOT_TRUE
        ),
        *(
            (6, [programmed(s, "ImageUnavailable"), ready("False", "X")], "Failed (image unavailable)")
            for s in NOT_TRUE
        ),
        *((7, [programmed(s, "InstanceCrashing"), ready("False", "X")], "Failed (crashing)") for s in NOT_TRUE),
        *((8, [programmed(s, "ConfigurationError")], "Failed (configuration error)") for s in NOT_TRUE),
        *(
            (9, [programmed(s, "PendingProgramming"), ready("False", "PendingProgramming")], "Starting")
            for s in NOT_TRUE
        ),
        *((9, [programmed(s, "ProgrammingInProgress"), ready(s, "Pending")], "Starting") for s in NOT_TRUE),
        *(
            (10, [ready(s, "ImageUnavailable"), programmed("Unknown", "Pending")], "Failed (image unavailable)")
            for s in NOT_TRUE
        ),
        *((10, [ready(s, "InstanceCrashing")], "Failed (crashing)") for s in NOT_TRUE),
        *((10, [ready(s, "ConfigurationError")], "Failed (configuration error)") for s in NOT_TRUE),
        *((10, [ready(s, "Failed")], "Failed") for s in NOT_TRUE),
        *((11, [ready(s, "Provisioning")], "Starting") for s in NOT_TRUE),
        *(
            (12, [ready(s, reason)], "Pending")
            for s in NOT_TRUE
            for reason in ("Pending", "", "Starting", "Stopping", "Stopped")
        ),
        *((13, [ready(s, "SchedulingGatesPresent")], "Pending (SchedulingGatesPresent)") for s in NOT_TRUE),
        *((13, [ready(s, "SourceNotFound")], "Pending (SourceNotFound)") for s in NOT_TRUE),
        (14, [], "Pending"),
        (14, [condition("Available", "False", "Whatever")], "Pending"),
    ],
)
def test_rows_of_4_1_status_in_lists(row: int, conditions: list[Json], status: str) -> None:
    assert judge(instance(*conditions)).status == status


def test_row_0_an_instance_that_is_deleted_terminates_whatever_it_says() -> None:
    gone = judge(instance(ready("True", "Available"), deleted=NOW))
    assert (gone.status, gone.line) == ("Terminating", "Terminating")


def test_a_fresh_instance_waits_for_quota() -> None:
    assert judge(instance(status=INITIAL_STATUS)).status == "Pending (quota evaluation)"


def test_a_failure_on_ready_is_told_although_the_site_still_reports_programming() -> None:
    found = judge(
        instance(programmed("Unknown", "ProgrammingInProgress"), ready("Unknown", "ImageUnavailable", "no such tag"))
    )
    assert (found.status, found.message) == ("Failed (image unavailable)", "no such tag")


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
def test_rows_of_4_2_detail_of_one_instance(conditions: list[Json], line: str, detail: str) -> None:
    found = judge(instance(*conditions))
    assert (found.line, found.message) == (line, detail)


def available(status: str, reason: str = "") -> list[Condition]:
    return [Condition("Available", status, reason, "", NOW)]


@pytest.mark.parametrize(
    ("conditions", "ready_", "desired", "health"),
    [
        ([], 0, 0, "Unknown"),
        (available("Unknown", "X"), 2, 2, "Unknown"),
        (available("False", "QuotaNotGranted"), 0, 2, "Unavailable — QuotaNotGranted"),
        (available("False"), 0, 2, "Unavailable — no healthy instances"),
        (available("True", "AvailablePlacementFound"), 2, 2, "Available — all placements at desired replicas"),
        (available("True"), 3, 2, "Available — all placements at desired replicas"),
        (available("True"), 1, 4, "Degraded — 3 instances below desired count"),
    ],
)
def test_rows_of_4_3_workload_health(conditions: list[Condition], ready_: int, desired: int, health: str) -> None:
    assert str(workload_health(conditions, ready=ready_, desired=desired)) == health


def test_the_first_word_of_health_is_its_state() -> None:
    assert workload_health(available("True"), ready=0, desired=1) == Health(
        "Degraded", "1 instances below desired count"
    )


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([], None),
        (available("True", "Fine"), None),
        (available("False", "Odd"), Block("Odd", "")),
        (available("Unknown", "Odder"), Block("Odder", "")),
    ],
)
def test_4_4_something_blocks_when_its_condition_is_there_and_not_true(
    conditions: list[Condition], found: Block | None
) -> None:
    assert block(conditions, "Available") == found
