"""Manifests: the fields that are used, and problems, each reported in one sentence."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.workload.manifest import applied, manifest_of, overwrite_problem, parsed, saved_text
from datum_compute.kube.meta import Json
from tests.cli.conftest import placement, template

SPEC = {"template": template(), "placements": [placement("default", ["DFW"], 2)]}


def manifest(**changes: Any) -> Json:
    body = {
        "apiVersion": "compute.datumapis.com/v1alpha",
        "kind": "Workload",
        "metadata": {"name": "shop"},
        "spec": SPEC,
    }
    return body | changes


def as_yaml(**changes: Any) -> str:
    return yaml.safe_dump(manifest(**changes))


WANTED = manifest(metadata={"name": "shop", "namespace": "default"})


@pytest.mark.parametrize(
    "text",
    [
        as_yaml(),
        json.dumps(manifest()),
        json.dumps(manifest(), indent="\t"),  # tabs are no YAML
        f"---\n{as_yaml()}---\n",
        f"# a comment\n\n---\n{as_yaml()}...\n",
    ],
)
def test_yaml_and_json_with_one_document(text: str) -> None:
    assert parsed(text, "file") == WANTED


def test_fields_of_the_server_are_dropped_and_the_namespace_is_default() -> None:
    metadata = {
        "name": "shop", "namespace": "elsewhere", "uid": "u", "resourceVersion": "7", "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"], "managedFields": [{}],
        "labels": {"a": "b"}, "annotations": {"c": "d"},
    }  # fmt: skip
    assert parsed(as_yaml(metadata=metadata, status={"replicas": 3}), "file") == manifest(
        metadata={"name": "shop", "namespace": "default", "labels": {"a": "b"}, "annotations": {"c": "d"}}
    )


def test_words_that_look_like_other_things_stay_words() -> None:
    text = as_yaml().replace("- DFW", "- NO").replace("name: shop\n", "name: shop\n  labels: {since: 2026-01-01}\n")
    found = parsed(text, "file")
    assert found["spec"]["placements"][0]["cityCodes"] == ["NO"]
    assert found["metadata"]["labels"] == {"since": "2026-01-01"}


def deep(**container: Any) -> Json:
    return {"spec": SPEC | {"template": template(**container)}}


ONE_WORKLOAD = "manifest must contain exactly one Workload"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ONE_WORKLOAD),
        ("# nothing\n", ONE_WORKLOAD),
        ("just words", ONE_WORKLOAD),
        ("[]", ONE_WORKLOAD),
        (f"{as_yaml()}---\n{as_yaml()}", ONE_WORKLOAD),
        (as_yaml(kind="Instance"), ONE_WORKLOAD),
        (as_yaml(kind="List", items=[manifest()]), ONE_WORKLOAD),
        ("a: b: c", None),
        ("kind: Workload\nkind: Workload\n", 'w.yaml: line 1: "kind" occurs twice'),
        ('{"kind": "Workload"', None),
        ("a: !!python/object:os.system x", None),
        ("a: \x01", None),
        (
            as_yaml(apiVersion="apps/v1"),
            'w.yaml: unknown apiVersion "apps/v1"; use compute.datumapis.com/v1alpha',
        ),
        (as_yaml(metadata={}), "w.yaml: metadata.name is missing"),
        (as_yaml(metadata=None), "w.yaml: metadata.name is missing"),
        (
            as_yaml(metadata={"name": "My Shop"}),
            'w.yaml: metadata.name "My Shop" is not a valid workload name: '
            "use at most 63 lower-case letters, digits and hyphens",
        ),
        (
            as_yaml(metadata={"name": 7}),
            "w.yaml: metadata.name 7 must be text; put it in quotes",
        ),
        (as_yaml(spec=None), "w.yaml: spec is missing"),
        (as_yaml(spec="all"), "w.yaml: spec must be a map of fields"),
        (as_yaml(spec=SPEC | {"placements": "all"}), "w.yaml: spec.placements must be a list"),
        (as_yaml(spec=SPEC | {"placements": ["all"]}), "w.yaml: spec.placements[0] must be a map of fields"),
        (as_yaml(spec=SPEC | {"placements": [None]}), "w.yaml: spec.placements[0] is empty"),
        (
            as_yaml(spec=SPEC | {"placements": [{"cityCodes": "DFW"}]}),
            "w.yaml: spec.placements[0].cityCodes must be a list",
        ),
        (
            as_yaml(spec=SPEC | {"placements": [{"cityCodes": [1]}]}),
            "w.yaml: spec.placements[0].cityCodes[0] must be text",
        ),
        (
            as_yaml(**deep(env="A=b")),
            "w.yaml: spec.template.spec.runtime.sandbox.containers[0].env must be a list",
        ),
        (
            as_yaml(metadata={"name": "shop", "labels": {"a": 1}}),
            'w.yaml: metadata.labels: "a" must be text; put it in quotes',
        ),
    ],
)  # fmt: skip
def test_problems_of_a_manifest_are_reported_in_one_sentence(text: str, error: str | None) -> None:
    with pytest.raises(Failure) as caught:
        parsed(text, "w.yaml")
    assert "\n" not in caught.value.message
    if error is None:  # the words are those of the YAML library
        assert caught.value.message.startswith("w.yaml: ")
    else:
        assert caught.value.message == error


def test_a_manifest_replaces_the_spec_and_keeps_other_annotations() -> None:
    live = {
        "metadata": {"name": "shop", "uid": "u", "resourceVersion": "7", "labels": {"a": "1", "b": "1"}},
        "spec": {"placements": []},
        "status": {"replicas": 2},
    }
    wanted = manifest(
        metadata={"name": "shop", "namespace": "default", "labels": {"b": "2"}, "annotations": {"n": "x"}}
    )
    assert applied(wanted)(live) == {
        "metadata": {
            "name": "shop", "uid": "u", "resourceVersion": "7",
            "labels": {"a": "1", "b": "2"}, "annotations": {"n": "x"},
        },
        "spec": SPEC,
        "status": {"replicas": 2},
    }  # fmt: skip
    assert live["spec"] == {"placements": []}


def test_a_saved_manifest_is_one_that_can_be_read_again() -> None:
    live = manifest(
        metadata={"name": "shop", "namespace": "default", "uid": "u", "labels": {"a": "b"}, "generation": 3},
        status={"replicas": 1},
    )
    text = saved_text(live, "datumctl compute deploy -f workload.yaml")
    assert text.splitlines()[:3] == [
        "# Managed by `datumctl compute deploy`.",
        "# Apply with `datumctl compute deploy -f workload.yaml`.",
        "apiVersion: compute.datumapis.com/v1alpha",
    ]
    assert parsed(text, "file") == manifest_of(live)
    assert yaml.safe_load(text)["metadata"] == {"name": "shop", "namespace": "default", "labels": {"a": "b"}}


@given(st.text())
@example("NO")
@example("on")
@example("true")
@example("2026-01-01")
@example("12:30:45")
@example("1e3")
@example("~")
@example("a: b # c")
def test_any_value_is_saved_and_read_again_unchanged(value: str) -> None:
    live = manifest(
        metadata={"name": "shop", "annotations": {"note": value}}, **deep(env=[{"name": "A", "value": value}])
    )
    assert parsed(saved_text(live, "x"), "file")["spec"] == live["spec"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (saved_text(WANTED, "x"), ""),
        (as_yaml(), "it was not saved by this program"),
        ("", "it was not saved by this program"),
        (saved_text(manifest(metadata={"name": "web"}), "x"), 'it contains workload "web"'),
        (saved_text(WANTED, "x") + "---\n" + as_yaml(), "it does not contain exactly one workload"),
    ],
)
def test_only_a_file_of_ours_with_the_same_workload_may_be_overwritten(text: str, reason: str) -> None:
    assert overwrite_problem(text, "shop") == reason
