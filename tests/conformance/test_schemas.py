"""Pruning, defaults, validation, and the strictness that a client requests."""

import pytest

from datum_compute.kube.meta import Json
from datum_compute.kube.patches import MERGE
from tests.conformance.kinds import Place, config_map
from tests.conformance.server import Server


def test_unknown_fields_are_pruned_unless_preserved(server: Server, place: Place) -> None:
    spec = {"size": 1, "unknown": 1, "nested": {"depth": 1, "more": 2}, "extra": {"any": {"thing": [1]}}}
    made = place.widget("one", spec | {"parts": [{"name": "p", "nope": 1}]})
    assert made["spec"] == {
        "size": 1,
        "colour": "red",
        "nested": {"depth": 1},
        "extra": {"any": {"thing": [1]}},
        "parts": [{"name": "p", "weight": 1}],
    }
    made = server.create(place.widgets(), place.kind.object("two") | {"beside": 1})
    assert "beside" not in made


def test_defaults_are_set_below_existing_parents(server: Server, place: Place) -> None:
    assert place.widget("one")["spec"] == {"size": 1, "colour": "red"}
    assert place.widget("two", {"size": 1, "nested": {}})["spec"]["nested"] == {"depth": 7}
    assert place.widget("three", {"size": 1, "colour": None})["spec"]["colour"] == "red"
    assert place.widget("four", {"size": 1, "nested": {"note": None}})["spec"]["nested"] == {"depth": 7, "note": None}
    assert "tags" not in place.widget("five", {"size": 1, "tags": None})["spec"]


@pytest.mark.parametrize(
    ("spec", "causes", "message"),
    [
        ({}, [("FieldValueRequired", "spec.size")], "spec.size: Required value"),
        (
            {"size": 0},
            [("FieldValueInvalid", "spec.size")],
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            {"size": 11},
            [("FieldValueInvalid", "spec.size")],
            "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10",
        ),
        (
            {"size": "1"},
            [("FieldValueTypeInvalid", "spec.size")],
            'spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"',
        ),
        (
            {"size": 1.5},
            [("FieldValueTypeInvalid", "spec.size")],
            'spec.size: Invalid value: "number": spec.size in body must be of type integer: "number"',
        ),
        (
            {"size": 1, "colour": "blue"},
            [("FieldValueNotSupported", "spec.colour")],
            'spec.colour: Unsupported value: "blue": supported values: "red", "green"',
        ),
        (
            {"size": 1, "code": "ab1"},
            [("FieldValueInvalid", "spec.code")],
            "spec.code: Invalid value: \"ab1\": spec.code in body should match '^[A-Z]{3}$'",
        ),
        (
            {"size": 1, "tags": ["a", "a"]},
            [("FieldValueDuplicate", "spec.tags[1]")],
            'spec.tags[1]: Duplicate value: "a"',
        ),
        (
            {"size": 1, "parts": [{"name": "a"}, {"name": "a"}]},
            [("FieldValueDuplicate", "spec.parts[1]")],
            'spec.parts[1]: Duplicate value: {"name":"a"}',
        ),
        (
            {"size": 1, "parts": [{}]},
            [("FieldValueRequired", "spec.parts[0].name")],
            "spec.parts[0].name: Required value",
        ),
        (
            {"size": 1, "parts": [{"name": name} for name in "abcd"]},
            [("FieldValueTooMany", "spec.parts")],
            "spec.parts: Too many: 4: must have at most 3 items",
        ),
        (
            {"size": 1, "texts": {"a": 1}},
            [("FieldValueTypeInvalid", "spec.texts.a")],
            'spec.texts.a: Invalid value: "integer": spec.texts.a in body must be of type string: "integer"',
        ),
        (
            {"size": 1, "moment": "yesterday"},
            [("FieldValueTypeInvalid", "spec.moment")],
            'spec.moment: Invalid value: "yesterday": spec.moment in body must be of type date-time: "yesterday"',
        ),
        (
            {"size": 1, "port": True},
            [("FieldValueTypeInvalid", "spec.port")],
            'spec.port: Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean"',
        ),
    ],
)
def test_a_violation_is_reported(
    server: Server, place: Place, spec: Json, causes: list[tuple[str, str]], message: str
) -> None:
    refused = server.ask("POST", place.widgets(), place.kind.object("one", spec))
    assert refused.failure == (422, "Invalid")
    assert refused.message == f'Widget.{place.kind.group} "one" is invalid: {message}'
    assert refused.causes == causes
    details = refused.json["details"]
    assert (details["name"], details["group"], details["kind"]) == ("one", place.kind.group, "Widget")
    cause = details["causes"][0]
    assert f"{cause['field']}: {cause['message']}" == message
    assert server.gone(place.widgets("one"))


def test_all_violations_are_reported_at_once(server: Server, place: Place) -> None:
    refused = server.ask("POST", place.widgets(), place.kind.object("one", {"size": 0, "colour": "x", "code": "ABCD"}))
    assert refused.failure == (422, "Invalid")
    assert {("FieldValueInvalid", "spec.size"), ("FieldValueNotSupported", "spec.colour")} <= set(refused.causes)
    assert ("FieldValueTooLong", "spec.code") in refused.causes
    assert refused.message.startswith(f'Widget.{place.kind.group} "one" is invalid: [')
    assert refused.message.endswith("]")


def test_status_is_validated_too(server: Server, place: Place) -> None:
    place.widget("one")
    refused = server.ask("PATCH", place.widgets("one", "status"), {"status": {"seen": "x"}}, type_=MERGE)
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueTypeInvalid", "status.seen")])
    after = server.merge(place.widgets("one", "status"), {"status": {"seen": 1, "unknown": 2}})
    assert after["status"] == {"seen": 1}


# Strictness


def unknown(place: Place, name: str) -> Json:
    return place.kind.object(name, {"size": 1, "nope": 1, "parts": [{"name": "p", "x": 1}]}) | {"beside": 1}


def test_a_strict_write_refuses_unknown_fields(server: Server, place: Place) -> None:
    refused = server.ask("POST", place.widgets(), unknown(place, "one"), fieldValidation="Strict")
    assert refused.failure == (400, "BadRequest")
    error = 'strict decoding error: unknown field "beside", unknown field "spec.nope", unknown field "spec.parts[0].x"'
    assert refused.message == f'Widget in version "v1" cannot be handled as a Widget: {error}'
    place.widget("one")
    refused = server.ask("PATCH", place.widgets("one"), {"spec": {"nope": 1}}, type_=MERGE, fieldValidation="Strict")
    assert refused.failure == (422, "Invalid")
    assert 'strict decoding error: unknown field "spec.nope"' in refused.message


@pytest.mark.parametrize("query", [{}, {"fieldValidation": "Warn"}])
def test_unknown_fields_are_warnings_by_default(server: Server, place: Place, query: dict[str, str]) -> None:
    reply = server.ask("POST", place.widgets(), unknown(place, "one"), **query)
    assert reply.code == 201
    for field in ("beside", "spec.nope", "spec.parts[0].x"):
        assert f'299 - "unknown field \\"{field}\\""' in reply.headers["warning"]
    reply = server.ask("PATCH", place.widgets("one"), {"spec": {"nope": 1}}, type_=MERGE, **query)
    assert 'unknown field \\"spec.nope\\"' in reply.headers["warning"]


def test_unknown_fields_can_be_ignored(server: Server, place: Place) -> None:
    reply = server.ask("POST", place.widgets(), unknown(place, "one"), fieldValidation="Ignore")
    assert (reply.code, "warning" in reply.headers) == (201, False)


def test_an_unknown_strictness_is_refused(server: Server, place: Place) -> None:
    refused = server.ask("POST", place.widgets(), place.kind.object("one"), fieldValidation="Nope")
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueNotSupported", "fieldValidation")])


def test_strictness_on_a_built_in_kind(server: Server, place: Place) -> None:
    body = config_map("one") | {"nope": 1}
    refused = server.ask("POST", place.config_maps(), body, fieldValidation="Strict")
    assert refused.failure == (400, "BadRequest")
    assert 'strict decoding error: unknown field "nope"' in refused.message
    reply = server.ask("POST", place.config_maps(), body)
    assert (reply.code, "nope" in reply.json) == (201, False)
    assert 'unknown field \\"nope\\"' in reply.headers["warning"]


# Built-in kinds


def test_a_config_map_holds_strings(server: Server, place: Place) -> None:
    assert server.ask("POST", place.config_maps(), config_map("one", {"a": 1})).failure == (400, "BadRequest")
    refused = server.ask("POST", place.config_maps(), config_map("one", {"a b": "1"}))
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueInvalid", "data[a b]")])
    made = server.create(place.config_maps(), config_map("one", {"a": "1"}) | {"immutable": True})
    assert made["immutable"] is True
    refused = server.ask("PATCH", place.config_maps("one"), {"data": {"a": "2"}}, type_=MERGE)
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueForbidden", "data")])
    assert "field is immutable when `immutable` is set" in refused.message
    refused = server.ask("PATCH", place.config_maps("one"), {"immutable": None}, type_=MERGE)
    assert refused.failure == (422, "Invalid")
    assert server.merge(place.config_maps("one"), {"metadata": {"labels": {"a": "b"}}})["metadata"]["labels"]


def test_a_secret_holds_bytes(server: Server, place: Place) -> None:
    secrets = f"/api/v1/namespaces/{place.name}/secrets"
    body: Json = {"metadata": {"name": "one"}, "data": {"a": "MQ=="}, "stringData": {"b": "2"}}
    made = server.create(secrets, body)
    assert (made["data"], made["type"]) == ({"a": "MQ==", "b": "Mg=="}, "Opaque")
    assert "stringData" not in made
    refused = server.ask("POST", secrets, {"metadata": {"name": "two"}, "data": {"a": "not base64!"}})
    assert refused.failure == (400, "BadRequest")
    refused = server.ask("PATCH", f"{secrets}/one", {"type": "example.test/other"}, type_=MERGE)
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueInvalid", "type")])
    assert server.names(secrets, fieldSelector="type=Opaque") == ["one"]


def test_events_can_be_selected_by_involved_object(server: Server, place: Place) -> None:
    events = f"/api/v1/namespaces/{place.name}/events"
    about = {"kind": "Widget", "namespace": place.name, "name": "one", "uid": "u"}
    body = {"metadata": {"name": "one.1"}, "involvedObject": about, "reason": "Made", "type": "Normal", "message": "m"}
    server.create(events, body)
    assert server.names(events, fieldSelector="involvedObject.name=one,involvedObject.kind=Widget") == ["one.1"]
    assert server.names(events, fieldSelector="reason=Other") == []


def test_a_lease_is_renewed(server: Server, place: Place) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{place.name}/leases"
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    made = server.create(leases, {"metadata": {"name": "one"}, "spec": spec})
    assert made["spec"]["holderIdentity"] == "me"
    spec["renewTime"] = "2026-01-01T00:00:10.000000Z"
    renewed = server.replace(f"{leases}/one", made | {"spec": spec})
    assert renewed["spec"] == spec
    assert server.ask("PUT", f"{leases}/one", made).failure == (409, "Conflict")
    refused = server.ask("POST", leases, {"metadata": {"name": "two"}, "spec": {"leaseDurationSeconds": 0}})
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueInvalid", "spec.leaseDurationSeconds")])
