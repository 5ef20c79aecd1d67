"""Reading a WorkloadDeployment, and passing on unknown fields."""

import json
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment, WorkloadReference
from datum_compute.api.template import LocationReference
from datum_compute.kube.meta import decode

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "hello"}, "later": 1},
    "spec": {
        "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}},
        "networkInterfaces": [{"network": {"name": "default"}}],
        "later": {},
    },
}
SCALE: dict[str, Any] = {"minReplicas": 2, "instanceManagementPolicy": "OrderedReady", "later": 1}
SPEC: dict[str, Any] = {
    "workloadRef": {"name": "hello", "uid": "aaaaaaaa-0000-0000-0000-000000000001"},
    "placementName": "main",
    "cityCode": "DFW",
    "template": TEMPLATE,
    "scaleSettings": SCALE,
    "locationRef": {"name": "later"},
}


def read(**parts: Any) -> WorkloadDeployment:
    return decode(json.dumps({"metadata": {"name": "hello-main-dfw"}, **parts}).encode(), WorkloadDeployment)


def test_the_spec_is_decoded() -> None:
    spec = read(spec=SPEC).spec
    assert spec.workload_ref == WorkloadReference("hello", "aaaaaaaa-0000-0000-0000-000000000001")
    assert (spec.placement_name, spec.city_code) == ("main", "DFW")
    assert spec.template.metadata.labels == {"app": "hello"}
    assert spec.scale_settings.min_replicas == 2


def test_template_and_scale_settings_are_passed_on_as_received() -> None:
    deployment = read(spec=SPEC)
    assert json.loads(bytes(deployment.template_json)) == TEMPLATE
    assert json.loads(bytes(deployment.spec.scale_settings_json)) == SCALE


def test_the_status_of_a_rollout_is_decoded() -> None:
    status = read(
        spec=SPEC,
        status={
            "replicas": 2,
            "readyReplicas": 1,
            "updatedReplicas": 1,
            "currentReplicas": 1,
            "desiredReplicas": 2,
            "observedGeneration": 3,
            "location": {"name": "dfw-1", "namespace": ""},
            "conditions": [
                {
                    "type": "Available",
                    "status": "True",
                    "reason": "StableInstanceFound",
                    "message": "1/2 instances are ready",
                    "lastTransitionTime": "2026-06-10T12:00:00Z",
                }
            ],
            "suspended": False,
        },
    ).status
    assert status is not None
    assert (status.replicas, status.updated_replicas, status.observed_generation) == (2, 1, 3)
    assert status.location == LocationReference("dfw-1", "")
    assert [condition.reason for condition in status.conditions] == ["StableInstanceFound"]


def test_a_deployment_may_have_no_status() -> None:
    assert read(spec=SPEC).status is None
    assert read(spec=SPEC, status=None).status is None


def test_deployments_have_the_path_of_their_group_and_version() -> None:
    assert WORKLOAD_DEPLOYMENT.path("ns-1", "hello-main-dfw") == (
        "/apis/compute.datumapis.com/v1alpha/namespaces/ns-1/workloaddeployments/hello-main-dfw"
    )
