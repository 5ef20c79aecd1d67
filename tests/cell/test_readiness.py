"""Whether an Instance is ready, and why not."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.cell.readiness import Decided, readiness
from datum_compute.kube.meta import Condition

NO_GATES: Sequence[str] = ()
GATES = ("Network", "Quota")


NOT_PROGRAMMED = Decided("Ready", "False", "PendingProgramming", "Instance has not been programmed")
NOT_AVAILABLE = Decided("Ready", "False", "Pending", "Instance is not available")
READY = Decided("Ready", "True", "Available", "Instance is ready")


def condition(type_: str, status: str, reason: str, message: str = "") -> Condition:
    return Condition(type_, status, reason, message or f"about {reason}", datetime(2026, 6, 1, tzinfo=UTC))


GRANTED = condition("QuotaGranted", "True", "QuotaAvailable", "granted")
PENDING = condition("QuotaGranted", "Unknown", "PendingEvaluation", "being evaluated")
DENIED = condition("QuotaGranted", "False", "QuotaExceeded", "2 of 1 instances")


def programmed(status: str, reason: str) -> Condition:
    return condition("Programmed", status, reason)


def available(status: str, reason: str) -> Condition:
    return condition("Available", status, reason)


def ready(status: str, reason: str) -> Decided:
    """Ready as copied from one of the conditions above."""
    return Decided("Ready", status, reason, f"about {reason}")


# No gates, denied


@pytest.mark.parametrize(
    "current",
    [
        [],
        [programmed("True", "Programmed"), available("True", "Available")],
        [available("Unknown", "ImageUnavailable")],
    ],
    ids=["fresh", "running", "broken"],
)
def test_a_denial_without_gates_is_reported_and_the_provider_s_conditions_are_left_alone(
    current: Sequence[Condition],
) -> None:
    assert readiness(NO_GATES, [*current, DENIED]) == [Decided("Ready", "False", "PendingQuota", "2 of 1 instances")]


# Gates present


@pytest.mark.parametrize("quota", [GRANTED, PENDING])
@pytest.mark.parametrize(
    ("gates", "message"),
    [(("Quota",), "Scheduling gates present: Quota"), (GATES, "Scheduling gates present: Network, Quota")],
)
def test_the_gates_are_named(gates: Sequence[str], message: str, quota: Condition) -> None:
    assert readiness(gates, [quota]) == [Decided("Ready", "False", "SchedulingGatesPresent", message)]


def test_gates_are_reported_whatever_the_provider_says() -> None:
    current = [programmed("True", "Programmed"), available("Unknown", "ImageUnavailable")]
    (decided,) = readiness(GATES, [*current, GRANTED])
    assert (decided.status, decided.reason) == ("False", "SchedulingGatesPresent")


def test_a_denial_beats_the_gates_and_sets_the_provider_s_conditions() -> None:
    current = [programmed("Unknown", "Pending"), available("Unknown", "Pending")]
    assert readiness(GATES, [*current, DENIED]) == [
        Decided("Programmed", "False", "PendingQuota", "2 of 1 instances"),
        Decided("Available", "False", "PendingQuota", "2 of 1 instances"),
        Decided("Ready", "False", "PendingQuota", "2 of 1 instances"),
    ]


def test_a_failed_network_beats_the_gates() -> None:
    assert readiness(GATES, [GRANTED], "no subnet left") == [
        Decided("Ready", "False", "NetworkFailedToCreate", "no subnet left")
    ]


def test_a_failed_network_beats_a_denial() -> None:
    *others, decided = readiness(GATES, [DENIED], "no subnet left")
    assert decided == Decided("Ready", "False", "NetworkFailedToCreate", "no subnet left")
    assert [(other.type, other.reason) for other in others] == [
        ("Programmed", "PendingQuota"),
        ("Available", "PendingQuota"),
    ]


# Programmed not True

UNPROGRAMMED: dict[str, tuple[list[Condition], Decided]] = {
    "no condition at all": ([], NOT_PROGRAMMED),
    "Programmed Pending": ([programmed("Unknown", "Pending")], NOT_PROGRAMMED),
    "Programmed PendingProgramming": ([programmed("False", "PendingProgramming")], NOT_PROGRAMMED),
    "Programmed says why": ([programmed("False", "Failed")], ready("False", "Failed")),
    "Unknown is copied": ([programmed("Unknown", "ProgrammingInProgress")], ready("Unknown", "ProgrammingInProgress")),
    "an unknown reason is passed on": ([programmed("False", "SomethingNew")], ready("False", "SomethingNew")),
    "ImageUnavailable reaches Ready": (
        [available("Unknown", "ImageUnavailable"), programmed("Unknown", "ProgrammingInProgress")],
        ready("Unknown", "ImageUnavailable"),
    ),
    "InstanceCrashing reaches Ready": (
        [available("False", "InstanceCrashing"), programmed("False", "InstanceCrashing")],
        ready("False", "InstanceCrashing"),
    ),
    "ConfigurationError reaches Ready": (
        [available("Unknown", "ConfigurationError"), programmed("Unknown", "ProgrammingInProgress")],
        ready("Unknown", "ConfigurationError"),
    ),
    "Provisioning beats what has no rank": (
        [available("Unknown", "Provisioning"), programmed("Unknown", "ProgrammingInProgress")],
        ready("Unknown", "Provisioning"),
    ),
    "a condition of others competes": (
        [condition("ReferencedDataReady", "False", "AwaitingPropagation"), available("Unknown", "Provisioning")],
        ready("False", "AwaitingPropagation"),
    ),
    "the higher rank wins, not the first": (
        [available("Unknown", "Provisioning"), condition("NetworkReady", "False", "NetworkFailedToCreate")],
        ready("False", "NetworkFailedToCreate"),
    ),
    "a tie stays with Programmed": (
        [available("Unknown", "ImageUnavailable"), programmed("False", "InstanceCrashing")],
        ready("False", "InstanceCrashing"),
    ),
    "a tie without a rank stays with Programmed": (
        [available("False", "Stopping"), programmed("False", "Failed")],
        ready("False", "Failed"),
    ),
    "a tie stays with the general sentence": ([available("False", "Stopping")], NOT_PROGRAMMED),
    "a tie among others stays with the first": (
        [available("Unknown", "ImageUnavailable"), condition("SourceReady", "False", "SourceNotFound")],
        ready("Unknown", "ImageUnavailable"),
    ),
    "Pending never competes": ([available("Unknown", "Pending"), programmed("Unknown", "Pending")], NOT_PROGRAMMED),
    "what is True does not compete": ([condition("Image", "True", "ImageUnavailable")], NOT_PROGRAMMED),
    "an old Ready does not compete": ([condition("Ready", "False", "NetworkFailedToCreate")], NOT_PROGRAMMED),
    "QuotaGranted does not compete": ([condition("QuotaGranted", "Unknown", "AwaitingPropagation")], NOT_PROGRAMMED),
    "Running does not compete": ([condition("Running", "False", "ImageUnavailable")], NOT_PROGRAMMED),
}


@pytest.mark.parametrize(("current", "expected"), UNPROGRAMMED.values(), ids=UNPROGRAMMED.keys())
def test_reasons_of_an_instance_that_is_not_programmed(current: Sequence[Condition], expected: Decided) -> None:
    assert readiness(NO_GATES, [*current, GRANTED]) == [expected]


# Programmed

PROGRAMMED: dict[str, tuple[list[Condition], Decided]] = {
    "no Available": ([], NOT_AVAILABLE),
    "Available Pending": ([available("Unknown", "Pending")], NOT_AVAILABLE),
    "Available says why": ([available("False", "Stopping")], ready("False", "Stopping")),
    "Unknown is copied": ([available("Unknown", "ImageUnavailable")], ready("Unknown", "ImageUnavailable")),
    "others do not compete": ([condition("Other", "False", "NetworkFailedToCreate")], NOT_AVAILABLE),
    "5: both True": ([available("True", "Available")], READY),
    "5: whatever others say": ([available("True", "Available"), condition("Other", "False", "Failed")], READY),
    "Running is no Available": ([condition("Running", "True", "Running")], NOT_AVAILABLE),
    "Running does not spoil Available": (
        [available("True", "Available"), condition("Running", "False", "Stopped")],
        READY,
    ),
}


@pytest.mark.parametrize(("current", "expected"), PROGRAMMED.values(), ids=PROGRAMMED.keys())
def test_reasons_of_an_instance_that_is_programmed(current: Sequence[Condition], expected: Decided) -> None:
    assert readiness(NO_GATES, [programmed("True", "Programmed"), *current, GRANTED]) == [expected]


@pytest.mark.parametrize("quota", [GRANTED, PENDING])
def test_an_admitted_instance_stays_ready_while_quota_is_undecided(quota: Condition) -> None:
    current = [programmed("True", "Programmed"), available("True", "Available")]
    assert readiness(NO_GATES, [*current, quota]) == [READY]


# A denial that is lifted


DENIAL_WRITTEN = [programmed("False", "PendingQuota"), available("False", "PendingQuota")]
TAKEN_BACK = [
    Decided("Programmed", "Unknown", "Pending", "Waiting for controller"),
    Decided("Available", "Unknown", "Pending", "Waiting for controller"),
]


def test_a_lifted_denial_resets_the_provider_s_conditions() -> None:
    assert readiness(NO_GATES, [*DENIAL_WRITTEN, GRANTED]) == [*TAKEN_BACK, NOT_PROGRAMMED]


@pytest.mark.parametrize("quota", [GRANTED, PENDING])
def test_a_lifted_denial_resets_the_provider_s_conditions_behind_gates(quota: Condition) -> None:
    *others, decided = readiness(GATES, [*DENIAL_WRITTEN, quota])
    assert others == TAKEN_BACK
    assert decided.reason == "SchedulingGatesPresent"


def test_only_conditions_set_by_the_denial_are_reset() -> None:
    current = [programmed("True", "Programmed"), available("False", "PendingQuota")]
    assert readiness(NO_GATES, [*current, GRANTED]) == [TAKEN_BACK[1], NOT_AVAILABLE]


# All of them

statuses = st.sampled_from(["True", "False", "Unknown"])
types = st.sampled_from(["Programmed", "Available", "Ready", "QuotaGranted", "Running", "Other"])
reasons_ = st.sampled_from(
    ["Pending", "PendingProgramming", "PendingQuota", "Provisioning", "ImageUnavailable", "Failed"]
)
conditions = st.lists(
    st.builds(condition, types, statuses, reasons_), max_size=6, unique_by=lambda condition: condition.type
)


@given(
    st.lists(st.sampled_from(["Network", "Quota"]), unique=True),
    conditions,
    st.sampled_from([GRANTED, PENDING, DENIED]),
    st.none() | st.just("no subnet left"),
)
def test_ready_is_true_only_without_gates_not_denied_programmed_and_available(
    gates: list[str], current: list[Condition], quota: Condition, network_failure: str | None
) -> None:
    decided = readiness(gates, [quota, *current], network_failure)
    assert [condition.type for condition in decided].count("Ready") == 1
    assert {condition.type for condition in decided} <= {"Programmed", "Available", "Ready"}
    true = {
        condition.type for condition in current if condition.status == "True" and condition.reason != "PendingQuota"
    }
    runs = not gates and quota.status != "False" and {"Programmed", "Available"} <= true
    assert (decided[-1].status == "True") == runs
