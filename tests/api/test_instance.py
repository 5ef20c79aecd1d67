"""Reading an Instance."""

import json
from typing import Any

from datum_compute.api.instance import (
    AVAILABLE,
    INITIAL_STATUS,
    INSTANCE,
    NETWORK_GATE,
    PROGRAMMED,
    QUOTA_GATE,
    QUOTA_GRANTED,
    READY,
    Instance,
)
from datum_compute.kube.meta import decode

SPEC: dict[str, Any] = {
    "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}},
    "networkInterfaces": [{"network": {"name": "default"}}],
}


def read(spec: dict[str, Any], **parts: Any) -> Instance:
    return decode(json.dumps({"metadata": {"name": "web-0"}, "spec": spec, **parts}).encode(), Instance)


def test_an_instance_without_controller_fields_is_valid() -> None:
    instance = read(SPEC, status={})
    assert instance.spec.controller is None
    assert instance.status is not None
    assert instance.status.controller is None
    assert instance.status.conditions == ()


def test_all_four_conditions_are_unknown_at_first() -> None:
    status = read(SPEC, status=INITIAL_STATUS).status
    assert status is not None
    assert [(condition.type, condition.status, condition.reason) for condition in status.conditions] == [
        ("Programmed", "Unknown", "Pending"),
        ("Available", "Unknown", "Pending"),
        ("Ready", "Unknown", "Pending"),
        ("QuotaGranted", "Unknown", "PendingEvaluation"),
    ]
    assert {condition.last_transition_time.timestamp() for condition in status.conditions} == {0}


def test_the_provider_reports_addresses_and_the_template_hash() -> None:
    status = read(
        SPEC,
        status={
            "networkInterfaces": [
                {"assignments": {"networkIP": "10.128.0.2", "externalIP": "host.example", "later": 1}},
                {},
            ],
            "controller": {"observedTemplateHash": "7f9c6b5d84"},
        },
    ).status
    assert status is not None
    first, second = status.network_interfaces
    assert (first.assignments.network_ip, first.assignments.external_ip) == ("10.128.0.2", "host.example")
    assert (second.assignments.network_ip, second.assignments.external_ip) == ("", "")
    assert status.controller is not None
    assert status.controller.observed_template_hash == "7f9c6b5d84"


def test_names_of_conditions_and_gates() -> None:
    assert (PROGRAMMED, AVAILABLE, READY, QUOTA_GRANTED) == ("Programmed", "Available", "Ready", "QuotaGranted")
    assert (NETWORK_GATE, QUOTA_GATE) == ("Network", "Quota")
    assert INSTANCE.resource == "instances.compute.datumapis.com"
