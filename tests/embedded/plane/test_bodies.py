"""Bodies in all media types that clients send, and harmful ones."""

import base64
from typing import Any

import pytest

from datum_compute.embedded.plane.bodies import delete_options, dry_run, object_of
from datum_compute.kube.errors import BadRequest, Invalid, UnsupportedMediaType
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Call
from tests.protobuf import envelope, field


def read(body: bytes, content_type: str) -> Json:
    return object_of(Call("POST", "/", {}, body, content_type))


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", ""])
def test_json_bodies_are_read(content_type: str) -> None:
    assert read(b'{"a":[1,null,"x"]}', content_type) == {"a": [1, None, "x"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\nb: [x, true, null, 1.5]", {"a": 1, "b": ["x", True, None, 1.5]}),
        ("a: 2026-01-01T00:00:00Z", {"a": "2026-01-01T00:00:00Z"}),
        ("a: 2026-01-01", {"a": "2026-01-01"}),
        ("2: a\ntrue: b\n1.5: c", {"2": "a", "true": "b", "1.5": "c"}),
        ('{"json": "is yaml"}', {"json": "is yaml"}),
    ],
)
@pytest.mark.parametrize("content_type", ["application/yaml", "application/x-yaml"])
def test_yaml_as_kubernetes_reads_it(text: str, value: Json, content_type: str) -> None:
    assert read(text.encode(), content_type) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"- 1",
        b"text",
        b"a: [",
        b"a: 1\n---\nb: 2",
        b"? [a]\n: 1",
        b"a: !!binary aGk=",
        b"a: !!timestamp 2026-01-01",
        b"a: !!int x",
        b"a: !!python/object/apply:os.system [id]",
        b"a: &x {b: *x}",
        b"a: \x00",
        b"\xff\xfe",
        b"[" * 1_000_000,
        b"{a: " * 300 + b"1" + b"}" * 300,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_malformed_and_harmful_yaml_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read(body, "application/yaml")


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "application/merge-patch+json"])
def test_other_media_types_are_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        read(b"{}", content_type)


# Protobuf


METADATA = (
    field(1, "c") + field(2, "") + field(3, "default") + field(7, 0) + field(8, b"")
    + field(11, field(1, "app") + field(2, "web")) + field(11, field(1, "tier") + field(2, "x" * 200))
    + field(13, field(1, "Workload") + field(3, "web") + field(4, "u") + field(5, "g/v") + field(6, 1) + field(7, 0))
    + field(14, "a/b") + field(14, "c/d") + field(17, b"ignored")
)  # fmt: skip
READ: Json = {
    "name": "c",
    "namespace": "default",
    "labels": {"app": "web", "tier": "x" * 200},
    "ownerReferences": [{"kind": "Workload", "name": "web", "uid": "u", "apiVersion": "g/v", "controller": True}],
    "finalizers": ["a/b", "c/d"],
}


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        ("Namespace", field(1, METADATA) + field(2, b"") + field(3, b""), {}),
        (
            "ConfigMap",
            field(1, METADATA) + field(2, field(1, "a") + field(2, "1")) + field(3, field(1, "b") + field(2, b"\x00")),
            {"data": {"a": "1"}, "binaryData": {"b": "AA=="}},
        ),
        (
            "Secret",
            field(1, METADATA) + field(2, field(1, "p") + field(2, "q")) + field(3, "Opaque") + field(5, 1),
            {"data": {"p": base64.b64encode(b"q").decode()}, "type": "Opaque", "immutable": True},
        ),
    ],
)
def test_protobuf_is_read_for_kinds_that_kubectl_creates_itself(kind: str, raw: bytes, value: Json) -> None:
    expected = {"apiVersion": "v1", "kind": kind, "metadata": READ} | value
    assert read(envelope(kind, raw), "application/vnd.kubernetes.protobuf") == expected


def test_other_kinds_are_not_read_from_protobuf() -> None:
    with pytest.raises(UnsupportedMediaType):
        read(envelope("Pod", b""), "application/vnd.kubernetes.protobuf")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"k8s\x00\x0a",
        b"k8s\x00\x0a\xff",
        b"k8s\x00\xff" * 20,
        b"k8s\x00\x0a\x05ab",
        b"k8s\x00\x08\x01",
        b"k8s\x00\x0b",
        envelope("ConfigMap", b"\x0a\x7f"),
        envelope("ConfigMap", b"\x08\x01"),
        envelope("ConfigMap", field(1, field(1, b"\xff"))),
        envelope("ConfigMap", field(2, field(1, 5) + field(2, "x"))),
    ],
    ids=lambda body: repr(body[:24]),
)
def test_malformed_protobuf_is_refused(body: bytes) -> None:
    with pytest.raises((BadRequest, UnsupportedMediaType)):
        read(body, "application/vnd.kubernetes.protobuf")


# Delete options


@pytest.mark.parametrize(
    ("body", "query", "propagation"),
    [
        (b"", {}, ""),
        (b"", {"propagationPolicy": "Orphan"}, "Orphan"),
        (b"{}", {}, ""),
        (b'{"propagationPolicy":"Foreground"}', {}, "Foreground"),
        (b'{"propagationPolicy":null}', {}, ""),
        (b'{"orphanDependents":true}', {}, "Orphan"),
        (b'{"orphanDependents":false}', {}, "Background"),
    ],
)
def test_the_propagation_policy_is_read_from_body_and_query(
    body: bytes, query: dict[str, str], propagation: str
) -> None:
    assert delete_options(Call("DELETE", "/", query, body)).propagation == propagation


@pytest.mark.parametrize(
    "body", [b'{"preconditions":3}', b'{"gracePeriodSeconds":"x"}', b'{"kind":"Pod"}', b"[]", b"{"]
)
def test_unreadable_delete_options_are_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        delete_options(Call("DELETE", "/", {}, body))


@pytest.mark.parametrize(
    "body", [b'{"propagationPolicy":"Sideways"}', b'{"propagationPolicy":"Orphan","orphanDependents":true}']
)
def test_contradictory_delete_options_are_refused(body: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        delete_options(Call("DELETE", "/", {}, body))
    assert [cause.field for cause in refused.value.causes] == ["propagationPolicy"]


@pytest.mark.parametrize(
    ("query", "body", "dry"),
    [
        ({}, b"", False),
        ({"dryRun": ""}, b"", False),
        ({"dryRun": "All"}, b"", True),
        ({}, b'{"dryRun":["All"]}', True),
        ({}, b'{"dryRun":[]}', False),
    ],
)
def test_a_dry_run_is_requested_in_the_query_or_the_options(query: Any, body: bytes, dry: bool) -> None:
    assert dry_run(query, delete_options(Call("DELETE", "/", query, body))) is dry


def test_other_values_of_dry_run_are_refused() -> None:
    with pytest.raises(Invalid):
        dry_run({"dryRun": "Some"})
