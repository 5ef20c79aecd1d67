"""Paths, lists and watches of one plane."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.plane import watches
from datum_compute.embedded.plane.server import PlaneServer
from datum_compute.embedded.storage import store as store_module
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, BadRequest, Gone, NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.patches import JSON, MERGE
from datum_compute.kube.transport import Call
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count
from tests.scenarios.federation import placement, template

ALL = WORKLOAD.path()
DEFAULT = WORKLOAD.path("default")


def workload(name: str, namespace: str = "default", **metadata: object) -> Json:
    spec = {"template": template(), "placements": [placement("main", ["DFW"], 1)]}
    return WORKLOAD.body(name, namespace, **metadata) | {"spec": spec}


class Watching:
    """A watch that is read in the background; its events as type, name and resourceVersion."""

    def __init__(self, server: PlaneServer, path: str, query: dict[str, str]) -> None:
        self.lines: list[Json] = []
        self.ended = False
        self._call = Call("GET", path, {"watch": "true", **query})
        self._server = server
        self.task = asyncio.create_task(self._read(), name="watching")

    async def _read(self) -> None:
        async with self._server.watch(self._call) as lines:
            async for line in lines:
                self.lines.append(msgspec.json.decode(line))
        self.ended = True

    @property
    def changes(self) -> list[tuple[str, str]]:
        return [(line["type"], line["object"]["metadata"].get("name", "")) for line in self.lines]

    @property
    def revisions(self) -> list[int]:
        return [int(line["object"]["metadata"]["resourceVersion"]) for line in self.lines]


class Plane:
    """One plane with the namespaces default and other."""

    def __init__(self, engine: Engine, simulation: Simulation) -> None:
        self.engine = engine
        self.server = engine.serve("demo", PROJECT)
        self.client: Client = engine.client("demo")
        self._simulation = simulation

    @property
    def revision(self) -> str:
        return str(self.engine.store.revision)

    async def settle(self) -> None:
        await self._simulation.settle()

    async def create(self, *names: str, namespace: str = "default", **metadata: object) -> None:
        for name in names:
            await self.client.create(WORKLOAD, workload(name, namespace, **metadata))

    async def label(self, name: str, **labels: str | None) -> None:
        await self.client.merge_patch(WORKLOAD, name, "default", {"metadata": {"labels": labels}})

    async def delete(self, name: str) -> None:
        await self.client.delete(WORKLOAD, name, "default")

    async def names(self, path: str = ALL, **query: str) -> list[str]:
        answer = await self.server.answer(Call("GET", path, query))
        assert answer.code == 200
        return [item["metadata"]["name"] for item in msgspec.json.decode(answer.body)["items"]]

    @asynccontextmanager
    async def watching(self, path: str = ALL, **query: str) -> AsyncGenerator[Watching, None]:
        watching = Watching(self.server, path, query)
        await self.settle()
        try:
            yield watching
        finally:
            watching.task.cancel()
            await asyncio.gather(watching.task, return_exceptions=True)

    async def replay(self, path: str = ALL, **query: str) -> Watching:
        """Reads a watch until the server ends it."""
        watching = Watching(self.server, path, {"timeoutSeconds": "1", **query})
        await watching.task
        return watching


@pytest.fixture
def plane(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Plane]:
    engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
    plane = Plane(engine, simulation)
    for name in ("default", "other"):
        runner.run(plane.client.create(NAMESPACE, NAMESPACE.body(name)))
    yield plane
    engine.close()


# paths


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", WORKLOAD.path("default", "web"), 200),
        ("GET", WORKLOAD.path("default", "web", "status"), 200),
        ("GET", WORKLOAD.path("default"), 200),
        ("GET", WORKLOAD.path("nowhere"), 200),
        ("GET", NAMESPACE.path(name="default"), 200),
        ("GET", NAMESPACE.path(name="default", subresource="status"), 200),
        ("GET", WORKLOAD.path("default", "absent"), 404),
        ("GET", WORKLOAD.path("other", "web"), 404),
        ("GET", WORKLOAD.path("default", "web", "scale"), 404),
        ("GET", f"{ALL}/web", 404),
        ("GET", f"{WORKLOAD.path('default', 'web', 'status')}/more", 404),
        ("GET", CLUSTER.path(), 404),
        ("GET", "/apis/compute.datumapis.com/v2/workloads", 404),
        ("GET", "/apis/compute.datumapis.com", 404),
        ("GET", "/api/v1/namespaces/default/namespaces", 404),
        ("GET", "/nonsense", 404),
        ("GET", "/", 404),
        ("POST", WORKLOAD.path("default", "web"), 405),
        ("PUT", WORKLOAD.path("default"), 405),
        ("DELETE", WORKLOAD.path("default", "web", "status"), 405),
        ("HEAD", WORKLOAD.path("default"), 405),
    ],
)
async def test_paths_lead_to_kinds_objects_and_subresources(plane: Plane, method: str, path: str, code: int) -> None:
    await plane.create("web")
    answer = await plane.server.answer(Call(method, path))
    assert answer.code == code
    if code >= 300:
        assert msgspec.json.decode(answer.body)["kind"] == "Status"


# list


async def test_a_list_has_its_kind_and_resource_version(plane: Plane) -> None:
    await plane.create("web")
    answer = msgspec.json.decode((await plane.server.answer(Call("GET", DEFAULT))).body)
    assert (answer["kind"], answer["apiVersion"]) == ("WorkloadList", WORKLOAD.api_version)
    assert answer["metadata"]["resourceVersion"] == plane.revision
    await plane.client.create(NAMESPACE, NAMESPACE.body("more"))
    assert (await plane.client.list(WORKLOAD)).resource_version == plane.revision


async def test_an_empty_list_has_no_items(plane: Plane) -> None:
    assert await plane.names() == []


async def test_a_list_covers_one_namespace_or_all_in_order(plane: Plane) -> None:
    await plane.create("b", "a")
    await plane.create("c", namespace="other")
    assert await plane.names() == ["a", "b", "c"]
    assert await plane.names(DEFAULT) == ["a", "b"]
    assert await plane.names(WORKLOAD.path("other")) == ["c"]
    assert await plane.names(WORKLOAD.path("nowhere")) == []
    assert await plane.names(INSTANCE.path()) == []


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=web", ["a", "b"]),
        ("app==web,tier=1", ["a"]),
        ("app!=web", ["c", "d"]),
        ("app in (web,db)", ["a", "b", "c"]),
        ("app notin (web)", ["c", "d"]),
        ("tier", ["a"]),
        ("!app", ["d"]),
        ("app=none", []),
        ("", ["a", "b", "c", "d"]),
    ],
)
async def test_labels_select_objects(plane: Plane, selector: str, names: list[str]) -> None:
    await plane.create("a", labels={"app": "web", "tier": "1"})
    await plane.create("b", labels={"app": "web"})
    await plane.create("c", labels={"app": "db"})
    await plane.create("d")
    assert await plane.names(labelSelector=selector) == names


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=a", ["a", "a"]),
        ("metadata.name!=a", ["b"]),
        ("metadata.namespace=other", ["a"]),
        ("metadata.name==a,metadata.namespace=default", ["a"]),
        ("metadata.name=absent", []),
    ],
)
async def test_fields_select_by_name_and_namespace(plane: Plane, selector: str, names: list[str]) -> None:
    await plane.create("a", "b")
    await plane.create("a", namespace="other")
    assert await plane.names(fieldSelector=selector) == names


@pytest.mark.parametrize(
    "query",
    [{"labelSelector": "a=b=c"}, {"labelSelector": "in (a)"}, {"fieldSelector": "spec.x=1"}, {"fieldSelector": "x"}],
)
async def test_a_malformed_selector_is_a_bad_request(plane: Plane, query: dict[str, str]) -> None:
    answer = await plane.server.answer(Call("GET", ALL, query))
    assert (answer.code, msgspec.json.decode(answer.body)["reason"]) == (400, "BadRequest")
    with pytest.raises(BadRequest):
        async with plane.server.watch(Call("GET", ALL, query)):
            pass


# watch


async def test_a_watch_delivers_events_after_its_resource_version(plane: Plane) -> None:
    await plane.create("before")
    start = plane.revision
    await plane.create("a")
    async with plane.watching(resourceVersion=start) as watching:
        assert watching.changes == [("ADDED", "a")]
        await plane.label("a", x="1")
        await plane.delete("a")
        await plane.settle()
        assert watching.changes == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        assert watching.revisions == [int(start) + 1, int(start) + 2, int(start) + 3]


@pytest.mark.parametrize("query", [{}, {"resourceVersion": ""}, {"resourceVersion": "0"}])
async def test_a_watch_without_a_resource_version_starts_with_all_objects(plane: Plane, query: dict[str, str]) -> None:
    await plane.create("b", "a")
    await plane.label("a", x="1")
    await plane.create("gone")
    await plane.delete("gone")
    async with plane.watching(**query) as watching:
        assert watching.changes == [("ADDED", "a"), ("ADDED", "b")]
        await plane.label("b", x="1")
        await plane.settle()
        assert watching.changes[2:] == [("MODIFIED", "b")]


async def test_a_watch_of_a_list_misses_nothing_and_repeats_nothing(plane: Plane) -> None:
    await plane.create("a")
    listing = await plane.client.list(WORKLOAD)
    await plane.create("b")
    watching = await plane.replay(resourceVersion=listing.resource_version)
    assert watching.changes == [("ADDED", "b")]


async def test_an_event_holds_the_object_at_that_revision(plane: Plane) -> None:
    start = plane.revision
    await plane.create("a")
    first = await plane.client.get(WORKLOAD, "a", "default")
    await plane.label("a", x="1")
    watching = await plane.replay(resourceVersion=start)
    assert [line["object"]["metadata"].get("labels") for line in watching.lines] == [None, {"x": "1"}]
    assert watching.revisions[0] == first.metadata.revision


async def test_a_deletion_event_holds_the_last_state_at_a_newer_resource_version(plane: Plane) -> None:
    await plane.create("a", finalizers=["example.test/a"])
    await plane.delete("a")
    last = await plane.client.get(WORKLOAD, "a", "default")
    patch = {"metadata": {"finalizers": None, "labels": {"x": "1"}}}
    await plane.client.merge_patch(WORKLOAD, "a", "default", patch)
    watching = await plane.replay(resourceVersion=last.metadata.resource_version)
    assert watching.changes == [("DELETED", "a")]
    metadata = watching.lines[0]["object"]["metadata"]
    assert int(metadata["resourceVersion"]) == int(plane.revision) > last.metadata.revision
    assert (metadata["finalizers"], metadata.get("labels")) == (["example.test/a"], None)


async def test_a_watch_selects_by_namespace_name_and_fields(plane: Plane) -> None:
    start = plane.revision
    await plane.create("a", "b")
    await plane.create("a", namespace="other")
    for path, query, names in (
        (DEFAULT, {}, ["a", "b"]),
        (WORKLOAD.path("other"), {}, ["a"]),
        (WORKLOAD.path("default", "b"), {}, ["b"]),
        (ALL, {"fieldSelector": "metadata.name=a"}, ["a", "a"]),
        (INSTANCE.path(), {}, []),
    ):
        watching = await plane.replay(path, resourceVersion=start, **query)
        assert [name for _, name in watching.changes] == names


async def test_a_selected_object_is_added_when_it_starts_to_match_and_deleted_when_it_stops(plane: Plane) -> None:
    await plane.create("a", labels={"app": "db"})
    async with plane.watching(resourceVersion=plane.revision, labelSelector="app=web") as watching:
        await plane.label("a", x="0")
        await plane.label("a", app="web")
        await plane.label("a", x="1")
        await plane.label("a", app=None)
        await plane.label("a", x="2")
        await plane.label("a", app="web")
        await plane.delete("a")
        await plane.settle()
        assert [type_ for type_, _ in watching.changes] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
        left = watching.lines[2]["object"]["metadata"]
        assert left["labels"] == {"app": "web", "x": "1"}
        assert watching.revisions == sorted(set(watching.revisions))


async def test_two_watchers_each_get_everything_at_their_own_pace(plane: Plane) -> None:
    start = plane.revision
    async with (
        plane.server.watch(Call("GET", ALL, {"resourceVersion": start})) as slow,
        plane.watching(resourceVersion=start) as quick,
    ):
        await plane.create("a", "b")
        await plane.settle()
        assert [name for _, name in quick.changes] == ["a", "b"]
        assert msgspec.json.decode(await anext(slow))["object"]["metadata"]["name"] == "a"
        await plane.delete("a")
        assert msgspec.json.decode(await anext(slow))["object"]["metadata"]["name"] == "b"
        assert msgspec.json.decode(await anext(slow))["type"] == "DELETED"


async def test_a_watch_ends_after_its_timeout(plane: Plane, simulation: Simulation) -> None:
    async with plane.watching(timeoutSeconds="7") as watching:
        began = simulation.time()
        await watching.task
        assert watching.ended
        assert simulation.time() == began + 7


@pytest.mark.parametrize("query", [{}, {"timeoutSeconds": "0"}])
async def test_a_watch_without_a_limit_ends_as_well(
    plane: Plane, simulation: Simulation, query: dict[str, str]
) -> None:
    async with plane.watching(**query) as watching:
        await watching.task
        assert simulation.time() > 600


@pytest.mark.parametrize("query", [{"resourceVersion": "new"}, {"resourceVersion": "-1"}, {"timeoutSeconds": "long"}])
async def test_a_senseless_watch_is_a_bad_request(plane: Plane, query: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        async with plane.server.watch(Call("GET", ALL, query)):
            pass


async def test_a_kind_that_is_not_served_cannot_be_watched(plane: Plane) -> None:
    with pytest.raises(NotFound):
        async with plane.server.watch(Call("GET", CLUSTER.path())):
            pass


async def test_a_watch_from_dropped_history_is_gone(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "HISTORY", 2)
    start = plane.revision
    await plane.create("a", "b", "c")
    with pytest.raises(Gone):
        async with plane.client.watch(WORKLOAD, start, timeout_seconds=1):
            pass
    watching = await plane.replay(resourceVersion=str(int(start) + 1))
    assert [name for _, name in watching.changes] == ["b", "c"]
    assert (await plane.replay(resourceVersion="0")).changes == [("ADDED", name) for name in "abc"]


async def test_bookmarks_are_sent_to_watches_that_allow_them(plane: Plane) -> None:
    async with plane.watching(allowWatchBookmarks="true") as asking, plane.watching() as other:
        await plane.client.create(NAMESPACE, NAMESPACE.body("more"))
        plane.server.bookmark()
        await plane.settle()
        metadata = {"resourceVersion": plane.revision}
        bookmark = {"kind": "Workload", "apiVersion": WORKLOAD.api_version, "metadata": metadata}
        assert asking.lines == [{"type": "BOOKMARK", "object": bookmark}]
        assert other.lines == []


async def test_a_bookmark_follows_earlier_events(plane: Plane) -> None:
    async with plane.watching(allowWatchBookmarks="true") as watching:
        await plane.create("a")
        plane.server.bookmark()
        await plane.create("b")
        await plane.settle()
        assert [type_ for type_, _ in watching.changes] == ["ADDED", "BOOKMARK", "ADDED"]
        assert watching.revisions[1] < watching.revisions[2]


async def test_a_watcher_too_far_behind_has_to_list_again(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_BACKLOG", 2)
    with pytest.raises(Gone):
        async with plane.client.watch(WORKLOAD, plane.revision, timeout_seconds=60) as events:
            await plane.create("a", "b", "c", "d")
            assert [event.object.name async for event in events if event.object] == ["a", "b"]


def _registered(plane: Plane) -> int:
    tables = plane.engine.store._tables.values()
    return len(plane.server._watches) + sum(len(table.watches) for table in tables)


async def test_an_abandoned_watch_leaves_nothing_behind(plane: Plane, simulation: Simulation) -> None:
    await plane.create("a")
    async with plane.watching() as cancelled:
        assert _registered(plane) == 2
    assert cancelled.task.cancelled()
    async with plane.client.watch(WORKLOAD, "0", timeout_seconds=60) as events:
        async for _ in events:
            break
    await plane.replay()
    with pytest.raises(BadRequest):
        async with plane.server.watch(Call("GET", ALL, {"resourceVersion": "x"})):
            pass
    with pytest.raises(ZeroDivisionError):
        async with plane.server.watch(Call("GET", ALL)):
            raise ZeroDivisionError
    await plane.settle()
    assert _registered(plane) == 0
    assert simulation._next_timer() is None


# whatever is sent


_texts = st.sampled_from(
    ["", "web", "default", "Workload", "labels", "/spec", "/metadata/labels", "0", "1", "\x00", "é"]
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | _texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(_texts, children, max_size=3),
    max_leaves=8,
)
_metadata = st.dictionaries(
    st.sampled_from(["name", "generateName", "namespace", "uid", "resourceVersion"])
    | st.sampled_from(["labels", "annotations", "finalizers", "ownerReferences"]),
    _values,
    max_size=4,
)
_parts = st.dictionaries(
    st.sampled_from(["spec", "status", "kind", "apiVersion", "metadata", "preconditions"]), _values, max_size=2
)
_objects = st.builds(lambda metadata, parts: workload("x") | {"metadata": metadata} | parts, _metadata, _parts)
_operations = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "test", "move", "copy"]), "path": _texts},
    optional={"value": _values, "from": _texts},
)
_calls = st.builds(
    Call,
    method=st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]),
    path=st.sampled_from([DEFAULT, WORKLOAD.path("default", "web"), WORKLOAD.path("default", "web", "status")])
    | st.sampled_from(
        [NAMESPACE.path(), NAMESPACE.path(name="other"), NAMESPACE.path(name="other", subresource="status")]
    ),
    body=(_values | _objects | st.lists(_operations, max_size=3)).map(encode) | st.binary(max_size=20),
    content_type=st.sampled_from(["application/json", MERGE, JSON]),
)


@settings(deadline=None, max_examples=count(150, 3000))
@given(calls=st.lists(_calls, min_size=1, max_size=4))
def test_every_request_is_answered_and_a_refused_one_changes_nothing(calls: list[Call]) -> None:
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(1)) as runner:
        engine = compute_engine(uids=CountedUids())
        server, client = engine.serve("demo", PROJECT), engine.client("demo")

        async def all_of_them() -> None:
            for name in ("default", "other"):
                await client.create(NAMESPACE, NAMESPACE.body(name))
            await client.create(WORKLOAD, workload("web"))
            for call in calls:
                before = engine.store.revision
                answer = await server.answer(call)
                body: Any = msgspec.json.decode(answer.body)
                if answer.code >= 300:
                    assert engine.store.revision == before
                    assert body["code"] == answer.code in {kind.code for kind in ApiError.__subclasses__()}
                else:
                    assert body["kind"] in ("Workload", "Namespace", "Status")
            assert await client.list(WORKLOAD)

        runner.run(all_of_them())
        engine.close()
