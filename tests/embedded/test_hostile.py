"""Hostile requests, generated from the server's own OpenAPI.

Whatever comes: no error of the server's own, no request without an answer, and a store in order afterwards.
"""

import http.client
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.records import Key, RandomUids, Record
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.meta import Json
from datum_compute.kube.patches import APPLY, JSON, MERGE, STRATEGIC
from tests.conftest import count
from tests.https import DEMO, PLANES, Background, Reply

ROOTS = ("", DEMO, "/planes/hub", "/planes/cell-dfw")
ANSWER_SECONDS = 20.0

NAMES = ["a", "b", "web", "default", "other"]
ODD_TEXTS = ["", "A_B", "..", "a/b", "é", "\x00", "a" * 300, "%", "*", "-", "\u202e", "null", "kube-system", " "]
ODD_NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 10**40, 1.5, 1e308]

texts = st.sampled_from(NAMES) | st.sampled_from(ODD_TEXTS) | st.text(max_size=20)
numbers = st.sampled_from(ODD_NUMBERS) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


class Operation(Struct, frozen=True):
    """One operation of an OpenAPI document."""

    root: str
    method: str
    path: str
    query: tuple[str, ...]
    media_types: tuple[str, ...]
    kind: Json
    schema: Json
    schemas: Json


class Hostile:
    """A server, and a connection that is reused as long as the server keeps it open."""

    def __init__(self, directory: Path) -> None:
        self.api = Background(directory)
        self._connection: http.client.HTTPSConnection | None = None
        self.codes: Counter[int] = Counter()
        self.operations = [operation for root in ROOTS for operation in _operations(self.api, root)]

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply | None:
        """The answer, complete unless it is a watch; None when the client library refuses to send the request."""
        sent = {"Authorization": f"Bearer {self.api.credentials.token}"} | (headers or {})
        if self._connection is None:
            tls = self.api.server.endpoint("root").tls()
            port = self.api.server.port
            self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=ANSWER_SECONDS)
        try:
            self._connection.request(method, path, body=body or None, headers=sent)
        except (ValueError, http.client.InvalidURL):
            self.hang_up()
            return None
        answer = self._connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        if headers.get("transfer-encoding") == "chunked":
            self.hang_up()
            return Reply(answer.status, headers, b"")
        return Reply(answer.status, headers, answer.read())

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self.hang_up()
        self.api.close()


def _operations(api: Background, root: str) -> Iterator[Operation]:
    for prefix in sorted(api.ask("GET", f"{root}/openapi/v3").json["paths"]):
        document = api.ask("GET", f"{root}/openapi/v3/{prefix}").json
        schemas = document["components"]["schemas"]
        for path, item in sorted(document["paths"].items()):
            for method, operation in sorted(item.items()):
                if method == "parameters":
                    continue
                content = operation.get("requestBody", {}).get("content", {})
                kind = operation["x-kubernetes-group-version-kind"]
                yield Operation(
                    root,
                    method.upper(),
                    path,
                    tuple(
                        parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"
                    ),
                    tuple(content) or ("application/json",),
                    kind,
                    next(
                        (schema for schema in _kinds(schemas) if schema["x-kubernetes-group-version-kind"] == [kind]),
                        {},
                    ),
                    schemas,
                )


def _kinds(schemas: Json) -> Iterator[Json]:
    return (schema for schema in schemas.values() if "x-kubernetes-group-version-kind" in schema)


# What is asked


def fitting(schema: Json, schemas: Json, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that resemble the schema."""
    for part in [schema, *schema.get("allOf", ())]:
        if "$ref" in part:
            return fitting(schemas[part["$ref"].rpartition("/")[2]], schemas, depth)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.integers(0, 100) | st.sampled_from(["50%", "1Gi", "x"])
    match schema.get("type"):
        case "object" if depth > 8:
            return st.just({})
        case "object":
            return _objects(schema, schemas, depth)
        case "array":
            return st.lists(fitting(schema.get("items", {}), schemas, depth + 1), max_size=2)
        case "string":
            return st.sampled_from([*NAMES, "2026-01-01T00:00:00Z", "10.0.0.0/24", "True", "DFW"]) | texts
        case "integer" | "number":
            return st.integers(0, 5) | numbers
        case "boolean":
            return st.booleans()
    return values


def _objects(schema: Json, schemas: Json, depth: int) -> st.SearchStrategy[Json]:
    properties = schema.get("properties", {})
    required = [name for name in schema.get("required", ()) if name in properties]
    known = {name: fitting(inner, schemas, depth + 1) for name, inner in properties.items()}
    fixed = st.fixed_dictionaries(
        {name: known[name] for name in required},
        optional={name: inner for name, inner in known.items() if name not in required and depth < 4},
    )
    if known and not schema.get("additionalProperties"):
        return fixed
    inner = schema.get("additionalProperties")
    more = fitting(inner, schemas, depth + 1) if isinstance(inner, dict) else values
    return st.builds(lambda some, required: some | required, st.dictionaries(texts, more, max_size=2), fixed)


@cache
def _fitting(index: int, hostile: Hostile) -> st.SearchStrategy[Any]:
    operation = hostile.operations[index]
    return fitting(operation.schema, operation.schemas)


def a_body(draw: Any, index: int, hostile: Hostile, name: str, media_type: str, style: str) -> bytes:
    operation = hostile.operations[index]
    if style == "none" or operation.method == "DELETE":
        return b""
    if style == "junk":
        return bytes(draw(st.binary(max_size=200) | st.sampled_from(JUNK)))
    if media_type == JSON:
        return _json(draw(st.lists(patches, max_size=4) if style != "any" else values))
    if style == "any":
        return _json(draw(values))
    value = draw(_fitting(index, hostile))
    if isinstance(value, dict):
        head = {"apiVersion": f"{operation.kind['group']}/{operation.kind['version']}".lstrip("/")}
        value = value | head | {"kind": operation.kind["kind"]}
        metadata = value.get("metadata")
        named = {"name": name, "resourceVersion": str(draw(st.integers(0, 40)))} if operation.method == "PUT" else {}
        value["metadata"] = (metadata if isinstance(metadata, dict) else {}) | {"name": name} | named
        if operation.method == "POST":
            value["metadata"].pop("resourceVersion", None)
    if style == "bent":
        value = _bent(draw, value)
    return _json(value)


def _bent(draw: Any, value: Any) -> Any:
    """The same value with one part replaced by something that does not belong there."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        return value | {key: _bent(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], _bent(draw, value[place]), *value[place + 1 :]]
    return draw(values)


POINTERS = ["", "/", "/metadata", "/metadata/labels", "/metadata/labels/a", "/metadata/finalizers/-", "/spec", "/~2"]
POINTERS += ["/metadata/name", "/metadata/uid", "/metadata/resourceVersion", "/data", "/data/x/y", "/spec/0", "/status"]
pointers = st.sampled_from([*POINTERS, "/kind", "x"])
patches = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "nonsense"]), "path": pointers},
    optional={"from": pointers, "value": values},
)

JUNK = [
    b"{",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"\xff\xfe\x00",
    b'{"metadata":{"name":"a","name":"b"}}',
    b'{"kind":"\\ud800"}',
    b"a: &a [x]\nb: *a\n",
    b"a: " + b"[" * 20_000,
    b"!!python/object/apply:os.system [ls]",
    b"k8s\x00" + b"\x0a\xff\xff\xff\x7f",
    b"k8s\x00" + bytes(range(256)),
    b"1e999999",
    b"-" * 100_000,
]
MEDIA_TYPES = ["application/json", "application/yaml", MERGE, JSON, STRATEGIC, APPLY, "text/plain", "", ";;;", "é"]
MEDIA_TYPES.append("application/vnd.kubernetes.protobuf")
ACCEPTS = ["application/json", "*/*", "application/json;as=Table;v=v1;g=meta.k8s.io", "text/html", "", ";", "é"]
ACCEPTS += ["application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf"]
ACCEPTS += ["application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json;g=;v=v2;as=X"]
QUERY_VALUES = [
    "true",
    "1",
    "0",
    "-1",
    "All",
    "Strict",
    "a=b,c in (d,e),!f",
    "metadata.name=a",
    "a in (",
    "==",
    "Exact",
]
QUERY_VALUES += ["99999999999999999999", "NotOlderThan", "Foreground", "Orphan", "None", "Object", "\x00", "eyJhIjoxfQ"]
QUERY_NAMES = [
    "watch",
    "limit",
    "continue",
    "labelSelector",
    "fieldSelector",
    "resourceVersion",
    "resourceVersionMatch",
]
QUERY_NAMES += ["sendInitialEvents", "includeObject", "timeoutSeconds", "dryRun", "pretty", "propagationPolicy", "é"]


METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "POST", "HEAD", "TRACE"]


def _header(text: str) -> str:
    """Text that the client library sends as arbitrary bytes."""
    return text.encode().decode("latin-1")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@settings(
    deadline=None,
    max_examples=count(500, 20_000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
)
@given(data=st.data())
def ask(hostile: Hostile, data: st.DataObject) -> None:
    """Sends one request; the answer is never a server error."""
    draw = data.draw
    index = draw(st.integers(0, len(hostile.operations) - 1))
    operation = hostile.operations[index]
    # Rarely more than two oddities at once: the first error hides the rest.
    odd = draw(
        st.sets(st.sampled_from(["name", "namespace", "method", "query", "media type", "accept", "body"]), max_size=2)
    )
    name = draw(texts if "name" in odd else st.sampled_from(NAMES))
    namespace = draw(st.sampled_from([*NAMES, *ODD_TEXTS])) if "namespace" in odd else "default"
    path = operation.path.replace("{namespace}", quote(namespace, safe="")).replace("{name}", quote(name, safe=""))
    method = draw(st.sampled_from(METHODS)) if "method" in odd else operation.method
    names = st.sampled_from([*operation.query, *QUERY_NAMES])
    query = draw(st.dictionaries(names, st.sampled_from(QUERY_VALUES) | texts, max_size=2)) if "query" in odd else {}
    media_type = draw(st.sampled_from(MEDIA_TYPES if "media type" in odd else operation.media_types))
    headers = {
        "Content-Type": _header(media_type),
        "Accept": _header(draw(st.sampled_from(ACCEPTS)) if "accept" in odd else "application/json"),
    }
    style = draw(st.sampled_from(["bent", "any", "junk", "none"])) if "body" in odd else "fitting"
    body = b"" if method == "GET" else a_body(draw, index, hostile, name, media_type, style)
    address = f"{operation.root}{path}" + (f"?{urlencode(query)}" if query else "")

    reply = hostile.ask(method, address, body, headers)

    if reply is not None:
        hostile.codes[reply.code] += 1
        assert reply.code < 500, (method, address, headers, body[:500], reply.body[:500])
        if reply.code >= 400 and reply.body and reply.headers["content-type"] == "application/json":
            status = msgspec.json.decode(reply.body)
            assert (status["kind"], status["code"]) == ("Status", reply.code)
    if method == "DELETE" and "/namespaces" in path:
        hostile.ask("POST", f"{DEMO}/api/v1/namespaces", _json({"metadata": {"name": "default"}}))


@pytest.mark.timeout(count(300, 3600))
def test_every_request_is_answered_and_leaves_the_store_consistent(tmp_path: Path) -> None:
    hostile = Hostile(tmp_path)
    try:
        ask(hostile)
        assert {200, 201, 400, 404, 405, 409, 415, 422} <= set(hostile.codes), "not much of the server was reached"
        check_the_store(hostile)
        check_an_ordinary_life(hostile)
    finally:
        hostile.close()


def check_the_store(hostile: Hostile) -> None:
    api = hostile.api
    stored = api.read(lambda: everything(api.engine.store))
    for key, record in stored.items():
        value, metadata = record.object(), record.object()["metadata"]
        assert (metadata["name"], metadata.get("namespace", "")) == (key.name, key.namespace)
        assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
        assert metadata.get("generation", 1) >= 1
        server = api.engine.plane(key.plane)
        assert server is not None
        if (served := server.kinds.get(key.resource)) is not None:
            assert served.violations(value) == []
    revisions = [record.revision for record in stored.values()]
    assert len(set(revisions)) == len(revisions)

    async def committed() -> dict[Key, Record]:
        await api.engine.submit(lambda transaction: None)  # after all earlier writes
        again = Log()
        again.append(list(api.engine.log.rows()))
        return everything(Store(again, RandomUids()))

    assert api.do(committed()) == api.read(lambda: everything(api.engine.store))


def check_an_ordinary_life(hostile: Hostile) -> None:
    api = hostile.api
    namespaces = f"{DEMO}/api/v1/namespaces"
    assert api.ask("POST", namespaces, {"metadata": {"name": "afterwards"}}).code == 201
    place = f"{namespaces}/afterwards/configmaps"
    config_map: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"a": "1"}}
    assert api.ask("POST", place, config_map).code == 201
    changed = api.ask("PATCH", f"{place}/web", b'{"data":{"a":"2"}}', headers={"Content-Type": MERGE})
    assert (changed.code, changed.json["data"]) == (200, {"a": "2"})
    assert [item["metadata"]["name"] for item in api.ask("GET", place).json["items"]] == ["web"]
    assert api.ask("DELETE", f"{namespaces}/afterwards").code == 200
    api.until(lambda: api.engine.store.get(Key("demo", "namespaces", "", "afterwards")) is None)


def everything(store: Store) -> dict[Key, Record]:
    return {
        key: record
        for plane in PLANES
        for resource in store.resources(plane)
        for key, record in store.scan(plane, resource)
    }
