import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import (
    KubeObject,
    ObjectMeta,
    OwnerReference,
    as_dict,
    controller_reference,
    decode,
    encode,
    missing_or_different,
    optional_part,
    owner_reference,
    part,
    same_json,
    schema,
    timestamp,
)


class Spec(Struct, frozen=True, rename="camel"):
    image: str
    min_replicas: int = 1


class Progress(Struct, frozen=True):
    done: int


class Thing(KubeObject, frozen=True):
    spec = part("spec_json", Spec)
    status = optional_part("status_json", Progress)


def thing(**parts: Any) -> Thing:
    return decode(encode({"metadata": {"name": "a", "namespace": "b"}, **parts}), Thing)


def test_unknown_fields_survive_in_the_json_of_the_spec() -> None:
    spec = {"image": "web", "minReplicas": 2, "future": {"field": [1, None]}}
    read = thing(apiVersion="v1", kind="Thing", spec=spec, other={"ignored": True})
    assert read.spec == Spec("web", 2)
    assert as_dict(read.spec_json) == spec
    assert decode(encode({"spec": read.spec_json}), dict) == {"spec": spec}


def test_the_name_and_namespace_are_at_hand() -> None:
    assert (thing().name, thing().namespace) == ("a", "b")


def test_a_part_is_decoded_once() -> None:
    read = thing(spec={"image": "web"}, status={"done": 1})
    assert read.spec is read.spec
    assert read.status is read.status


@pytest.mark.parametrize(
    ("parts", "expected"),
    [({}, None), ({"status": None}, None), ({"status": {"done": 3}}, Progress(3))],
)
def test_an_optional_part_is_none_when_absent_or_null(parts: dict[str, Any], expected: Progress | None) -> None:
    assert thing(**parts).status == expected


def test_an_object_does_not_keep_the_text_that_it_came_in() -> None:
    """A cache would otherwise hold a whole list for the sake of one of its items."""
    text = encode([{"metadata": {"name": "web"}, "spec": {"image": "a"}, "status": {"done": 1}}] * 2)
    before = sys.getrefcount(text)
    things = [decode(item, Thing) for item in decode(text, list[Raw])]
    assert sys.getrefcount(text) == before
    assert [(bytes(entry.spec_json), bytes(entry.status_json)) for entry in things] == [
        (b'{"image":"a"}', b'{"done":1}')
    ] * 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b'{"metadata":{"name":"\xff"}}', "UTF-8"),
        (b'{"metadata":{"labels":{"\xc3":"a"}}}', "UTF-8"),
        (b'{"metadata":{},"spec":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"metadata":{},"unknown":' + b'{"a":' * 100_000 + b"0" + b"}" * 100_000 + b"}", "nested too deeply"),
        (b'{"metadata":{"generation":1' + b"0" * 10_000 + b"}}", "`$.metadata.generation`"),
        (b'{"metadata":{"generation":1e400}}', "`$.metadata.generation`"),
        (b'{"metadata":{"name":"\\ud800"}}', ""),
        (b'{"metadata"', "truncated"),
        (b"", "truncated"),
    ],
    ids=range(9),
)
def test_text_that_cannot_be_read_is_one_kind_of_error_with_a_sentence(text: bytes, sentence: str) -> None:
    with pytest.raises(msgspec.DecodeError) as failed:
        decode(text, Thing)
    assert sentence in str(failed.value)
    assert 0 < len(str(failed.value)) < 150


def test_a_required_part_that_is_absent_fails_only_when_read() -> None:
    read = thing()
    with pytest.raises(msgspec.DecodeError):
        _ = read.spec


@pytest.mark.parametrize(
    ("text", "expected"), [(b"", {}), (b"null", {}), (b"{}", {}), (b'{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]})]
)
def test_a_part_as_plain_values_is_an_object_in_any_case(text: bytes, expected: dict[str, Any]) -> None:
    assert as_dict(Raw(text)) == expected


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b"", b"", True),
        (b"", b"{}", False),
        (b"{}", b"", False),
        (b'{"a":1,"b":[2]}', b'{ "b": [2], "a": 1 }', True),
        (b'{"a":{"x":1,"y":2}}', b'{"a":{"y":2,"x":1}}', True),
        (b'{"a":1}', b'{"a":2}', False),
        (b'{"a":1}', b'{"a":"1"}', False),
        (b'{"a":1}', b'{"a":1,"b":null}', False),
        (b"[1,2]", b"[2,1]", False),
        (b'"\\u0061"', b'"a"', True),
        (b"1", b"1.0", True),
        (b"true", b"1", False),
        (b"0", b"false", False),
        (b"0.0", b"false", False),
        (b"true", b"true ", True),
        (b'{"a":[{"b":true}]}', b'{"a":[{"b":1}]}', False),
        (b'{"a":null}', b'{"b":null}', False),
        (b"[]", b"{}", False),
        (b"null", b"false", False),
    ],
)
def test_two_texts_are_the_same_json_whatever_the_order_of_keys(one: bytes, other: bytes, same: bool) -> None:
    assert same_json(one, other) is same
    assert same_json(Raw(one), Raw(other)) is same


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.none(), max_size=5))
def test_an_object_is_the_same_json_in_reverse_order(value: dict[str, Any]) -> None:
    assert same_json(msgspec.json.encode(value), msgspec.json.encode(dict(reversed(value.items()))))


def test_metadata_is_read_from_what_servers_send() -> None:
    owner = {
        "apiVersion": "v1",
        "kind": "Owner",
        "name": "o",
        "uid": "1",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    meta = decode(
        encode(
            {
                "name": "a",
                "resourceVersion": "42",
                "generation": 3,
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "finalizers": ["x/y"],
                "ownerReferences": [{**owner, "controller": False, "name": "plain"}, owner],
                "managedFields": [{"manager": "kubectl"}],
            }
        ),
        ObjectMeta,
    )
    assert meta.revision == 42
    assert meta.creation_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert meta.controller == OwnerReference("v1", "Owner", "o", "1", True, True)
    assert not meta.deleting


def test_empty_metadata_has_harmless_values() -> None:
    meta = decode(b'{"creationTimestamp": null}', ObjectMeta)
    assert meta == ObjectMeta()
    assert meta.revision == 0
    assert meta.controller is None
    assert not meta.deleting
    assert decode(b'{"deletionTimestamp": "2026-01-02T03:04:05Z"}', ObjectMeta).deleting


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 999999, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (datetime(2026, 1, 2, 0, 30, tzinfo=timezone(timedelta(hours=2))), "2026-01-01T22:30:00Z"),
    ],
)
def test_a_time_is_written_in_utc_and_whole_seconds(moment: datetime, text: str) -> None:
    assert timestamp(moment) == text


OWNER = Kind("", "v1", "Owner", "owners", KubeObject)


def test_an_object_knows_its_kind_and_is_the_same_with_and_without() -> None:
    data = b'{"metadata":{"name":"o"},"spec":{"size":1}}'
    unmarked, marked = decode(data, KubeObject), OWNER.decode(data)
    assert marked.kind is OWNER
    assert marked == unmarked
    assert encode(marked) == encode(unmarked)
    with pytest.raises(TypeError, match="KubeObject o was not read from a server"):
        _ = unmarked.kind


def test_only_a_controller_reference_blocks_the_deletion_of_its_owner() -> None:
    plain_reference = {"apiVersion": "v1", "kind": "Owner", "name": "o", "uid": "1"}
    owner = OWNER.mark(KubeObject(ObjectMeta(name="o", uid="1")))
    assert owner_reference(owner) == plain_reference
    assert controller_reference(owner) == plain_reference | {
        "controller": True,
        "blockOwnerDeletion": True,
    }


@pytest.mark.parametrize(
    ("wanted", "actual", "patch"),
    [
        ({}, {}, {}),
        ({"a": "1"}, {}, {"a": "1"}),
        ({"a": "1"}, {"a": "2"}, {"a": "1"}),
        ({"a": "1"}, {"a": "1", "of others": "stays"}, {}),
        ({"a": "", "b": "1"}, {"b": "1"}, {"a": ""}),
    ],
)
def test_a_patch_of_labels_carries_only_what_differs(
    wanted: dict[str, str], actual: dict[str, str], patch: dict[str, str]
) -> None:
    assert missing_or_different(wanted, actual) == patch


def test_schema_keywords_are_renamed_and_never_fail_a_read() -> None:
    meta = schema("A count.", minimum=1, list_type="map", list_map_keys=["name"])
    assert meta.description == "A count."
    assert meta.extra_json_schema == {
        "minimum": 1,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    assert (meta.ge, meta.gt, meta.pattern, meta.max_length) == (None, None, None, None)
