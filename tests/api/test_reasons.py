"""controllers.md 2.3, 5.4, 7.3 and api.md 6: which of several reasons is told."""

import pytest

from datum_compute.api import reasons
from datum_compute.api.reasons import REASONS, deployment_rank, instance_rank, workload_rank

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
    6: {"NetworkNotFound"},
    5: INSTANCE[5],
    4: {"ReferencedDataNotReady", "AwaitingPropagation", "Resolving"},
    3: {"QuotaNotGranted", "PendingQuota"},
    2: {"NetworkProvisioning", "ProvisioningNetwork", "NoMatchingLocation"},
    1: {"InstancesProvisioning", "ProvisioningInstances"},
}
WORKLOAD = {rank: DEPLOYMENT[rank] for rank in range(1, 7)} | {7: {"NetworkFailedToCreate", "RuntimeClassNotServed"}}


def ranked(rank_of: dict[str, int]) -> dict[int, set[str]]:
    return {rank: {name for name, its in rank_of.items() if its == rank} for rank in set(rank_of.values()) - {0}}


def test_7_3_ranks_on_ready_of_an_instance() -> None:
    assert ranked({reason.name: instance_rank(reason.name) for reason in REASONS}) == INSTANCE


def test_5_4_ranks_on_available_of_a_deployment() -> None:
    assert ranked({reason.name: deployment_rank(reason.name) for reason in REASONS}) == DEPLOYMENT


def test_2_3_ranks_on_available_of_a_workload() -> None:
    assert ranked({reason.name: workload_rank(reason.name) for reason in REASONS}) == WORKLOAD


@pytest.mark.parametrize("rank", [instance_rank, deployment_rank, workload_rank])
@pytest.mark.parametrize("reason", ["", "Pending", "SomethingNew", "NoAvailablePlacements"])
def test_anything_else_never_wins(rank: object, reason: str) -> None:
    assert callable(rank)
    assert rank(reason) == 0


def test_every_constant_has_one_row_with_one_sentence() -> None:
    constants = {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
    names = [reason.name for reason in REASONS]
    assert len(names) == len(set(names))
    assert constants <= set(names)
    assert all(reason.sentence.endswith(".") and reason.sentence.count(".") == 1 for reason in REASONS)
