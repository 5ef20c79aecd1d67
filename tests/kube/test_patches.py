import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from datum_compute.kube.errors import BadRequest, Invalid, TooLarge
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject, encode
from datum_compute.kube.patches import apply_json_patch, changes, difference, merge, strategic


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        # a key is replaced, added, removed
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": "b"}, {"c": None}, {"a": "b"}),
        # a list is a value like any other: replaced whole, its nulls kept
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": [1, 2]}, {"a": [None]}, {"a": [None]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        # objects merge at any depth
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": None}}}, {"a": {"b": {"d": 2}}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1}}),
        # what is no object is replaced by an object, and nulls in the patch never arrive
        ({}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
        ({"a": "text"}, {"a": {"b": 1, "c": None}}, {"a": {"b": 1}}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        # a patch that is no object replaces everything
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "b"}, None, None),
        ({"a": "b"}, "c", "c"),
        # null in the target is a value until the patch speaks of it
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({"e": None}, {"e": {"a": 1}}, {"e": {"a": 1}}),
    ],
)
def test_a_merge_patch_merges_objects_and_replaces_the_rest(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((target, patch))
    assert merge(target, patch) == result
    assert (target, patch) == before


def op(name: str, path: str, value: Any = ..., **more: str) -> Json:
    return {"op": name, "path": path, **({} if value is ... else {"value": value}), **more}


def moved(name: str, source: str, path: str) -> Json:
    return {"op": name, "from": source, "path": path}


@pytest.mark.parametrize(
    ("target", "operation", "result"),
    [
        # add
        ({"a": 1}, op("add", "/b", 2), {"a": 1, "b": 2}),
        ({"a": 1}, op("add", "/a", 2), {"a": 2}),
        ({"a": 1}, op("add", "/b", None), {"a": 1, "b": None}),
        ({"a": {"b": {}}}, op("add", "/a/b/c", [1]), {"a": {"b": {"c": [1]}}}),
        ({"a": [1, 3]}, op("add", "/a/1", 2), {"a": [1, 2, 3]}),
        ({"a": [1]}, op("add", "/a/0", 0), {"a": [0, 1]}),
        ({"a": [1]}, op("add", "/a/1", 2), {"a": [1, 2]}),
        ({"a": [1]}, op("add", "/a/-", 2), {"a": [1, 2]}),
        ({"a": []}, op("add", "/a/-", [2]), {"a": [[2]]}),
        ({"a": [{"b": []}]}, op("add", "/a/0/b/-", 1), {"a": [{"b": [1]}]}),
        ({"a": {}}, op("add", "/a/-", 1), {"a": {"-": 1}}),
        ({"a": 1}, op("add", "", {"b": 2}), {"b": 2}),
        # remove
        ({"a": 1, "b": 2}, op("remove", "/a"), {"b": 2}),
        ({"a": [1, 2, 3]}, op("remove", "/a/1"), {"a": [1, 3]}),
        ({"a": {"b": None}}, op("remove", "/a/b"), {"a": {}}),
        # replace
        ({"a": 1}, op("replace", "/a", {"b": 2}), {"a": {"b": 2}}),
        ({"a": [1, 2]}, op("replace", "/a/0", 5), {"a": [5, 2]}),
        ({"a": 1}, op("replace", "", {"b": 2}), {"b": 2}),
        ({"a": 1}, op("replace", "/b", 2), {"a": 1, "b": 2}),  # as API servers take it
        ({"a": 1}, op("test", "/b", None), {"a": 1}),
        # move
        ({"a": {"b": 1}, "c": {}}, moved("move", "/a/b", "/c/d"), {"a": {}, "c": {"d": 1}}),
        ({"a": [1, 2, 3]}, moved("move", "/a/0", "/a/2"), {"a": [2, 3, 1]}),
        ({"a": [1, 2, 3]}, moved("move", "/a/2", "/a/-"), {"a": [1, 2, 3]}),
        ({"a": 1}, moved("move", "/a", "/a"), {"a": 1}),
        ({"a": 1, "ab": {}}, moved("move", "/a", "/ab/c"), {"ab": {"c": 1}}),
        # copy
        ({"a": {"b": 1}}, moved("copy", "/a", "/c"), {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a": [1]}, moved("copy", "/a/0", "/a/-"), {"a": [1, 1]}),
        ({"a": {"b": 1}}, moved("copy", "/a", "/a/c"), {"a": {"b": 1, "c": {"b": 1}}}),
        # test
        ({"a": [1, {"b": None}]}, op("test", "/a", [1, {"b": None}]), {"a": [1, {"b": None}]}),
        ({"a": 1}, op("test", "/a", 1.0), {"a": 1}),
        ({"a": {"b": 1, "c": 2}}, op("test", "/a", {"c": 2, "b": 1}), {"a": {"b": 1, "c": 2}}),
        ({"a": None}, op("test", "/a", None), {"a": None}),
        ({"a": True}, op("test", "", {"a": True}), {"a": True}),
        # a slash is ~1 and a tilde ~0, and ~01 is a tilde and a 1
        ({"a/b": 1}, op("replace", "/a~1b", 2), {"a/b": 2}),
        ({"m~n": 1}, op("replace", "/m~0n", 2), {"m~n": 2}),
        ({"~1": 1}, op("replace", "/~01", 2), {"~1": 2}),
        ({"": {"": 1}}, op("replace", "//", 2), {"": {"": 2}}),
        ({"0": 1}, op("replace", "/0", 2), {"0": 2}),
        ({"a b%20": 1}, op("remove", "/a b%20"), {}),
    ],
)
def test_an_operation_is_applied(target: Any, operation: Json, result: Any) -> None:
    before = copy.deepcopy((target, operation))
    assert apply_json_patch(target, [operation]) == result
    assert (target, operation) == before


@pytest.mark.parametrize(
    ("target", "operation"),
    [
        ({"a": 1}, op("remove", "/b")),
        ({"a": 1}, op("test", "/b", 1)),
        ({"a": 1}, op("test", "/a", 2)),
        ({"a": 1}, op("test", "/a", "1")),
        ({"a": 1}, op("test", "/a", True)),
        ({"a": [0]}, op("test", "/a", [False])),
        ({"a": {"b": 1}}, op("test", "/a", {"b": 1, "c": 1})),
        ({"a": [1]}, op("test", "/a", [1, 2])),
        ({"a": 1}, op("add", "/b/c", 1)),
        ({"a": 1}, op("add", "/a/b", 1)),
        ({"a": "text"}, op("replace", "/a/0", 1)),
        ({"a": [1]}, op("add", "/a/2", 1)),
        ({"a": [1]}, op("remove", "/a/1")),
        ({"a": [1]}, op("remove", "/a/-")),
        ({"a": [1]}, op("replace", "/a/-", 1)),
        ({"a": [1]}, op("add", "/a/-1", 1)),
        ({"a": [1, 2]}, op("remove", "/a/01")),  # an index has no leading zero
        ({"a": [1, 2]}, op("remove", "/a/١")),  # and no other digits
        ({"a": [1, 2]}, op("remove", "/a/1.0")),
        ({"a": [1, 2]}, op("remove", "/a/" + "9" * 5000)),
        ({"a": [1]}, op("add", "/a/b", 1)),
        ({"a": 1}, moved("move", "/b", "/c")),
        ({"a": 1}, moved("copy", "/b", "/c")),
        ({"a": {"b": {}}}, moved("move", "/a", "/a/b/c")),
        ({"a": [{}, {}]}, moved("move", "/a/0", "/a/0/b")),  # not even where the next item would take its place
    ],
)
def test_an_operation_that_does_not_fit_is_invalid_and_changes_nothing(target: Any, operation: Json) -> None:
    before = copy.deepcopy(target)
    with pytest.raises(Invalid, match="the server rejected our request"):
        apply_json_patch(target, [op("add", "/first", 1), operation])
    assert target == before


@pytest.mark.parametrize(
    "operations",
    [
        [{"path": "/a", "value": 1}],
        [{"op": "append", "path": "/a", "value": 1}],
        [{"op": "add", "value": 1}],
        [{"op": "add", "path": "a", "value": 1}],
        [{"op": "add", "path": 5, "value": 1}],
        [{"op": "add", "path": "/b"}],
        [{"op": "replace", "path": "/a"}],
        [{"op": "test", "path": "/a"}],
        [{"op": "move", "path": "/b"}],
        [{"op": "copy", "from": "a", "path": "/b"}],
        ["add"],
        [None],
        {"op": "add"},
    ],
)
def test_an_unknown_operation_is_a_bad_request(operations: Any) -> None:
    target = {"a": 1}
    with pytest.raises(BadRequest):
        apply_json_patch(target, operations)
    assert target == {"a": 1}


def test_operations_are_applied_in_order_and_a_failing_one_refuses_all() -> None:
    target: Json = {"spec": {"gates": [{"name": "Network"}, {"name": "Quota"}]}}
    gone = op("test", "/spec/gates/0/name", "Network"), op("remove", "/spec/gates/0")
    assert apply_json_patch(target, gone) == {"spec": {"gates": [{"name": "Quota"}]}}
    with pytest.raises(Invalid):
        apply_json_patch(target, [*gone, *gone])
    assert target == {"spec": {"gates": [{"name": "Network"}, {"name": "Quota"}]}}
    assert apply_json_patch(target, []) is target


VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, "", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab/~"), inner, max_size=3),
    max_leaves=8,
)
POINTERS = st.lists(st.sampled_from(["a", "b", "~0", "~1", "0", "1", "-", "x"]), max_size=3).map(
    lambda tokens: "".join(f"/{token}" for token in tokens)
)
OPERATIONS = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]), "path": POINTERS},
    optional={"from": POINTERS, "value": VALUES},
)


@settings(deadline=None)
@given(target=VALUES, operations=st.lists(OPERATIONS, max_size=4))
def test_any_json_patch_is_applied_or_refused_and_never_changes_its_target(target: Any, operations: list[Json]) -> None:
    before = copy.deepcopy((target, operations))
    with suppress(Invalid, BadRequest):
        apply_json_patch(target, operations)
    assert (target, operations) == before


@settings(deadline=None)
@given(target=VALUES, patch=VALUES)
def test_a_merge_patch_applied_twice_is_applied_once(target: Any, patch: Any) -> None:
    before = copy.deepcopy((target, patch))
    once = merge(target, patch)
    assert merge(once, patch) == once
    assert (target, patch) == before


# strategic merge patches


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"data": {"a": "1"}}, {"data": {"b": "2"}}, {"data": {"a": "1", "b": "2"}}),
        ({"data": {"a": "1", "b": "2"}}, {"data": {"a": None}}, {"data": {"b": "2"}}),
        ({"data": {"a": "1"}}, {"data": {"$patch": "replace", "b": "2"}}, {"data": {"b": "2"}}),
        ({"data": {"a": "1"}}, {"data": {"$patch": "delete"}}, {"data": {}}),
        ({"data": {"a": "1", "b": "2"}}, {"data": {"$retainKeys": ["b"], "b": "3"}}, {"data": {"b": "3"}}),
        ({}, {"list": [1]}, {"list": [1]}),
        ({"list": [1, 2]}, {"list": [3]}, {"list": [3]}),
        ({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}),
        (
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]},
            {"finalizers": ["b"]},
        ),
        (
            {"ownerReferences": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]},
            {
                "ownerReferences": [
                    {"uid": "2", "name": "c"},
                    {"uid": "3", "name": "d"},
                    {"uid": "1", "$patch": "delete"},
                ]
            },
            {"ownerReferences": [{"uid": "2", "name": "c"}, {"uid": "3", "name": "d"}]},
        ),
    ],
)
def test_a_strategic_patch_merges_what_is_a_map_or_has_a_key(target: Json, patch: Json, result: Json) -> None:
    before = copy.deepcopy(target)
    assert strategic(target, patch) == result
    assert target == before


def test_an_element_without_its_key_cannot_be_merged() -> None:
    with pytest.raises(BadRequest, match="uid"):
        strategic({}, {"ownerReferences": [{"name": "a"}]})


STRATEGIC_KEYS = st.sampled_from(["a", "finalizers", "ownerReferences", "uid", "$patch", "$retainKeys"])
DELETING = st.sampled_from(["$deleteFromPrimitiveList/finalizers", "$setElementOrder/finalizers"])
STRATEGIC_VALUES = st.recursive(
    st.sampled_from([None, 1, "x", "delete", "replace"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRATEGIC_KEYS | DELETING, inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(target=STRATEGIC_VALUES, patch=STRATEGIC_VALUES)
def test_any_strategic_patch_is_applied_or_refused_and_never_changes_its_target(target: Any, patch: Any) -> None:
    before = copy.deepcopy((target, patch))
    with suppress(BadRequest):
        strategic(target, patch)
    assert (target, patch) == before


def test_copies_of_copies_are_refused_before_they_are_made() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(60)]
    with pytest.raises(TooLarge, match="copies of a JSON patch"):
        apply_json_patch({"a": {"text": "x" * 100}}, doubling)


def test_a_patch_of_very_many_operations_is_refused() -> None:
    with pytest.raises(TooLarge, match="maximum operations in a JSON patch is 10000, got 10001"):
        apply_json_patch({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)


@pytest.mark.parametrize(
    ("before", "after", "patch"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"a": 1.0}, {}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": {"b": [False]}}, {"a": {"b": [0]}}, {"a": {"b": [0]}}),
        ({"a": 1, "b": 2}, {"b": 2}, {"a": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}),
    ],
)
def test_the_difference_is_a_merge_patch(before: Json, after: Json, patch: Json) -> None:
    assert difference(before, after) == patch
    assert merge(before, patch) == after


# What an object lacks

FOUND = Kind("example.test", "v1", "Widget", "widgets", KubeObject).decode(
    encode(
        {
            "metadata": {
                "name": "w",
                "labels": {"colour": "red", "size": "1"},
                "annotations": {"by": "us"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Owner", "name": "o", "uid": "1"}],
            },
            "spec": {"size": 1, "list": [1]},
        }
    )
)


@pytest.mark.parametrize(
    ("wanted", "patch"),
    [
        ({}, {}),
        ({"labels": {"colour": "red"}, "annotations": {"by": "us", "gone": None}}, {}),
        ({"labels": {"colour": "blue", "new": "1"}}, {"metadata": {"labels": {"colour": "blue", "new": "1"}}}),
        ({"labels": {"size": None}}, {"metadata": {"labels": {"size": None}}}),
        ({"annotations": {"by": "them"}}, {"metadata": {"annotations": {"by": "them"}}}),
        ({"owners": [{"uid": "1"}]}, {}),
        ({"owners": [{"uid": "2"}]}, {"metadata": {"ownerReferences": [{"uid": "2"}]}}),
        ({"spec": Raw(b'{"list": [1], "size": 1}')}, {}),
        ({"spec": Raw(b'{"size": 2}')}, {"spec": {"size": 2, "list": None}}),
    ],
)
def test_changes_contain_only_what_differs(wanted: Any, patch: Json) -> None:
    assert changes(FOUND, **wanted) == patch
