"""Creating, reading and replacing objects."""

import re

import pytest

from datum_compute.kube.meta import Json
from tests.conformance.kinds import Definition, Place, config_map
from tests.conformance.server import Server

UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def subject(reply_json: Json) -> Json:
    return {key: value for key, value in reply_json["details"].items() if key != "causes"}


def test_a_new_object_has_server_managed_metadata(server: Server, place: Place) -> None:
    made = place.widget("one", labels={"a": "b"}, annotations={"c": "d"})
    metadata = made["metadata"]
    assert (metadata["name"], metadata["namespace"], metadata["generation"]) == ("one", place.name, 1)
    assert UID.fullmatch(metadata["uid"])
    assert TIME.fullmatch(metadata["creationTimestamp"])
    assert int(metadata["resourceVersion"]) > 0
    assert (metadata["labels"], metadata["annotations"]) == ({"a": "b"}, {"c": "d"})
    assert (made["apiVersion"], made["kind"]) == (place.kind.api_version, "Widget")
    read = server.get(place.widgets("one"))
    assert read == made


def test_server_managed_metadata_in_a_request_is_ignored(server: Server, place: Place) -> None:
    ignored: Json = {"uid": "mine", "generation": 42, "creationTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x"}
    metadata = place.widget("one", **ignored)["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["generation"] == 1
    assert not metadata["creationTimestamp"].startswith("2001")
    ignored_deletion = place.widget("two", deletionTimestamp="2001-01-01T00:00:00Z", deletionGracePeriodSeconds=5)[
        "metadata"
    ]
    assert not {"deletionTimestamp", "deletionGracePeriodSeconds"} & ignored_deletion.keys()


def test_annotations_have_a_total_size_limit(server: Server, place: Place) -> None:
    most = {"a": "x" * 131071, "b": "y" * 131071}  # 262144 bytes with their keys
    place.config_map("one", annotations=most)
    too_long = config_map("two") | {"metadata": {"name": "two", "annotations": most | {"c": ""}}}
    refused = server.ask("POST", place.config_maps(), too_long)
    sentence = "Too long: may not be more than 262144 bytes"
    assert refused.failure == (422, "Invalid")
    assert refused.message == f'ConfigMap "two" is invalid: metadata.annotations: {sentence}'
    assert refused.json["details"]["causes"] == [
        {"reason": "FieldValueTooLong", "message": sentence, "field": "metadata.annotations"}
    ]
    patch = {"metadata": {"annotations": {"c": ""}}}
    grown = server.ask("PATCH", place.config_maps("one"), patch, type_="application/merge-patch+json")
    assert grown.failure == (422, "Invalid")


def test_an_existing_name_is_a_conflict(server: Server, place: Place) -> None:
    place.widget("one")
    refused = server.ask("POST", place.widgets(), place.kind.object("one"))
    assert refused.failure == (409, "AlreadyExists")
    assert refused.message == f'{place.kind.name} "one" already exists'
    assert subject(refused.json) == {"name": "one", "group": place.kind.group, "kind": "widgets"}
    place.config_map("one")
    refused = server.ask("POST", place.config_maps(), config_map("one"))
    assert (refused.failure, refused.message) == ((409, "AlreadyExists"), 'configmaps "one" already exists')
    assert subject(refused.json) == {"name": "one", "kind": "configmaps"}


def test_a_missing_object_is_not_found(server: Server, place: Place) -> None:
    for method, body in (("GET", None), ("DELETE", None), ("PUT", config_map("none"))):  # an update does not create
        missing = server.ask(method, place.config_maps("none"), body)
        assert missing.failure == (404, "NotFound")
        assert missing.message == 'configmaps "none" not found'
        assert subject(missing.json) == {"name": "none", "kind": "configmaps"}
    missing = server.ask("GET", place.widgets("none"))
    assert (missing.failure, missing.message) == ((404, "NotFound"), f'{place.kind.name} "none" not found')
    assert subject(missing.json) == {"name": "none", "group": place.kind.group, "kind": "widgets"}
    for method, body in (("PATCH", {}), ("PUT", place.kind.object("none", resourceVersion="1"))):
        type_ = "application/merge-patch+json" if method == "PATCH" else "application/json"
        missing = server.ask(method, place.widgets("none"), body, type_=type_)
        assert (missing.failure, missing.message) == ((404, "NotFound"), f'{place.kind.name} "none" not found')


@pytest.mark.parametrize(
    "path", ["/apis/nope.example.test/v1/things", "/apis/{group}/v1/nope", "/apis/{group}/v2/widgets"]
)
def test_a_kind_that_is_not_served_is_not_found(server: Server, widgets: Definition, path: str) -> None:
    missing = server.ask("GET", path.format(group=widgets.group))
    assert missing.code == 404


def test_a_missing_namespace_is_not_found(server: Server, widgets: Definition, name: str) -> None:
    refused = server.ask("POST", widgets.path(name), widgets.object("one"))
    assert (refused.failure, refused.message) == ((404, "NotFound"), f'namespaces "{name}" not found')
    assert subject(refused.json) == {"name": name, "kind": "namespaces"}
    assert server.names(widgets.path(name)) == []


def test_a_generated_name(server: Server, place: Place) -> None:
    body = place.kind.object("x")
    body["metadata"] = {"generateName": "gen-"}
    made = server.create(place.widgets(), body)["metadata"]
    assert re.fullmatch(r"gen-[a-z0-9]{5}", made["name"])
    assert made["generateName"] == "gen-"
    body["metadata"] = {"generateName": "x" * 70}
    assert re.fullmatch(r"x{58}[a-z0-9]{5}", server.create(place.widgets(), body)["metadata"]["name"])


def test_a_name_is_needed(server: Server, place: Place) -> None:
    body = place.kind.object("x")
    body["metadata"] = {}
    refused = server.ask("POST", place.widgets(), body)
    assert refused.failure == (422, "Invalid")
    assert refused.message == (
        f'Widget.{place.kind.group} "" is invalid: metadata.name: Required value: name or generateName is required'
    )
    assert refused.causes == [("FieldValueRequired", "metadata.name")]


@pytest.mark.parametrize("bad", ["Upper", "under_score", "-dash", "a" * 254, "dot..dot"])
def test_a_bad_name_is_refused(server: Server, place: Place, bad: str) -> None:
    for path, body in ((place.widgets(), place.kind.object(bad)), (place.config_maps(), config_map(bad))):
        refused = server.ask("POST", path, body)
        assert refused.failure == (422, "Invalid")
        assert set(refused.causes) == {("FieldValueInvalid", "metadata.name")}
        assert "metadata.name: Invalid value: " in refused.message


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"a b": "c"}}, "metadata.labels"),
        ({"labels": {"a": "b c"}}, "metadata.labels"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels"),
        ({"labels": {"A.example.test/x/y": "c"}}, "metadata.labels"),
        ({"annotations": {"a b": "c"}}, "metadata.annotations"),
        ({"finalizers": ["a b/c"]}, "metadata.finalizers"),
    ],
)
def test_bad_metadata_is_refused(server: Server, place: Place, metadata: Json, field: str) -> None:
    refused = server.ask("POST", place.widgets(), place.kind.object("one", **metadata))
    assert refused.failure == (422, "Invalid")
    assert refused.causes[0][1].startswith(field)
    assert f'Widget.{place.kind.group} "one" is invalid: ' in refused.message


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_labels_have_to_be_strings(server: Server, place: Place, field: str) -> None:
    for path, body in ((place.widgets(), place.kind.object("one")), (place.config_maps(), config_map("one"))):
        body["metadata"][field] = {"a": 1}
        assert server.ask("POST", path, body).failure == (400, "BadRequest")


def test_owner_references_have_to_be_complete(server: Server, place: Place) -> None:
    whole = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}
    for missing in whole:
        reference = {key: value for key, value in whole.items() if key != missing}
        refused = server.ask("POST", place.widgets(), place.kind.object("one", ownerReferences=[reference]))
        assert refused.failure == (422, "Invalid")
        assert refused.causes[0][1] == f"metadata.ownerReferences.{missing}"
    two = [whole | {"controller": True}, whole | {"uid": "z", "controller": True}]
    refused = server.ask("POST", place.widgets(), place.kind.object("one", ownerReferences=two))
    assert (refused.failure, refused.causes[0][1]) == ((422, "Invalid"), "metadata.ownerReferences")


def test_a_new_object_may_not_have_a_resource_version(server: Server, place: Place) -> None:
    refused = server.ask("POST", place.widgets(), place.kind.object("one", resourceVersion="1"))
    assert refused.code >= 400  # a kube-apiserver answers 500
    assert refused.message == "resourceVersion should not be set on objects to be created"


def test_the_type_has_to_be_that_of_the_path(server: Server, place: Place) -> None:
    good = place.kind.object("one")
    for wrong in ({"apiVersion": "v1"}, {"kind": ""}, {"apiVersion": f"{place.kind.group}/v9"}, {"apiVersion": ""}):
        refused = server.ask("POST", place.widgets(), good | wrong)
        assert refused.failure == (400, "BadRequest")
    refused = server.ask("POST", place.widgets(), good | {"kind": "Other"})
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueInvalid", "kind")])
    assert 'kind: Invalid value: "Other": must be Widget' in refused.message
    for wrong in ({"kind": "Other"}, {"apiVersion": "v9"}):
        assert server.ask("POST", place.config_maps(), config_map("one") | wrong).failure == (400, "BadRequest")
    without = {key: value for key, value in config_map("one").items() if key not in ("apiVersion", "kind")}
    assert server.create(place.config_maps(), without)["kind"] == "ConfigMap"


def test_the_namespace_has_to_be_that_of_the_path(server: Server, place: Place) -> None:
    refused = server.ask("POST", place.widgets(), place.kind.object("one", namespace="default"))
    assert refused.failure == (400, "BadRequest")
    assert refused.message == "the namespace of the provided object does not match the namespace sent on the request"
    made = place.widget("one")
    made["metadata"]["name"] = "two"
    refused = server.ask("PUT", place.widgets("one"), made)
    assert refused.failure == (400, "BadRequest")
    assert refused.message == "the name of the object (two) does not match the name on the URL (one)"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff"])
def test_a_body_has_to_be_an_object(server: Server, place: Place, body: bytes) -> None:
    assert server.ask("POST", place.widgets(), body).failure == (400, "BadRequest")


def test_an_unknown_content_type_is_unsupported(server: Server, place: Place) -> None:
    refused = server.ask("POST", place.widgets(), b"x", type_="text/x-unknown")
    assert refused.failure == (415, "UnsupportedMediaType")
    assert refused.message.startswith(
        "the body of the request was in an unknown format - accepted media types include: "
    )
    made = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: made}\ndata: {a: '1'}\n"
    assert server.ask("POST", place.config_maps(), made, type_="application/yaml").json["data"] == {"a": "1"}


def test_an_unknown_accept_header_is_not_acceptable(server: Server, place: Place) -> None:
    assert server.ask("GET", place.config_maps(), accept="text/x-unknown").failure == (406, "NotAcceptable")
    assert server.ask("GET", place.config_maps(), accept="text/x-unknown, */*").code == 200


def test_unsupported_methods_are_not_allowed(server: Server, place: Place) -> None:
    place.widget("one")
    for method, path in (
        ("POST", place.config_maps("one")),
        ("PUT", place.config_maps()),
        ("PATCH", place.config_maps()),
        ("DELETE", "/api/v1/namespaces"),
        ("POST", "/api/v1/configmaps"),
        ("DELETE", place.widgets("one", "status")),
        ("POST", "/api/v1"),
    ):
        assert server.ask(method, path, {}).failure == (405, "MethodNotAllowed"), (method, path)
    for method, path in (("POST", place.widgets("one")), ("PUT", place.widgets()), ("PATCH", place.widgets())):
        assert server.ask(method, path, {}).code in (400, 405, 415), (method, path)
    assert server.ask("GET", place.widgets("one", "nope")).code == 404


# Replacing


def test_a_replace_changes_version_and_generation_only_with_the_object(server: Server, place: Place) -> None:
    made = place.widget("one")
    same = server.replace(place.widgets("one"), made)
    assert same == made

    labelled = made | {"metadata": made["metadata"] | {"labels": {"a": "b"}}}
    labelled = server.replace(place.widgets("one"), labelled)
    assert int(labelled["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert labelled["metadata"]["generation"] == 1

    changed = server.replace(place.widgets("one"), labelled | {"spec": {"size": 2}})
    assert changed["metadata"]["generation"] == 2
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]


def test_an_old_resource_version_is_a_conflict(server: Server, place: Place) -> None:
    made = place.widget("one")
    server.merge(place.widgets("one"), {"spec": {"size": 2}})
    refused = server.ask("PUT", place.widgets("one"), made | {"spec": {"size": 3}})
    assert refused.failure == (409, "Conflict")
    assert refused.message == (
        f'Operation cannot be fulfilled on {place.kind.name} "one": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert subject(refused.json) == {"name": "one", "group": place.kind.group, "kind": "widgets"}


def test_a_replace_needs_a_resource_version_except_for_some_built_in_kinds(server: Server, place: Place) -> None:
    place.widget("one")
    refused = server.ask("PUT", place.widgets("one"), place.kind.object("one", {"size": 2}))
    assert refused.failure == (422, "Invalid")
    assert refused.causes == [("FieldValueInvalid", "metadata.resourceVersion")]
    assert refused.message.endswith(": must be specified for an update")
    place.config_map("one")
    assert server.replace(place.config_maps("one"), config_map("one", {"b": "2"}))["data"] == {"b": "2"}


def test_another_uid_is_a_conflict(server: Server, place: Place) -> None:
    made = place.widget("one")
    other = made | {"metadata": made["metadata"] | {"uid": "other"}, "spec": {"size": 2}}
    refused = server.ask("PUT", place.widgets("one"), other)
    assert refused.failure == (409, "Conflict")
    assert re.search("Precondition failed: UID in precondition: other, UID in object meta: ", refused.message)


def test_a_replace_removes_omitted_fields_but_not_server_managed_ones(server: Server, place: Place) -> None:
    made = place.widget("one", labels={"a": "b"}, annotations={"c": "d"}, finalizers=["example.test/x"])
    version = made["metadata"]["resourceVersion"]
    body = place.kind.object("one", resourceVersion=version, creationTimestamp=None, generation=9)
    replaced = server.replace(place.widgets("one"), body)["metadata"]
    assert not {"labels", "annotations", "finalizers"} & replaced.keys()
    for key in ("uid", "creationTimestamp", "generation"):
        assert replaced[key] == made["metadata"][key]


# The status endpoint


def test_status_is_written_at_its_own_endpoint_only(server: Server, place: Place) -> None:
    made = server.create(place.widgets(), place.kind.object("one") | {"status": {"phase": "Made"}})
    assert "status" not in made
    replaced = server.replace(place.widgets("one"), made | {"status": {"phase": "Put"}})
    assert "status" not in replaced
    assert replaced["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert "status" not in server.merge(place.widgets("one"), {"status": {"phase": "Patched"}})

    after = server.replace(
        place.widgets("one", "status"),
        made | {"spec": {"size": 9}, "status": {"phase": "Up"}, "metadata": made["metadata"] | {"labels": {"x": "y"}}},
    )
    assert (after["status"], after["spec"]["size"], after["metadata"]["generation"]) == ({"phase": "Up"}, 1, 1)
    assert "labels" not in after["metadata"]
    assert after["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert server.get(place.widgets("one", "status")) == after == server.get(place.widgets("one"))


def test_status_is_removed_by_a_replace_without_it(server: Server, place: Place) -> None:
    made = place.widget("one")
    after = server.replace(place.widgets("one", "status"), made | {"status": {"phase": "Up"}})
    without = {key: value for key, value in after.items() if key != "status"}
    assert "status" not in server.replace(place.widgets("one", "status"), without)
    assert "status" not in server.get(place.widgets("one"))


def test_annotations_are_not_written_at_the_status_endpoint(server: Server, place: Place) -> None:
    place.widget("one", annotations={"a": "1"}, finalizers=["example.test/x"])
    patch = {"metadata": {"annotations": {"a": "2"}, "finalizers": None}, "status": {"seen": 3}}
    after = server.merge(place.widgets("one", "status"), patch)
    assert after["metadata"]["annotations"] == {"a": "1"}
    assert after["metadata"]["finalizers"] == ["example.test/x"]
    assert after["status"] == {"seen": 3}


def test_without_a_status_endpoint_status_is_a_field_like_any_other(
    server: Server, gadgets: Definition, name: str
) -> None:
    body = gadgets.object(name, {"a": 1}) | {"status": {"phase": "Made"}}
    made = server.create(gadgets.path(), body)
    assert made["status"] == {"phase": "Made"}
    changed = server.merge(gadgets.path(name=name), {"status": {"phase": "Up"}})
    assert (changed["status"], changed["metadata"]["generation"]) == ({"phase": "Up"}, 2)
    assert server.ask("GET", gadgets.path(name=name, subresource="status")).code == 404
    server.delete(gadgets.path(name=name))


# Dry run


def test_a_dry_run_answers_and_writes_nothing(server: Server, place: Place) -> None:
    made = server.create(place.widgets(), place.kind.object("one"), dryRun="All")
    assert made["metadata"]["uid"]
    assert made["spec"]["colour"] == "red"
    assert server.gone(place.widgets("one"))
    real = place.widget("one")
    assert server.merge(place.widgets("one"), {"spec": {"size": 5}}, dryRun="All")["spec"]["size"] == 5
    assert (
        server.replace(place.widgets("one"), real | {"spec": {"size": 6}}, dryRun="All")["metadata"]["generation"] == 2
    )
    server.delete(place.widgets("one"), dryRun="All")
    server.delete(place.widgets("one"), {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]})
    assert server.get(place.widgets("one")) == real
    assert server.ask("POST", place.widgets(), place.kind.object("one"), dryRun="All").failure == (409, "AlreadyExists")
    assert server.ask("POST", place.widgets(), place.kind.object("two", {}), dryRun="All").failure == (422, "Invalid")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_dry_run_accepts_only_all(server: Server, place: Place, method: str) -> None:
    made = place.widget("one")
    path = place.widgets() if method == "POST" else place.widgets("one")
    type_ = "application/merge-patch+json" if method == "PATCH" else "application/json"
    refused = server.ask(method, path, None if method == "DELETE" else made, type_=type_, dryRun="Some")
    assert refused.failure == (422, "Invalid")
    assert refused.causes == [("FieldValueNotSupported", "dryRun")]
    assert 'dryRun: Unsupported value: ["Some"]: supported values: "All"' in refused.message
