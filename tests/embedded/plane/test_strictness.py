"""Unknown fields are found wherever they are, and only those."""

from typing import Any

import pytest

from datum_compute.api.crd import by_role
from datum_compute.embedded.kinds.catalog import plane_kinds
from datum_compute.embedded.plane.strictness import unknown_fields
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.meta import Json
from tests.scenarios.federation import placement, template

OPEN = "x-kubernetes-preserve-unknown-fields"
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "items": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
                "map": {
                    "type": "object",
                    "additionalProperties": {"type": "object", "properties": {"a": {"type": "integer"}}},
                },
                "any": {"type": "object", "additionalProperties": True},
                "open": {"type": "object", OPEN: True, "properties": {"shut": {"type": "object"}}},
                "openItems": {"type": "array", OPEN: True, "items": {"type": "object"}},
                "resource": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "properties": {"spec": {"type": "object"}},
                },
            },
        }
    },
}


@pytest.mark.parametrize(
    ("value", "unknown"),
    [
        ({}, []),
        ({"apiVersion": "a", "kind": "b", "metadata": {"name": "c", "labels": {"x": "y"}}}, []),
        ({"metadata": {"nmae": "c", "labels": {}}}, ["metadata.nmae"]),
        ({"sepc": {}, "status": {}}, ["sepc", "status"]),
        ({"spec": {"name": "a", "x": 1}}, ["spec.x"]),
        ({"spec": {"x": None}}, ["spec.x"]),
        ({"spec": {"items": [{"a": 1}, {"b": 1}, {"c": {"d": 1}}]}}, ["spec.items[1].b", "spec.items[2].c"]),
        ({"spec": {"map": {"k": {"a": 1, "b": 1}}}}, ["spec.map.k.b"]),
        ({"spec": {"any": {"k": {"a": 1}}}}, []),
        ({"spec": {"open": {"k": {"a": 1}, "shut": {"b": 1}}}}, ["spec.open.shut.b"]),
        ({"spec": {"openItems": [{"a": 1}]}}, []),
        (
            {"spec": {"resource": {"apiVersion": "v1", "kind": "X", "metadata": {"a": 1}, "spec": {}, "x": 1}}},
            ["spec.resource.x"],
        ),
        ({"spec": "of the wrong type"}, []),
        ({"spec": {"items": {"not": "a list"}}}, ["spec.items.not"]),
    ],
)
def test_unknown_fields_are_found_at_any_depth(value: Any, unknown: list[str]) -> None:
    assert unknown_fields(SCHEMA, value) == unknown


def test_fields_of_our_own_kinds_are_known() -> None:
    workload = next(served for served in plane_kinds(by_role(PROJECT)) if served.kind == "Workload")
    spec = {"template": template(), "placements": [placement("main", ["DFW"], 1)]}
    assert unknown_fields(workload.openapi, {"spec": spec}) == []
