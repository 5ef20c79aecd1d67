"""The policy that sends the deployments of a city to its cluster."""

from typing import Any

import pytest

from datum_compute.api.karmada import PropagationPolicy
from datum_compute.federation.policy import city_policy, routes
from datum_compute.kube.meta import Json, decode, encode
from datum_compute.kube.patches import merge

CITY = "topology.datum.net/city-code"


def policy(body: Json) -> PropagationPolicy:
    return decode(encode(body), PropagationPolicy)


def test_a_policy_selects_the_deployments_and_clusters_of_its_city() -> None:
    assert city_policy("ns-1", "LAX") == {
        "apiVersion": "policy.karmada.io/v1alpha1",
        "kind": "PropagationPolicy",
        "metadata": {"name": "city-lax", "namespace": "ns-1"},
        "spec": {
            "resourceSelectors": [
                {
                    "apiVersion": "compute.datumapis.com/v1alpha",
                    "kind": "WorkloadDeployment",
                    "labelSelector": {"matchLabels": {CITY: "LAX"}},
                }
            ],
            "placement": {
                "clusterAffinity": {"labelSelector": {"matchLabels": {CITY: "LAX"}}},
                "clusterTolerations": [
                    {"key": "cluster.karmada.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                    {"key": "cluster.karmada.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
                ],
            },
        },
    }


@pytest.mark.parametrize("taint", ["cluster.karmada.io/not-ready", "cluster.karmada.io/unreachable"])
def test_an_unreachable_cell_is_tolerated_for_ever(taint: str) -> None:
    (found,) = [
        toleration
        for toleration in city_policy("ns-1", "DFW")["spec"]["placement"]["clusterTolerations"]
        if toleration["key"] == taint
    ]
    assert (found["operator"], found["effect"]) == ("Exists", "NoExecute")
    assert "tolerationSeconds" not in found


def test_only_the_policy_name_is_lower_cased() -> None:
    body = city_policy("ns-1", "New York")
    assert body["metadata"]["name"] == "city-new-york"
    assert body["spec"]["placement"]["clusterAffinity"]["labelSelector"]["matchLabels"] == {CITY: "New York"}


def test_there_is_no_policy_without_a_city() -> None:
    with pytest.raises(ValueError, match="needs a city"):
        city_policy("ns-1", "")


def test_a_policy_routes_its_own_city_only() -> None:
    assert routes(policy(city_policy("ns-1", "DFW")), "DFW")
    assert not routes(policy(city_policy("ns-1", "DFW")), "dfw")
    assert not routes(policy(city_policy("ns-1", "DFW")), "AMS")


def changed(**spec: Any) -> PropagationPolicy:
    return policy(merge(city_policy("ns-1", "DFW"), {"spec": spec}))


def selector(**changes: Any) -> Json:
    changed: Json = merge(city_policy("ns-1", "DFW")["spec"]["resourceSelectors"][0], changes)
    return changed


NOT_READY = "cluster.karmada.io/not-ready"
UNREACHABLE: list[Json] = city_policy("ns-1", "DFW")["spec"]["placement"]["clusterTolerations"]


def tolerating(*tolerations: Json) -> Json:
    return {"placement": {"clusterTolerations": list(tolerations)}}


FILLED_IN: dict[str, Json] = {
    "namespace of the selector": {"resourceSelectors": [selector(namespace="ns-1")]},
    "priority and preemption": {"priority": 0, "preemption": "Never", "conflictResolution": "Abort"},
    "scheduler": {"schedulerName": "default-scheduler"},
    "a toleration of something else": tolerating(*UNREACHABLE, {"key": "maintenance", "tolerationSeconds": 60}),
    "one of scheduling": tolerating({"key": NOT_READY, "effect": "NoSchedule", "tolerationSeconds": 60}, *UNREACHABLE),
    "spread": {"placement": {"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1}]}},
    "empty expressions": {"resourceSelectors": [selector(labelSelector={"matchExpressions": []})]},
}


@pytest.mark.parametrize("spec", FILLED_IN.values(), ids=FILLED_IN.keys())
def test_server_defaults_do_not_matter(spec: Json) -> None:
    assert routes(changed(**spec), "DFW")


OTHER_CITY = {"matchLabels": {CITY: "AMS"}}
ONE_MORE = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold"]}]}

EDITED: dict[str, Json] = {
    "selects another city": {"resourceSelectors": [selector(labelSelector=OTHER_CITY)]},
    "selects less": {"resourceSelectors": [selector(labelSelector=ONE_MORE)]},
    "selects one by name": {"resourceSelectors": [selector(name="web-main-dfw")]},
    "selects another kind": {"resourceSelectors": [selector(kind="Instance")]},
    "selects another version": {"resourceSelectors": [selector(apiVersion="compute.datumapis.com/v1")]},
    "selects nothing": {"resourceSelectors": []},
    "selects twice": {"resourceSelectors": [selector(), selector()]},
    "selects everything": {"resourceSelectors": [selector(labelSelector=None)]},
    "goes to another city": {"placement": {"clusterAffinity": {"labelSelector": OTHER_CITY}}},
    "goes to fewer": {"placement": {"clusterAffinity": {"labelSelector": ONE_MORE}}},
    "goes to one by name": {"placement": {"clusterAffinity": {"clusterNames": ["cell-ams"]}}},
    "leaves one out": {"placement": {"clusterAffinity": {"exclude": ["cell-dfw"]}}},
    "goes everywhere": {"placement": {"clusterAffinity": None}},
    "goes nowhere": {"placement": None},
    "tolerates nothing": tolerating(),
    "tolerates one of two": tolerating(UNREACHABLE[0]),
    "tolerates for a while": tolerating(*({**toleration, "tolerationSeconds": 300} for toleration in UNREACHABLE)),
    "tolerates for a while first": tolerating({**UNREACHABLE[0], "tolerationSeconds": 300}, *UNREACHABLE),
    "tolerates all for a while": tolerating({"operator": "Exists", "tolerationSeconds": 0}, *UNREACHABLE),
    "tolerates another effect": tolerating(*({**toleration, "effect": "NoSchedule"} for toleration in UNREACHABLE)),
}


@pytest.mark.parametrize("spec", EDITED.values(), ids=EDITED.keys())
def test_an_edited_policy_does_not_route(spec: Json) -> None:
    assert not routes(changed(**spec), "DFW")
