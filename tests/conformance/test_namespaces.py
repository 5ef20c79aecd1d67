"""The life cycle of a namespace."""

import pytest

from tests.conformance.kinds import Place, config_map
from tests.conformance.server import Server, until

NAMESPACES = "/api/v1/namespaces"


def test_a_namespace_begins_active_and_labelled_with_its_name(server: Server, place: Place) -> None:
    made = server.get(f"{NAMESPACES}/{place.name}")
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": place.name}
    assert made["spec"] == {"finalizers": ["kubernetes"]}
    assert made["status"] == {"phase": "Active"}
    assert "generation" not in made["metadata"]
    assert place.name in server.names(NAMESPACES, labelSelector=f"kubernetes.io/metadata.name={place.name}")
    assert place.name in server.names(NAMESPACES, fieldSelector="status.phase=Active")


@pytest.mark.parametrize("name", ["a.b", "Upper", "x" * 64, "-a"])
def test_a_namespace_has_a_short_name(server: Server, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    refused = server.ask("POST", NAMESPACES, body)
    assert refused.failure == (422, "Invalid")
    assert ("FieldValueInvalid", "metadata.name") in refused.causes


def test_the_name_label_of_a_namespace_is_restored(server: Server, place: Place) -> None:
    patch = {"metadata": {"labels": {"kubernetes.io/metadata.name": None, "a": "b"}}}
    patched = server.merge(f"{NAMESPACES}/{place.name}", patch)
    assert patched["metadata"]["labels"] == {"kubernetes.io/metadata.name": place.name, "a": "b"}


def test_a_namespace_is_deleted_with_its_content(server: Server, place: Place) -> None:
    name = f"{place.name}-gone"
    body = place.namespace() | {"metadata": {"name": name}}
    made = server.create(NAMESPACES, body)
    server.create(f"{NAMESPACES}/{name}/configmaps", config_map("one"))
    held = place.kind.object("held", finalizers=["example.test/x"])
    server.create(place.kind.path(name), held)
    going = server.delete(f"{NAMESPACES}/{name}")
    assert going["metadata"]["uid"] == made["metadata"]["uid"]
    assert going["metadata"]["deletionTimestamp"]
    assert going["status"]["phase"] == "Terminating"

    until(
        "the held object going",
        lambda: "deletionTimestamp" in server.get(place.kind.path(name, "held"))["metadata"],
    )
    until("the rest being gone", lambda: server.gone(f"{NAMESPACES}/{name}/configmaps/one"))
    refused = server.ask("POST", place.kind.path(name), place.kind.object("new"))
    assert refused.failure == (403, "Forbidden")
    assert refused.message == (
        f'{place.kind.name} "new" is forbidden: unable to create new content in namespace {name} '
        "because it is being terminated"
    )
    assert refused.causes == [("NamespaceTerminating", "metadata.namespace")]
    assert server.ask("POST", NAMESPACES, body).failure == (409, "AlreadyExists")
    assert server.get(f"{NAMESPACES}/{name}")["status"]["phase"] == "Terminating"
    assert server.names(NAMESPACES, fieldSelector=f"status.phase=Terminating,metadata.name={name}") == [name]

    server.merge(place.kind.path(name, "held"), {"metadata": {"finalizers": None}})
    until("the namespace going", lambda: server.gone(f"{NAMESPACES}/{name}"))
    again = server.create(NAMESPACES, body)
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    server.delete(f"{NAMESPACES}/{name}")


def test_a_terminating_namespace_can_be_deleted_again(server: Server, place: Place) -> None:
    name = f"{place.name}-twice"
    body = place.namespace() | {"metadata": {"name": name}}
    server.create(NAMESPACES, body)
    server.create(place.kind.path(name), place.kind.object("held", finalizers=["example.test/x"]))
    server.delete(f"{NAMESPACES}/{name}")
    reply = server.ask("DELETE", f"{NAMESPACES}/{name}")
    assert reply.code in (200, 409)
    server.merge(place.kind.path(name, "held"), {"metadata": {"finalizers": None}})
    until("the namespace going", lambda: server.gone(f"{NAMESPACES}/{name}"))


def test_a_namespace_is_finalized_at_its_own_endpoint(server: Server, place: Place) -> None:
    made = server.get(f"{NAMESPACES}/{place.name}")
    after = server.replace(f"{NAMESPACES}/{place.name}", made | {"spec": {}})
    assert after["spec"] == {"finalizers": ["kubernetes"]}
