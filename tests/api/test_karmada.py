"""The fields of Karmada's kinds that are read here."""

import json
from typing import Any, TypeVar

from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY, Cluster, PropagationPolicy
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.kube.meta import KubeObject, decode
from datum_compute.kube.selectors import LabelSelector

T = TypeVar("T", bound=KubeObject)

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "ClusterReady",
    "message": "",
    "lastTransitionTime": "2026-06-10T12:00:00Z",
}


def read(type_: type[T], **parts: Any) -> T:
    return decode(json.dumps({"metadata": {"name": "x"}, **parts}).encode(), type_)


def test_the_policy_of_a_city_is_decoded() -> None:
    city = {"matchLabels": {TOPOLOGY_CITY: "DFW"}}
    policy = read(
        PropagationPolicy,
        spec={
            "resourceSelectors": [
                {
                    "apiVersion": "compute.datumapis.com/v1alpha",
                    "kind": "WorkloadDeployment",
                    "labelSelector": city,
                    "namespace": "later",
                }
            ],
            "placement": {"clusterAffinity": {"labelSelector": city}, "clusterTolerations": []},
            "conflictResolution": "Abort",
        },
    )
    [selector] = policy.spec.resource_selectors
    assert (selector.api_version, selector.kind) == ("compute.datumapis.com/v1alpha", "WorkloadDeployment")
    assert selector.label_selector.match_labels == {TOPOLOGY_CITY: "DFW"}
    assert policy.spec.placement.cluster_affinity.label_selector.match_labels == {TOPOLOGY_CITY: "DFW"}


def test_a_policy_by_expression_does_not_select_everything() -> None:
    expression = {"key": "tier", "operator": "In", "values": ["edge"]}
    affinity = {"clusterAffinity": {"labelSelector": {"matchExpressions": [expression]}}}
    policy = read(PropagationPolicy, spec={"resourceSelectors": [], "placement": affinity})
    match = policy.spec.placement.cluster_affinity.label_selector
    selector = LabelSelector.of(match.match_labels, match.match_expressions)
    assert selector.matches({"tier": "edge"})
    assert not selector.matches({})


def test_a_policy_without_affinity_selects_every_cluster() -> None:
    policy = read(PropagationPolicy, spec={"resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap"}]})
    assert policy.spec.placement.cluster_affinity.label_selector.match_labels == {}
    assert policy.spec.resource_selectors[0].name == ""


def test_a_cluster_may_have_no_status() -> None:
    assert read(Cluster).status is None
    status = read(Cluster, spec={"syncMode": "Push"}, status={"kubernetesVersion": "v1", "conditions": [READY]}).status
    assert status is not None
    assert status.conditions[0].type == "Ready"


def test_policies_and_clusters_have_the_paths_of_karmada() -> None:
    assert PROPAGATION_POLICY.path("ns-1") == "/apis/policy.karmada.io/v1alpha1/namespaces/ns-1/propagationpolicies"
    assert CLUSTER.path("ignored", "dfw") == "/apis/cluster.karmada.io/v1alpha1/clusters/dfw"
