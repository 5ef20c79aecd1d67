"""Pruning, defaults and validation, checked against the code of kube-apiserver 1.35; differences are marked."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.embedded.schemas.schema import Schema
from datum_compute.embedded.schemas.structural import MAX_DEPTH
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json
from tests.conftest import count

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
EMBEDDED = {"type": "object", "x-kubernetes-embedded-resource": True}
INT_OR_STRING = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
BY_NAME: Json = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


def fields(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def array(items: Json, **keywords: Any) -> Json:
    return {"type": "array", "items": items, **keywords}


def mapping(values: Json | bool, **keywords: Any) -> Json:
    return {"type": "object", "additionalProperties": values, **keywords}


def spec_schema(spec: Json) -> Schema:
    return Schema(fields(spec=spec))


def causes(schema: Json, spec: Any) -> list[tuple[str, str, str]]:
    return [(cause.field, cause.reason, cause.message) for cause in spec_schema(schema).violations({"spec": spec})]


@pytest.mark.parametrize(
    ("schema", "spec", "left"),
    [
        (fields(a=STRING), {"a": "1", "b": "2"}, {"a": "1"}),
        (fields(a=fields(b=STRING)), {"a": {"b": "1", "c": "2"}}, {"a": {"b": "1"}}),
        (fields(), {"a": 1}, {}),
        (fields(a=array(fields(b=STRING))), {"a": [{"b": "1"}, {"c": "2"}]}, {"a": [{"b": "1"}, {}]}),
        (mapping(STRING), {"any": "1", "key": "2"}, {"any": "1", "key": "2"}),
        (mapping(fields(a=STRING)), {"k": {"a": "1", "b": "2"}}, {"k": {"a": "1"}}),
        # Any value is allowed, but objects in it have no known fields.
        (mapping(True), {"a": "1", "b": {"c": 1}, "d": [[{"e": 1}], 2]}, {"a": "1", "b": {}, "d": [[{}], 2]}),
        (ANYTHING, {"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 1}]}}),
        # Unknown fields stay, but a known one is pruned by its own schema.
        (ANYTHING | fields(a=fields(b=STRING)), {"a": {"b": "1", "x": 1}, "y": 1}, {"a": {"b": "1"}, "y": 1}),
        # Items of an array that preserves unknown fields do so too, unlike properties of an object.
        (
            array(fields(a=fields()), **{"x-kubernetes-preserve-unknown-fields": True}),
            [{"a": {"x": 1}, "y": 1}],
            [{"a": {}, "y": 1}],
        ),
        (
            EMBEDDED | fields(data=fields()),
            {"apiVersion": "v1", "kind": "A", "metadata": {"any": 1}, "data": {"x": 1}, "y": 1},
            {"apiVersion": "v1", "kind": "A", "metadata": {"any": 1}, "data": {}},
        ),
        (fields(metadata=fields(name=STRING)), {"metadata": {"name": "a", "x": 1}}, {"metadata": {"name": "a"}}),
        (fields(a={"x-kubernetes-int-or-string": True}), {"a": 5}, {"a": 5}),
    ],
)  # fmt: skip
def test_unknown_fields_are_pruned(schema: Json, spec: Any, left: Any) -> None:
    assert spec_schema(schema).shape({"spec": spec}) == {"spec": left}


@pytest.mark.parametrize(
    ("schema", "spec", "left"),
    [
        (fields(a=STRING), {"a": None}, {}),
        (fields(a=fields(b=STRING)), {"a": {"b": None}}, {"a": {}}),
        (fields(a=STRING | {"nullable": True}), {"a": None}, {"a": None}),
        (mapping(STRING), {"a": None, "b": "1"}, {"b": "1"}),
        (mapping(STRING | {"nullable": True}), {"a": None}, {"a": None}),
        (mapping(True), {"a": None}, {"a": None}),
        (array(STRING), [None, "a"], [None, "a"]),
        (ANYTHING | fields(a=STRING), {"a": None, "b": None}, {"b": None}),
    ],
)
def test_a_null_that_is_neither_allowed_nor_defaulted_means_not_set(schema: Json, spec: Any, left: Any) -> None:
    assert spec_schema(schema).shape({"spec": spec}) == {"spec": left}


def test_type_and_metadata_are_never_pruned() -> None:
    schema = Schema(fields(apiVersion=STRING, kind=STRING, metadata={"type": "object"}, spec=fields()))
    value = {"apiVersion": "v1", "kind": "A", "metadata": {"name": "a", "unheard": {"of": [None]}}, "spec": {}}
    assert schema.shape(value | {"other": 1}) == value
    assert Schema({"type": "object"}).shape(value) == {key: value[key] for key in ("apiVersion", "kind", "metadata")}


@pytest.mark.parametrize(
    ("schema", "spec", "filled"),
    [
        (fields(a=STRING | {"default": "x"}), {}, {"a": "x"}),
        (fields(a=STRING | {"default": "x"}), {"a": "y"}, {"a": "y"}),
        (fields(a=STRING | {"default": "x"}), {"a": ""}, {"a": ""}),
        (fields(a={"type": "boolean", "default": True}), {"a": False}, {"a": False}),
        (fields(a=INTEGER | {"default": 0}), {}, {"a": 0}),
        # Null means absent, unless it is allowed.
        (fields(a=STRING | {"default": "x"}), {"a": None}, {"a": "x"}),
        (fields(a=STRING | {"default": "x", "nullable": True}), {"a": None}, {"a": None}),
        # A default does not create its parent, but a parent created by its own default is filled.
        (fields(a=fields(b=STRING | {"default": "x"})), {}, {}),
        (fields(a=fields(b=STRING | {"default": "x"})), {"a": {}}, {"a": {"b": "x"}}),
        (fields(a=fields(b=STRING | {"default": "x"}) | {"default": {}}), {}, {"a": {"b": "x"}}),
        (fields(a=ANYTHING | fields(b=INTEGER | {"default": 1}) | {"default": {"c": 2}}), {}, {"a": {"b": 1, "c": 2}}),
        (fields(a=fields(b=STRING | {"default": "x"}) | {"default": {"b": "y"}}), {}, {"a": {"b": "y"}}),
        (fields(a=fields(b=STRING | {"default": "x"}) | {"default": {"b": "y"}}), {"a": {}}, {"a": {"b": "x"}}),
        # Inside arrays and maps.
        (array(fields(a=STRING | {"default": "x"})), [{}, {"a": "y"}], [{"a": "x"}, {"a": "y"}]),
        (array(fields(a=STRING | {"default": "x"})), [], []),
        (array(INTEGER | {"default": 5}), [None, 1], [5, 1]),
        (array(INTEGER), [None], [None]),
        (mapping(fields(a=STRING | {"default": "x"})), {"k": {}}, {"k": {"a": "x"}}),
        (mapping(INTEGER | {"default": 5}), {"k": None}, {"k": 5}),
        (mapping(INTEGER | {"default": 5}), {}, {}),
        (fields(a=array(fields(b=STRING | {"default": "x"})) | {"default": [{}]}), {}, {"a": [{"b": "x"}]}),
        # A default that the schema would prune, and a default of null, are ignored.
        (fields(a=fields() | {"default": {"unknown": 1}}), {}, {"a": {}}),
        (fields(a=STRING | {"default": None, "nullable": True}), {}, {}),
        # A value of the wrong type is left to validation.
        (fields(a=STRING | {"default": "x"}), "text", "text"),
        (fields(a=STRING | {"default": "x"}), [], []),
        (array(INTEGER | {"default": 5}), {}, {}),
    ],
)  # fmt: skip
def test_defaults_are_filled_in(schema: Json, spec: Any, filled: Any) -> None:
    assert spec_schema(schema).shape({"spec": spec}) == {"spec": filled}


def test_each_object_gets_its_own_copy_of_a_default() -> None:
    schema = Schema(
        fields(status=fields(conditions=array(ANYTHING)) | {"default": {"conditions": [{"type": "Ready"}]}})
    )
    first = schema.shape({})
    first["status"]["conditions"][0]["type"] = "changed"
    assert schema.shape({}) == {"status": {"conditions": [{"type": "Ready"}]}}


def test_a_value_that_needs_no_change_is_returned_itself() -> None:
    schema = spec_schema(fields(a=array(fields(b=STRING | {"default": "x"})), m=mapping(fields(c=STRING))))
    value = {"metadata": {}, "spec": {"a": [{"b": "1"}], "m": {"k": {"c": "1"}}}}
    assert schema.shape(value) is value


def test_unchanged_parts_are_shared_with_the_value() -> None:
    value = {"spec": {"kept": {"a": "1"}, "changed": {"unknown": 1}}}
    pruned = spec_schema(fields(kept=fields(a=STRING), changed=fields())).shape(value)
    assert pruned == {"spec": {"kept": {"a": "1"}, "changed": {}}}
    assert pruned["spec"]["kept"] is value["spec"]["kept"]


@pytest.mark.parametrize(
    ("schema", "spec"),
    [
        (INTEGER, 1),
        (INTEGER, 1.0),
        (INTEGER, 2**63 - 1),
        (INTEGER | {"format": "int32"}, 2**31),  # kube-apiserver ignores the format
        ({"type": "number"}, 5),
        ({"type": "number"}, 1e300),
        (STRING | {"nullable": True}, None),
        (STRING | {"format": "date-time"}, "2026-01-02T03:04:05.678Z"),
        (STRING | {"format": "date-time"}, "2026-01-02T03:04:05+02:00"),
        (STRING | {"format": "a format nobody knows"}, "x"),
        (STRING | {"maxLength": 2}, "äö"),
        (STRING | {"pattern": "b"}, "abc"),
        ({"x-kubernetes-int-or-string": True}, 80),
        ({"x-kubernetes-int-or-string": True}, "80%"),
        (INT_OR_STRING, 80),
        (INTEGER | {"enum": [1, 2]}, 2),
        (INTEGER | {"minimum": 1, "maximum": 1}, 1),
        (ANYTHING, {"a": [1, {"b": None}]}),
        (fields(a=STRING), {"not": "validated here"}),
        (array(STRING, **{"x-kubernetes-list-type": "set"}), ["a", "b"]),
        (array({"x-kubernetes-int-or-string": True}, **{"x-kubernetes-list-type": "set"}), [1, "1"]),
        (array({}, **{"x-kubernetes-list-type": "set"}), [1, True, 0, False]),
        (array(fields(name=STRING, b=INTEGER), **BY_NAME), [{"name": "a", "b": 1}, {"name": "b", "b": 1}, {"b": 1}]),
        (array(STRING, **{"x-kubernetes-list-type": "atomic"}), ["a", "a"]),
        (EMBEDDED | ANYTHING, {"apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}}),
    ],
)
def test_a_valid_value_has_no_violations(schema: Json, spec: Any) -> None:
    assert causes(schema, spec) == []


@pytest.mark.parametrize(
    ("schema", "spec", "actual"),
    [
        (INTEGER, "1", "string"),
        (INTEGER, 1.5, "number"),
        (INTEGER, True, "boolean"),
        (INTEGER, None, "null"),
        (INTEGER, [1], "array"),
        (INTEGER, {}, "object"),
        (INTEGER, 2**63, "number"),  # more than 64 bits arrives as a float in a Go program
        (INTEGER, -(10**400), "number"),
        (STRING, 1, "integer"),
        (STRING, 10**400, "number"),
        ({"type": "boolean"}, "true", "string"),
        ({"type": "object"}, [], "array"),
        (array(STRING), {}, "object"),
    ],
)
def test_a_wrong_type_is_reported_with_both_types(schema: Json, spec: Any, actual: str) -> None:
    message = f'Invalid value: "{actual}": spec in body must be of type {schema["type"]}: "{actual}"'
    assert causes(schema, spec) == [("spec", "FieldValueTypeInvalid", message)]


@pytest.mark.parametrize(
    ("schema", "spec", "reason", "message"),
    [
        (STRING | {"enum": ["a", "b"]}, "x", "NotSupported", 'Unsupported value: "x": supported values: "a", "b"'),
        (INTEGER | {"enum": [1, 2]}, 3, "NotSupported", 'Unsupported value: 3: supported values: "1", "2"'),
        (STRING | {"pattern": "^z$"}, "z\n", "Invalid", 'Invalid value: "z\\n": spec in body should match \'^z$\''),
        (STRING | {"minLength": 1}, "", "Invalid", 'Invalid value: "": spec in body should be at least 1 chars long'),
        (STRING | {"maxLength": 1}, "ab", "TooLong", "Too long: may not be more than 1 byte"),
        (STRING | {"maxLength": 2}, "abc", "TooLong", "Too long: may not be more than 2 bytes"),
        (
            STRING | {"format": "date-time"}, "today", "TypeInvalid",
            'Invalid value: "today": spec in body must be of type date-time: "today"',
        ),
        (INTEGER | {"minimum": 1}, 0, "Invalid", "Invalid value: 0: spec in body should be greater than or equal to 1"),
        (INTEGER | {"maximum": 1}, 2, "Invalid", "Invalid value: 2: spec in body should be less than or equal to 1"),
        (
            INTEGER | {"minimum": 1, "exclusiveMinimum": True}, 1, "Invalid",
            "Invalid value: 1: spec in body should be greater than 1",
        ),
        (
            INTEGER | {"maximum": 1, "exclusiveMaximum": True}, 1, "Invalid",
            "Invalid value: 1: spec in body should be less than 1",
        ),
        (
            {"type": "number", "maximum": 1.5}, 2.0, "Invalid",
            "Invalid value: 2: spec in body should be less than or equal to 1.5",
        ),
        (INTEGER | {"multipleOf": 5}, 7, "Invalid", "Invalid value: 7: spec in body should be a multiple of 5"),
        (array(STRING, minItems=1), [], "Invalid", "Invalid value: 0: spec in body should have at least 1 items"),
        (array(STRING, maxItems=1), ["a", "b"], "TooMany", "Too many: 2: must have at most 1 item"),
        (
            mapping(STRING, minProperties=1), {}, "Invalid",
            "Invalid value: 0: spec in body should have at least 1 properties",
        ),
        (mapping(STRING, maxProperties=0), {"a": "", "b": ""}, "TooMany", "Too many: 2: must have at most 0 items"),
        # kube-apiserver reports alternatives without their field, and adds the causes of one of them.
        (
            INT_OR_STRING, True, "TypeInvalid",
            'Invalid value: "boolean": spec in body must be of type integer,string: "boolean"',
        ),
        (
            {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}, "Invalid",
            'Invalid value: "": "spec" must validate one and only one schema (oneOf)',
        ),
        (
            {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 1}, "Invalid",
            'Invalid value: "": "spec" must validate one and only one schema (oneOf)',
        ),
        (
            {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}, "Invalid",
            'Invalid value: "": "spec" must validate at least one schema (anyOf)',
        ),
        (
            {"type": "object", "not": {"required": ["a"]}}, {"a": 1}, "Invalid",
            'Invalid value: "": "spec" must not validate the schema (not)',
        ),
    ],
)  # fmt: skip
def test_a_violation_is_reported_in_the_words_of_an_api_server(
    schema: Json, spec: Any, reason: str, message: str
) -> None:
    assert causes(schema, spec) == [("spec", f"FieldValue{reason}", message)]


@pytest.mark.parametrize(
    ("items", "duplicates"),
    [
        (["a", "b", "a"], [(2, '"a"')]),
        (["a", "a", "a"], [(1, '"a"')]),  # the second is reported, the third is not
        (["a", "b", "a", "b"], [(2, '"a"'), (3, '"b"')]),
        ([{"x": 1, "y": 2}, {"y": 2, "x": 1}], [(1, '{"x":1,"y":2}')]),
        ([[1], [True], [1]], [(2, "[1]")]),
        ([None, None], [(1, "null")]),
    ],
)
def test_repeated_items_of_a_set_are_violations(items: list[Any], duplicates: list[tuple[int, str]]) -> None:
    expected = [(f"spec[{index}]", "FieldValueDuplicate", f"Duplicate value: {text}") for index, text in duplicates]
    assert causes(array({}, **{"x-kubernetes-list-type": "set"}), items) == expected


@pytest.mark.parametrize(
    ("keys", "items", "duplicates"),
    [
        (["name"], [{"name": "a", "x": 1}, {"name": "a", "x": 2}], [(1, '{"name":"a"}')]),
        (["name"], [{"x": 1}, {"x": 2}], [(1, "{}")]),
        (["name"], [{}, {"name": "a"}, {"name": "b"}, {"name": "a"}, {}], [(3, '{"name":"a"}'), (4, "{}")]),
        (["name", "x"], [{"name": "a", "x": 1}, {"name": "a", "x": 2}], []),
        (["name", "x"], [{"name": "a", "x": 1}, {"x": 1, "name": "a"}], [(1, '{"name":"a","x":1}')]),
        (["name", "x"], [{"name": "a"}, {"name": "a"}], [(1, '{"name":"a"}')]),
    ],
)
def test_repeated_keys_of_a_list_map_are_violations(
    keys: list[str], items: list[Any], duplicates: list[tuple[int, str]]
) -> None:
    schema = array(
        fields(name=STRING, x=INTEGER), **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    )
    expected = [(f"spec[{index}]", "FieldValueDuplicate", f"Duplicate value: {text}") for index, text in duplicates]
    assert causes(schema, items) == expected


def test_duplicates_are_found_at_any_depth() -> None:
    lists = array(fields(inner=mapping(array(fields(name=STRING), **BY_NAME))))
    twice = [{"name": "a"}, {"name": "a"}]
    assert [field for field, *_ in causes(lists, [{}, {"inner": {"plain": twice, "a/b": twice}}])] == [
        "spec[1].inner[a/b][1]",
        "spec[1].inner.plain[1]",
    ]


def test_all_violations_are_reported_in_field_order() -> None:
    # kube-apiserver writes spec.labels.a/b here, but spec.labels[a/b] where it checks metadata or finds duplicates
    placement = fields(name=STRING, count=INTEGER | {"minimum": 1}) | {"required": ["name"]}
    schema = Schema(
        fields(spec=fields(placements=array(placement), labels=mapping(STRING))) | {"required": ["spec", "status"]}
    )
    spec = {
        "placements": [{"count": 0}, *({"name": "fine"} for _ in range(8)), {"name": 5}, {"name": None}],
        "labels": {"plain": 1, "a/b": 2, "dotted.name": 3},
    }
    violations = schema.violations({"spec": spec})
    assert [(cause.reason.removeprefix("FieldValue"), cause.field) for cause in violations] == [
        ("TypeInvalid", "spec.labels[a/b]"),
        ("TypeInvalid", "spec.labels[dotted.name]"),
        ("TypeInvalid", "spec.labels.plain"),
        ("Invalid", "spec.placements[0].count"),
        ("Required", "spec.placements[0].name"),
        ("TypeInvalid", "spec.placements[9].name"),
        ("TypeInvalid", "spec.placements[10].name"),
        ("Required", "status"),
    ]
    assert [cause.message for cause in violations if cause.reason == "FieldValueRequired"] == ["Required value"] * 2
    assert schema.violations({"spec": dict(reversed(spec.items()))}) == violations


def test_all_violations_of_one_field_are_reported() -> None:
    assert {reason for _, reason, _ in causes(STRING | {"enum": ["a"]}, 5)} == {
        "FieldValueTypeInvalid",
        "FieldValueNotSupported",
    }
    assert len(causes(STRING | {"minLength": 3, "allOf": [{"pattern": "^z"}]}, "ab")) == 2


def test_the_metadata_of_the_object_itself_is_not_validated() -> None:
    schema = Schema(fields(metadata=fields(name=STRING | {"maxLength": 1}), spec=fields()))
    assert schema.violations({"metadata": {"name": "long"}}) == []
    assert schema.violations({"metadata": "text"}) == []


def test_an_embedded_resource_needs_its_type() -> None:
    assert causes(EMBEDDED | ANYTHING, {"kind": 5}) == [
        ("spec.apiVersion", "FieldValueRequired", "Required value"),
        (
            "spec.kind",
            "FieldValueTypeInvalid",
            'Invalid value: "integer": spec.kind in body must be of type string: "integer"',
        ),
    ]


@pytest.mark.parametrize(
    ("schema", "spec"),
    [
        (STRING | {"pattern": "^a$"}, "x" * 1_000_000),
        (STRING | {"enum": ["a"]}, "x" * 1_000_000),
        (STRING | {"format": "date-time"}, "x" * 1_000_000),
        (STRING | {"enum": ["a"]}, ["x" * 1_000_000]),
        (mapping(INTEGER), {"x" * 1_000_000: ""}),
        (array(STRING, **{"x-kubernetes-list-type": "set"}), ["x" * 1_000_000] * 2),
        (INTEGER | {"enum": [1]}, 10**4000),
    ],
)
def test_a_huge_value_is_not_repeated_in_the_message(schema: Json, spec: Any) -> None:
    violations = causes(schema, spec)
    assert violations
    assert all(len(field) + len(message) < 1200 for field, _, message in violations)


def nested(levels: int, *, lists: bool = False) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("levels", [MAX_DEPTH + 5, 900, 100_000])
@pytest.mark.parametrize(
    ("schema", "field"),
    [
        (fields(open=ANYTHING), "spec.open"),
        (fields(open=mapping(True)), "spec.open"),
        (fields(open=STRING), ""),
        (fields(open=array(ANYTHING, **{"x-kubernetes-list-type": "set"})), ""),
    ],
)
def test_a_value_nested_too_deeply_is_one_cause(schema: Json, field: str, levels: int, lists: bool) -> None:
    if "items" in schema["properties"]["open"]:
        value: Any = [{"x": nested(levels, lists=lists)}, {"x": nested(levels, lists=lists)}, 5]
    else:
        value = {"x": nested(levels, lists=lists)}
    schema_ = spec_schema(schema)
    assert schema_.violations({"spec": {"open": value}}) == [
        Cause("FieldValueInvalid", f"Invalid value: must not be nested more than {MAX_DEPTH} levels deep", field)
    ]


def test_metadata_nested_too_deeply_is_refused() -> None:
    [cause] = spec_schema(fields()).violations({"metadata": nested(100_000)})
    assert cause.field == "metadata"


@pytest.mark.parametrize("levels", [MAX_DEPTH, 900, 100_000])
def test_pruning_and_defaulting_survive_any_depth(levels: int) -> None:
    deep = {"spec": {"list": nested(levels, lists=True), "map": nested(levels), "wrong": nested(levels)}}
    for schema in (
        spec_schema(fields(list=array(ANYTHING), map=mapping(STRING), wrong=STRING | {"default": "x"})),
        spec_schema(mapping(True)),
        spec_schema(ANYTHING),
        spec_schema(fields()),
    ):
        schema.shape(deep)


@pytest.mark.parametrize("value", ["text", [], 5, None])
def test_a_value_that_is_not_an_object_has_the_wrong_type(value: Any) -> None:
    schema = spec_schema(fields(a=STRING | {"default": "x"}))
    assert schema.shape(value) == value
    [cause] = schema.violations(value)
    assert cause.reason == "FieldValueTypeInvalid"


@pytest.mark.parametrize(
    ("schema", "spec"), [(mapping(STRING), {1: 2}), (STRING | {"pattern": "a"}, "half a character \ud800")]
)
def test_a_value_that_is_not_json_is_a_violation(schema: Json, spec: Any) -> None:
    [(_, reason, message)] = causes(schema, spec)
    assert reason == "FieldValueInvalid"
    assert message.startswith("Invalid value: the object cannot be written as JSON")


def test_a_pattern_takes_linear_time() -> None:
    assert len(causes(STRING | {"pattern": "^(a+)+$"}, "a" * 100_000 + "b")) == 1


def test_an_invalid_pattern_is_refused_with_the_schema() -> None:
    with pytest.raises(ValueError):
        spec_schema(STRING | {"pattern": "(?=look-ahead)("})


# -- properties -------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "name"])
SCALAR_VALUES = st.sampled_from([None, True, False, "", "a", "b", "long text", -1, 0, 1, 2, 0.5, 2.0])
VALUES = st.recursive(
    SCALAR_VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def with_keywords(schema: Json, default: Any) -> st.SearchStrategy[Json]:
    keywords = st.fixed_dictionaries(
        {},
        optional={
            "nullable": st.just(True),
            "default": st.just(default),
            "x-kubernetes-preserve-unknown-fields": st.just(True),
        },
    )
    return keywords.map(lambda extra: schema | extra)


SCALAR_SCHEMAS: list[tuple[Json, Any]] = [
    (STRING, "b"),
    (STRING | {"enum": ["a", "b"]}, "a"),
    (STRING | {"minLength": 1, "pattern": "^[a-z]"}, "a"),
    (INTEGER | {"minimum": 1}, 2),
    ({"type": "boolean"}, False),
    (INT_OR_STRING, 1),
]
SCALARS = st.sampled_from(SCALAR_SCHEMAS).flatmap(lambda pair: with_keywords(*pair))
LIST_TYPES: list[Json] = [{}, {"x-kubernetes-list-type": "set"}, BY_NAME]


def containers(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    objects = st.dictionaries(NAMES, inner, max_size=3).flatmap(
        lambda properties: with_keywords({"type": "object", "properties": properties}, {"a": {"b": None}, "unknown": 1})
    )
    maps = inner.flatmap(lambda values: with_keywords(mapping(values), {"k": None}))
    open_maps = with_keywords(mapping(True), {})
    lists = st.tuples(inner, st.sampled_from(LIST_TYPES)).flatmap(
        lambda pair: with_keywords(array(pair[0], **pair[1]), [])
    )
    embedded = st.just(EMBEDDED)
    return objects | maps | open_maps | lists | embedded


SCHEMAS = st.dictionaries(NAMES, st.recursive(SCALARS, containers, max_leaves=6), max_size=4).map(
    lambda properties: fields(**properties)
)
OBJECTS = st.dictionaries(NAMES | st.just("metadata"), VALUES, max_size=4)


@settings(max_examples=count(100, 1000), deadline=None)
@given(schema=SCHEMAS, value=OBJECTS)
def test_pruning_and_defaulting_are_idempotent_and_leave_their_argument_unchanged(schema: Json, value: Json) -> None:
    compiled, before = Schema(schema), copy.deepcopy((schema, value))

    shaped = compiled.shape(value)
    assert compiled.shape(shaped) is shaped

    assert msgspec.json.encode((schema, value)) == msgspec.json.encode(before)


@settings(max_examples=count(100, 1000), deadline=None)
@given(schema=SCHEMAS, value=OBJECTS)
def test_validating_twice_gives_the_same_violations(schema: Json, value: Json) -> None:
    compiled = Schema(schema)
    once = compiled.shape(value)
    violations = compiled.violations(once)
    assert compiled.violations(compiled.shape(once)) == violations
    assert Schema(schema).violations(copy.deepcopy(once)) == violations
    assert len(set(violations)) == len(violations)


@settings(max_examples=count(100, 1000), deadline=None)
@given(schema=SCHEMAS, value=OBJECTS)
def test_any_value_can_be_validated(schema: Json, value: Json) -> None:
    for cause in Schema(schema).violations(value):
        assert cause.reason.startswith("FieldValue")
        assert cause.message
        assert cause.field
