"""Tables, metadata alone, discovery, OpenAPI, version and health."""

import re

import pytest

from datum_compute.kube.meta import Json
from tests.conformance.kinds import Definition, Place
from tests.conformance.server import Server

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def test_a_table_has_the_columns_of_the_kind(server: Server, place: Place) -> None:
    place.widget("one")
    server.merge(place.widgets("one", "status"), {"status": {"phase": "Up"}})
    table = server.ask("GET", place.widgets(), accept=TABLE).json
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert int(table["metadata"]["resourceVersion"]) > 0
    columns = [(c["name"], c["type"], c["format"], c["priority"]) for c in table["columnDefinitions"]]
    assert columns == [
        ("Name", "string", "name", 0),
        ("Size", "integer", "", 0),
        ("Phase", "string", "", 0),
        ("Colour", "string", "", 1),
        ("Age", "date", "", 0),
    ]
    assert table["columnDefinitions"][1]["description"] == "How large it is"
    row = table["rows"][0]
    assert row["cells"][:4] == ["one", 1, "Up", "red"]
    assert re.fullmatch(r"\d+s", row["cells"][4])
    assert (row["object"]["kind"], row["object"]["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert row["object"]["metadata"]["name"] == "one"
    assert "spec" not in row["object"]


@pytest.mark.parametrize("include", ["None", "Metadata", "Object"])
def test_a_table_includes_the_requested_part_of_each_object(server: Server, place: Place, include: str) -> None:
    made = place.widget("one")
    for path in (place.widgets(), place.widgets("one")):
        row = server.ask("GET", path, accept=TABLE, includeObject=include).json["rows"][0]
        match include:
            case "None":
                assert row.get("object") is None
            case "Metadata":
                head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
                assert row["object"] == head | {"metadata": made["metadata"]}
            case "Object":
                assert row["object"] == made


def test_an_unknown_include_object_is_refused(server: Server, place: Place) -> None:
    assert server.ask("GET", place.widgets(), accept=TABLE, includeObject="Nope").code in (400, 422)


def test_a_table_in_pages(server: Server, place: Place) -> None:
    for name in ("a", "b"):
        place.widget(name)
    table = server.ask("GET", place.widgets(), accept=TABLE, limit=1).json
    assert [row["cells"][0] for row in table["rows"]] == ["a"]
    assert table["metadata"]["remainingItemCount"] == 1
    rest = server.ask("GET", place.widgets(), accept=TABLE, limit=1, continue_=table["metadata"]["continue"]).json
    assert [row["cells"][0] for row in rest["rows"]] == ["b"]


def test_an_empty_table_and_an_error(server: Server, place: Place) -> None:
    table = server.ask("GET", place.widgets(), accept=TABLE).json
    assert (table["kind"], table["rows"], len(table["columnDefinitions"])) == ("Table", [], 5)
    assert server.ask("GET", place.widgets("none"), accept=TABLE).failure == (404, "NotFound")


def test_the_first_acceptable_form_is_used(server: Server, place: Place) -> None:
    place.widget("one")
    assert server.ask("GET", place.widgets(), accept=f"{TABLE},application/json").json["kind"] == "Table"
    assert server.ask("GET", place.widgets(), accept=f"application/json,{TABLE}").json["kind"] == "WidgetList"
    unknown = "application/json;as=Table;v=v9;g=meta.k8s.io"
    assert server.ask("GET", place.widgets(), accept=f"{unknown},application/json").json["kind"] == "WidgetList"
    assert server.ask("GET", place.widgets(), accept=unknown).failure == (406, "NotAcceptable")


def test_a_kind_without_columns_shows_its_age(server: Server, gadgets: Definition, name: str) -> None:
    server.create(gadgets.path(), gadgets.object(name, {}))
    table = server.ask("GET", gadgets.path(name=name), accept=TABLE).json
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Age"]
    server.delete(gadgets.path(name=name))


@pytest.mark.parametrize(
    ("resource", "columns"),
    [
        ("namespaces", ["Name", "Status", "Age"]),
        ("configmaps", ["Name", "Data", "Age"]),
        ("secrets", ["Name", "Type", "Data", "Age"]),
    ],
)
def test_the_columns_of_built_in_kinds(server: Server, resource: str, columns: list[str]) -> None:
    table = server.ask("GET", f"/api/v1/{resource}", accept=TABLE, limit=1).json
    assert [column["name"] for column in table["columnDefinitions"]] == columns


def test_a_config_map_shows_the_number_of_its_entries(server: Server, place: Place) -> None:
    place.config_map("one")
    row = server.ask("GET", place.config_maps("one"), accept=TABLE).json["rows"][0]
    assert row["cells"][:2] == ["one", 1]


def test_metadata_alone(server: Server, place: Place) -> None:
    made = place.widget("one", labels={"a": "b"})
    head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    assert server.ask("GET", place.widgets("one"), accept=PARTIAL).json == head | {"metadata": made["metadata"]}
    listed = server.ask("GET", place.widgets(), accept=PARTIAL_LIST).json
    assert (listed["kind"], listed["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert int(listed["metadata"]["resourceVersion"]) > 0
    assert [item["metadata"] for item in listed["items"]] == [made["metadata"]]
    assert (
        server.ask("GET", place.widgets(), accept=f"{PARTIAL_LIST},application/json").json["kind"].startswith("Partial")
    )
    patched = server.ask(
        "PATCH", place.widgets("one"), {"spec": {"size": 2}}, type_="application/merge-patch+json", accept=PARTIAL
    ).json
    assert (patched["kind"], patched["metadata"]["generation"]) == ("PartialObjectMetadata", 2)
    assert "spec" not in patched


# Discovery


def test_groups_are_discovered(server: Server, widgets: Definition) -> None:
    versions = server.get("/api")
    assert (versions["kind"], versions["versions"]) == ("APIVersions", ["v1"])
    groups = server.get("/apis")
    assert (groups["kind"], groups["apiVersion"]) == ("APIGroupList", "v1")
    actual = next(group for group in groups["groups"] if group["name"] == widgets.group)
    version = {"groupVersion": widgets.api_version, "version": "v1"}
    assert actual == {"name": widgets.group, "versions": [version], "preferredVersion": version}
    alone = server.get(f"/apis/{widgets.group}")
    assert (alone["kind"], alone["apiVersion"]) == ("APIGroup", "v1")
    assert (alone["name"], alone["preferredVersion"]) == (widgets.group, version)
    assert f"/apis/{widgets.api_version}" in server.get("/")["paths"]


def test_resources_of_a_group_are_discovered(server: Server, widgets: Definition, gadgets: Definition) -> None:
    document = server.get(f"/apis/{widgets.api_version}")
    assert (document["kind"], document["apiVersion"], document["groupVersion"]) == (
        "APIResourceList",
        "v1",
        widgets.api_version,
    )
    resources = {resource["name"]: resource for resource in document["resources"]}
    assert resources.keys() == {"widgets", "widgets/status", "gadgets"}
    widget = resources["widgets"]
    assert {key: widget[key] for key in ("singularName", "namespaced", "kind", "shortNames", "categories")} == {
        "singularName": "widget",
        "namespaced": True,
        "kind": "Widget",
        "shortNames": ["wdg"],
        "categories": ["things"],
    }
    everything = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    assert sorted(widget["verbs"]) == everything
    assert sorted(resources["widgets/status"]["verbs"]) == ["get", "patch", "update"]
    assert resources["gadgets"]["namespaced"] is False
    core = {resource["name"]: resource for resource in server.get("/api/v1")["resources"]}
    assert sorted(core["configmaps"]["verbs"]) == everything
    assert core["configmaps"]["shortNames"] == ["cm"]
    assert sorted(core["namespaces"]["verbs"]) == [verb for verb in everything if verb != "deletecollection"]
    assert core["namespaces"]["shortNames"] == ["ns"]


@pytest.mark.parametrize("path", ["/api", "/apis"])
def test_discovery_in_one_document(server: Server, widgets: Definition, gadgets: Definition, path: str) -> None:
    reply = server.ask("GET", path, accept=f"{AGGREGATED},application/json")
    assert reply.headers["content-type"] == AGGREGATED
    document = reply.json
    assert (document["kind"], document["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    if path == "/api":
        group: Json = document["items"][0]
        assert group["metadata"].get("name", "") == ""
        version = group["versions"][0]
        config_maps = next(resource for resource in version["resources"] if resource["resource"] == "configmaps")
        assert (config_maps["scope"], config_maps["singularResource"]) == ("Namespaced", "configmap")
        assert config_maps["responseKind"]["kind"] == "ConfigMap"
        return
    group = next(group for group in document["items"] if group["metadata"]["name"] == widgets.group)
    version = group["versions"][0]
    assert (version["version"], version["freshness"]) == ("v1", "Current")
    resources = {resource["resource"]: resource for resource in version["resources"]}
    assert resources.keys() == {"widgets", "gadgets"}
    widget = resources["widgets"]
    assert widget["responseKind"] == {"group": widgets.group, "version": "v1", "kind": "Widget"}
    assert (widget["scope"], widget["singularResource"]) == ("Namespaced", "widget")
    assert (widget["shortNames"], widget["categories"]) == (["wdg"], ["things"])
    assert [(part["subresource"], sorted(part["verbs"])) for part in widget["subresources"]] == [
        ("status", ["get", "patch", "update"])
    ]
    assert resources["gadgets"]["scope"] == "Cluster"
    assert "subresources" not in resources["gadgets"]


def test_openapi_describes_a_kind(server: Server, widgets: Definition) -> None:
    index = server.get("/openapi/v3")["paths"]
    address = index[f"apis/{widgets.api_version}"]["serverRelativeURL"]
    assert re.search(r"/openapi/v3/apis/[^?]+\?hash=[0-9A-F]+$", address)
    document = server.get(f"/openapi/v3/apis/{widgets.api_version}")
    assert document["openapi"].startswith("3.")
    schemas = document["components"]["schemas"]
    schema = next(
        schema
        for schema in schemas.values()
        if {"group": widgets.group, "version": "v1", "kind": "Widget"}
        in schema.get("x-kubernetes-group-version-kind", ())
    )
    assert schema["description"] == "Something to try things with."
    size = schema["properties"]["spec"]["properties"]["size"]
    assert (size["type"], size["description"]) == ("integer", "How large it is.")
    path = document["paths"][f"/apis/{widgets.api_version}/namespaces/{{namespace}}/widgets/{{name}}"]
    assert {"get", "put", "patch", "delete"} <= path.keys()
    parameters = {parameter["name"] for parameter in path["patch"]["parameters"]}
    assert {"dryRun", "fieldManager", "fieldValidation"} <= parameters
    assert path["patch"]["x-kubernetes-group-version-kind"]["kind"] == "Widget"
    assert "api/v1" in index


def test_discovery_accepts_a_trailing_slash(server: Server, widgets: Definition) -> None:
    paths = ["/version", "/api", "/api/v1", "/apis", f"/apis/{widgets.group}", f"/apis/{widgets.api_version}"]
    for path in paths:
        assert server.ask("GET", f"{path}/").json == server.ask("GET", path).json, path


def test_version_and_health(server: Server) -> None:
    version = server.get("/version")
    assert version["major"] == "1"
    assert version["gitVersion"].startswith(f"v1.{version['minor'].rstrip('+')}.")
    details = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform")
    assert all(isinstance(version[detail], str) for detail in details)
    for path in ("/healthz", "/livez", "/readyz"):
        reply = server.ask("GET", path)
        assert (reply.code, reply.body) == (200, b"ok")
