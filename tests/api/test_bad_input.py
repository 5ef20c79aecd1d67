"""Any input leads to a clear error that names the field, never to a traceback."""

import asyncio
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.api.crd import OURS, definition
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.template_hash import template_hash
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, KubeObject, as_dict, decode, encode
from datum_compute.kube.patches import JSON, MERGE
from datum_compute.kube.transport import Answer, Call
from datum_compute.local.engine import compute_engine
from tests.conftest import count

CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Available",
    "message": "",
    "lastTransitionTime": "2026-06-10T12:00:00Z",
    "observedGeneration": 1,
}
METADATA = {"labels": {"app": "web"}, "annotations": {"note": "x"}}
SPEC: Json = {
    "runtime": {
        "resources": {"instanceType": "datumcloud/d1-standard-2", "requests": {"cpu": "1", "memory": "2Gi"}},
        "sandbox": {
            "containers": [
                {
                    "name": "web",
                    "image": "registry.example/hello:1",
                    "env": [
                        {"name": "A", "value": "1"},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
                    ],
                    "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                    "resources": {"limits": {"cpu": "500m"}},
                    "volumeAttachments": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "imagePullSecrets": [{"name": "pull"}],
        },
    },
    "networkInterfaces": [
        {
            "network": {"name": "default"},
            "networkPolicy": {"ingress": [{"ports": [{"port": 22}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
        }
    ],
    "volumes": [{"name": "data", "configMap": {"name": "c", "items": [{"key": "k", "path": "p", "mode": 420}]}}],
    "location": {"name": "dfw-1", "namespace": ""},
    "controller": {"templateHash": "7f9c6b5d84", "schedulingGates": [{"name": "Quota"}]},
}
SCALE = {
    "minReplicas": 2,
    "maxReplicas": 3,
    "metrics": [{"resource": {"name": "cpu", "target": {"averageUtilization": 50}}}],
}
COUNTERS = dict.fromkeys(
    ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas", "observedGeneration"), 1
)
TEMPLATE = {"metadata": METADATA, "spec": SPEC}
STATUS = {"conditions": [CONDITION]} | COUNTERS

OBJECTS: dict[Kind[Any], Json] = {
    WORKLOAD: {
        "spec": {
            "template": TEMPLATE,
            "placements": [{"name": "main", "cityCodes": ["DFW"], "scaleSettings": SCALE}],
        },
        "status": STATUS | {"deployments": 1, "placements": [{"name": "main"} | STATUS]},
    },
    WORKLOAD_DEPLOYMENT: {
        "spec": {
            "workloadRef": {"name": "web", "uid": "u"},
            "placementName": "main",
            "cityCode": "DFW",
            "template": TEMPLATE,
            "scaleSettings": SCALE,
        },
        "status": STATUS | {"location": {"name": "dfw-1", "namespace": ""}},
    },
    INSTANCE: {
        "spec": SPEC,
        "status": {
            "conditions": [CONDITION],
            "networkInterfaces": [{"assignments": {"networkIP": "10.0.0.1", "externalIP": "h.example"}}],
            "controller": {"observedTemplateHash": "7f9c6b5d84"},
        },
    },
}

Path = tuple[str | int, ...]


def whole(kind: Kind[Any]) -> Json:
    return kind.body("web", "default") | deepcopy(OBJECTS[kind])


def places(value: Any, at: Path = ()) -> Iterator[Path]:
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*at, key))


def put(value: Json, path: Path, inner: Any) -> Json:
    changed: Any = deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = inner
    return dict(changed)


def field(path: Path) -> str:
    """`spec.placements[0].name`, and `metadata.labels[app]` or `.app` for the key of a map."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


class Server:
    """A project plane with an empty namespace."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.engine = compute_engine()
        self._server = self.engine.serve("demo", PROJECT)
        self.send("POST", NAMESPACE.path(), encode(NAMESPACE.body("default")))

    def send(self, method: str, path: str, body: bytes, content_type: str = "application/json") -> tuple[int, Json]:
        """Code and body of the answer; an exception in `answer` would be a traceback in the server."""
        before = self.engine.store.revision
        answer: Answer = self._runner.run(self._server.answer(Call(method, path, {}, body, content_type)))
        result: Json = msgspec.json.decode(answer.body)
        if answer.code >= 300:
            assert (result["kind"], result["status"], result["code"]) == ("Status", "Failure", answer.code)
            assert result["message"]
            assert self.engine.store.revision == before, "what is refused changes nothing"
        return answer.code, result

    def create(self, kind: Kind[Any], body: bytes) -> tuple[int, Json]:
        code, result = self.send("POST", kind.path("default"), body)
        if code == 201:
            self.send("DELETE", kind.path("default", result["metadata"]["name"]), b"")
        return code, result

    def close(self) -> None:
        self._runner.close()
        self.engine.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_the_examples_are_valid(server: Server, kind: Kind[Any]) -> None:
    assert server.create(kind, encode(whole(kind)))[0] == 201


# Text that is not JSON, or should not be parsed


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"0" + b"}" * depth


GOOD = encode(whole(WORKLOAD))

UNREADABLE = {
    "nothing": b"",
    "no JSON": b"kind: Workload",
    "cut off": GOOD[:-7],
    "more than one": GOOD + GOOD,
    "no object": b"[1, 2]",
    "null": b"null",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "no UTF-8 in a name": GOOD.replace(b'"web"', b'"w\xff"', 1),
    "no UTF-8 in a value": GOOD.replace(b"registry.example", b"\xc3\x28", 1),
    "no UTF-8 in a key": GOOD.replace(b'"minReplicas"', b'"\xf0\x28\x8c\x28"', 1),
    "half a character": GOOD.replace(b"registry.example", b"\\ud800", 1),
    "no number": GOOD.replace(b'"minReplicas":2', b'"minReplicas":NaN', 1),
    "a number beyond floating point": GOOD.replace(b'"minReplicas":2', b'"minReplicas":1e400', 1),
    "a number of 10,000 digits": GOOD.replace(b'"minReplicas":2', b'"minReplicas":1' + b"0" * 10_000, 1),
    "100,000 levels of lists": b'{"spec":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "100,000 levels of objects": GOOD.replace(b'"spec":{', b'"spec":{"x":' + nested(100_000) + b",", 1),
    "a list that never ends": b"[" * 1_000_000,
}


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize(
    ("method", "path", "content_type"),
    [
        ("POST", WORKLOAD.path("default"), "application/json"),
        ("PUT", WORKLOAD.path("default", "web"), "application/json"),
        ("PUT", WORKLOAD.path("default", "web", "status"), "application/json"),
        ("PATCH", WORKLOAD.path("default", "web"), MERGE),
        ("PATCH", WORKLOAD.path("default", "web", "status"), JSON),
    ],
    ids=["create", "update", "status", "merge patch", "json patch"],
)
def test_unreadable_input_is_a_bad_request(
    server: Server, method: str, path: str, content_type: str, case: str
) -> None:
    code, result = server.send(method, path, UNREADABLE[case], content_type)
    # Some paths report first that there is no object to patch.
    assert (code, result["reason"]) in ((400, "BadRequest"), (404, "NotFound"))
    assert method != "POST" or code == 400
    assert len(result["message"]) < 300


@pytest.mark.parametrize("depth", [*range(150, 260, 10), *range(300, 1200, 50)])
def test_the_server_survives_any_depth(server: Server, depth: int) -> None:
    """Deep values are pruned, refused with a path, or a bad request."""
    for body in (
        GOOD.replace(b'"spec":{', b'"spec":{"unknown":' + nested(depth) + b",", 1),
        GOOD.replace(b'"labels":{', b'"labels":{"deep":' + nested(depth) + b",", 1),
        GOOD.replace(b'"status":{', b'"status":{"gateway":' + nested(depth) + b",", 1),
    ):
        code, result = server.create(WORKLOAD, body)
        assert code in (201, 400, 422)
        assert code == 201 or len(result["message"]) < 1000


# Wrong values

WRONG: list[Any] = [None, True, -1, 1.5, 2**63, 10**400, "", "x", [], [[]], {}, {"x": {}}]


def expected_types(kind: Kind[Any]) -> dict[str, str]:
    """The type of each field in the schema, by path without indexes."""
    types: dict[str, str] = {}

    def walk(schema: Json, path: str) -> None:
        types[path] = "int-or-string" if schema.get("x-kubernetes-int-or-string") else schema.get("type", "")
        for name, inner in schema.get("properties", {}).items():
            walk(inner, f"{path}.{name}".lstrip("."))
        for inner in (schema.get("items"), schema.get("additionalProperties")):
            if isinstance(inner, dict):
                walk(inner, f"{path}[]")

    walk(definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "")
    return types


MISTAKES = {
    "string": [1, True, [], {}],
    "integer": ["x", True, 1.5, [], {}, 2**63, 10**400],
    "boolean": ["true", 1, [], {}],
    "array": ["x", 1, {}],
    "object": ["x", 1, []],
    "int-or-string": [True, 1.5, [], {}],
}


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_a_wrong_type_is_reported_with_the_path_of_its_field(server: Server, kind: Kind[Any]) -> None:
    types, refused = expected_types(kind), 0
    for path in places({"spec": OBJECTS[kind]["spec"]}):
        # The key of a map is not a field of the schema.
        plain_path = "".join("[]" if isinstance(key, int) or key in MAP_KEYS else f".{key}" for key in path).lstrip(".")
        for mistake in MISTAKES[types[plain_path]] if path else ():
            code, result = server.create(kind, encode(put(whole(kind), path, mistake)))
            assert (code, result.get("reason")) == (422, "Invalid"), (path, mistake)
            named = [cause["field"] for cause in result["details"]["causes"]]
            assert any(name.startswith(field(path)) for name in named), (path, mistake, named)
            assert len(encode(result)) < 5000
            refused += 1
    assert refused > 200


MAP_KEYS = ("app", "note", "cpu", "memory")


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_the_server_survives_any_value_anywhere(server: Server, kind: Kind[Any]) -> None:
    for path in places(whole(kind)):
        for wrong in WRONG if path else ():
            code, _ = server.create(kind, encode(put(whole(kind), path, wrong)))
            assert code in (201, 400, 404, 422), (path, wrong)


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_a_megabyte_of_text_anywhere_gets_a_short_answer(server: Server, kind: Kind[Any]) -> None:
    megabyte = "x" * 1_000_000
    objects: Json = OBJECTS[kind]
    for path in places({"spec": objects["spec"]}):
        if not path:
            continue
        code, result = server.create(kind, encode(put(whole(kind), path, megabyte)))
        assert code in (201, 422)
        assert code == 201 or len(encode(result)) < 5000


# Objects that another server admitted


def typed(kind: Kind[Any], text: bytes) -> None:
    """Reads every part of an object that controllers read."""
    object_: KubeObject = decode(text, kind.type)
    match object_:
        case Workload():
            _ = object_.status, object_.spec.template.spec.runtime
            _ = [placement.scale_settings for placement in object_.spec.placements]
            template_hash(object_.template_json)
        case WorkloadDeployment():
            _ = object_.status, object_.spec.template.spec.runtime, object_.spec.scale_settings
            template_hash(object_.template_json)
        case Instance():
            _ = object_.status, object_.spec.runtime, object_.spec.controller
    as_dict(object_.spec_json)
    as_dict(object_.status_json)


def refusal(kind: Kind[Any], text: bytes) -> str:
    """The error for an object; empty if it can be read."""
    try:
        typed(kind, text)
    except msgspec.DecodeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_a_controller_reads_a_whole_object(kind: Kind[Any]) -> None:
    assert refusal(kind, encode(whole(kind))) == ""


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_any_value_anywhere_is_read_or_raises_a_single_type_of_error(kind: Kind[Any]) -> None:
    for path in places(whole(kind)):
        for wrong in WRONG if path else ():
            assert len(refusal(kind, encode(put(whole(kind), path, wrong)))) < 200


@settings(max_examples=count(300, 5000))
@given(st.sampled_from(OURS), st.data())
def test_corrupt_text_is_read_or_raises_a_single_type_of_error(kind: Kind[Any], data: st.DataObject) -> None:
    text = bytearray(encode(whole(kind)))
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(text) - 1))
        end = data.draw(st.integers(start, min(start + 5, len(text))))
        text[start:end] = data.draw(st.binary(max_size=5))
    assert len(refusal(kind, bytes(text))) < 300
