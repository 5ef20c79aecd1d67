"""Labels and annotations of a template that are refused: invalid ones, and those reserved for compute."""

from typing import Any

import pytest

from datum_compute.api.validation import workload_violations
from tests.api.test_validation import FACTS, SANDBOX, changed

METADATA = "spec.template.metadata"
VALUE = "a valid label must be an empty string or consist of alphanumeric characters"
NAME = "name part must consist of alphanumeric characters"
PREFIX = "prefix part a lowercase RFC 1123 subdomain must consist of"


def causes(metadata: dict[str, Any], before: dict[str, Any] | None = None) -> list[tuple[str, str, str]]:
    """Violations of a template with this metadata; with `before`, of an update that also changes the image."""
    after = changed(SANDBOX, {METADATA: metadata})
    old = None
    if before is not None:
        old = changed(SANDBOX, {METADATA: before, "T.runtime.sandbox.containers.0.image": "registry.example/hello:0"})
    return [(cause.field, cause.reason, cause.message) for cause in workload_violations(after, FACTS, old)]


@pytest.mark.parametrize(
    ("metadata", "field", "reason", "sentence"),
    [
        ({"labels": {"app": "hello world"}}, "labels[app]", "Invalid", f'"hello world": {VALUE}'),
        ({"labels": {"app": "-a"}}, "labels[app]", "Invalid", f'"-a": {VALUE}'),
        ({"labels": {"app": "a" * 70}}, "labels[app]", "Invalid", "must be no more than 63 bytes"),
        ({"labels": {"app": "é"}}, "labels[app]", "Invalid", VALUE),
        ({"labels": {"app": "a\n"}}, "labels[app]", "Invalid", VALUE),
        ({"labels": {"bad key!": "a"}}, "labels", "Invalid", f'"bad key!": {NAME}'),
        ({"labels": {"": "a"}}, "labels", "Invalid", "name part must be non-empty"),
        ({"labels": {"a/b/c": "a"}}, "labels", "Invalid", "a valid label key must consist of alphanumeric characters"),
        ({"labels": {"/a": "a"}}, "labels", "Invalid", "prefix part must be non-empty"),
        ({"labels": {"Team/a": "a"}}, "labels", "Invalid", PREFIX),
        ({"labels": {f"{'a' * 254}/a": "a"}}, "labels", "Invalid", "prefix part must be no more than 253 bytes"),
        ({"labels": {"a" * 64: "a"}}, "labels", "Invalid", "name part must be no more than 63 bytes"),
        ({"annotations": {"bad key!": "a"}}, "annotations", "Invalid", f'"bad key!": {NAME}'),
        ({"annotations": {"a/b/c": "a"}}, "annotations", "Invalid", "a valid annotation key must consist of"),
        ({"annotations": {"a": "é" * 131_072}}, "annotations", "TooLong", "may not be more than 262144 bytes"),
    ],
)
def test_metadata_that_no_instance_can_have_is_refused(
    metadata: dict[str, Any], field: str, reason: str, sentence: str
) -> None:
    [(where, why, message)] = causes(metadata)
    assert (where, why) == (f"{METADATA}.{field}", f"FieldValue{reason}")
    assert sentence in message


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"app": "", "a.b_c-D": "1", "example.com/app": "a" * 63, f"{'a' * 253}/{'b' * 63}": "x"}},
        {"annotations": {"Example.com/App": "any text\nat all \u202e", "a": "x" * 200_000}},
        {"labels": None, "annotations": None},
        {},
    ],
)
def test_metadata_that_an_instance_can_have_is_admitted(metadata: dict[str, Any]) -> None:
    assert causes(metadata) == []


@pytest.mark.parametrize("key", ["network-addresses", "suspended", "workload-uid", "anything", "rollout-paused"])
@pytest.mark.parametrize("part", ["labels", "annotations"])
@pytest.mark.parametrize("prefix", ["", "quota."])
def test_users_may_not_set_keys_of_compute(part: str, key: str, prefix: str) -> None:
    name = f"{prefix}compute.datumapis.com/{key}"
    [(field, reason, message)] = causes({part: {name: "a"}})
    assert (field, reason) == (f"{METADATA}.{part}[{name}]", "FieldValueForbidden")
    assert "compute.datumapis.com/" in message


@pytest.mark.parametrize(
    "annotations",
    [
        {"compute.datumapis.com/restartedAt": "2026-06-10T12:30:00Z"},
        {"compute.datumapis.com/ssh-keys": "ops:..."},
        {"compute.datumapis.com/simulate": "crashing"},
        {"xcompute.datumapis.com/mine": "a", "datumapis.com/x": "a", "compute.datumapis.com": "a"},
    ],
)
def test_annotations_meant_for_users_are_admitted(annotations: dict[str, str]) -> None:
    assert causes({"annotations": annotations}) == []


def test_annotations_meant_for_users_are_refused_as_labels() -> None:
    [(field, _, _)] = causes({"labels": {"compute.datumapis.com/simulate": "crashing"}})
    assert field == f"{METADATA}.labels[compute.datumapis.com/simulate]"


OLD = {
    "labels": {"bad key!": "a", "app": "hello world", "compute.datumapis.com/x": "a"},
    "annotations": {"compute.datumapis.com/network-addresses": "[]", "bad key!": "b"},
}


def test_entries_admitted_before_stay_admitted() -> None:
    assert causes(OLD, before=OLD) == []


def test_a_new_value_of_an_existing_key_is_checked() -> None:
    after = {
        "labels": {"bad key!": "b", "app": "hello  world", "compute.datumapis.com/x": "b"},
        "annotations": {"compute.datumapis.com/network-addresses": "[1]", "bad key!": "c"},
    }
    assert [field for field, _, _ in causes(after, before=OLD)] == [
        f"{METADATA}.labels",
        f"{METADATA}.labels[app]",
        f"{METADATA}.labels[compute.datumapis.com/x]",
        f"{METADATA}.annotations[compute.datumapis.com/network-addresses]",
        f"{METADATA}.annotations",
    ]


NOTE = "metadata.annotations[compute.datumapis.com/city-restarts]"


def noting(text: Any) -> dict[str, Any]:
    return changed(SANDBOX, {"metadata.annotations": {"compute.datumapis.com/city-restarts": text, "team": "red"}})


@pytest.mark.parametrize("text", ["", "now", "[]", '{"DFW": "now"}', '{"DFW": 1}', '{"DFW": "2026-06-01T12:00:00"}', 7])
@pytest.mark.parametrize("before", [None, SANDBOX])
def test_an_unreadable_note_of_city_restarts_is_refused(text: Any, before: dict[str, Any] | None) -> None:
    [cause] = workload_violations(noting(text), FACTS, before)
    assert (cause.field, cause.reason) == (NOTE, "FieldValueInvalid")
    assert "from city code to time" in cause.message


def test_a_readable_note_of_city_restarts_is_admitted_and_an_old_one_ignored() -> None:
    noted = noting('{"DFW": "2026-06-01T12:00:00Z", "AMS": "2026-06-01T12:00:00.5+02:00"}')
    assert workload_violations(noted, FACTS, SANDBOX) == []
    old = noting("now")
    assert workload_violations(changed(old, {"metadata.annotations.team": "blue"}), FACTS, old) == []
    deleting = changed(SANDBOX, {"metadata.deletionTimestamp": "2026-06-01T12:00:00Z"})
    assert workload_violations(noting("now"), FACTS, deleting) == []
