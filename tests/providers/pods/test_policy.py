"""The NetworkPolicy of an Instance's Pod."""

from typing import Any

import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.kube.meta import Json, encode
from datum_compute.providers.pods.policy import policy_of
from datum_compute.providers.pods.settings import PodSettings
from datum_compute.providers.pods.shape import labels_of

OPEN = PodSettings()


def instance(*policies: Json | None) -> Instance:
    interfaces = [
        {"network": {"name": "default"}} | ({"networkPolicy": policy} if policy is not None else {})
        for policy in policies
    ]
    runtime = {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
    }
    spec = {"runtime": runtime, "networkInterfaces": interfaces}
    return INSTANCE.decode(encode(INSTANCE.body("web-0", "ns", uid="1234") | {"spec": spec}))


def spec(of: Instance, settings: PodSettings = OPEN) -> Json:
    policy = policy_of(of, settings)
    assert policy is not None
    result: Json = policy["spec"]
    return result


def test_an_instance_without_a_policy_gets_none() -> None:
    assert policy_of(instance(None), OPEN) is None


def test_the_instance_owns_the_policy_which_selects_its_pod() -> None:
    policy = policy_of(instance({"ingress": [{}]}), OPEN)
    assert policy is not None
    assert policy["metadata"]["name"] == "web-0"
    [owner] = policy["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Instance", "1234", True)
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= labels_of(instance(None)).items()


@pytest.mark.parametrize(
    ("rules", "rendered"),
    [
        ([{}], [{}]),
        ([{"ports": [{"port": 22}]}], [{"ports": [{"protocol": "TCP", "port": 22}]}]),
        ([{"ports": [{"port": "http", "protocol": "TCP"}]}], [{"ports": [{"protocol": "TCP", "port": "http"}]}]),
        (
            [{"ports": [{"port": 8000, "endPort": 8010, "protocol": "UDP"}]}],
            [{"ports": [{"protocol": "UDP", "port": 8000, "endPort": 8010}]}],
        ),
        ([{"ports": [{"protocol": "SCTP"}]}], [{"ports": [{"protocol": "SCTP"}]}]),
        (
            [{"from": [{"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.7/32"]}}]}],
            [{"from": [{"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.7/32"]}}]}],
        ),
        (
            [{"ports": [{"port": 22}], "from": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}],
            [
                {
                    "ports": [{"protocol": "TCP", "port": 22}],
                    "from": [{"ipBlock": {"cidr": "198.51.100.0/24"}}],
                }
            ],
        ),
    ],
)
def test_rules_are_converted_to_the_format_of_kubernetes(rules: list[Json], rendered: list[Json]) -> None:
    made = spec(instance({"ingress": rules}))
    assert made["policyTypes"] == ["Ingress"]
    assert made["ingress"] == rendered


@pytest.mark.parametrize("policy", [{}, {"ingress": []}, {"ingress": [{"from": [{}]}]}])
def test_a_policy_without_peers_allows_nobody(policy: Json) -> None:
    made = spec(instance(policy))
    assert made["policyTypes"] == ["Ingress"]
    assert "ingress" not in made


def test_the_policy_of_the_first_interface_applies() -> None:
    assert policy_of(instance(None, {"ingress": []}), OPEN) is None
    assert spec(instance({"ingress": [{}]}, {"ingress": []}))["ingress"] == [{}]


INSIDE: Json = {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
OUTSIDE: Json = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]}}]}


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [
        (None, PodSettings(ingress=(INSIDE,)), {"policyTypes": ["Ingress"], "ingress": [INSIDE]}),
        (None, PodSettings(ingress=()), {"policyTypes": ["Ingress"]}),
        ({"ingress": [{}]}, PodSettings(ingress=(INSIDE,)), {"policyTypes": ["Ingress"], "ingress": [{}]}),
        (None, PodSettings(egress=(OUTSIDE,)), {"policyTypes": ["Egress"], "egress": [OUTSIDE]}),
        (
            {"ingress": [{}]},
            PodSettings(egress=(OUTSIDE,)),
            {"policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [OUTSIDE]},
        ),
    ],
)
def test_the_settings_decide_egress_and_the_default_ingress(
    policy: Json | None, settings: PodSettings, expected: dict[str, Any]
) -> None:
    made = spec(instance(policy), settings)
    assert {key: value for key, value in made.items() if key != "podSelector"} == expected
