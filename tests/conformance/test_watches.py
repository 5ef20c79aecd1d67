"""The events of watches: content, order and start."""

import pytest

from datum_compute.kube.patches import MERGE
from tests.conformance.kinds import Place
from tests.conformance.server import Server, until


def test_a_watch_delivers_every_change_in_order(server: Server, place: Place) -> None:
    version = server.get(place.widgets())["metadata"]["resourceVersion"]
    with server.watch(place.widgets(), resourceVersion=version) as watch:
        made = place.widget("one")
        changed = server.merge(place.widgets("one"), {"spec": {"size": 2}})
        server.merge(place.widgets("one"), {"spec": {"size": 2}})  # changes nothing, so there is no event
        with_status = server.merge(place.widgets("one", "status"), {"status": {"phase": "Up"}})
        server.delete(place.widgets("one"))
        events = [watch.next() for _ in range(4)]
    assert [type_ for type_, _ in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert [object_ for _, object_ in events[:3]] == [made, changed, with_status]
    last = events[3][1]
    assert (last["spec"], last["status"]) == (with_status["spec"], with_status["status"])
    assert int(last["metadata"]["resourceVersion"]) > int(with_status["metadata"]["resourceVersion"])


def test_a_watch_without_a_resource_version_begins_with_existing_objects(server: Server, place: Place) -> None:
    place.widget("b")
    place.widget("a")
    for query in ({}, {"resourceVersion": "0"}):
        with server.watch(place.widgets(), **query) as watch:
            assert sorted(watch.take(2)) == [("ADDED", "a"), ("ADDED", "b")]


def test_a_watch_resumes_where_another_ended(server: Server, place: Place) -> None:
    first = place.widget("one")["metadata"]["resourceVersion"]
    second = server.merge(place.widgets("one"), {"spec": {"size": 2}})["metadata"]["resourceVersion"]
    place.widget("two")
    server.delete(place.widgets("one"))
    with server.watch(place.widgets(), resourceVersion=first) as watch:
        assert watch.take(3) == [("MODIFIED", "one"), ("ADDED", "two"), ("DELETED", "one")]
    with server.watch(place.widgets(), resourceVersion=second) as watch:
        assert watch.take(2) == [("ADDED", "two"), ("DELETED", "one")]


def test_finalizers_make_a_deletion_two_events(server: Server, place: Place) -> None:
    version = place.widget("one", finalizers=["example.test/x"])["metadata"]["resourceVersion"]
    with server.watch(place.widgets(), resourceVersion=version) as watch:
        server.delete(place.widgets("one"))
        type_, going = watch.next()
        assert (type_, "deletionTimestamp" in going["metadata"]) == ("MODIFIED", True)
        server.merge(place.widgets("one"), {"metadata": {"finalizers": None}})
        type_, gone = watch.next()
        assert (type_, gone["metadata"]["finalizers"]) == ("DELETED", ["example.test/x"])  # the last state


def test_entering_a_selection_is_added_and_leaving_it_is_deleted(server: Server, place: Place) -> None:
    version = place.widget("one", labels={"side": "left"})["metadata"]["resourceVersion"]
    with server.watch(place.widgets(), resourceVersion=version, labelSelector="side=right") as watch:
        server.merge(place.widgets("one"), {"spec": {"size": 2}})  # outside the selection
        server.merge(place.widgets("one"), {"metadata": {"labels": {"side": "right"}}})
        server.merge(place.widgets("one"), {"spec": {"size": 3}})
        away = server.merge(place.widgets("one"), {"metadata": {"labels": {"side": "left"}}, "spec": {"size": 4}})
        server.merge(place.widgets("one"), {"metadata": {"labels": {"side": "right"}}})
        server.delete(place.widgets("one"))
        events = [watch.next() for _ in range(5)]
    assert [type_ for type_, _ in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    left = events[2][1]
    assert left["metadata"]["labels"] == {"side": "right"}  # its last selected state
    assert left["spec"]["size"] == 3
    assert left["metadata"]["resourceVersion"] == away["metadata"]["resourceVersion"]


def test_a_watch_of_one_object(server: Server, place: Place) -> None:
    version = server.get(place.widgets())["metadata"]["resourceVersion"]
    with server.watch(place.widgets(), resourceVersion=version, fieldSelector="metadata.name=two") as watch:
        place.widget("one")
        place.widget("two")
        assert watch.take(1) == [("ADDED", "two")]


def test_a_watch_of_all_namespaces(server: Server, place: Place) -> None:
    version = server.get(place.kind.path())["metadata"]["resourceVersion"]
    with server.watch(place.kind.path(), resourceVersion=version) as watch:
        place.widget("one")
        type_, object_ = watch.next()
        assert (type_, object_["metadata"]["namespace"]) == ("ADDED", place.name)


def test_initial_events_end_with_a_bookmark(server: Server, place: Place) -> None:
    made = [place.widget(name) for name in ("a", "b")]
    streamed = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    with server.watch(place.widgets(), **streamed) as watch:
        assert sorted(watch.take(2)) == [("ADDED", "a"), ("ADDED", "b")]
        type_, mark = watch.next()
        assert type_ == "BOOKMARK"
        assert mark["kind"] == "Widget"
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert int(mark["metadata"]["resourceVersion"]) >= int(made[1]["metadata"]["resourceVersion"])
        server.delete(place.widgets("a"))
        assert watch.take(1) == [("DELETED", "a")]


def test_initial_events_need_their_options(server: Server, place: Place) -> None:
    refused = server.ask("GET", place.widgets(), watch="true", sendInitialEvents="true", timeoutSeconds=1)
    assert refused.failure == (422, "Invalid")
    refused = server.ask("GET", place.widgets(), sendInitialEvents="true", resourceVersionMatch="NotOlderThan")
    assert refused.failure == (422, "Invalid")
    refused = server.ask("GET", place.widgets(), watch="true", resourceVersionMatch="NotOlderThan", timeoutSeconds=1)
    assert refused.failure == (422, "Invalid")


def test_a_watch_ends_silently_after_its_timeout(server: Server, place: Place) -> None:
    version = server.get(place.widgets())["metadata"]["resourceVersion"]
    with server.watch(place.widgets(), resourceVersion=version, timeoutSeconds=1) as watch:
        assert watch.rest() == []


def test_a_watch_with_bookmarks_ends_with_a_bookmark(server: Server, place: Place) -> None:
    version = server.get(place.widgets())["metadata"]["resourceVersion"]
    query = {"resourceVersion": version, "timeoutSeconds": 4, "allowWatchBookmarks": "true"}
    with server.watch(place.widgets(), **query) as watch:
        events = watch.rest()
    assert {type_ for type_, _ in events} == {"BOOKMARK"}
    mark = events[-1][1]
    assert mark["kind"] == "Widget"
    assert mark["metadata"].keys() - {"creationTimestamp"} == {"resourceVersion"}
    assert int(version) <= int(mark["metadata"]["resourceVersion"])


def test_a_resource_version_that_is_too_old_is_gone(server: Server, place: Place) -> None:
    """Version 1 is gone on a server that has compacted; on a new server it is still there."""
    with server.watch(place.widgets(), resourceVersion="1", timeoutSeconds=1) as watch:
        events = watch.rest()
    if events and events[0][0] == "ERROR":
        status = events[0][1]
        assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
        assert status["message"].startswith("too old resource version: 1 (")
    else:
        assert all(type_ in ("ADDED", "MODIFIED", "DELETED") for type_, _ in events)


@pytest.mark.parametrize("version", ["abc", "-1", "1.5"])
def test_a_malformed_resource_version_is_refused(server: Server, place: Place, version: str) -> None:
    refused = server.ask("GET", place.widgets(), watch="true", resourceVersion=version, timeoutSeconds=1)
    assert refused.code in (400, 500)  # a kube-apiserver answers 500
    assert "resourceVersion" in refused.message


def test_a_watch_as_a_table(server: Server, place: Place) -> None:
    version = server.get(place.widgets())["metadata"]["resourceVersion"]
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    with server.watch(place.widgets(), accept=table, resourceVersion=version) as watch:
        made = place.widget("one")
        server.delete(place.widgets("one"))
        type_, first = watch.next()
        assert (type_, first["kind"], len(first["rows"])) == ("ADDED", "Table", 1)
        assert [column["name"] for column in first["columnDefinitions"]] == ["Name", "Size", "Phase", "Colour", "Age"]
        assert first["rows"][0]["object"]["metadata"]["uid"] == made["metadata"]["uid"]
        assert watch.next()[0] == "DELETED"


def test_a_watch_of_metadata_only(server: Server, place: Place) -> None:
    version = server.get(place.widgets())["metadata"]["resourceVersion"]
    partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    with server.watch(place.widgets(), accept=partial, resourceVersion=version) as watch:
        made = place.widget("one")
        type_, object_ = watch.next()
    head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    assert (type_, object_) == ("ADDED", head | {"metadata": made["metadata"]})


def test_a_dry_run_causes_no_event(server: Server, place: Place) -> None:
    version = server.get(place.widgets())["metadata"]["resourceVersion"]
    with server.watch(place.widgets(), resourceVersion=version) as watch:
        server.create(place.widgets(), place.kind.object("dry"), dryRun="All")
        assert server.ask("PATCH", place.widgets("dry"), {}, type_=MERGE).code == 404
        place.widget("real")
        assert watch.take(1) == [("ADDED", "real")]


def test_the_deletion_of_a_namespace_is_an_event(server: Server, place: Place) -> None:
    version = place.widget("one")["metadata"]["resourceVersion"]
    with server.watch(place.widgets(), resourceVersion=version) as watch:
        server.delete(f"/api/v1/namespaces/{place.name}")
        assert watch.take(1) == [("DELETED", "one")]
    until("the namespace going", lambda: server.gone(f"/api/v1/namespaces/{place.name}"))
    server.create("/api/v1/namespaces", place.namespace())


@pytest.mark.parametrize("value", ["true", "1", "True", ""])
def test_every_value_but_false_requests_a_watch(server: Server, place: Place, value: str) -> None:
    place.widget("one")
    with server.watch(place.widgets(), watch=value) as watch:
        assert watch.take(1) == [("ADDED", "one")]


@pytest.mark.parametrize("value", ["false", "0", "False"])
def test_watch_false_requests_a_list(server: Server, place: Place, value: str) -> None:
    place.widget("one")
    assert server.names(place.widgets(), watch=value) == ["one"]
