"""Selectors, and lists in pages while objects change."""

import pytest

from tests.conformance.kinds import Definition, Place
from tests.conformance.server import Server

LABELS = {"a": {"x": "1", "y": "1"}, "b": {"x": "2"}, "c": {"y": "1"}, "d": {}}


@pytest.fixture
def labelled(place: Place) -> Place:
    for name, labels in LABELS.items():
        place.widget(name, labels=labels)
    return place


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("x=1", "a"),
        ("x==1", "a"),
        ("x!=1", "bcd"),
        ("x", "ab"),
        ("!x", "cd"),
        ("x in (1,2)", "ab"),
        ("x in (2, 3)", "b"),
        ("x notin (1)", "bcd"),
        ("x=1,y=1", "a"),
        ("x,!y", "b"),
        ("x=", ""),
        ("x in ()", ""),
        ("x in (,1)", "a"),
        ("", "abcd"),
        ("nothing", ""),
        ("x=1,", None),
        ("x>0", "ab"),
        ("x<2", "a"),
    ],
)
def test_label_selectors(server: Server, labelled: Place, selector: str, names: str | None) -> None:
    reply = server.ask("GET", labelled.widgets(), labelSelector=selector)
    if names is None:
        assert reply.failure == (400, "BadRequest")
    else:
        assert "".join(item["metadata"]["name"] for item in reply.json["items"]) == names


@pytest.mark.parametrize("selector", ["x=1=2", "=1", "x in 1", "x in (1", "!", "a b", "x=a b", "x/y/z=1"])
def test_malformed_label_selectors_are_refused(server: Server, place: Place, selector: str) -> None:
    assert server.ask("GET", place.widgets(), labelSelector=selector).failure == (400, "BadRequest")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=a", "a"),
        ("metadata.name==b", "b"),
        ("metadata.name!=a", "bcd"),
        ("metadata.namespace={namespace}", "abcd"),
        ("metadata.namespace=other", ""),
        ("metadata.name=a,metadata.namespace={namespace}", "a"),
        ("spec.colour=red", "abcd"),
        ("spec.colour=green", ""),
    ],
)
def test_field_selectors(server: Server, labelled: Place, selector: str, names: str) -> None:
    fields = selector.format(namespace=labelled.name)
    assert "".join(server.names(labelled.widgets(), fieldSelector=fields)) == names


@pytest.mark.parametrize("selector", ["spec.size=1", "metadata.uid=x", "nothing", "metadata.name"])
def test_unsupported_field_selectors_are_refused(server: Server, place: Place, selector: str) -> None:
    refused = server.ask("GET", place.widgets(), fieldSelector=selector)
    assert refused.failure == (400, "BadRequest")


def test_a_list_has_its_kind_and_version(server: Server, labelled: Place) -> None:
    listed = server.get(labelled.widgets())
    assert (listed["kind"], listed["apiVersion"]) == ("WidgetList", labelled.kind.api_version)
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b", "c", "d"]
    assert all(item["kind"] == "Widget" for item in listed["items"])
    newest = max(int(item["metadata"]["resourceVersion"]) for item in listed["items"])
    assert int(listed["metadata"]["resourceVersion"]) >= newest
    everywhere = server.get(labelled.kind.path(), fieldSelector=f"metadata.namespace={labelled.name}")
    assert everywhere["items"] == listed["items"]
    maps = server.get(labelled.config_maps())
    assert (maps["kind"], maps["apiVersion"]) == ("ConfigMapList", "v1")


def test_a_paged_list_is_consistent(server: Server, labelled: Place) -> None:
    first = server.get(labelled.widgets(), limit=2)
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 2
    labelled.widget("ab")
    labelled.widget("e")
    server.delete(labelled.widgets("d"))
    second = server.get(labelled.widgets(), limit=1, continue_=first["metadata"]["continue"])
    assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert second["metadata"]["remainingItemCount"] == 1
    third = server.get(labelled.widgets(), limit=1, continue_=second["metadata"]["continue"])
    assert [item["metadata"]["name"] for item in third["items"]] == ["d"]
    assert not third["metadata"].get("continue")
    assert "remainingItemCount" not in third["metadata"]
    assert server.names(labelled.widgets()) == ["a", "ab", "b", "c", "e"]


def test_a_watch_continues_a_paged_list_without_a_gap(server: Server, labelled: Place) -> None:
    first = server.get(labelled.widgets(), limit=3)
    labelled.widget("e")
    rest = server.get(labelled.widgets(), limit=3, continue_=first["metadata"]["continue"])
    assert [item["metadata"]["name"] for item in rest["items"]] == ["d"]
    with server.watch(labelled.widgets(), resourceVersion=rest["metadata"]["resourceVersion"]) as watch:
        assert watch.take(1) == [("ADDED", "e")]


def test_a_list_with_a_selector_has_no_remaining_item_count(server: Server, labelled: Place) -> None:
    first = server.get(labelled.widgets(), limit=1, labelSelector="x")
    assert [item["metadata"]["name"] for item in first["items"]] == ["a"]
    assert "remainingItemCount" not in first["metadata"]
    second = server.get(labelled.widgets(), limit=1, labelSelector="x", continue_=first["metadata"]["continue"])
    assert [item["metadata"]["name"] for item in second["items"]] == ["b"]


def test_a_negative_limit_is_ignored(server: Server, labelled: Place) -> None:
    listed = server.get(labelled.widgets(), limit=-1)
    assert len(listed["items"]) == 4
    assert not listed["metadata"].get("continue")


def test_a_limit_equal_to_the_list_has_no_further_page(server: Server, labelled: Place) -> None:
    listed = server.get(labelled.widgets(), limit=4)
    assert len(listed["items"]) == 4
    assert not listed["metadata"].get("continue")


@pytest.mark.parametrize("token", ["nonsense", "e30", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8ifQ"])
def test_a_malformed_continue_token_is_refused(server: Server, place: Place, token: str) -> None:
    refused = server.ask("GET", place.widgets(), limit=1, continue_=token)
    assert refused.failure == (400, "BadRequest")
    assert "continue key is not valid" in refused.message


def test_a_continue_token_excludes_a_resource_version(server: Server, labelled: Place) -> None:
    first = server.get(labelled.widgets(), limit=1)
    token, version = first["metadata"]["continue"], first["metadata"]["resourceVersion"]
    refused = server.ask("GET", labelled.widgets(), limit=1, continue_=token, resourceVersion=version)
    assert refused.code in (400, 422)


def test_resource_versions_of_a_list(server: Server, place: Place) -> None:
    place.widget("a")
    version = server.get(place.widgets())["metadata"]["resourceVersion"]
    place.widget("b")
    then = server.get(place.widgets(), resourceVersion=version, resourceVersionMatch="Exact")
    assert [item["metadata"]["name"] for item in then["items"]] == ["a"]
    assert then["metadata"]["resourceVersion"] == version
    assert server.names(place.widgets(), resourceVersion=version, resourceVersionMatch="NotOlderThan")[0] == "a"
    assert server.names(place.widgets(), resourceVersion="0")[:1] in ([], ["a"])
    for query in (
        {"resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "Nope", "resourceVersion": version},
        {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
    ):
        assert server.ask("GET", place.widgets(), **query).failure == (422, "Invalid")
    assert server.ask("GET", place.widgets(), resourceVersion="abc").code in (400, 422)


@pytest.mark.parametrize("query", [{"limit": "x"}, {"timeoutSeconds": "x", "watch": "true"}])
def test_malformed_numbers_are_refused(server: Server, place: Place, query: dict[str, str]) -> None:
    assert server.ask("GET", place.widgets(), **query).code in (400, 422)


def test_an_object_can_be_read_with_a_resource_version(server: Server, place: Place) -> None:
    made = place.widget("one")
    # In this order: "0" accepts a cache of any age, also one from before the object was made, until an answer at a
    # version has made the cache catch up.
    assert server.get(place.widgets("one"), resourceVersion=made["metadata"]["resourceVersion"]) == made
    assert server.get(place.widgets("one"), resourceVersion="0") == made


def test_cluster_scoped_objects_are_listed(server: Server, gadgets: Definition, name: str) -> None:
    server.create(gadgets.path(), gadgets.object(name, {}))
    assert name in server.names(gadgets.path())
    assert server.names(gadgets.path(), fieldSelector=f"metadata.name={name}") == [name]
    assert "namespace" not in server.get(gadgets.path(name=name))["metadata"]
    assert server.ask("GET", gadgets.path("default", name)).code == 404
    server.delete(gadgets.path(name=name))
