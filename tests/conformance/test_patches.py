"""Patches of all three types, and their refusals."""

import re

import pytest

from datum_compute.kube.meta import Json
from datum_compute.kube.patches import JSON, MERGE, STRATEGIC
from tests.conformance.kinds import Place, config_map
from tests.conformance.server import Server


def test_a_merge_patch_sets_removes_and_replaces_lists(server: Server, place: Place) -> None:
    place.widget("one", {"size": 1, "tags": ["a", "b"], "texts": {"x": "1", "y": "2"}}, labels={"a": "b"})
    patch = {"metadata": {"labels": {"a": None, "c": "d"}}, "spec": {"tags": ["c"], "texts": {"x": None, "z": "3"}}}
    patched = server.merge(place.widgets("one"), patch)
    assert patched["metadata"]["labels"] == {"c": "d"}
    assert patched["spec"] == {"size": 1, "colour": "red", "tags": ["c"], "texts": {"y": "2", "z": "3"}}
    assert patched["metadata"]["generation"] == 2


def test_a_json_patch_can_replace_a_missing_field(server: Server, place: Place) -> None:
    place.widget("one")
    operations = (
        {"op": "test", "path": "/spec/code", "value": None},
        {"op": "replace", "path": "/spec/code", "value": "ABC"},
    )
    assert server.edit(place.widgets("one"), *operations)["spec"]["code"] == "ABC"


def test_a_patch_that_changes_nothing_writes_nothing(server: Server, place: Place) -> None:
    made = place.widget("one", labels={"a": "b"})
    for patch in ({}, {"spec": {"size": 1}}, {"metadata": {"labels": {"a": "b"}}}, {"spec": {"colour": None}}):
        assert server.merge(place.widgets("one"), patch) == made
    assert server.edit(place.widgets("one"), {"op": "test", "path": "/spec/size", "value": 1}) == made


def test_a_json_patch_has_six_operations(server: Server, place: Place) -> None:
    place.widget("one", {"size": 1, "tags": ["a", "b"], "texts": {"x": "1", "y/z~": "2"}})
    patched = server.edit(
        place.widgets("one"),
        {"op": "test", "path": "/spec/tags/0", "value": "a"},
        {"op": "add", "path": "/spec/tags/-", "value": "c"},
        {"op": "add", "path": "/spec/tags/1", "value": "d"},
        {"op": "remove", "path": "/spec/tags/0"},
        {"op": "replace", "path": "/spec/size", "value": 4},
        {"op": "copy", "from": "/spec/texts/x", "path": "/spec/texts/copied"},
        {"op": "move", "from": "/spec/texts/y~1z~0", "path": "/spec/texts/moved"},
    )
    assert patched["spec"]["tags"] == ["d", "b", "c"]
    assert patched["spec"]["size"] == 4
    assert patched["spec"]["texts"] == {"x": "1", "copied": "1", "moved": "2"}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/spec/size", "value": 2},
        {"op": "test", "path": "/spec/nothing", "value": 2},
        {"op": "replace", "path": "/spec/nothing/below", "value": 1},
        {"op": "remove", "path": "/spec/nothing"},
        {"op": "add", "path": "/spec/nothing/below", "value": 1},
        {"op": "add", "path": "/spec/tags/9", "value": "x"},
        {"op": "remove", "path": "/spec/tags/9"},
        {"op": "move", "from": "/spec/nothing", "path": "/spec/size"},
    ],
)
def test_a_json_patch_that_does_not_apply_is_refused_whole(server: Server, place: Place, operation: Json) -> None:
    made = place.widget("one", {"size": 1, "tags": ["a"]})
    first = {"op": "replace", "path": "/spec/size", "value": 5}
    refused = server.ask("PATCH", place.widgets("one"), [first, operation], type_=JSON)
    assert refused.failure == (422, "Invalid")
    assert refused.message.startswith("the server rejected our request")
    assert server.get(place.widgets("one")) == made


@pytest.mark.parametrize(
    ("body", "type_"),
    [(b"{", MERGE), (b"[]", MERGE), (b"{", JSON), (b"{}", JSON), (b'[{"op":"nope","path":"/x"}]', JSON)],
)
def test_a_malformed_patch_is_refused(server: Server, place: Place, body: bytes, type_: str) -> None:
    place.widget("one")
    assert server.ask("PATCH", place.widgets("one"), body, type_=type_).code in (400, 422)


def test_an_unknown_patch_type_is_refused(server: Server, place: Place) -> None:
    place.widget("one")
    refused = server.ask("PATCH", place.widgets("one"), {}, type_="application/json")
    assert refused.failure == (415, "UnsupportedMediaType")
    assert JSON in refused.message
    assert MERGE in refused.message


def test_a_strategic_patch_is_for_built_in_kinds(server: Server, place: Place) -> None:
    place.widget("one")
    refused = server.ask("PATCH", place.widgets("one"), {}, type_=STRATEGIC)
    assert refused.failure == (415, "UnsupportedMediaType")
    place.config_map("one", labels={"a": "b"}, finalizers=["example.test/a"])
    patch: Json = {"metadata": {"labels": {"a": None, "c": "d"}, "finalizers": ["example.test/b"]}, "data": {"b": "2"}}
    patched = server.ask("PATCH", place.config_maps("one"), patch, type_=STRATEGIC).json
    assert patched["data"] == {"a": "1", "b": "2"}
    assert patched["metadata"]["labels"] == {"c": "d"}
    assert set(patched["metadata"]["finalizers"]) == {"example.test/a", "example.test/b"}
    patch = {
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["example.test/a"]},
        "data": {"$patch": "replace", "z": "9"},
    }
    patched = server.ask("PATCH", place.config_maps("one"), patch, type_=STRATEGIC).json
    assert patched["metadata"]["finalizers"] == ["example.test/b"]
    assert patched["data"] == {"z": "9"}
    server.merge(place.config_maps("one"), {"metadata": {"finalizers": None}})


def test_a_strategic_patch_merges_owners_by_uid(server: Server, place: Place) -> None:
    owner = place.config_map("owner")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    place.config_map("one", ownerReferences=[reference])
    patch = {"metadata": {"ownerReferences": [{"uid": reference["uid"], "controller": True}]}}
    patched = server.ask("PATCH", place.config_maps("one"), patch, type_=STRATEGIC).json
    assert patched["metadata"]["ownerReferences"] == [reference | {"controller": True}]
    patch = {"metadata": {"ownerReferences": [{"uid": reference["uid"], "$patch": "delete"}]}}
    patched = server.ask("PATCH", place.config_maps("one"), patch, type_=STRATEGIC).json
    assert "ownerReferences" not in patched["metadata"]


def test_a_patch_may_have_a_resource_version(server: Server, place: Place) -> None:
    made = place.widget("one")["metadata"]
    good = {"metadata": {"resourceVersion": made["resourceVersion"]}, "spec": {"size": 2}}
    assert server.merge(place.widgets("one"), good)["spec"]["size"] == 2
    refused = server.ask("PATCH", place.widgets("one"), good, type_=MERGE)
    assert refused.failure == (409, "Conflict")
    assert "the object has been modified" in refused.message


def test_a_patch_may_have_a_uid(server: Server, place: Place) -> None:
    made = place.widget("one")["metadata"]
    assert (
        server.merge(place.widgets("one"), {"metadata": {"uid": made["uid"]}, "spec": {"size": 2}})["spec"]["size"] == 2
    )
    refused = server.ask("PATCH", place.widgets("one"), {"metadata": {"uid": "other"}}, type_=MERGE)
    assert (refused.failure, set(refused.causes)) == ((422, "Invalid"), {("FieldValueInvalid", "metadata.uid")})
    assert 'metadata.uid: Invalid value: "other": field is immutable' in refused.message
    status = {"metadata": {"uid": "other"}, "status": {"phase": "Up"}}  # metadata is ignored there
    assert server.merge(place.widgets("one", "status"), status)["status"] == {"phase": "Up"}


@pytest.mark.parametrize("change", [{"name": "two"}, {"namespace": "default"}])
def test_a_patch_cannot_move_an_object(server: Server, place: Place, change: Json) -> None:
    place.widget("one")
    refused = server.ask("PATCH", place.widgets("one"), {"metadata": change}, type_=MERGE)
    assert refused.failure == (400, "BadRequest")
    assert re.fullmatch(
        r"the name of the object \(two\) does not match the name on the URL \(one\)"
        "|the namespace of the provided object does not match the namespace sent on the request",
        refused.message,
    )


@pytest.mark.parametrize("change", [{"kind": "Other"}, {"apiVersion": "v1"}])
def test_a_patch_cannot_change_the_type(server: Server, place: Place, change: Json) -> None:
    place.widget("one")
    refused = server.ask("PATCH", place.widgets("one"), change, type_=MERGE)
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueInvalid", *change)])


@pytest.mark.parametrize(
    "change", [{"creationTimestamp": "2001-01-01T00:00:00Z"}, {"generation": 77}, {"selfLink": "/x"}]
)
def test_a_patch_of_server_managed_metadata_changes_nothing(server: Server, place: Place, change: Json) -> None:
    made = place.widget("one")
    reply = server.ask("PATCH", place.widgets("one"), {"metadata": change}, type_=MERGE)
    assert reply.code == 200
    assert server.get(place.widgets("one"))["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert server.get(place.widgets("one"))["metadata"]["generation"] == 1


def test_a_patch_is_validated_like_any_write(server: Server, place: Place) -> None:
    made = place.widget("one")
    refused = server.ask("PATCH", place.widgets("one"), {"spec": {"size": 99}}, type_=MERGE)
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueInvalid", "spec.size")])
    refused = server.ask("PATCH", place.widgets("one"), {"spec": None}, type_=MERGE)
    assert refused.code == 200  # objects of this kind need no resourceVersion
    assert made["spec"]["size"] == 1


def test_a_patch_of_status(server: Server, place: Place) -> None:
    place.widget("one")
    after = server.merge(place.widgets("one", "status"), {"status": {"phase": "Up", "seen": 1}, "spec": {"size": 9}})
    assert (after["status"], after["spec"]["size"]) == ({"phase": "Up", "seen": 1}, 1)
    after = server.edit(place.widgets("one", "status"), {"op": "replace", "path": "/status/seen", "value": 2})
    assert (after["status"]["seen"], after["metadata"]["generation"]) == (2, 1)


def test_a_built_in_kind_has_no_generation(server: Server, place: Place) -> None:
    assert "generation" not in place.config_map("one")["metadata"]
    patched = server.merge(place.config_maps("one"), {"data": {"a": "2"}})
    assert "generation" not in patched["metadata"]
    assert config_map("one")["data"] != patched["data"]
