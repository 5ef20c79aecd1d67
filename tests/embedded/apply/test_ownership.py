"""Properties of field ownership that hold for every object and every sequence of writes."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.embedded.apply.fieldsets import (
    FieldSet,
    Path,
    Unreadable,
    compare,
    decoded,
    encoded,
    fields_of,
    merged,
    printed,
    type_of,
    without,
)
from datum_compute.embedded.apply.ownership import Manager, apply, update
from datum_compute.kube.errors import Conflict
from datum_compute.kube.meta import Json

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer"},
                "texts": {"type": "object", "additionalProperties": {"type": "string"}},
                "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "plain": {"type": "array", "items": {"type": "string"}},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name", "port"],
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "port": {"type": "integer", "default": 80},
                            "weight": {"type": "integer"},
                        },
                    },
                },
                "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": True},
                "extra": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
    },
}
TYPE = type_of(SCHEMA, root=True)
names = st.sampled_from("abcd")
counts = st.integers(0, 2)
parts = st.fixed_dictionaries({"name": names}, optional={"port": counts, "weight": counts})
anything = st.recursive(
    counts | names | st.booleans(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
)


def specs_with(shortest: int) -> st.SearchStrategy[Json]:
    """Specs whose lists with owned items, where they are set, have at least so many."""
    return st.fixed_dictionaries(
        {},
        optional={
            "size": counts,
            "texts": st.dictionaries(names, names, max_size=3),
            "tags": st.lists(names, unique=True, min_size=shortest, max_size=4),
            "plain": st.lists(names, max_size=3),
            "parts": st.lists(
                parts, unique_by=lambda part: (part["name"], part.get("port", 80)), min_size=shortest, max_size=3
            ),
            "whole": st.dictionaries(names, counts, max_size=2),
            "extra": st.dictionaries(names, anything, max_size=3),
        },
    )


specs = specs_with(0)
# Nobody owns an empty list of owned items, so it is removed along with the last field beside it, on a kube-apiserver
# as well (tests/conformance/test_apply.py). Properties that this would break use these.
ownable_specs = specs_with(1)
labels = st.dictionaries(names, names, max_size=2)
managers = st.sampled_from(["m1", "m2", "m3"])


def writes_of(specs: st.SearchStrategy[Json]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.tuples(st.sampled_from(["apply", "force", "update"]), managers, specs, labels), max_size=4)


writes, ownable_writes = writes_of(specs), writes_of(ownable_specs)


def object_of(spec: Json, labels: Json | None = None) -> Json:
    metadata = {"name": "one"} | ({"labels": labels} if labels else {})
    return {"apiVersion": "example.test/v1", "kind": "Thing", "metadata": metadata, "spec": spec}


def by(name: str) -> Manager:
    return Manager(name, "example.test/v1")


def applied(live: Json, config: Json, manager: str, *, force: bool = True) -> Json:
    after, managed = apply(TYPE, live, config, by(manager), NOW, force=force, ignored=())
    metadata = {key: value for key, value in after["metadata"].items() if key != "managedFields"}
    return after | {"metadata": metadata | ({"managedFields": managed} if managed else {})}


def updated(live: Json, spec: Json, manager: str) -> Json:
    after = live | {"spec": spec}
    if "managedFields" not in live["metadata"]:
        return after
    managed = update(TYPE, live, after, None, by(manager), NOW, ())
    return after | {"metadata": live["metadata"] | {"managedFields": managed}}


def lived(steps: list[tuple[str, str, Json, Json]]) -> Json:
    live = object_of({})
    for what, manager, spec, labelled in steps:
        if what == "update":
            live = updated(live, spec, manager)
            continue
        with suppress(Conflict):
            live = applied(live, object_of(spec, labelled), manager, force=what == "force")
    return live


def owned(live: Json, manager: str = "") -> FieldSet:
    entries = [entry for entry in live["metadata"].get("managedFields", ()) if manager in ("", entry["manager"])]
    return frozenset().union(*(decoded(entry["fieldsV1"]) for entry in entries))


def leads_somewhere(value: Any, path: Path) -> bool:
    type_ = TYPE
    for element in path:
        inner = type_.parts(value)
        if inner is None or element not in inner:
            return False
        type_, value = type_.child(element), inner[element]
    return True


def values(live: Json) -> Json:
    metadata = {key: value for key, value in live["metadata"].items() if key != "managedFields"}
    return live | {"metadata": metadata}


@given(specs)
def test_a_set_of_fields_is_read_as_it_was_written(spec: Json) -> None:
    fields = fields_of(TYPE, object_of(spec))
    assert decoded(encoded(fields)) == fields


@given(specs, specs)
def test_merging_twice_is_merging_once(live: Json, config: Json) -> None:
    once = merged(TYPE, object_of(live), object_of(config))
    assert merged(TYPE, once, object_of(config)) == once
    assert all(leads_somewhere(once, path) for path in fields_of(TYPE, object_of(config)))


@given(specs, specs)
def test_a_comparison_has_two_sides(one: Json, other: Json) -> None:
    there, back = compare(TYPE, object_of(one), object_of(other)), compare(TYPE, object_of(other), object_of(one))
    assert (there.added, there.removed, there.modified) == (back.removed, back.added, back.modified)
    assert not any(compare(TYPE, object_of(one), object_of(one)))


@given(specs)
def test_removing_all_of_its_fields_leaves_nothing(spec: Json) -> None:
    fields = fields_of(TYPE, object_of(spec))
    assert not fields_of(TYPE, without(TYPE, object_of(spec), fields)) & fields


@given(ownable_writes, ownable_specs, labels)
def test_applied_fields_exist_and_are_owned(steps: list[Any], spec: Json, labelled: Json) -> None:
    config = object_of(spec, labelled)
    live = applied(lived(steps), config, "m1")
    assert merged(TYPE, values(live), config) == values(live)
    wanted = {path for path in fields_of(TYPE, config) if path[0] == "f:spec" or path[1:2] == ("f:labels",)}
    assert owned(live, "m1") >= wanted


@given(ownable_writes, ownable_specs)
def test_applying_again_changes_nothing(steps: list[Any], spec: Json) -> None:
    once = applied(lived(steps), object_of(spec), "m1")
    assert applied(once, object_of(spec), "m1", force=False) == once


@given(ownable_writes)
def test_owned_fields_exist(steps: list[Any]) -> None:
    live = lived(steps)
    assert [printed(path) for path in owned(live) if not leads_somewhere(live, path)] == []


@given(writes, specs)
def test_nobody_loses_a_field_without_a_conflict(steps: list[Any], spec: Json) -> None:
    before = lived(steps)
    after = before
    with suppress(Conflict):
        after = applied(before, object_of(spec), "m1", force=False)
    for manager in ("m2", "m3", "before-first-apply"):
        lost = owned(before, manager) - owned(after, manager)
        assert not [path for path in lost if leads_somewhere(after, path)]


@given(specs, specs)
def test_an_applier_who_gives_up_everything_leaves_no_trace(spec: Json, other: Json) -> None:
    start = applied(object_of({}), object_of(other), "m2")
    both = applied(start, object_of(spec), "m1", force=True)
    left = applied(both, {key: value for key, value in object_of({}).items() if key != "spec"}, "m1")
    assert not owned(left, "m1")
    assert owned(left, "m2") <= owned(start, "m2")


@pytest.mark.parametrize("value", [None, [], {"x:a": {}}, {"k:{": {}}, {"f:a": 1}, {"f:a": {"v:": {}}}])
def test_malformed_sets_of_fields_are_refused(value: object) -> None:
    with pytest.raises(Unreadable):
        decoded(value)


def test_keys_have_their_defaults() -> None:
    fields = fields_of(TYPE, object_of({"parts": [{"name": "a"}]}))
    assert [printed(path) for path in sorted(fields) if path[0] == "f:spec"] == [
        '.spec.parts[name="a",port=80]',
        '.spec.parts[name="a",port=80].name',
    ]


def test_the_oldest_of_many_managers_are_merged() -> None:
    live = applied(object_of({}), object_of({"size": 1}), "m1")
    for number in range(12):
        live = updated(
            live, live["spec"] | {"texts": live["spec"].get("texts", {}) | {str(number): "x"}}, f"w{number:02}"
        )
    updaters = [entry["manager"] for entry in live["metadata"]["managedFields"] if entry["operation"] == "Update"]
    assert sorted(updaters) == ["ancient-changes", *(f"w{number:02}" for number in range(3, 12))]
    texts = {path for path in owned(live) if path[:2] == ("f:spec", "f:texts") and len(path) == 3}
    assert texts == {("f:spec", "f:texts", f"f:{number}") for number in range(12)}
