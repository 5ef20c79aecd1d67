"""Which of several reasons is reported, and who can act on it."""

from datetime import timedelta

import pytest

from datum_compute.api import reasons
from datum_compute.api.reasons import (
    REASONS,
    REPAIRS,
    WARNINGS,
    Acts,
    deployment_rank,
    explain,
    instance_rank,
    workload_rank,
)
from datum_compute.runtime.writes import WRITES_DAMPED

INSTANCE = {
    7: {"NetworkFailedToCreate"},
    5: {
        "ImageUnavailable",
        "InstanceCrashing",
        "ConfigurationError",
        "SourceNotFound",
        "SourceTooLarge",
        "SourceUnauthorized",
    },
    4: {"AwaitingPropagation", "Resolving"},
    3: {"PendingQuota"},
    1: {"Provisioning"},
}
DEPLOYMENT = {
    8: {"LocationMismatch", "CityCodeMismatch", "AmbiguousServingLocation"},
    7: {"NetworkFailedToCreate"},
    6: {"NetworkNotFound", "SpecRefused", "WriteForbidden", "InstanceNameTaken"},
    5: INSTANCE[5],
    4: {"ReferencedDataNotReady", "AwaitingPropagation", "Resolving"},
    3: {"QuotaNotGranted", "PendingQuota"},
    2: {"NetworkProvisioning", "ProvisioningNetwork", "NoMatchingLocation"},
    1: {"InstancesProvisioning", "ProvisioningInstances", "ScaledToZero", "Stopping"},
}
WORKLOAD = {rank: DEPLOYMENT[rank] for rank in range(1, 6)} | {
    6: DEPLOYMENT[6] | {"DeploymentNameTaken", "FederationFailed", "HubNamespaceTaken"},  # these block a deployment too
    7: {"NetworkFailedToCreate", "RuntimeClassNotServed"},
}


def ranked(rank_of: dict[str, int]) -> dict[int, set[str]]:
    return {rank: {name for name, its in rank_of.items() if its == rank} for rank in set(rank_of.values()) - {0}}


def test_ranks_on_ready_of_an_instance() -> None:
    assert ranked({reason.name: instance_rank(reason.name) for reason in REASONS}) == INSTANCE


def test_ranks_on_available_of_a_deployment() -> None:
    assert ranked({reason.name: deployment_rank(reason.name) for reason in REASONS}) == DEPLOYMENT


def test_ranks_on_available_of_a_workload() -> None:
    assert ranked({reason.name: workload_rank(reason.name) for reason in REASONS}) == WORKLOAD


@pytest.mark.parametrize("rank", [instance_rank, deployment_rank, workload_rank])
@pytest.mark.parametrize("reason", ["", "Pending", "SomethingNew", "NoAvailablePlacements"])
def test_other_reasons_have_no_rank(rank: object, reason: str) -> None:
    assert callable(rank)
    assert rank(reason) == 0


def test_every_constant_has_one_row_with_one_sentence() -> None:
    constants = {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
    names = [reason.name for reason in REASONS]
    assert len(names) == len(set(names))
    assert constants <= set(names)
    assert all(reason.sentence.endswith(".") and reason.sentence.count(".") == 1 for reason in REASONS)


def test_every_warning_is_a_reason_of_the_table() -> None:
    assert {reason.name for reason in REASONS if reason.name in WARNINGS} == WARNINGS
    assert {explain(name).acts for name in WARNINGS} == {Acts.YOU, Acts.PLATFORM}


YOU = {
    *("QuotaExceeded", "ValidationFailed", "ImageUnavailable", "InstanceCrashing", "ConfigurationError"),
    *("SourceNotFound", "SourceTooLarge", "NetworkNotFound", "Stopped"),
}
PLATFORM = {
    *("QuotaNoBudget", "QuotaBackendUnavailable", "QuotaMisconfigured", "QuotaProjectNotFound"),
    *("QuotaNamespaceNotFound", "QuotaProjectIDUnresolvable", "SourceUnauthorized", "NoMatchingLocation", "Suspended"),
}
WAIT = {
    **{"PendingEvaluation": 5, "Resolving": 5, "AwaitingPropagation": 10, "PendingProgramming": 10},
    **{"SchedulingGatesPresent": 10, "PendingQuota": 10, "Starting": 10, "Stopping": 10, "NetworkProvisioning": 15},
    **{"Provisioning": 30, "ProgrammingInProgress": 30, "InstancesProvisioning": 45},
}
POINTER = {
    *("NoAvailablePlacements", "NoAvailableDeployments", "InstancesProvisioning", "QuotaNotGranted"),
    *("ReferencedDataNotReady", "PendingQuota", "SchedulingGatesPresent"),
}

# Reasons that upstream does not have, or does not classify.
OURS_YOU = {"Failed", "RuntimeClassNotServed", "RolloutPaused", "DeploymentNameTaken", "SpecRefused"}
OURS_PLATFORM = {
    *("NetworkFailedToCreate", "QuotaClaimOrphaned", "FederationFailed", "LabelsMissing", "StrayInstance", "Held"),
    *("LocationMismatch", "CityCodeMismatch", "AmbiguousServingLocation", "WriteForbidden", "InstanceNameTaken"),
    *("CellNameTaken", "CellNameNotHeld", "HeldByFormerSetup", "HubRefused", "ProjectSuspended", "QuotaClaimAbandoned"),
    *("HubNamespaceTaken", "CityServedElsewhere", "WritesDamped"),
}
OURS_WAIT = {"Pending": 10, "Unknown": 10, "ProvisioningNetwork": 15, "ProvisioningInstances": 45}
OURS_POINTER = {"ProvisioningInstances"}  # an older name

# Conclusions, which only answers have.
CONCLUSIONS_YOU = {"HeldByFinalizer"}
CONCLUSIONS_ADMIN = {"AccessPending", "NotReadable"}
CONCLUSIONS_PLATFORM = {
    *("Unanswered", "LeaseStale", "AdmissionUnavailable", "NamespaceTerminating", "PolicyMissing", "PolicyEdited"),
    *("SiteAway", "BindingHeld", "NotScheduled", "NotApplied", "ProjectionMissing"),
}
CONCLUSIONS_WAIT = {"OnItsWay": 2, "StatusNotReturned": 1, "BeingRemoved": 2}
CONCLUSIONS = {*CONCLUSIONS_YOU, *CONCLUSIONS_ADMIN, *CONCLUSIONS_PLATFORM, *CONCLUSIONS_WAIT, "ClockAhead"}


def acting(acts: Acts) -> set[str]:
    return {reason.name for reason in REASONS if reason.acts is acts}


def test_each_reason_says_who_can_act() -> None:
    assert acting(Acts.YOU) == YOU | OURS_YOU | CONCLUSIONS_YOU
    assert acting(Acts.ADMIN) == CONCLUSIONS_ADMIN
    assert acting(Acts.PLATFORM) == PLATFORM | OURS_PLATFORM | CONCLUSIONS_PLATFORM
    assert acting(Acts.WAIT) == {*WAIT, *OURS_WAIT, *CONCLUSIONS_WAIT}
    assert {reason.name for reason in REASONS if reason.is_pointer} == POINTER | OURS_POINTER
    assert acting(Acts.POINTER) == POINTER - set(WAIT)


def test_waits_have_a_normal_duration() -> None:
    minutes = {reason.name: reason.normal.total_seconds() / 60 for reason in REASONS if reason.normal}
    assert minutes == WAIT | OURS_WAIT | CONCLUSIONS_WAIT


def test_conclusions_are_never_written_to_an_object() -> None:
    assert {reason.name for reason in REASONS if reason.is_conclusion} == CONCLUSIONS
    assert not CONCLUSIONS & (WARNINGS | reasons.OBSTACLES)
    assert not any(instance_rank(name) or deployment_rank(name) or workload_rank(name) for name in CONCLUSIONS)


def test_only_reasons_that_users_can_act_on_say_what_to_do() -> None:
    for reason in REASONS:
        assert bool(reason.todo) == (reason.acts in (Acts.YOU, Acts.ADMIN))
        assert bool(reason.normal) == (reason.acts is Acts.WAIT)
        assert reason.todo == "" or reason.todo.endswith(".")


def test_operators_know_what_to_do_about_every_reason_that_users_cannot_act_on() -> None:
    assert REPAIRS.keys() == acting(Acts.PLATFORM)
    assert all(repair.endswith(".") for repair in REPAIRS.values())


def test_events_of_the_runtime_are_in_the_table() -> None:
    assert reasons.WRITES_DAMPED == WRITES_DAMPED


@pytest.mark.parametrize("name", sorted(YOU))
def test_reasons_that_users_can_act_on_say_what_to_change(name: str) -> None:
    explanation = explain(name, timedelta(days=30))
    assert (explanation.acts, explanation.is_pointer) == (Acts.YOU, False)
    assert explanation.line


@pytest.mark.parametrize("name", sorted(PLATFORM))
def test_users_are_not_asked_to_fix_what_only_the_platform_can(name: str) -> None:
    explanation = explain(name, timedelta(days=30))
    assert (explanation.acts, explanation.line) == (
        Acts.PLATFORM,
        "this is Datum's to fix; no change to the workload helps",
    )


@pytest.mark.parametrize(("name", "minutes"), WAIT.items())
def test_a_wait_is_normal_up_to_its_duration_and_stalled_after_it(name: str, minutes: int) -> None:
    for age in (None, timedelta(0), timedelta(minutes=minutes) - timedelta(seconds=1)):
        explanation = explain(name, age)
        assert (explanation.acts, explanation.line) == (Acts.WAIT, f"normal; expected within {minutes}m")
    explanation = explain(name, timedelta(minutes=minutes + 2, seconds=59))
    assert explanation.acts is Acts.STALLED
    assert explanation.line == (
        f"has taken longer than expected ({minutes + 2}m, normally under {minutes}m); no cause was reported"
    )


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(minutes=5), "5m"),
        (timedelta(minutes=119, seconds=59), "119m"),
        (timedelta(hours=2), "2h"),
        (timedelta(hours=47, minutes=59), "47h"),
        (timedelta(days=2), "2d"),
        (timedelta(days=400), "400d"),
    ],
)
def test_a_long_duration_is_shown_in_a_suitable_unit(age: timedelta, text: str) -> None:
    assert f"({text}, normally under 5m)" in explain("PendingEvaluation", age).line


@pytest.mark.parametrize("name", sorted(POINTER - set(WAIT)))
def test_a_reason_that_points_elsewhere_has_no_advice(name: str) -> None:
    explanation = explain(name, timedelta(days=1))
    assert (explanation.acts, explanation.line, explanation.is_pointer) == (Acts.POINTER, "", True)


@pytest.mark.parametrize("name", ["Available", "QuotaAvailable", "StableInstanceFound", "AvailablePlacementFound"])
def test_nobody_has_to_act_when_nothing_is_wrong(name: str) -> None:
    explanation = explain(name, timedelta(days=1))
    assert (explanation.acts, explanation.line, explanation.is_pointer) == (Acts.NOBODY, "", False)


@pytest.mark.parametrize("name", ["", "SomethingNew"])
def test_an_unknown_reason_is_not_explained(name: str) -> None:
    explanation = explain(name, timedelta(days=1))
    assert (explanation.acts, explanation.sentence, explanation.line, explanation.is_pointer) == (
        Acts.UNKNOWN,
        "",
        "",
        False,
    )


def test_sentences_are_plain() -> None:
    """No terms of Kubernetes, Karmada or this program, except for kinds that users create."""
    jargon = ("reconcile", "finalizer", "plane", "namespace ns-", "hub", "cell", "propagationpolicy")
    for reason in REASONS:
        assert not [word for word in jargon if word in f"{reason.sentence} {reason.todo}".lower().split()], reason.name
