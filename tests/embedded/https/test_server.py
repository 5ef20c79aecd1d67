"""The API over HTTPS: authentication, paths of planes, answers and limits."""

import asyncio
import base64
import itertools
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest
import structlog

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.https import application
from datum_compute.embedded.https import server as http_module
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.embedded.https.server import HttpsServer
from datum_compute.embedded.storage import store as store_module
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.admission import Review
from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, ApiError, Cause, Conflict, Invalid, NotFound
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.kube.patches import JSON, MERGE, STRATEGIC
from datum_compute.kube.transport import Call
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.serving.connections import Limits
from tests.https import DEMO, Background
from tests.scenarios.federation import placement, template

WORKLOADS = f"{DEMO}/apis/compute.datumapis.com/v1alpha/namespaces/default/workloads"
CONFIG_MAPS = f"{DEMO}/api/v1/namespaces/default/configmaps"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}

_numbers = itertools.count()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    background = Background(tmp_path_factory.mktemp("https"))
    yield background
    background.close()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Background]:
    """A server with short deadlines."""
    background = Background(tmp_path, Limits(head_seconds=0.3, body_seconds=0.3))
    yield background
    background.close()


@pytest.fixture
def name() -> str:
    """A namespace that no other test uses: they share a server."""
    return f"web-{next(_numbers)}"


def workload(name: str, **metadata: object) -> Json:
    spec = {"template": template(), "placements": [placement("main", ["DFW"], 1)]}
    return WORKLOAD.body(name, "default", **metadata) | {"spec": spec}


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def connected(api: Background, plane: str, work: Callable[[Client, HttpTransport], Awaitable[None]]) -> None:
    """Runs a test with a client over HTTPS on a new loop."""

    async def run() -> None:
        transport = HttpTransport(api.server.endpoint(plane))
        try:
            await work(Client(plane, transport), transport)
        finally:
            await transport.close()

    asyncio.run(run())


# Who is let in


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/version", f"{DEMO}/version", "/planes/hub/readyz"])
def test_health_and_version_need_no_token(api: Background, path: str) -> None:
    assert api.ask("GET", path, token="").code == 200


def test_readyz_fails_until_ready(tmp_path: Path, api: Background) -> None:
    async def scenario() -> None:
        server = HttpsServer(compute_engine(), api.credentials, ready=lambda: False)
        await server.start()
        transport = HttpTransport(server.endpoint("root"))
        assert (await transport.call(Call("GET", "/readyz"))).code == 503
        assert (await transport.call(Call("GET", "/livez"))).code == 200
        assert (await transport.call(Call("GET", "/api/v1/namespaces"))).code == 404  # no root plane
        await transport.close()
        await server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "path", ["/api", "/apis", "/openapi/v3", WORKLOADS, "/planes/nope/api", f"{WORKLOADS}?watch=1"]
)
@pytest.mark.parametrize("token", ["", "wrong", "é"])
def test_everything_else_needs_the_token(api: Background, path: str, token: str) -> None:
    reply = api.ask("GET", path, token=token)
    assert reply.code == 401
    assert (reply.json["kind"], reply.json["reason"], reply.json["code"]) == ("Status", "Unauthorized", 401)
    assert reply.headers["www-authenticate"] == "Bearer"


def test_only_the_whole_bearer_token_is_accepted(api: Background) -> None:
    right = api.credentials.token
    for token in (right[:-1], f"{right}x", ""):
        assert api.ask("GET", "/api", headers={"Authorization": f"Bearer {token}"}, token="").code == 401
    basic = base64.b64encode(f":{right}".encode()).decode()
    for header in (right, f"Basic {right}", f"Basic {basic}", f"Token {right}"):
        assert api.ask("GET", "/api", headers={"Authorization": header}, token="").code == 401
    assert api.ask("GET", "/api", headers={"Authorization": f"bearer {right}"}, token="").code == 200


def test_no_answer_contains_the_token(api: Background) -> None:
    token = api.credentials.token
    for method, path in [("GET", f"/{token}"), ("POST", WORKLOADS), ("GET", "/planes/nope/api"), ("PATCH", WORKLOADS)]:
        reply = api.ask(method, path, b"{" if method != "GET" else b"")
        assert reply.code >= 400
        assert token not in str(reply.headers)
        assert token not in reply.body.decode().replace(
            f"/{token}", ""
        )  # the message may repeat the path of the request


# Which plane


def test_a_project_plane_has_three_paths(api: Background, name: str) -> None:
    assert api.ask("POST", WORKLOADS, workload(name)).code == 201
    below = f"apis/compute.datumapis.com/v1alpha/namespaces/default/workloads/{name}"
    paths = [f"{DEMO}/{below}", f"/projects/demo/control-plane/{below}", f"/planes/demo/{below}"]
    uids = {api.ask("GET", path).json["metadata"]["uid"] for path in paths}
    assert len(uids) == 1
    assert api.ask("GET", f"/planes/hub/{below}").code == 404


def test_the_root_plane_is_at_the_root(api: Background) -> None:
    projects = "/apis/resourcemanager.miloapis.com/v1alpha1/projects"
    assert api.ask("GET", projects).json["kind"] == "ProjectList"
    assert api.ask("GET", f"{projects}/demo").code == 404  # the Project itself does not exist here
    assert api.ask("GET", f"/planes/root{projects}").code == 200


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/planes/nope/api", 'plane "nope"'),
        ("/projects/nope/control-plane/api", 'project "nope"'),
        ("/apis/resourcemanager.miloapis.com/v1alpha1/projects/nope/control-plane/api", 'project "nope"'),
        ("/projects/hub/control-plane/api", 'project "hub"'),  # a plane that is not a project's
    ],
)
def test_a_missing_plane_is_named(api: Background, path: str, named: str) -> None:
    reply = api.ask("GET", path)
    assert (reply.code, reply.json["reason"]) == (404, "NotFound")
    assert named in reply.json["message"]


@pytest.mark.parametrize(
    "path", ["/api/v2", "/apis/nope", "/apis/nope/v1", "/openapi/v3/apis/nope/v1", "/nope", "/nope/"]
)
def test_a_kind_that_is_not_served_is_not_found(api: Background, path: str) -> None:
    reply = api.ask("GET", f"{DEMO}{path}")
    assert (reply.code, reply.json["reason"]) == (404, "NotFound")


# Reading and writing


def test_an_object_is_created_changed_and_deleted(api: Background, name: str) -> None:
    async def life(client: Client, transport: HttpTransport) -> None:
        created = await client.create(WORKLOAD, workload(name, labels={"app": name}))
        assert created.metadata.generation == 1
        with pytest.raises(AlreadyExists):
            await client.create(WORKLOAD, workload(name))
        assert await client.get(WORKLOAD, name, "default") == created
        assert [item.name for item in (await client.list(WORKLOAD, "default", f"app={name}")).items] == [name]
        patched = await client.merge_patch(WORKLOAD, name, "default", {"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(Conflict):
            stale = {"metadata": {"resourceVersion": created.metadata.resource_version, "labels": {"a": "c"}}}
            await client.merge_patch(WORKLOAD, name, "default", stale)
        patched = await client.merge_patch(WORKLOAD, name, "default", {"metadata": {"labels": {"a": None}}})
        assert patched.metadata.labels == {"app": name}
        with pytest.raises(Invalid) as refused:
            await client.merge_patch(WORKLOAD, name, "default", {"spec": {"placements": 3}})
        assert [cause.field for cause in refused.value.causes] == ["spec.placements"]
        assert patched.metadata.generation == 1
        assert await client.delete(WORKLOAD, name, "default") is None
        with pytest.raises(NotFound) as missing:
            await client.get(WORKLOAD, name, "default")
        assert missing.value.plane == "demo"

    connected(api, "demo", life)


def test_an_error_names_its_object(api: Background, name: str) -> None:
    reply = api.ask("POST", WORKLOADS, workload(name) | {"spec": {"placements": 3}})
    assert reply.code == 422
    assert reply.json["details"]["kind"] == "Workload"
    assert {cause["field"] for cause in reply.json["details"]["causes"]} == {"spec.placements", "spec.template"}
    missing = api.ask("GET", f"{WORKLOADS}/{name}").json
    assert missing["details"] == {"name": name, "group": "compute.datumapis.com", "kind": "workloads"}


def test_a_body_may_be_yaml(api: Background, name: str) -> None:
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  at: '2026-01-01'\n"
    reply = api.ask("POST", CONFIG_MAPS, text.encode(), headers={"Content-Type": "application/yaml"})
    assert (reply.code, reply.json["data"]) == (201, {"at": "2026-01-01"})
    broken = api.ask("POST", CONFIG_MAPS, b"a: [", headers={"Content-Type": "application/yaml"})
    assert (broken.code, broken.json["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize("size", [3 * 1024 * 1024 + 1, 5 * 1024 * 1024, 40 * 1024 * 1024])
def test_a_body_above_the_limit_is_refused(api: Background, size: int) -> None:
    if size > 30 * 1024 * 1024:  # refused by its Content-Length
        reply = api.ask("POST", CONFIG_MAPS, b"x", headers={"Content-Length": str(size)})
    else:
        reply = api.ask("POST", CONFIG_MAPS, b"x" * size, headers={"Content-Type": "application/json"})
    assert (reply.code, reply.json["reason"]) == (413, "RequestEntityTooLarge")
    assert api.ask("GET", CONFIG_MAPS).code == 200


def test_a_body_at_the_limit_is_accepted(api: Background, name: str) -> None:
    assert api.ask("POST", CONFIG_MAPS, config_map(name, large="x" * (3 * 1024 * 1024 - 1000))).code == 201
    assert api.ask("DELETE", f"{CONFIG_MAPS}/{name}").code == 200


@pytest.mark.parametrize(
    ("method", "content_type"),
    [
        ("POST", "text/plain"),
        ("POST", "application/vnd.kubernetes.protobuf"),
        ("PATCH", "application/apply-patch+cbor"),
        ("PATCH", STRATEGIC),
        ("PATCH", "application/json"),
    ],
)
def test_an_unknown_content_type_is_refused(api: Background, name: str, method: str, content_type: str) -> None:
    path = WORKLOADS if method == "POST" else f"{WORKLOADS}/{name}"
    body = b"k8s\x00" if "protobuf" in content_type else b"{}"
    reply = api.ask(method, path, body, headers={"Content-Type": content_type})
    assert (reply.code, reply.json["reason"]) == (415, "UnsupportedMediaType")
    assert "application/json" in reply.json["message"]


def test_built_in_kinds_accept_strategic_patches(api: Background, name: str) -> None:
    api.ask("POST", CONFIG_MAPS, config_map(name, a="1", b="2"))
    patch = b'{"data":{"a":null,"c":"3"},"metadata":{"finalizers":["x/y"],"$setElementOrder/finalizers":["x/y"]}}'
    reply = api.ask("PATCH", f"{CONFIG_MAPS}/{name}", patch, headers={"Content-Type": STRATEGIC})
    assert (reply.code, reply.json["data"]) == (200, {"b": "2", "c": "3"})
    assert reply.json["metadata"]["finalizers"] == ["x/y"]


def test_ordinary_writes_record_no_field_managers(api: Background, name: str) -> None:
    """Unlike on a kube-apiserver: until the first apply nobody needs them."""
    path, named = f"{WORKLOADS}/{name}", f"fieldManager={name}"
    created = api.ask("POST", f"{WORKLOADS}?{named}", workload(name)).json
    labelled = created | {"metadata": created["metadata"] | {"labels": {"a": "b"}}}
    patch = b'{"metadata":{"labels":{"a":"c"}}}'
    replies = [
        api.ask("PUT", f"{path}?{named}", labelled),
        api.ask("PATCH", f"{path}?{named}", patch, headers={"Content-Type": MERGE}),
        api.ask("GET", path),
    ]
    assert [reply.code for reply in replies] == [200, 200, 200]
    assert [
        value for value in (created, *(reply.json for reply in replies)) if "managedFields" in value["metadata"]
    ] == []


def test_an_unknown_accept_header_is_refused(api: Background) -> None:
    assert api.ask("GET", WORKLOADS, headers={"Accept": "application/vnd.kubernetes.protobuf"}).code == 406
    both = {"Accept": "application/vnd.kubernetes.protobuf,application/json"}
    assert api.ask("GET", WORKLOADS, headers=both).headers["content-type"] == "application/json"
    assert api.ask("OPTIONS", WORKLOADS).code == 405
    assert api.ask("POST", f"{DEMO}/apis", {}).code == 405


# Trying without doing


def test_a_dry_run_checks_everything_and_writes_nothing(api: Background, name: str) -> None:
    dry = "?dryRun=All"
    at = f"{WORKLOADS}/{name}"
    before = api.revision
    made = api.ask("POST", WORKLOADS + dry, workload(name))
    assert (made.code, made.json["metadata"]["name"]) == (201, name)
    assert "resourceVersion" not in made.json["metadata"]
    assert api.ask("POST", WORKLOADS + dry, workload(name) | {"spec": {}}).code == 422
    assert (api.ask("GET", at).code, api.revision) == (404, before)

    real = api.ask("POST", WORKLOADS, workload(name)).json
    before = api.revision
    patch = {"metadata": {"labels": {"a": "b"}}}
    patched = api.ask("PATCH", at + dry, msgspec.json.encode(patch), headers={"Content-Type": MERGE})
    assert patched.json["metadata"]["labels"] == {"a": "b"}
    assert patched.json["metadata"]["resourceVersion"] == real["metadata"]["resourceVersion"]
    assert api.ask("PUT", at + dry, real | {"metadata": real["metadata"] | {"labels": {"c": "d"}}}).code == 200
    assert api.ask("DELETE", at + dry).code == 200
    assert api.ask("DELETE", at, {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}).code == 200
    assert (api.ask("GET", at).json, api.revision) == (real, before)


def test_a_dry_run_runs_admission_as_well() -> None:
    reviewed: list[Json] = []

    def admit(review: Review) -> list[Cause]:
        after = review.after or {}
        reviewed.append(after)
        return [Cause("FieldValueInvalid", "no", "data")] if after.get("data") == {"a": "bad"} else []

    async def scenario() -> None:
        engine = compute_engine(admit=admit)
        server = engine.serve("demo", PROJECT)
        await engine.client("demo").create(NAMESPACE, NAMESPACE.body("default"))
        path, dry = "/api/v1/namespaces/default/configmaps", {"dryRun": "All"}
        bad = msgspec.json.encode(config_map("a", a="bad"))
        assert (await server.answer(Call("POST", path, dry, bad))).code == 422
        good = msgspec.json.encode(config_map("a", a="good"))
        assert (await server.answer(Call("POST", path, {}, good))).code == 201
        patch = b'{"data":{"a":"bad"}}'
        assert (await server.answer(Call("PATCH", f"{path}/a", dry, patch, MERGE))).code == 422
        unchanged = len(reviewed)
        assert (await server.answer(Call("PATCH", f"{path}/a", dry, b'{"data":{"a":"good"}}', MERGE))).code == 200
        assert len(reviewed) == unchanged

    asyncio.run(scenario())


def test_an_unknown_dry_run_value_is_refused(api: Background, name: str) -> None:
    assert api.ask("POST", f"{WORKLOADS}?dryRun=Some", workload(name)).code == 422
    assert api.ask("GET", f"{WORKLOADS}/{name}").code == 404


def misspelt(name: str) -> Json:
    body = workload(name)
    body["spec"]["placements"][0]["scaleSettigns"] = {"minReplicas": 3}
    return body | {"sepc": {}}


UNKNOWN = ['unknown field "sepc"', 'unknown field "spec.placements[0].scaleSettigns"']


def test_strict_validation_refuses_unknown_fields(api: Background, name: str) -> None:
    reply = api.ask("POST", f"{WORKLOADS}?fieldValidation=Strict", misspelt(name))
    assert reply.code == 400
    assert reply.json["message"].endswith(f"strict decoding error: {', '.join(UNKNOWN)}")
    assert api.ask("GET", f"{WORKLOADS}/{name}").code == 404

    real = api.ask("POST", f"{WORKLOADS}?fieldValidation=Strict", workload(name)).json
    again = api.ask("PUT", f"{WORKLOADS}/{name}?fieldValidation=Strict", real | {"sepc": {}})
    assert (again.code, "strict decoding error" in again.json["message"]) == (400, True)
    patch = b'{"spec":{"nmae":"x"}}'
    patched = api.ask("PATCH", f"{WORKLOADS}/{name}?fieldValidation=Strict", patch, headers={"Content-Type": MERGE})
    assert patched.code == 422  # as a kube-apiserver answers to a patch
    assert 'strict decoding error: unknown field "spec.nmae"' in patched.json["message"]
    assert api.ask("GET", f"{WORKLOADS}/{name}").json == real


@pytest.mark.parametrize(
    ("query", "warned"), [("", True), ("?fieldValidation=Warn", True), ("?fieldValidation=Ignore", False)]
)
def test_unknown_fields_are_dropped_with_a_warning_unless_ignored(
    api: Background, name: str, query: str, warned: bool
) -> None:
    async def create(client: Client, transport: HttpTransport) -> None:
        path = WORKLOAD.path("default")
        options = {"fieldValidation": query.partition("=")[2]} if query else {}
        answer = await transport.call(Call("POST", path, options, msgspec.json.encode(misspelt(name))))
        assert answer.code == 201
        assert list(answer.warnings) == (UNKNOWN if warned else [])
        assert "scaleSettigns" not in answer.body.decode()

    connected(api, "demo", create)


def test_an_unknown_field_validation_is_refused(api: Background, name: str) -> None:
    assert api.ask("POST", f"{WORKLOADS}?fieldValidation=Maybe", workload(name)).code == 422


# Lists


def page(api: Background, **query: str | int) -> Json:
    return api.ask("GET", f"{CONFIG_MAPS}?{urlencode(query)}").json


def test_pages_of_a_list_are_consistent(api: Background, name: str) -> None:
    for number in range(5):
        body = config_map(f"{name}-{number}")
        body["metadata"]["labels"] = {"of": name}
        api.ask("POST", CONFIG_MAPS, body)
    selector = f"of={name}"
    first = page(api, labelSelector=selector, limit=2)
    api.ask("DELETE", f"{CONFIG_MAPS}/{name}-2")
    api.ask("PATCH", f"{CONFIG_MAPS}/{name}-3", b'{"data":{"a":"b"}}', headers={"Content-Type": MERGE})
    api.ask("POST", CONFIG_MAPS, config_map(f"{name}-5"))
    second = page(api, labelSelector=selector, limit=2, **{"continue": first["metadata"]["continue"]})
    third = page(api, labelSelector=selector, limit=2, **{"continue": second["metadata"]["continue"]})
    items = [item for part in (first, second, third) for item in part["items"]]
    assert [item["metadata"]["name"] for item in items] == [f"{name}-{number}" for number in range(5)]
    assert "data" not in items[3] or items[3]["data"] == {}
    assert {part["metadata"]["resourceVersion"] for part in (first, second, third)} == {
        first["metadata"]["resourceVersion"]
    }
    assert "continue" not in third["metadata"]
    assert "remainingItemCount" not in first["metadata"]  # unknown under a selector


def test_a_page_has_the_number_of_remaining_items(api: Background, name: str) -> None:
    for number in range(3):
        api.ask("POST", CONFIG_MAPS, config_map(f"{name}-{number}"))
    whole = page(api)
    first = page(api, limit=1)
    assert first["metadata"]["remainingItemCount"] == len(whole["items"]) - 1
    assert page(api, limit=10_000)["items"] == whole["items"]


def test_a_page_of_dropped_history_is_gone(api: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "HISTORY", 1)
    namespaces = "/planes/root/api/v1/namespaces"
    for name in "ab":
        api.ask("POST", namespaces, NAMESPACE.body(name))
    token = api.ask("GET", f"{namespaces}?limit=1").json["metadata"]["continue"]
    for name in "cd":
        api.ask("POST", namespaces, NAMESPACE.body(name))
    expired = api.ask("GET", f"{namespaces}?limit=1&continue={token}")
    assert (expired.code, expired.json["reason"]) == (410, "Expired")


def test_malformed_page_options_are_refused(api: Background) -> None:
    assert page(api, **{"continue": "nonsense"})["code"] == 400
    assert page(api, limit="many")["code"] == 400


def test_events_are_selected_by_their_object(api: Background, name: str) -> None:
    events = f"{DEMO}/api/v1/namespaces/default/events"
    for number, uid in enumerate(["u1", "u2"]):
        about = {"kind": "Workload", "name": name, "namespace": "default", "uid": uid}
        body = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.{number}"}, "involvedObject": about}
        assert api.ask("POST", events, body).code == 201
    query = urlencode({"fieldSelector": f"involvedObject.name={name},involvedObject.uid=u2"})
    assert [item["metadata"]["name"] for item in api.ask("GET", f"{events}?{query}").json["items"]] == [f"{name}.1"]
    query = urlencode({"fieldSelector": "spec.nope=1"})
    assert api.ask("GET", f"{events}?{query}").code == 400


# Tables


def test_a_list_as_a_table(api: Background, name: str) -> None:
    api.ask("POST", WORKLOADS, workload(name, labels={"of": name}))
    reply = api.ask("GET", f"{WORKLOADS}?labelSelector=of%3D{name}", headers=TABLE)
    table = reply.json
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in table["columnDefinitions"]][:3] == ["Name", "Age", "Available"]
    (row,) = table["rows"]
    assert row["cells"][0] == name
    assert row["cells"][1].endswith("s")
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert "spec" not in row["object"]
    assert table["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("include", "kind"), [("None", None), ("Metadata", "PartialObjectMetadata"), ("Object", "Workload")]
)
def test_a_row_includes_the_requested_part_of_its_object(
    api: Background, name: str, include: str, kind: str | None
) -> None:
    api.ask("POST", WORKLOADS, workload(name))
    table = api.ask("GET", f"{WORKLOADS}/{name}?includeObject={include}", headers=TABLE).json
    assert table["rows"][0].get("object", {}).get("kind") == kind


def test_errors_are_not_tables(api: Background, name: str) -> None:
    assert api.ask("GET", f"{WORKLOADS}/{name}", headers=TABLE).json["kind"] == "Status"
    assert api.ask("GET", f"{WORKLOADS}?includeObject=All", headers=TABLE).code == 400


# What is served


def test_discovery_lists_every_kind(api: Background) -> None:
    assert api.ask("GET", f"{DEMO}/api").json["versions"] == ["v1"]
    groups = api.ask("GET", f"{DEMO}/apis").json["groups"]
    resources: dict[str, Json] = {}
    for root in ["api/v1", *(f"apis/{group['preferredVersion']['groupVersion']}" for group in groups)]:
        listed = api.ask("GET", f"{DEMO}/{root}").json
        assert listed["kind"] == "APIResourceList"
        resources |= {f"{listed['groupVersion']}/{resource['name']}": resource for resource in listed["resources"]}
    workloads = resources["compute.datumapis.com/v1alpha/workloads"]
    assert (workloads["kind"], workloads["singularName"], workloads["namespaced"]) == ("Workload", "workload", True)
    assert set(workloads["verbs"]) >= {"create", "delete", "get", "list", "patch", "update", "watch"}
    assert resources["compute.datumapis.com/v1alpha/workloads/status"]["verbs"] == ["get", "patch", "update"]
    assert resources["v1/namespaces"]["shortNames"] == ["ns"]
    assert {"v1/events", "v1/configmaps", "v1/secrets", "coordination.k8s.io/v1/leases"} <= resources.keys()
    group = api.ask("GET", f"{DEMO}/apis/compute.datumapis.com").json
    assert (group["kind"], group["preferredVersion"]["version"]) == ("APIGroup", "v1alpha")


def test_openapi_has_a_document_for_every_group_version(api: Background) -> None:
    index = api.ask("GET", f"{DEMO}/openapi/v3").json["paths"]
    assert {"api/v1", "apis/compute.datumapis.com/v1alpha", "apis/coordination.k8s.io/v1"} <= index.keys()
    for entry in index.values():
        document = api.ask("GET", entry["serverRelativeURL"]).json
        schemas = document["components"]["schemas"]
        patches = [path["patch"] for path in document["paths"].values() if "patch" in path]
        assert patches or all("Review" in path["post"]["operationId"] for path in document["paths"].values())
        for patch in patches:
            names = {parameter["name"] for parameter in patch["parameters"]}
            assert {"fieldValidation", "dryRun", "fieldManager", "force"} <= names
            kind = patch["x-kubernetes-group-version-kind"]
            assert any(kind in schema.get("x-kubernetes-group-version-kind", ()) for schema in schemas.values())
        references = [part for part in str(document).split("'") if part.startswith("#/components/schemas/")]
        assert {reference.rpartition("/")[2] for reference in references} <= schemas.keys()


def test_a_document_has_the_schema_of_its_kind(api: Background) -> None:
    index = api.ask("GET", f"{DEMO}/openapi/v3").json["paths"]
    document = api.ask("GET", index["apis/compute.datumapis.com/v1alpha"]["serverRelativeURL"]).json
    schema = document["components"]["schemas"]["com.datumapis.compute.v1alpha.Workload"]
    assert {"spec", "status", "metadata"} <= schema["properties"].keys()
    assert "placements" in schema["properties"]["spec"]["properties"]


# Watches


def test_a_watch_streams_events(api: Background, name: str) -> None:
    async def watch(client: Client, transport: HttpTransport) -> None:
        listing = await client.list(WORKLOAD_DEPLOYMENT)
        async with client.watch(WORKLOAD_DEPLOYMENT, listing.resource_version, timeout_seconds=30) as events:
            spec = {"cityCode": "DFW", "placementName": "main", "workloadRef": {"name": "w", "uid": "u"}}
            spec |= {"template": template(), "scaleSettings": {"minReplicas": 1}}
            body = WORKLOAD_DEPLOYMENT.body(name, "default") | {"spec": spec}
            await client.create(WORKLOAD_DEPLOYMENT, body)
            await client.merge_patch(WORKLOAD_DEPLOYMENT, name, "default", {"metadata": {"labels": {"a": "b"}}})
            await client.delete(WORKLOAD_DEPLOYMENT, name, "default")
            received = [await anext(events) for _ in range(3)]
        assert [(event.type, event.object and event.object.name) for event in received] == [
            ("ADDED", name),
            ("MODIFIED", name),
            ("DELETED", name),
        ]

    connected(api, "demo", watch)


def test_a_watch_ends_after_its_time(api: Background) -> None:
    async def watch(client: Client, transport: HttpTransport) -> None:
        async with client.watch(NAMESPACE, str(api.revision), timeout_seconds=1) as events:
            assert [event.type async for event in events] == ["BOOKMARK"]  # where the next watch can resume

    connected(api, "cell-dfw", watch)


@pytest.mark.parametrize("revision", ["1", "999999999"])
def test_a_watch_from_an_unknown_revision_is_refused(
    api: Background, name: str, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "HISTORY", 1)
    for value in "ab":
        api.ask("POST", CONFIG_MAPS, config_map(f"{name}-{value}"))
    reply = api.ask("GET", f"{CONFIG_MAPS}?watch=true&resourceVersion={revision}")
    assert (reply.code, reply.json["reason"]) == (410, "Expired")


def test_the_initial_list_can_be_streamed(api: Background, name: str) -> None:
    async def watch(client: Client, transport: HttpTransport) -> None:
        await client.create(NAMESPACE, NAMESPACE.body(name))
        query = {
            "watch": "true",
            "sendInitialEvents": "true",
            "allowWatchBookmarks": "true",
            "resourceVersionMatch": "NotOlderThan",
            "fieldSelector": f"metadata.name={name}",
        }
        async with transport.stream(Call("GET", "/api/v1/namespaces", query)) as lines:
            events = [msgspec.json.decode(await anext(lines)) for _ in range(2)]
        assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
        bookmark = events[1]["object"]
        assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert (bookmark["kind"], int(bookmark["metadata"]["resourceVersion"]) > 0) == ("Namespace", True)

    connected(api, "hub", watch)


def test_a_watch_as_tables(api: Background, name: str) -> None:
    tls = api.server.endpoint("root").tls()
    assert tls is not None
    api.ask("POST", WORKLOADS, workload(name))
    query = urlencode({"watch": "1", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": 20})
    request = f"GET {WORKLOADS}?{query} HTTP/1.1\r\nHost: localhost\r\nAccept: {TABLE['Accept']}\r\n"
    request += f"Authorization: Bearer {api.credentials.token}\r\n\r\n"
    with (
        socket.create_connection(("127.0.0.1", api.server.port)) as plain,
        tls.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(request.encode())
        received = b""
        while b'"rows"' not in received:
            received += connection.recv(65536)
    line = next(line for line in received.split(b"\r\n") if line.startswith(b"{"))
    event = msgspec.json.decode(line)
    assert (event["type"], event["object"]["kind"]) == ("ADDED", "Table")
    assert event["object"]["rows"][0]["cells"][0] == name
    api.until(lambda: api.watches() == 0)


def test_a_watch_is_cleaned_up_when_its_client_disconnects(api: Background) -> None:
    async def leave(client: Client, transport: HttpTransport) -> None:
        for _ in range(3):
            async with client.watch(NAMESPACE, "", timeout_seconds=600) as events:
                assert (await anext(events)).type == "ADDED"
                assert await asyncio.to_thread(api.read, api.watches) >= 1

    connected(api, "demo", leave)
    api.until(lambda: api.watches() == 0)


def test_a_watch_is_cleaned_up_when_its_client_stops_reading(
    api: Background, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_WATCH_GRACE_SECONDS", 0.2)
    tls = api.server.endpoint("root").tls()
    assert tls is not None
    api.ask("POST", CONFIG_MAPS, config_map(name))
    request = (
        f"GET {CONFIG_MAPS}?watch=1&resourceVersion={api.revision}&timeoutSeconds=1 HTTP/1.1\r\nHost: localhost\r\n"
    )
    request += f"Authorization: Bearer {api.credentials.token}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", api.server.port)) as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with tls.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(request.encode())
            connection.recv(100)  # the watch has started
            for number in range(8):  # more than all buffers can hold
                patch = msgspec.json.encode({"data": {"large": str(number) * 2_000_000}})
                reply = api.ask("PATCH", f"{CONFIG_MAPS}/{name}", patch, headers={"Content-Type": MERGE})
                assert reply.code == 200
            api.until(lambda: api.watches() == 0)
    assert api.ask("DELETE", f"{CONFIG_MAPS}/{name}").code == 200


# Clients that are slow, silent or hostile


@contextmanager
def raw(api: Background, *, buffer: int = 0) -> Iterator[ssl.SSLSocket]:
    """A raw connection, for requests that no client library would send."""
    tls = api.server.endpoint("root").tls()
    assert tls is not None
    with socket.create_connection(("127.0.0.1", api.server.port), timeout=20) as plain:
        if buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        with tls.wrap_socket(plain, server_hostname="localhost") as connection:
            yield connection


def all_of(connection: ssl.SSLSocket) -> bytes:
    """Everything the server sends until it closes or resets the connection."""
    received = b""
    with suppress(ConnectionError, ssl.SSLError):
        while piece := connection.recv(65536):
            received += piece
    return received


@pytest.mark.parametrize(
    "start", ["GET /api/v1/namespaces?x=", "GET / HTTP/1.1\r\nX-Long: "], ids=["an address", "a header"]
)
def test_an_endless_head_is_refused_and_costs_no_memory(api: Background, start: str) -> None:
    with raw(api) as connection, suppress(ConnectionError, ssl.SSLError):
        connection.sendall(start.encode())
        for _ in range(100):
            connection.sendall(b"a" * 16_384)
        connection.settimeout(20)
        assert all_of(connection).startswith(b"HTTP/1.1 431 ")
    assert api.ask("GET", "/healthz").code == 200


def test_a_head_of_100_kb_is_refused_even_in_one_piece(api: Background) -> None:
    reply = api.ask("GET", "/healthz", headers={"X-Long": "a" * 60_000, "X-Longer": "a" * 40_000})
    assert reply.code == 431


def test_a_client_that_keeps_sending_still_reads_the_refusal(api: Background) -> None:
    """If the server closed at once, unread data would reset the connection before the client reads the answer."""
    many = {f"X-Long-{number}": "a" * 60_000 for number in range(40)}
    assert {api.ask("GET", "/healthz", headers=many).code for _ in range(5)} == {431}


def test_a_slow_head_is_cut_off_while_others_are_served(
    impatient: Background,
) -> None:
    with raw(impatient) as silent, raw(impatient) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert impatient.ask("GET", "/healthz").code == 200
        assert all_of(slow) == b""
        assert all_of(silent) == b""


def test_a_second_request_on_a_connection_has_its_own_deadline(impatient: Background) -> None:
    with raw(impatient) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"ok"):
            answer += connection.recv(65536)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
        assert all_of(connection) == b""


def test_a_slow_body_is_refused_and_nothing_is_written(impatient: Background) -> None:
    before, token = impatient.revision, impatient.credentials.token
    head = f"POST {CONFIG_MAPS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    with raw(impatient) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode())
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert b"did not arrive within" in answer
    assert impatient.revision == before


def test_many_silent_connections_do_not_block_others(api: Background) -> None:
    with ExitStack() as connections:
        for _ in range(200):
            connections.enter_context(socket.create_connection(("127.0.0.1", api.server.port)))
        for _ in range(50):
            connections.enter_context(raw(api))
        assert api.ask("GET", f"{DEMO}/api/v1/namespaces").code == 200


def test_the_oldest_of_too_many_silent_connections_are_closed(api: Background) -> None:
    with ExitStack() as connections:
        silent = [
            connections.enter_context(socket.create_connection(("127.0.0.1", api.server.port), timeout=10))
            for _ in range(300)
        ]
        assert [connection.recv(1) for connection in silent[:100]] == [b""] * 100


@pytest.mark.parametrize("junk", [b"\x16\x03\x01" + bytes(500), b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000])
def test_a_connection_without_tls_is_closed_at_once(api: Background, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", api.server.port), timeout=20) as connection:
        connection.sendall(junk)
        with suppress(ConnectionError):
            while connection.recv(65536):
                pass
    assert api.ask("GET", "/healthz").code == 200


def test_a_stalled_watcher_is_dropped_and_the_others_get_everything(
    api: Background, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_WATCH_STALL_SECONDS", 0.5)
    assert api.ask("POST", CONFIG_MAPS, config_map(name)).code == 201
    query = f"watch=1&timeoutSeconds=600&resourceVersion={api.revision}"
    request = f"GET {CONFIG_MAPS}?{query} HTTP/1.1\r\nHost: localhost\r\n"
    request += f"Authorization: Bearer {api.credentials.token}\r\n\r\n"
    sizes: list[int] = []

    async def listen(client: Client, transport: HttpTransport) -> None:
        path = "/api/v1/namespaces/default/configmaps"
        call = Call("GET", path, {"watch": "1", "resourceVersion": str(api.revision)})
        async with transport.stream(call) as lines:
            with raw(api, buffer=4096) as deaf:
                deaf.sendall(request.encode())
                deaf.recv(100)  # the watch has started
                writing = asyncio.create_task(asyncio.to_thread(write))
                while len(sizes) < 20:
                    sizes.append(len(await anext(lines)))
                await writing
                await asyncio.to_thread(api.until, lambda: api.watches() == 1)

    def write() -> None:
        for number in range(20):
            patch = msgspec.json.encode({"data": {"large": str(number % 10) * 1_000_000}})
            reply = api.ask("PATCH", f"{CONFIG_MAPS}/{name}", patch, headers={"Content-Type": MERGE})
            assert reply.code == 200

    connected(api, "demo", listen)
    assert all(size > 1_000_000 for size in sizes)
    assert api.ask("DELETE", f"{CONFIG_MAPS}/{name}").code == 200


# Starting and stopping


def test_stopping_ends_watches_and_frees_the_port(api: Background) -> None:
    async def scenario() -> None:
        engine = compute_engine()
        engine.serve("root", "root")
        server = HttpsServer(engine, api.credentials)
        await server.start()
        transport = HttpTransport(server.endpoint("root"))
        with pytest.raises(ApiError):
            async with transport.stream(Call("GET", "/api/v1/namespaces", {"watch": "true"})) as lines:
                stopping = asyncio.create_task(server.stop())
                await anext(lines)
        await stopping
        again = HttpsServer(engine, api.credentials, port=server.port)
        assert await again.start() == server.url
        assert (await transport.call(Call("GET", "/api/v1/namespaces"))).code == 200
        taken = HttpsServer(engine, api.credentials, port=server.port)
        with pytest.raises(OSError, match="in use"):
            await taken.start()
        await taken.stop()
        await transport.close()
        await again.stop()

    asyncio.run(scenario())


def test_a_certificate_about_to_expire_is_replaced_while_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def certificate(server: HttpsServer) -> str:
        return ssl.get_server_certificate(("127.0.0.1", server.port))

    async def scenario() -> None:
        engine = compute_engine()
        server = HttpsServer(engine, Credentials.ensure(tmp_path, datetime.now(UTC) - timedelta(days=340)))
        await server.start()
        before = await asyncio.to_thread(certificate, server)
        while await asyncio.to_thread(certificate, server) == before:
            pass
        transport = HttpTransport(server.endpoint("root"))
        assert (await transport.call(Call("GET", "/healthz"))).code == 200
        await transport.close()
        await server.stop()

    monkeypatch.setattr(http_module, "_RENEWAL_SECONDS", 0.2)
    asyncio.run(scenario())


def test_a_failed_renewal_is_logged_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def certificate(server: HttpsServer) -> str:
        return ssl.get_server_certificate(("127.0.0.1", server.port))

    async def scenario() -> None:
        engine = compute_engine()
        server = HttpsServer(engine, Credentials.ensure(tmp_path, datetime.now(UTC) - timedelta(days=340)))
        await server.start()
        before = await asyncio.to_thread(certificate, server)
        key = tmp_path / "server.key"
        key.rename(tmp_path / "kept")
        key.mkdir()  # cannot be read as a file
        async with asyncio.timeout(60):
            while not lines:
                await asyncio.to_thread(certificate, server)
            key.rmdir()
            while await asyncio.to_thread(certificate, server) == before:
                pass
        await server.stop()

    monkeypatch.setattr(http_module, "_RENEWAL_SECONDS", 0.01)
    monkeypatch.setattr(http_module, "_RETRY_SECONDS", 0.01)
    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())
    assert lines[0]["event"] == "certificate not renewed; trying again"
    assert "server.key" in lines[0]["error"]


def test_json_patches_are_accepted(api: Background, name: str) -> None:
    api.ask("POST", CONFIG_MAPS, config_map(name, a="1"))
    patch = b'[{"op":"replace","path":"/data/a","value":"2"}]'
    assert api.ask("PATCH", f"{CONFIG_MAPS}/{name}", patch, headers={"Content-Type": JSON}).json["data"] == {"a": "2"}
