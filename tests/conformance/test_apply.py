"""Server-side apply: ownership, conflicts, removal of fields, and the effect of other writes."""

from typing import Any

import pytest

from datum_compute.kube.meta import Json
from datum_compute.kube.patches import APPLY, MERGE
from tests.conformance.kinds import Place
from tests.conformance.server import Reply, Server
from tests.kubectl import Kubectl

Owned = dict[str, Json]  # by manager, with the subresource after a slash


class Applying:
    """Applies to the widget called one."""

    def __init__(self, server: Server, place: Place) -> None:
        self.server = server
        self.place = place

    def ask(self, manager: str, spec: Json | None = None, *, status: Json | None = None, **query: Any) -> Reply:
        body = self.place.kind.object("one", spec) | ({"status": status} if status else {})
        if spec is None:
            del body["spec"]
        path = self.place.widgets("one", query.pop("at", ""))
        body["metadata"] |= query.pop("metadata", {})
        return self.server.ask(
            "PATCH", path, body, type_=APPLY, **({"fieldManager": manager} if manager else {}), **query
        )

    def __call__(self, manager: str, spec: Json | None = None, **query: Any) -> Json:
        reply = self.ask(manager, spec, **query)
        assert reply.code in (200, 201), reply.body
        return reply.json

    def create(self, spec: Json, **metadata: Any) -> Json:
        """An object that was never applied, whose ownership the server does not track."""
        self.place.widget("one", spec, **metadata)
        return self.server.merge(self.place.widgets("one"), {"metadata": {"managedFields": [{}]}})


@pytest.fixture
def apply(server: Server, place: Place) -> Applying:
    return Applying(server, place)


def owned(value: Json, operation: str = "Apply") -> Owned:
    entries = value["metadata"].get("managedFields", ())
    for entry in entries:
        assert entry["fieldsType"] == "FieldsV1"
        assert entry["apiVersion"] == value["apiVersion"]
    return {
        "/".join(filter(None, (entry["manager"], entry.get("subresource", "")))): entry["fieldsV1"]
        for entry in entries
        if entry["operation"] == operation
    }


def test_applying_creates_a_missing_object(apply: Applying) -> None:
    spec: Json = {
        "size": 1,
        "parts": [{"name": "x"}, {"name": "y", "weight": 2}],
        "tags": ["t"],
        "extra": {"a": {"b": [1]}},
        "texts": {"k": "v"},
        "nested": {},
        "port": "http",
    }
    reply = apply.ask("m1", spec, metadata={"labels": {"l": "1"}})
    assert reply.code == 201
    made = reply.json
    assert (made["metadata"]["generation"], made["spec"]["colour"]) == (1, "red")
    assert made["spec"]["parts"] == [{"name": "x", "weight": 1}, {"name": "y", "weight": 2}]
    assert owned(made) == {
        "m1": {
            "f:metadata": {"f:labels": {"f:l": {}}},
            "f:spec": {
                "f:size": {},
                "f:parts": {
                    'k:{"name":"x"}': {".": {}, "f:name": {}},
                    'k:{"name":"y"}': {".": {}, "f:name": {}, "f:weight": {}},
                },
                "f:tags": {'v:"t"': {}},
                "f:extra": {"f:a": {".": {}, "f:b": {}}},
                "f:texts": {"f:k": {}},
                "f:nested": {},
                "f:port": {},
            },
        }
    }
    assert made["metadata"]["managedFields"][0]["time"]


def test_applying_the_same_again_writes_nothing(apply: Applying) -> None:
    spec = {"size": 1, "texts": {"a": "b"}}
    first = apply("m1", spec)
    reply = apply.ask("m1", spec)
    assert (reply.code, reply.json) == (200, first)


def test_fields_applied_with_equal_values_are_shared(apply: Applying) -> None:
    first = apply("m1", {"size": 1})
    shared = apply("m2", {"size": 1})
    assert owned(shared) == {"m1": {"f:spec": {"f:size": {}}}, "m2": {"f:spec": {"f:size": {}}}}
    assert shared["metadata"]["generation"] == 1
    assert shared["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]


def test_a_field_of_another_manager_is_a_conflict(apply: Applying) -> None:
    apply("m1", {"size": 1})
    refused = apply.ask("m2", {"size": 2})
    assert refused.failure == (409, "Conflict")
    assert refused.message == 'Apply failed with 1 conflict: conflict with "m1": .spec.size'
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "m1"', "field": ".spec.size"}
    assert refused.json["details"] == {"causes": [cause]}


def test_many_conflicts_are_listed_by_manager(apply: Applying) -> None:
    apply("m1", {"size": 1, "texts": {"k": "v"}, "parts": [{"name": "y", "weight": 2}]})
    apply("m2", {"size": 1})
    refused = apply.ask("m3", {"size": 2, "texts": {"k": "w"}, "parts": [{"name": "y", "weight": 3}]})
    assert refused.message.splitlines() == [
        'Apply failed with 4 conflicts: conflicts with "m1":',
        "- .spec.size",
        '- .spec.parts[name="y"].weight',
        "- .spec.texts.k",
        'conflicts with "m2":',
        "- .spec.size",
    ]
    assert {(cause["reason"], cause["field"], cause["message"]) for cause in refused.json["details"]["causes"]} == {
        ("FieldManagerConflict", ".spec.size", 'conflict with "m1"'),
        ("FieldManagerConflict", ".spec.size", 'conflict with "m2"'),
        ("FieldManagerConflict", ".spec.texts.k", 'conflict with "m1"'),
        ("FieldManagerConflict", '.spec.parts[name="y"].weight', 'conflict with "m1"'),
    }


def test_force_takes_over_fields(apply: Applying) -> None:
    apply("m1", {"size": 1, "code": "ABC"})
    taken = apply("m2", {"size": 2}, force="true")
    assert taken["spec"]["size"] == 2
    assert owned(taken) == {"m1": {"f:spec": {"f:code": {}}}, "m2": {"f:spec": {"f:size": {}}}}


def test_fields_no_longer_applied_are_removed(apply: Applying) -> None:
    whole: Json = {
        "size": 1,
        "code": "ABC",
        "tags": ["a", "b"],
        "texts": {"x": "1", "y": "2"},
        "parts": [{"name": "p"}, {"name": "q"}],
        "nested": {"depth": 1},
    }
    apply("m1", whole, metadata={"labels": {"l": "1"}, "annotations": {"n": "1"}})
    less = apply("m1", {"size": 1, "tags": ["b"], "texts": {"x": "1"}, "parts": [{"name": "q"}]})
    assert less["spec"] == {
        "size": 1,
        "colour": "red",
        "tags": ["b"],
        "texts": {"x": "1"},
        "parts": [{"name": "q", "weight": 1}],
    }
    assert not less["metadata"].keys() & {"labels", "annotations"}


def test_a_shared_field_stays_until_its_last_owner_gives_it_up(apply: Applying) -> None:
    for manager in ("m1", "m2"):
        apply(manager, {"size": 1, "tags": ["a"]})
    assert apply("m1", {"size": 1})["spec"]["tags"] == ["a"]
    assert "tags" not in apply("m2", {"size": 1})["spec"]


def test_an_empty_list_of_owned_items_has_no_owner_and_is_removed_with_its_last_neighbour(apply: Applying) -> None:
    apply("m1", {"size": 1})
    after = apply("m1", {"tags": []})
    assert "spec" not in after
    assert owned(after) == {}


def test_fields_of_other_managers_stay(apply: Applying, server: Server, place: Place) -> None:
    apply("m1", {"size": 1, "nested": {"note": "a"}, "texts": {"mine": "1"}})
    server.merge(place.widgets("one"), {"spec": {"nested": {"depth": 3}, "texts": {"other": "2"}}})
    left = apply("m1", {"size": 1})
    assert (left["spec"]["nested"], left["spec"]["texts"]) == ({"depth": 3}, {"other": "2"})


def test_an_applier_of_nothing_owns_nothing(apply: Applying) -> None:
    apply("m1", {"size": 1})
    left = apply("m1")
    assert "managedFields" not in left["metadata"]
    assert left["spec"].keys() <= {"colour"} if "spec" in left else True


@pytest.mark.parametrize(
    ("live", "applied", "expected"),
    [
        (["a", "b", "c"], ["b", "a"], ["b", "c", "a"]),
        (["a", "b"], ["c", "a"], ["c", "a", "b"]),
        (["a", "b", "c"], ["d"], ["a", "b", "c", "d"]),
        (["a", "b", "c"], ["c", "d", "a"], ["b", "c", "d", "a"]),
        (["x", "a", "y", "b", "z"], ["b", "a"], ["x", "y", "b", "z", "a"]),
    ],
)
def test_items_keep_the_applied_order_and_their_neighbours(
    apply: Applying, live: list[str], applied: list[str], expected: list[str]
) -> None:
    apply("m1", {"size": 1, "tags": live})
    assert apply("m2", {"tags": applied})["spec"]["tags"] == expected


def test_fields_from_before_the_first_apply_have_an_owner(apply: Applying) -> None:
    apply.create({"size": 5, "texts": {"a": "1"}}, labels={"l": "1"})
    refused = apply.ask("m1", {"size": 6})
    version = apply.place.kind.api_version
    assert refused.message == (
        f'Apply failed with 1 conflict: conflict with "before-first-apply" using {version}: .spec.size'
    )
    value = apply("m1", {"size": 5})
    assert owned(value) == {"m1": {"f:spec": {"f:size": {}}}}
    assert owned(value, "Update") == {
        "before-first-apply": {
            "f:metadata": {"f:labels": {".": {}, "f:l": {}}},
            "f:spec": {".": {}, "f:colour": {}, "f:size": {}, "f:texts": {".": {}, "f:a": {}}},
        }
    }


def test_ownership_is_not_tracked_before_the_first_apply(apply: Applying, server: Server, place: Place) -> None:
    assert "managedFields" not in apply.create({"size": 5})["metadata"]
    changed = server.merge(place.widgets("one"), {"spec": {"size": 6}}, fieldManager="editor")
    assert "managedFields" not in changed["metadata"]


def test_other_writes_take_over_the_fields_they_change(apply: Applying, server: Server, place: Place) -> None:
    apply("m1", {"size": 1, "code": "ABC", "texts": {"a": "1", "b": "2"}})
    patch = {"spec": {"size": 2, "texts": {"a": None, "c": "3"}}}
    changed = server.merge(place.widgets("one"), patch, fieldManager="editor")
    assert owned(changed) == {"m1": {"f:spec": {"f:code": {}, "f:texts": {"f:b": {}}}}}
    assert owned(changed, "Update") == {"editor": {"f:spec": {"f:size": {}, "f:texts": {"f:c": {}}}}}
    refused = apply.ask("m1", {"size": 1})
    assert 'conflict with "editor" using' in refused.message

    del changed["metadata"]["managedFields"]  # as many clients send objects back
    changed["spec"]["code"] = "XYZ"
    put = server.replace(place.widgets("one"), changed, fieldManager="putter")
    assert owned(put) == {"m1": {"f:spec": {"f:texts": {"f:b": {}}}}}
    assert owned(put, "Update") == {
        "editor": {"f:spec": {"f:size": {}, "f:texts": {"f:c": {}}}},
        "putter": {"f:spec": {"f:code": {}}},
    }
    unchanged = server.merge(place.widgets("one"), {"spec": {"size": 2}}, fieldManager="another")
    assert unchanged == put


def test_ownership_can_be_transferred_and_ended(apply: Applying, server: Server, place: Place) -> None:
    value = apply("m1", {"size": 1})
    entry = value["metadata"]["managedFields"][0] | {"manager": "m2"}
    transferred = server.edit(
        place.widgets("one"), {"op": "replace", "path": "/metadata/managedFields", "value": [entry]}
    )
    assert owned(transferred) == {"m2": {"f:spec": {"f:size": {}}}}
    ended = server.merge(place.widgets("one"), {"metadata": {"managedFields": [{}]}})
    assert "managedFields" not in ended["metadata"]


def test_status_is_applied_through_its_endpoint(apply: Applying) -> None:
    apply("m1", {"size": 1}, status={"phase": "Up"})
    value = apply("m2", {"size": 9}, status={"phase": "Up"}, at="status")
    assert (value["spec"]["size"], value["status"], value["metadata"]["generation"]) == (1, {"phase": "Up"}, 1)
    assert owned(value) == {"m1": {"f:spec": {"f:size": {}}}, "m2/status": {"f:status": {"f:phase": {}}}}
    refused = apply.ask("m3", status={"phase": "Down"}, at="status")
    assert refused.message == (
        'Apply failed with 1 conflict: conflict with "m2" with subresource "status": .status.phase'
    )
    changed = apply.server.merge(apply.place.widgets("one", "status"), {"status": {"phase": "Down"}}, fieldManager="c")
    assert owned(changed) == {"m1": {"f:spec": {"f:size": {}}}}
    assert owned(changed, "Update") == {"c/status": {"f:status": {"f:phase": {}}}}


def test_status_of_a_missing_object_is_not_found(apply: Applying) -> None:
    assert apply.ask("m1", status={"phase": "Up"}, at="status").failure == (404, "NotFound")


def test_a_dry_run_applies_nothing(apply: Applying, server: Server, place: Place) -> None:
    reply = apply.ask("m1", {"size": 1}, dryRun="All")
    assert (reply.code, owned(reply.json)) == (201, {"m1": {"f:spec": {"f:size": {}}}})
    assert server.gone(place.widgets("one"))
    before = apply("m1", {"size": 1})
    assert apply("m1", {"size": 2}, dryRun="All")["spec"]["size"] == 2
    assert apply.ask("m2", {"size": 2}, dryRun="All").failure == (409, "Conflict")
    assert server.get(place.widgets("one")) == before


@pytest.mark.parametrize(
    ("query", "cause"),
    [
        ({}, ("FieldValueRequired", "fieldManager")),
        ({"fieldManager": "x" * 129}, ("FieldValueTooLong", "fieldManager")),
        ({"fieldManager": "x\x01"}, ("FieldValueInvalid", "fieldManager")),
    ],
)
def test_an_apply_needs_a_field_manager(apply: Applying, query: Json, cause: tuple[str, str]) -> None:
    refused = apply.ask("", {"size": 1}, **query)
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [cause])
    assert refused.message.startswith('PatchOptions.meta.k8s.io "" is invalid: fieldManager: ')


def test_only_an_apply_can_be_forced(server: Server, place: Place) -> None:
    place.widget("one")
    refused = server.ask("PATCH", place.widgets("one"), {}, type_=MERGE, force="true")
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueForbidden", "force")])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"size": 1, "foo": 1}, ".spec.foo: field not declared in schema"),
        ({"size": "x"}, ".spec.size: expected numeric (int or float), got "),
        ({"size": 1, "parts": "x"}, ".spec.parts: expected list, got "),
        ({"size": 1, "nested": [1]}, ".spec.nested: expected map, got "),
        ({"size": 1, "parts": [{"name": "x"}, {"name": "x"}]}, '.spec.parts: duplicate entries for key [name="x"]'),
        ({"size": 1, "tags": ["x", "x"]}, '.spec.tags: duplicate entries for key [="x"]'),
        ({"size": 1, "parts": [{"weight": 1}]}, ".spec.parts: element 0: associative list with keys has an element"),
    ],
)
def test_a_configuration_has_to_fit_the_schema(apply: Applying, spec: Json, message: str) -> None:
    refused = apply.ask("m1", spec)
    assert (refused.code, refused.json["status"]) == (500, "Failure")
    kind = f"{apply.place.kind.api_version}, Kind=Widget"
    assert refused.message.startswith(f"failed to create typed patch object (/one; {kind}): {message}")


def test_an_apply_is_validated_like_any_write(apply: Applying) -> None:
    refused = apply.ask("m1", {"size": 99})
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueInvalid", "spec.size")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Other"}, r"invalid object type: {group}/v1, Kind=Other"),
        ({"apiVersion": "v1"}, "invalid object type: /v1, Kind=Widget"),
        ({"metadata": {"name": "two"}}, "the name of the object (two) does not match the name on the URL (one)"),
        (
            {"metadata": {"name": "one", "namespace": "default"}},
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            {"metadata": {}},
            "the name of the object (one based on URL) was undeterminable: name must be provided",
        ),
        ({"metadata": {"name": "one", "managedFields": [{}]}}, "metadata.managedFields must be nil"),
    ],
)
def test_a_configuration_has_to_name_the_object_of_the_path(
    server: Server, place: Place, change: Json, message: str
) -> None:
    body = place.kind.object("one") | change
    refused = server.ask("PATCH", place.widgets("one"), body, type_=APPLY, fieldManager="m1")
    assert refused.failure == (400, "BadRequest")
    assert refused.message == message.format(group=place.kind.group)


@pytest.mark.parametrize("body", [b"a: [", b"- a", b"text"])
def test_a_configuration_has_to_be_an_object_in_yaml(server: Server, place: Place, body: bytes) -> None:
    refused = server.ask("PATCH", place.widgets("one"), body, type_=APPLY, fieldManager="m1")
    assert refused.failure == (400, "BadRequest")


def test_a_configuration_may_have_a_resource_version(apply: Applying) -> None:
    made = apply("m1", {"size": 1}, metadata={"resourceVersion": "1"})  # a new object has none
    good = {"resourceVersion": made["metadata"]["resourceVersion"]}
    assert apply("m1", {"size": 2}, metadata=good)["spec"]["size"] == 2
    assert apply.ask("m1", {"size": 3}, metadata=good).failure == (409, "Conflict")
    assert "the object has been modified" in apply.ask("m1", {"size": 3}, metadata=good).message
    assert apply.ask("m1", {"size": 3}, metadata={"uid": "other"}).failure == (422, "Invalid")


def test_a_configuration_with_a_uid_creates_nothing(apply: Applying, server: Server, place: Place) -> None:
    refused = apply.ask("m1", {"size": 1}, metadata={"uid": "other"})
    assert refused.failure == (409, "Conflict")
    assert "uid mismatch: the provided object specified uid other, and no existing object was found" in refused.message
    assert server.gone(place.widgets("one"))


def test_built_in_kinds_can_be_applied(server: Server, place: Place) -> None:
    def apply(manager: str, data: Json, **metadata: Any) -> Reply:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", **metadata}, "data": data}
        return server.ask("PATCH", place.config_maps("one"), body, type_=APPLY, fieldManager=manager)

    owner = place.config_map("owner")["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner}
    made = apply("m1", {"a": "1"}, finalizers=["example.test/a"], ownerReferences=[reference])
    assert made.code == 201
    assert owned(made.json) == {
        "m1": {
            "f:data": {"f:a": {}},
            "f:metadata": {
                "f:finalizers": {'v:"example.test/a"': {}},
                "f:ownerReferences": {f'k:{{"uid":"{owner}"}}': {}},
            },
        }
    }
    assert apply("m2", {"a": "2"}).message == 'Apply failed with 1 conflict: conflict with "m1": .data.a'
    assert apply("m2", {"b": "2"}).json["data"] == {"a": "1", "b": "2"}
    left = apply("m1", {})
    assert (left.json["data"], left.json["metadata"].keys() & {"finalizers", "ownerReferences"}) == ({"b": "2"}, set())
    assert apply("m1", {"a": 1}).code == 500


def test_kubectl_applies_on_the_server(kubectl: Kubectl, place: Place) -> None:
    body = place.kind.object("one", {"size": 1, "texts": {"a": "1"}})
    here = ("--server-side", f"--namespace={place.name}")
    assert kubectl("apply", *here, manifest=body) == f"widget.{place.kind.group}/one serverside-applied\n"
    assert kubectl("apply", *here, "--dry-run=server", manifest=body).endswith("serverside-applied (server dry run)\n")
    other = place.kind.object("one", {"size": 2})
    message = kubectl.refused("apply", *here, "--field-manager=other", manifest=other)
    assert message.splitlines()[0] == ('error: Apply failed with 1 conflict: conflict with "kubectl": .spec.size')
    assert "--force-conflicts" in message
    kubectl("apply", *here, "--field-manager=other", "--force-conflicts", manifest=other)
    get = ("get", f"widgets.{place.kind.group}", "one", f"--namespace={place.name}")
    assert kubectl(*get, "--output=jsonpath={.spec.size} {.spec.texts.a}") == "2 1"
    managers = kubectl(*get, "--show-managed-fields", "--output=jsonpath={.metadata.managedFields[*].manager}")
    assert sorted(managers.split()) == ["kubectl", "other"]


def test_kubectl_takes_over_fields_it_applied_client_side(kubectl: Kubectl, place: Place) -> None:
    """From `kubectl apply` to `kubectl apply --server-side` and back, without a conflict with itself."""
    here = f"--namespace={place.name}"
    kubectl("apply", here, manifest=place.kind.object("one", {"size": 1, "code": "ABC"}))
    kubectl("apply", here, "--server-side", manifest=place.kind.object("one", {"size": 2}))
    get = ("get", f"widgets.{place.kind.group}", "one", here, "--output=jsonpath={.spec.size},{.spec.code}")
    assert kubectl(*get) == "2,"
    kubectl("apply", here, manifest=place.kind.object("one", {"size": 3, "code": "XYZ"}))
    assert kubectl(*get) == "3,XYZ"
