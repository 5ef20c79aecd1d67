"""How a project is written into labels and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.federation.identity import Identity, bare_project, decode, encode, hub_labels

UPSTREAM_CLUSTER = "meta.datumapis.com/upstream-cluster-name"
UPSTREAM_NAMESPACE = "meta.datumapis.com/upstream-namespace"

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@pytest.mark.parametrize(
    ("label", "path", "project"),
    [
        ("cluster-datum-cloud", "datum-cloud", "datum-cloud"),
        ("cluster-org_project", "org/project", "project"),
        ("cluster-_test-project-abc", "/test-project-abc", "test-project-abc"),
        ("cluster-single", "single", "single"),
    ],
)
def test_label_values_decode_to_project_paths(label: str, path: str, project: str) -> None:
    assert decode(label) == path
    assert bare_project(label) == project
    assert encode(path) == label


@pytest.mark.parametrize("path", ["datum-cloud", "org/project", "a/b/c"])
def test_encoding_and_decoding_round_trip(path: str) -> None:
    assert decode(encode(path)) == path


@pytest.mark.parametrize(
    ("label", "project"),
    [
        ("demo", "demo"),  # the prefix may be missing
        ("cluster-cluster-demo", "cluster-demo"),  # only one is dropped
        ("cluster-a_b_c", "c"),
        ("cluster-", ""),
        ("cluster-org_", ""),
        ("", ""),
    ],
)
def test_the_bare_project_is_what_follows_the_last_slash(label: str, project: str) -> None:
    assert bare_project(label) == project


@given(paths)
def test_any_path_round_trips_and_ends_in_its_project(path: str) -> None:
    assert decode(encode(path)) == path
    assert bare_project(encode(path)) == path.split("/")[-1]
    assert bare_project(encode(f"/{path}")) == path.split("/")[-1]
    assert "/" not in encode(path)


@given(names, names)
def test_the_labels_of_a_hub_namespace_identify_its_project_namespace(project: str, namespace: str) -> None:
    assert Identity.of(hub_labels(project, namespace)) == Identity(project, namespace)


def test_the_labels_of_a_hub_namespace() -> None:
    assert hub_labels("demo", "default") == {UPSTREAM_CLUSTER: "cluster-demo", UPSTREAM_NAMESPACE: "default"}


def test_an_organisation_is_not_part_of_the_identity() -> None:
    labels = {UPSTREAM_CLUSTER: "cluster-org_project", UPSTREAM_NAMESPACE: "default"}
    assert Identity.of(labels) == Identity("project", "default")


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {UPSTREAM_CLUSTER: "cluster-demo"},
        {UPSTREAM_NAMESPACE: "default"},
        {UPSTREAM_CLUSTER: "", UPSTREAM_NAMESPACE: "default"},
        {UPSTREAM_CLUSTER: "cluster-", UPSTREAM_NAMESPACE: "default"},
        {UPSTREAM_CLUSTER: "cluster-org_", UPSTREAM_NAMESPACE: "default"},
        {UPSTREAM_CLUSTER: "cluster-demo", UPSTREAM_NAMESPACE: ""},
    ],
)
def test_an_identity_is_never_guessed(labels: dict[str, str]) -> None:
    assert Identity.of(labels) is None
