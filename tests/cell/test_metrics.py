"""How many instances wait at which gate, and why, can be read from the metrics of the cell."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from datum_compute.cell.gates import closed_gates
from datum_compute.cell.metrics import Metrics
from datum_compute.federation.metrics import COMPUTE, GATES, OTHER
from datum_compute.runtime import Request
from tests.cell.site import Site
from tests.metrics import differences, samples


def gated(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """By gate and reason, without those at which nobody waits."""
    return {
        (dict(labels)["gate"], dict(labels)["reason"]): value
        for (name, labels), value in samples(registry).items()
        if name == "compute_cell_instances_gated" and value
    }


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, [("Network", "SchedulingGatesPresent"), ("Quota", "PendingEvaluation")]),
        (
            {"QuotaGranted": "QuotaExceeded", "Ready": "PendingQuota"},
            [("Network", "SchedulingGatesPresent"), ("Quota", "QuotaExceeded")],
        ),
        (
            {"QuotaGranted": "QuotaAvailable", "Ready": "NetworkFailedToCreate"},
            [("Network", "NetworkFailedToCreate"), ("Quota", "QuotaAvailable")],
        ),
    ],
)
def test_a_closed_gate_has_the_reason_that_the_status_gives(
    conditions: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    status: dict[str, Any] = {"conditions": [{"type": type_, "reason": why} for type_, why in conditions.items()]}
    assert closed_gates(["Network", "Quota"], status) == expected


async def test_an_instance_is_counted_at_its_gate_until_it_may_start(site: Site, registry: CollectorRegistry) -> None:
    await site.create()
    await site.create("web-1")
    await site.advance(5)
    assert gated(registry) == {("Quota", "PendingEvaluation"): 2}
    await site.deny("web-1")
    await site.advance(5)
    assert gated(registry) == {("Quota", "PendingEvaluation"): 1, ("Quota", "QuotaExceeded"): 1}
    await site.grant()
    await site.advance(5)
    assert gated(registry) == {("Quota", "QuotaExceeded"): 1}
    await site.delete("web-1")
    await site.advance(5)
    assert gated(registry) == {}
    assert differences(registry, COMPUTE) == set()


async def test_instances_of_a_cell_that_left_are_not_counted(site: Site, registry: CollectorRegistry) -> None:
    await site.create()
    await site.advance(5)
    site.fleet.remove("cell")
    await site.settle()
    assert gated(registry) == {}


def test_instances_of_a_plane_that_left_are_not_counted(registry: CollectorRegistry, metrics: Metrics) -> None:
    for plane in ("a", "b"):
        metrics.gated(Request(plane, "ns", "web-0"), [("Quota", "QuotaExceeded")])
    metrics.forget(lambda request: request.plane == "a")
    assert gated(registry) == {("Quota", "QuotaExceeded"): 1}


def test_whatever_others_call_gates_and_reasons_the_series_are_bounded(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    for number in range(1000):
        metrics.gated(Request("a", "ns", f"web-{number}"), [(f"Gate{number}", f"Reason{number}")])
    assert gated(registry) == {(OTHER, OTHER): 1000}
    assert OTHER in GATES
