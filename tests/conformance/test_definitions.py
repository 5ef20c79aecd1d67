"""Kinds that are defined, changed and deleted while the server runs."""

import uuid
from collections.abc import Iterator
from copy import deepcopy

import pytest

from datum_compute.kube.meta import Json
from datum_compute.kube.patches import MERGE
from tests.conformance.kinds import DEFINITIONS, Definition, Place
from tests.conformance.server import Server, until


@pytest.fixture
def defined(server: Server) -> Iterator[Definition]:
    definition = Definition.widgets(f"d{uuid.uuid4().hex[:8]}.example.test")
    definition.create(server)
    yield definition
    server.ask("DELETE", f"{DEFINITIONS}/{definition.name}")


def conditions(server: Server, definition: Definition) -> dict[str, tuple[str, str]]:
    status = server.get(f"{DEFINITIONS}/{definition.name}").get("status", {})
    return {
        condition["type"]: (condition["status"], condition["reason"]) for condition in status.get("conditions") or ()
    }


def test_a_definition_is_accepted_and_completed(server: Server, defined: Definition) -> None:
    until("it being established", lambda: conditions(server, defined).get("Established", ("", ""))[0] == "True")
    assert conditions(server, defined) == {
        "NamesAccepted": ("True", "NoConflicts"),
        "Established": ("True", "InitialNamesAccepted"),
    }
    read = server.get(f"{DEFINITIONS}/{defined.name}")
    assert read["spec"]["names"]["singular"] == "widget"
    assert read["spec"]["names"]["listKind"] == "WidgetList"
    assert read["spec"]["conversion"] == {"strategy": "None"}
    assert read["status"]["acceptedNames"] == read["spec"]["names"]
    assert read["status"]["storedVersions"] == ["v1"]
    assert read["metadata"]["generation"] == 1
    assert "finalizers" not in read["metadata"]


def test_a_definition_is_deleted_with_its_objects(server: Server, place: Place, defined: Definition) -> None:
    server.create(defined.path(place.name), defined.object("one"))
    server.create(defined.path(place.name), defined.object("held", finalizers=["example.test/x"]))
    server.delete(f"{DEFINITIONS}/{defined.name}")
    until("one being gone", lambda: server.gone(defined.path(place.name, "one")))
    going = server.get(f"{DEFINITIONS}/{defined.name}")
    assert going["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    refused = server.ask("POST", defined.path(place.name), defined.object("new"))
    assert refused.failure == (403, "Forbidden")
    assert refused.message.endswith("create not allowed while custom resource definition is terminating")
    server.merge(defined.path(place.name, "held"), {"metadata": {"finalizers": None}})
    until("the definition being gone", lambda: server.gone(f"{DEFINITIONS}/{defined.name}"))
    until("the kind no longer being served", lambda: server.gone(defined.path()))
    until("the group being forgotten", lambda: server.gone(f"/apis/{defined.group}"))


def test_a_definition_can_be_changed(server: Server, place: Place, defined: Definition) -> None:
    spec = deepcopy(defined.body["spec"])
    schema = spec["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["more"] = {"type": "string", "default": "new"}
    server.merge(f"{DEFINITIONS}/{defined.name}", {"spec": {"versions": spec["versions"]}})

    def used() -> bool:
        reply = server.ask("POST", defined.path(place.name), defined.object("one"), dryRun="All")
        return reply.code == 201 and reply.json["spec"].get("more") == "new"

    until("the new schema being in use", used)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {"name": "other.example.test"}}, "metadata.name"),
        ({"spec": {"scope": "Nope"}}, "spec.scope"),
        ({"spec": {"versions": []}}, "spec.versions"),
        ({"spec": {"versions": [{"name": "v1", "served": True, "storage": False}]}}, "spec.versions"),
        ({"spec": {"versions": [{"name": "v1", "served": True, "storage": True}]}}, "spec.versions[0].schema"),
        ({"spec": {"group": ""}}, "spec.group"),
    ],
)
def test_a_senseless_definition_is_refused(server: Server, change: Json, field: str) -> None:
    body = deepcopy(Definition.widgets(f"e{uuid.uuid4().hex[:8]}.example.test").body)
    for part, values in change.items():
        body[part] |= values
    refused = server.ask("POST", DEFINITIONS, body)
    assert refused.failure == (422, "Invalid")
    assert any(name.startswith(field) for _, name in refused.causes), refused.causes
    assert refused.message.startswith(f'CustomResourceDefinition.apiextensions.k8s.io "{body["metadata"]["name"]}" is')


def test_the_scope_of_a_definition_is_immutable(server: Server, defined: Definition) -> None:
    refused = server.ask("PATCH", f"{DEFINITIONS}/{defined.name}", {"spec": {"scope": "Cluster"}}, type_=MERGE)
    assert refused.failure == (422, "Invalid")
    assert ("FieldValueInvalid", "spec.scope") in refused.causes
    assert "field is immutable" in refused.message
