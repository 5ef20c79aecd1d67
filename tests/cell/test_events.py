"""Warnings on the transition of a reason, and on nothing else."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.api.instance import Instance
from datum_compute.cell.events import new_warnings
from datum_compute.kube.meta import decode, encode


def instance(conditions: Mapping[str, tuple[str, str]], gates: Sequence[str] = ()) -> Instance:
    """`conditions` is type to reason and message."""
    reasons = [
        {"type": type_, "status": "False", "reason": reason, "message": message}
        | {"lastTransitionTime": "2026-06-01T12:00:00Z"}
        for type_, (reason, message) in conditions.items()
    ]
    controller = {"templateHash": "h", "schedulingGates": [{"name": gate} for gate in gates]}
    spec = {"runtime": {"resources": {}}, "networkInterfaces": [], "controller": controller}
    body = {"metadata": {"name": "web-0"}, "spec": spec, "status": {"conditions": reasons}}
    return decode(encode(body), Instance)


FROM_QUOTA = (
    *("QuotaNoBudget", "QuotaProjectIDUnresolvable", "QuotaBackendUnavailable"),
    *("QuotaNamespaceNotFound", "QuotaProjectNotFound", "QuotaMisconfigured"),
)
FROM_READY = ("ImageUnavailable", "InstanceCrashing", "ConfigurationError", "NetworkFailedToCreate")


@pytest.mark.parametrize(
    ("type_", "reason"),
    [*(("QuotaGranted", reason) for reason in FROM_QUOTA), *(("Ready", reason) for reason in FROM_READY)],
)
def test_a_new_reason_emits_one_warning(type_: str, reason: str) -> None:
    before, after = instance({}), instance({type_: (reason, "so it is")})
    assert new_warnings(before, after) == [(reason, "so it is")]
    assert new_warnings(after, after) == []
    assert new_warnings(after, instance({type_: (reason, "said differently")})) == []


@pytest.mark.parametrize(
    ("type_", "reason"),
    [("QuotaGranted", "QuotaExceeded"), ("QuotaGranted", "QuotaAvailable"), ("Ready", "PendingQuota")],
)
def test_ordinary_reasons_emit_no_warning(type_: str, reason: str) -> None:
    assert new_warnings(instance({}), instance({type_: (reason, "so it is")})) == []


def test_a_warning_names_gates_that_no_controller_removes() -> None:
    reasons = {"Ready": ("SchedulingGatesPresent", "Scheduling gates present: Moonrise")}
    waiting = instance({"Ready": ("SchedulingGatesPresent", "Scheduling gates present: Moonrise, Quota")}, ["Moonrise"])
    left = instance(reasons, ["Moonrise"])
    assert new_warnings(waiting, left) == [
        ("SchedulingGatesPresent", "Nothing here removes the scheduling gates Moonrise"),
    ]
    assert new_warnings(left, left) == []
    assert new_warnings(instance({}), instance(reasons, ["Moonrise", "Quota"])) == []


_conditions = st.dictionaries(
    st.sampled_from(["Ready", "QuotaGranted", "Programmed", "Available", "Federated"]),
    st.tuples(st.sampled_from([*FROM_QUOTA, *FROM_READY, "Pending"]), st.sampled_from(["a", "b"])),
)


@given(_conditions, st.lists(st.sampled_from(["Quota", "Moonrise"]), unique=True))
def test_an_unchanged_reason_emits_no_warning(reasons: dict[str, tuple[str, str]], gates: list[str]) -> None:
    assert new_warnings(instance(reasons, gates), instance(reasons, gates)) == []
