"""The diff before a deploy: everything that changes can be seen, except the values of variables."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from datum_compute.cli.show.diffs import diff_lines, without_values
from datum_compute.cli.show.lines import Line, Tone, text_of
from datum_compute.kube.meta import Json
from tests.cli.conftest import placement, template


def workload(**container: Any) -> Json:
    return {
        "apiVersion": "compute.datumapis.com/v1alpha",
        "kind": "Workload",
        "metadata": {"name": "shop", "uid": "u", "resourceVersion": "7"},
        "spec": {"template": template(**container), "placements": [placement("default", ["DFW"], 2)]},
        "status": {"replicas": 1},
    }


def texts(lines: list[Line]) -> list[str]:
    return ["".join(map(text_of, line.pieces)) for line in lines]


def changed(before: Json | None, after: Json) -> list[str]:
    return [text for text in texts(diff_lines(before, after)) if text[:1] in "+-" and text[:3] not in ("+++", "---")]


def test_only_changes_and_their_context_are_in_a_diff() -> None:
    lines = texts(diff_lines(workload(image="a"), workload(image="b")))
    assert lines[:2] == ["--- live", "+++ wanted"]
    assert [text.replace(" ", "") for text in lines if text[:2] in ("- ", "+ ")] == ["-image:a", "+image:b"]


def test_a_new_workload_is_all_new() -> None:
    lines = texts(diff_lines(None, workload()))
    assert lines[:2] == ["--- nothing", "+++ wanted"]
    assert all(text.startswith("+") for text in lines[3:])
    assert not any("uid" in text or "status" in text or "resourceVersion" in text for text in lines)


def test_a_changed_value_is_marked_and_not_shown() -> None:
    before = workload(env=[{"name": "A", "value": "old"}, {"name": "B", "value": "same"}])
    after = workload(env=[{"name": "A", "value": "new"}, {"name": "B", "value": "same"}])
    assert [text.strip("+- ") for text in changed(before, after)] == ["value: (hidden)", "value: (hidden, changed)"]


def test_the_copy_of_an_object_that_kubectl_keeps_is_left_out() -> None:
    after = workload()
    after["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "secret", "note": "x"}
    assert not any("secret" in text for text in texts(diff_lines(workload(), after)))


def test_colours() -> None:
    tones = {
        text_of(line.pieces[0])[:1]: line.pieces[0] for line in diff_lines(workload(image="a"), workload(image="b"))
    }
    assert getattr(tones["+"], "tone", None) is Tone.GOOD
    assert getattr(tones["-"], "tone", None) is Tone.BAD
    assert getattr(tones["@"], "tone", None) is Tone.DIM


values = st.text(st.characters(categories=["L"]), min_size=12, max_size=20)
variables = st.dictionaries(st.sampled_from("ABCD"), values).map(
    lambda found: [{"name": name, "value": value} for name, value in found.items()]
)


@given(variables, variables)
def test_no_value_of_a_variable_is_ever_part_of_a_diff(old: list[Json], new: list[Json]) -> None:
    diff = "\n".join(texts(diff_lines(workload(env=old), workload(env=new))))
    for variable in old + new:
        assert variable["value"] not in diff


@given(variables, variables)
def test_hiding_changes_nothing_else(old: list[Json], new: list[Json]) -> None:
    hidden = without_values(workload(env=new), workload(env=old))
    container = hidden["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"][0]
    assert [variable["name"] for variable in container["env"]] == [variable["name"] for variable in new]
    assert hidden | {"spec": None} == workload() | {"spec": None}
