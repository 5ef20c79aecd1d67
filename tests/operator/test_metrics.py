"""The table of compute-manager is complete, and every label in it is bounded."""

import pytest

from datum_compute.operator.metrics import METRICS, PREFIX
from datum_compute.runtime.telemetry.table import Metric, Type

# Chosen by controller-runtime, client-go and prometheus_client.
OTHERS_NAMES = ("controller_runtime_", "workqueue_", "rest_client_", "leader_election_", "process_", "python_")
# A series per plane, which ends with the plane.
PER_PLANE = {"compute_plane_up", "compute_api_writes_total", "compute_api_writes_damped_total"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_has_a_known_name_and_bounded_labels(metric: Metric) -> None:
    assert metric.name.startswith((PREFIX, *OTHERS_NAMES))
    assert not metric.prefixed
    assert metric.help[0].isupper()
    assert metric.name.endswith("_total") is (metric.type is Type.COUNTER)
    for label in metric.labels:
        assert bool(label.values) is not bool(label.source)
        assert label.name not in ("namespace", "object", "uid", "workload", "instance", "project")
    assert ("plane" in [label.name for label in metric.labels]) is (metric.name in PER_PLANE)


def test_every_name_occurs_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))


def test_metrics_that_others_know_have_the_labels_that_they_know() -> None:
    labels = {metric.name: [label.name for label in metric.labels] for metric in METRICS}
    assert labels["controller_runtime_reconcile_total"] == ["controller", "result"]
    assert labels["workqueue_depth"] == labels["workqueue_adds_total"] == ["name"]
    assert labels["controller_runtime_webhook_requests_total"] == ["webhook", "code"]
    assert labels["controller_runtime_webhook_latency_seconds"] == ["webhook"]
    assert labels["rest_client_requests_total"] == ["code", "method", "role"]
    assert labels["leader_election_master_status"] == ["name"]
    assert labels["compute_planes_engaged"] == ["kind"]
    assert labels["compute_api_writes_total"] == ["plane", "controller", "verb", "kind"]
    assert labels["compute_federation_hop_seconds"] == ["hop"]
    assert labels["compute_quota_eval_failures_total"] == ["reason"]
