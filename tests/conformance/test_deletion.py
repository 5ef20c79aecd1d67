"""Deleting objects: at once, with finalizers, with dependents, and many at a time."""

import pytest

from datum_compute.kube.meta import Json
from tests.conformance.kinds import Definition, Place, owner
from tests.conformance.server import Reply, Server, until
from tests.protobuf import envelope, field

PROTOBUF = "application/vnd.kubernetes.protobuf"

FINALIZER = "example.test/held"


def options(**fields: object) -> Json:
    return {"kind": "DeleteOptions", "apiVersion": "v1", **fields}


def test_a_delete_answers_with_the_deleted_object(server: Server, place: Place) -> None:
    made = place.widget("one")
    answer = server.delete(place.widgets("one"))
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    details = {"name": "one", "group": place.kind.group, "kind": "widgets", "uid": made["metadata"]["uid"]}
    assert answer["details"] == details
    assert server.ask("DELETE", place.widgets("one")).failure == (404, "NotFound")
    made = place.config_map("one")
    assert server.delete(place.config_maps("one"))["details"] == {
        "name": "one",
        "kind": "configmaps",
        "uid": made["metadata"]["uid"],
    }


@pytest.mark.parametrize("version", ["v1", "apps/v1"])
@pytest.mark.parametrize("builtin", [True, False])
def test_the_options_of_a_delete_may_be_protobuf(server: Server, place: Place, builtin: bool, version: str) -> None:
    made = place.config_map("one") if builtin else place.widget("one")
    path = place.config_maps("one") if builtin else place.widgets("one")

    def delete(raw: bytes) -> Reply:
        return server.ask("DELETE", path, envelope("DeleteOptions", raw, version), type_=PROTOBUF)

    assert delete(field(2, field(1, "another"))).failure == (409, "Conflict")
    assert delete(field(4, "Sideways")).failure == (422, "Invalid")
    assert delete(field(3, 0) + field(4, "Background")).failure == (422, "Invalid")
    assert delete(field(5, "All")).json["status"] == "Success"
    assert not server.gone(path)
    assert delete(field(1, 0) + field(2, field(1, made["metadata"]["uid"])) + field(4, "Background")).code == 200
    assert server.gone(path)


def test_an_object_created_again_is_another_object(server: Server, place: Place) -> None:
    first = place.widget("one")["metadata"]
    server.delete(place.widgets("one"))
    second = place.widget("one")["metadata"]
    assert first["uid"] != second["uid"]
    assert int(second["resourceVersion"]) > int(first["resourceVersion"])
    assert second["generation"] == 1


def test_a_finalizer_keeps_an_object(server: Server, place: Place) -> None:
    made = place.widget("one", finalizers=[FINALIZER])
    going = server.delete(place.widgets("one"))
    assert going["kind"] == "Widget"
    metadata = going["metadata"]
    assert metadata["deletionTimestamp"]
    assert metadata["deletionGracePeriodSeconds"] == 0
    assert (metadata["generation"], metadata["finalizers"]) == (2, [FINALIZER])
    assert int(metadata["resourceVersion"]) > int(made["metadata"]["resourceVersion"])

    again = server.delete(place.widgets("one"))
    assert again["metadata"] == metadata
    refused = server.ask("POST", place.widgets(), place.kind.object("one"))
    assert refused.failure == (409, "AlreadyExists")
    assert refused.message == f'object is being deleted: {place.kind.name} "one" already exists'

    changed = server.merge(place.widgets("one"), {"spec": {"size": 2}, "metadata": {"labels": {"a": "b"}}})
    assert (changed["spec"]["size"], changed["metadata"]["generation"]) == (2, 3)
    assert changed["metadata"]["deletionTimestamp"] == metadata["deletionTimestamp"]

    last = server.merge(place.widgets("one"), {"metadata": {"finalizers": None}})
    assert "finalizers" not in last["metadata"]
    assert server.gone(place.widgets("one"))


def test_no_finalizer_is_added_during_deletion(server: Server, place: Place) -> None:
    place.widget("one", finalizers=[FINALIZER])
    server.delete(place.widgets("one"))
    patch = {"metadata": {"finalizers": [FINALIZER, "example.test/new"]}}
    refused = server.ask("PATCH", place.widgets("one"), patch, type_="application/merge-patch+json")
    assert (refused.failure, set(refused.causes)) == (
        (422, "Invalid"),
        {("FieldValueForbidden", "metadata.finalizers")},
    )
    assert "no new finalizers can be added if the object is being deleted" in refused.message
    server.merge(place.widgets("one"), {"metadata": {"finalizers": []}})
    assert server.gone(place.widgets("one"))


def test_deletion_cannot_be_undone(server: Server, place: Place) -> None:
    place.widget("one", finalizers=[FINALIZER])
    server.delete(place.widgets("one"))
    after = server.merge(place.widgets("one"), {"metadata": {"deletionTimestamp": None}})
    assert after["metadata"]["deletionTimestamp"]
    server.merge(place.widgets("one"), {"metadata": {"finalizers": None}})


def test_preconditions_of_a_delete(server: Server, place: Place) -> None:
    made = place.widget("one")["metadata"]
    refused = server.ask("DELETE", place.widgets("one"), options(preconditions={"uid": "other"}))
    assert refused.failure == (409, "Conflict")
    assert refused.message.startswith(
        f'Operation cannot be fulfilled on Widget.{place.kind.group} "one": '
        f"the UID in the precondition (other) does not match the UID in record ({made['uid']})"
    )
    refused = server.ask("DELETE", place.widgets("one"), options(preconditions={"resourceVersion": "1"}))
    assert refused.failure == (409, "Conflict")
    assert f"(1) does not match the ResourceVersion in record ({made['resourceVersion']})" in refused.message
    both = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    assert server.delete(place.widgets("one"), options(preconditions=both))["status"] == "Success"


@pytest.mark.parametrize(
    "fields",
    [
        {"propagationPolicy": "Nope"},
        {"propagationPolicy": "Orphan", "orphanDependents": True},
        {"gracePeriodSeconds": "x"},
    ],
)
def test_senseless_delete_options_are_refused(server: Server, place: Place, fields: Json) -> None:
    place.widget("one")
    refused = server.ask("DELETE", place.widgets("one"), options(**fields))
    assert refused.code in (400, 422)
    assert not server.gone(place.widgets("one"))


# Dependents


@pytest.mark.parametrize("policy", [None, "Background"])
def test_background_deletion_deletes_dependents_after_their_owner(
    server: Server, place: Place, policy: str | None
) -> None:
    held = place.widget("owner")
    place.widget("child", ownerReferences=[owner(held)])
    answer = server.delete(place.widgets("owner"), options(propagationPolicy=policy) if policy else None)
    assert answer["status"] == "Success"
    until("the child going", lambda: server.gone(place.widgets("child")))


def test_foreground_deletion_deletes_dependents_before_their_owner(server: Server, place: Place) -> None:
    held = place.widget("owner")
    place.widget("child", ownerReferences=[owner(held, blockOwnerDeletion=True)], finalizers=[FINALIZER])
    going = server.delete(place.widgets("owner"), options(propagationPolicy="Foreground"))
    assert going["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert going["metadata"]["deletionTimestamp"]
    until("the child going", lambda: "deletionTimestamp" in server.get(place.widgets("child"))["metadata"])
    assert not server.gone(place.widgets("owner"))
    server.merge(place.widgets("child"), {"metadata": {"finalizers": None}})
    until("the owner going", lambda: server.gone(place.widgets("owner")))
    assert server.gone(place.widgets("child"))


def test_foreground_deletion_does_not_wait_for_a_dependent_that_does_not_block(server: Server, place: Place) -> None:
    held = place.widget("owner")
    place.widget("child", ownerReferences=[owner(held)], finalizers=[FINALIZER])
    server.delete(place.widgets("owner"), propagationPolicy="Foreground")
    until("the owner going", lambda: server.gone(place.widgets("owner")))
    until("the child going", lambda: "deletionTimestamp" in server.get(place.widgets("child"))["metadata"])
    server.merge(place.widgets("child"), {"metadata": {"finalizers": None}})


def test_orphan_deletion_keeps_dependents(server: Server, place: Place) -> None:
    held = place.widget("owner")
    place.widget("child", ownerReferences=[owner(held)])
    going = server.delete(place.widgets("owner"), options(propagationPolicy="Orphan"))
    assert going["metadata"]["finalizers"] == ["orphan"]
    until("the owner going", lambda: server.gone(place.widgets("owner")))
    assert "ownerReferences" not in server.get(place.widgets("child"))["metadata"]


def test_orphan_dependents_is_accepted(server: Server, place: Place) -> None:
    held = place.widget("owner")
    place.widget("child", ownerReferences=[owner(held)])
    server.delete(place.widgets("owner"), options(orphanDependents=True))
    until("the owner going", lambda: server.gone(place.widgets("owner")))
    assert "ownerReferences" not in server.get(place.widgets("child"))["metadata"]


def test_an_object_is_deleted_with_its_last_owner(server: Server, place: Place) -> None:
    first, second = place.widget("first"), place.config_map("second")
    place.widget("child", ownerReferences=[owner(first), owner(second)])
    server.delete(place.widgets("first"))
    assert server.gone(place.widgets("first"))
    assert not server.gone(place.widgets("child"))
    server.delete(place.config_maps("second"))
    until("the child going", lambda: server.gone(place.widgets("child")))


def test_an_object_of_a_missing_owner_is_deleted(server: Server, place: Place) -> None:
    made = place.config_map("other")
    reference = owner(made) | {"uid": "00000000-0000-4000-8000-000000000000"}
    place.widget("child", ownerReferences=[reference])
    until("the child going", lambda: server.gone(place.widgets("child")))


def test_a_cluster_scoped_owner(server: Server, place: Place, gadgets: Definition, name: str) -> None:
    held = server.create(gadgets.path(), gadgets.object(name, {}))
    place.widget("child", ownerReferences=[owner(held)])
    server.delete(gadgets.path(name=name))
    until("the child going", lambda: server.gone(place.widgets("child")))


# Many at a time


def test_a_selected_part_of_a_collection_is_deleted(server: Server, place: Place) -> None:
    for index, side in enumerate(("left", "left", "right")):
        place.widget(f"w-{index}", labels={"side": side})
    place.widget("held", labels={"side": "left"}, finalizers=[FINALIZER])
    answer = server.delete(place.widgets(), labelSelector="side=left")
    assert answer["kind"] == "WidgetList"
    assert [item["metadata"]["name"] for item in answer["items"]] == ["held", "w-0", "w-1"]
    until("the rest being all there is", lambda: server.names(place.widgets()) == ["held", "w-2"])
    assert server.get(place.widgets("held"))["metadata"]["deletionTimestamp"]
    server.merge(place.widgets("held"), {"metadata": {"finalizers": None}})
    server.delete(place.widgets(), fieldSelector="metadata.name=w-2")
    assert server.names(place.widgets()) == []
    assert server.delete(place.widgets())["items"] == []


def test_a_collection_is_deleted_with_options(server: Server, place: Place) -> None:
    held = place.widget("owner", labels={"a": "b"})
    place.widget("child", ownerReferences=[owner(held)])
    server.delete(place.widgets(), options(dryRun=["All"]), labelSelector="a=b")
    assert server.names(place.widgets()) == ["child", "owner"]
    server.delete(place.widgets(), options(propagationPolicy="Orphan"), labelSelector="a=b")
    until("the owner going", lambda: server.gone(place.widgets("owner")))
    assert "ownerReferences" not in server.get(place.widgets("child"))["metadata"]
