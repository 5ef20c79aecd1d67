"""Reading a Workload, and passing on unknown fields."""

import json
from typing import Any

import msgspec
import pytest

from datum_compute.api.workload import WORKLOAD, PlacementStatus, Workload
from datum_compute.kube.meta import decode

TEMPLATE: dict[str, Any] = {
    "spec": {
        "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}, "later": 1},
        "networkInterfaces": [{"network": {"name": "default"}}],
    }
}
SCALE: dict[str, Any] = {"minReplicas": 2, "later": {"a": []}}
SPEC: dict[str, Any] = {
    "template": TEMPLATE,
    "placements": [{"name": "main", "cityCodes": ["DFW", "LHR"], "scaleSettings": SCALE, "later": 1}],
    "later": 1,
}
COUNTERS = {"replicas": 4, "currentReplicas": 2, "updatedReplicas": 3, "desiredReplicas": 4, "readyReplicas": 1}


def read(spec: dict[str, Any], **parts: Any) -> Workload:
    return decode(json.dumps({"metadata": {"name": "web"}, "spec": spec, **parts}).encode(), Workload)


def test_the_spec_is_decoded_with_defaults() -> None:
    spec = read(SPEC).spec
    assert spec.template.spec.runtime.resources.instance_type == "datumcloud/d1-standard-2"
    [placement] = spec.placements
    assert (placement.name, placement.city_codes) == ("main", ("DFW", "LHR"))
    assert placement.scale_settings.min_replicas == 2
    assert placement.scale_settings.max_replicas is None
    assert placement.scale_settings.instance_management_policy == "OrderedReady"


def test_targets_of_metrics_are_decoded() -> None:
    metrics = [
        {"resource": {"name": "cpu", "target": {"averageUtilization": 60}}},
        {"resource": {"name": "cpu", "target": {"averageValue": "500m"}}},
        {"resource": {"name": "cpu", "target": {"value": 2}}},
        {},
    ]
    scale = SCALE | {"maxReplicas": 5, "metrics": metrics}
    placement = read(SPEC | {"placements": [{"name": "a", "cityCodes": [], "scaleSettings": scale}]}).spec.placements[0]
    assert placement.scale_settings.max_replicas == 5
    targets = [metric.resource and metric.resource.target for metric in placement.scale_settings.metrics]
    assert [target and (target.value, target.average_value, target.average_utilization) for target in targets] == [
        (None, None, 60),
        (None, "500m", None),
        (2, None, None),
        None,
    ]


def test_unknown_fields_of_the_template_are_passed_on() -> None:
    workload = read(SPEC)
    assert json.loads(bytes(workload.template_json)) == TEMPLATE
    assert json.loads(bytes(workload.spec.template_json)) == TEMPLATE


def test_unknown_fields_of_scale_settings_are_passed_on() -> None:
    [placement] = read(SPEC).spec.placements
    assert json.loads(bytes(placement.scale_settings_json)) == SCALE


def test_a_part_can_be_sent_exactly_as_received() -> None:
    sent = msgspec.json.encode({"template": read(SPEC).template_json})
    assert json.loads(sent) == {"template": TEMPLATE}


def test_a_workload_may_have_no_status() -> None:
    assert read(SPEC).status is None


def test_the_status_is_decoded() -> None:
    status = read(
        SPEC,
        status={"deployments": 2, **COUNTERS, "observedGeneration": 7, "placements": [{"name": "main", **COUNTERS}]},
    ).status
    assert status is not None
    assert (status.deployments, status.ready_replicas, status.observed_generation) == (2, 1, 7)
    assert status.conditions == ()
    assert status.placements == (
        PlacementStatus(
            "main", replicas=4, current_replicas=2, updated_replicas=3, desired_replicas=4, ready_replicas=1
        ),
    )


@pytest.mark.parametrize("missing", ["template", "placements"])
def test_a_required_field_is_required(missing: str) -> None:
    workload = read({key: value for key, value in SPEC.items() if key != missing})
    with pytest.raises(msgspec.ValidationError, match=missing):
        _ = workload.spec


def test_workloads_have_the_path_of_their_group_and_version() -> None:
    assert WORKLOAD.path("default", "web", "status") == (
        "/apis/compute.datumapis.com/v1alpha/namespaces/default/workloads/web/status"
    )
