"""Rules for claims that hold whatever is left of the quota."""

import pytest

from datum_compute.api.quota import INSTANCES, RESOURCE_CLAIM, VCPUS, ResourceClaim, ResourceRegistration
from datum_compute.kube.meta import Json, decode, encode
from datum_compute.platform.claim_rules import violation
from datum_compute.platform.grants import LIMITS, registration

PROJECT = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
REGISTERED = {limit.resource_type: decode(encode(registration(limit)), ResourceRegistration) for limit in LIMITS}
ONE = [{"resourceType": INSTANCES, "amount": 1}]


def broken(**changes: object) -> str | None:
    spec: Json = {"consumerRef": PROJECT, "resourceRef": PROJECT, "requests": ONE} | changes
    claim = RESOURCE_CLAIM.body("instance-web-0", "default") | {
        "spec": {key: value for key, value in spec.items() if value is not None}
    }
    return violation(decode(encode(claim), ResourceClaim), REGISTERED)


def test_claims_of_compute_are_valid() -> None:
    assert broken(requests=[*ONE, {"resourceType": VCPUS, "amount": 1000}]) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"requests": [{"resourceType": "example.com/x", "amount": 1}]}, "example.com/x is not registered"),
        ({"requests": [*ONE, *ONE]}, f"spec.requests names {INSTANCES} twice"),
        ({"requests": [{"resourceType": INSTANCES, "amount": 0}]}, "must be greater than 0"),
        ({"resourceRef": None}, "spec.resourceRef must name"),
        ({"resourceRef": PROJECT | {"name": ""}}, "spec.resourceRef must name"),
        ({"resourceRef": PROJECT | {"kind": "Secret"}}, "spec.resourceRef must be a Project"),
        ({"consumerRef": PROJECT | {"apiGroup": "example.com"}}, "spec.consumerRef must be a Project"),
        ({"consumerRef": PROJECT | {"kind": "Organization"}}, "spec.consumerRef must be a Project"),
    ],
)
def test_each_rule_has_a_sentence(changes: dict[str, object], expected: str) -> None:
    sentence = broken(**changes)
    assert sentence is not None
    assert expected in sentence


@pytest.mark.parametrize(
    "resource",
    [
        PROJECT | {"kind": "project"},
        {"apiGroup": "compute.datumapis.com", "kind": "Instance", "name": "web-0"},
    ],
)
def test_the_case_of_the_kind_is_ignored_and_older_registrations_are_accepted(resource: dict[str, str]) -> None:
    assert broken(resourceRef=resource) is None
