"""The calls that a client sends, and how it reads their answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from datum_compute.kube.calls import WatchEvent
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Conflict, Gone, Invalid, NotFound, ServerError, TooManyRequests
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, KubeObject
from datum_compute.kube.transport import Answer, Call
from tests.https import Background


class Widget(KubeObject, frozen=True):
    pass


WIDGET = Kind("example.test", "v1", "Widget", "widgets", Widget)
PATH = "/apis/example.test/v1/namespaces/default/widgets"


def widget(name: str = "a", **metadata: Any) -> Json:
    return WIDGET.body(name, "default", **{"uid": "u1", "resourceVersion": "5"} | metadata)


def page(*names: str, more: str = "", version: str = "9") -> Answer:
    metadata = {"resourceVersion": version, "continue": more}
    return Answer(200, msgspec.json.encode({"metadata": metadata, "items": [widget(name) for name in names]}))


def failure(error: ApiError) -> Answer:
    return Answer(error.code, msgspec.json.encode(error.status()))


class Scripted:
    """Gives one answer after the other and records the calls."""

    def __init__(self, *answers: Answer, lines: list[bytes] | None = None) -> None:
        self.answers = list(answers)
        self.calls: list[Call] = []
        self._lines = lines or []

    async def call(self, call: Call) -> Answer:
        self.calls.append(call)
        return self.answers.pop(0)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        self.calls.append(call)
        yield self._read()

    async def _read(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            await asyncio.sleep(0)
            yield line


Ask = Callable[[Client], Awaitable[Any]]
BODY = widget()
MERGE = "application/merge-patch+json"


@pytest.mark.parametrize(
    ("ask", "method", "path", "query", "content_type"),
    [
        (lambda c: c.get(WIDGET, "a", "default"), "GET", f"{PATH}/a", {}, "application/json"),
        (lambda c: c.create(WIDGET, BODY), "POST", PATH, {}, "application/json"),
        (lambda c: c.create(WIDGET, BODY, dry_run=True), "POST", PATH, {"dryRun": "All"}, "application/json"),
        (lambda c: c.replace(WIDGET, BODY), "PUT", f"{PATH}/a", {}, "application/json"),
        (
            lambda c: c.replace(WIDGET, BODY, "status", dry_run=True),
            "PUT",
            f"{PATH}/a/status",
            {"dryRun": "All"},
            "application/json",
        ),
        (lambda c: c.merge_patch(WIDGET, "a", "default", {}), "PATCH", f"{PATH}/a", {}, MERGE),
        (
            lambda c: c.merge_patch(WIDGET, "a", "default", {}, "status", dry_run=True),
            "PATCH",
            f"{PATH}/a/status",
            {"dryRun": "All"},
            MERGE,
        ),
    ],
)
async def test_a_call_is_sent_as_requested(
    ask: Ask, method: str, path: str, query: dict[str, str], content_type: str
) -> None:
    transport = Scripted(Answer(200, msgspec.json.encode(BODY)))
    widget_ = await ask(Client("hub", transport))
    [call] = transport.calls
    assert (call.method, call.path, call.query, call.content_type) == (method, path, query, content_type)
    assert widget_.name == "a"


async def test_a_status_is_replaced_as_it_was_seen() -> None:
    transport = Scripted(Answer(200, msgspec.json.encode(BODY)))
    seen = msgspec.json.decode(msgspec.json.encode(BODY), type=Widget)
    await Client("hub", transport).replace_status(WIDGET, seen, {"ready": 1})
    [call] = transport.calls
    assert call.path == f"{PATH}/a/status"
    assert msgspec.json.decode(call.body) == BODY | {"status": {"ready": 1}}


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {}),
        ({"uid": "u1"}, {"preconditions": {"uid": "u1"}}),
        ({"resource_version": "7"}, {"preconditions": {"resourceVersion": "7"}}),
        ({"uid": "u1", "resource_version": "7"}, {"preconditions": {"uid": "u1", "resourceVersion": "7"}}),
        ({"propagation": "Foreground"}, {"propagationPolicy": "Foreground"}),
        ({"dry_run": True}, {"dryRun": ["All"]}),
    ],
)
async def test_a_delete_carries_its_preconditions(options: Json, sent: Json) -> None:
    transport = Scripted(Answer(200, b'{"kind":"Status","status":"Success"}'))
    assert await Client("hub", transport).delete(WIDGET, "a", "default", **options) is None
    [call] = transport.calls
    assert (call.method, call.path) == ("DELETE", f"{PATH}/a")
    assert msgspec.json.decode(call.body) == {"kind": "DeleteOptions", "apiVersion": "v1", **sent}


async def test_a_delete_that_waits_for_finalizers_returns_the_object() -> None:
    waiting = widget(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["x"])
    transport = Scripted(Answer(200, msgspec.json.encode(waiting)))
    widget_ = await Client("hub", transport).delete(WIDGET, "a", "default")
    assert widget_ is not None
    assert widget_.metadata.finalizers == ("x",)


# Lists


async def test_a_list_without_a_limit_is_one_call() -> None:
    transport = Scripted(page("a", "b"))
    listing = await Client("hub", transport).list(WIDGET, "default", "app=web", fields="metadata.name=a")
    assert ([item.name for item in listing.items], listing.resource_version) == (["a", "b"], "9")
    assert transport.calls == [Call("GET", PATH, {"labelSelector": "app=web", "fieldSelector": "metadata.name=a"})]


async def test_a_long_list_comes_in_pages() -> None:
    transport = Scripted(page("a", "b", more="t1"), page("c", "d", more="t2"), page("e"))
    listing = await Client("hub", transport).list(WIDGET, selector="app=web", limit=2)
    assert [item.name for item in listing.items] == ["a", "b", "c", "d", "e"]
    first = {"labelSelector": "app=web", "limit": "2"}
    assert [call.query for call in transport.calls] == [first, first | {"continue": "t1"}, first | {"continue": "t2"}]


async def test_a_list_that_expires_in_the_middle_begins_again_in_one_piece() -> None:
    transport = Scripted(page("a", "b", more="t1"), failure(Gone("too old")), page("b", "c", "d", version="12"))
    listing = await Client("hub", transport).list(WIDGET, selector="app=web", limit=2)
    assert ([item.name for item in listing.items], listing.resource_version) == (["b", "c", "d"], "12")
    assert transport.calls[-1].query == {"labelSelector": "app=web"}


async def test_a_list_that_expires_at_once_is_an_error() -> None:
    with pytest.raises(Gone):
        await Client("hub", Scripted(failure(Gone("too old")))).list(WIDGET, limit=2)


async def test_any_other_failure_in_the_middle_of_a_list_is_an_error() -> None:
    transport = Scripted(page("a", more="t1"), failure(ServerError("oh")))
    with pytest.raises(ServerError, match="oh"):
        await Client("hub", transport).list(WIDGET, limit=1)


# Watches


async def test_a_watch_requests_bookmarks_and_selects_objects() -> None:
    lines = [
        msgspec.json.encode({"type": "ADDED", "object": widget()}),
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}}',
    ]
    transport = Scripted(lines=lines)
    watch = Client("hub", transport).watch(
        WIDGET, "5", timeout_seconds=60, namespace="default", selector="a=b", fields="c=d"
    )
    async with watch as events:
        found: list[WatchEvent[Widget]] = [event async for event in events]
    assert [(event.type, event.resource_version) for event in found] == [("ADDED", "5"), ("BOOKMARK", "8")]
    [call] = transport.calls
    assert call == Call(
        "GET",
        PATH,
        {
            "watch": "true",
            "resourceVersion": "5",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "60",
            "labelSelector": "a=b",
            "fieldSelector": "c=d",
        },
    )


async def test_an_error_event_in_a_watch_is_raised() -> None:
    line = msgspec.json.encode({"type": "ERROR", "object": Gone("too old").status()})
    with pytest.raises(Gone, match="too old") as error:
        async with Client("hub", Scripted(lines=[line])).watch(WIDGET, "5", timeout_seconds=60) as events:
            await anext(events)
    assert error.value.plane == "hub"


# Errors


async def test_an_error_names_place_and_cause() -> None:
    body = b'{"reason":"Invalid","message":"no","details":{"causes":[{"field":"spec.x","message":"too long"}]}}'
    with pytest.raises(Invalid) as error:
        await Client("hub", Scripted(Answer(422, body))).create(WIDGET, BODY)
    assert (error.value.plane, error.value.causes[0].field, error.value.retryable) == ("hub", "spec.x", False)


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [(7, b"{}", 7), (0, b'{"details":{"retryAfterSeconds":3}}', 3), (7, b'{"details":{"retryAfterSeconds":3}}', 7)],
)
async def test_an_error_carries_retry_after(header: int, body: bytes, expected: int) -> None:
    with pytest.raises(TooManyRequests) as error:
        await Client("hub", Scripted(Answer(429, body, retry_after=header))).get(WIDGET, "a", "default")
    assert (error.value.retry_after, error.value.retryable) == (expected, True)


async def test_an_undecodable_answer_is_a_server_error() -> None:
    with pytest.raises(ServerError, match="makes no sense"):
        await Client("hub", Scripted(Answer(200, b'{"metadata":'))).get(WIDGET, "a", "default")


# Against a server


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    background = Background(tmp_path_factory.mktemp("https"))
    yield background
    background.close()


def on_the_server(api: Background, scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def connected() -> None:
        transport = HttpTransport(api.server.endpoint("demo"))
        try:
            await scenario(Client("demo", transport))
        finally:
            await transport.close()

    asyncio.run(connected())


def test_pages_are_the_whole_list(api: Background) -> None:
    async def scenario(client: Client) -> None:
        for number in range(7):
            await client.create(NAMESPACE, NAMESPACE.body(f"page-{number}", labels={"paged": "yes"}))
        listing = await client.list(NAMESPACE, selector="paged=yes", limit=3)
        assert [item.name for item in listing.items] == [f"page-{number}" for number in range(7)]
        assert listing == await client.list(NAMESPACE, selector="paged=yes")

    on_the_server(api, scenario)


def test_a_dry_run_changes_nothing(api: Background) -> None:
    async def scenario(client: Client) -> None:
        body = NAMESPACE.body("dry")
        assert (await client.create(NAMESPACE, body, dry_run=True)).name == "dry"
        with pytest.raises(NotFound):
            await client.get(NAMESPACE, "dry")
        before = await client.create(NAMESPACE, body)
        patch = {"metadata": {"labels": {"a": "b"}}}
        assert (await client.merge_patch(NAMESPACE, "dry", "", patch, dry_run=True)).metadata.labels["a"] == "b"
        await client.delete(NAMESPACE, "dry", dry_run=True)
        assert await client.get(NAMESPACE, "dry") == before

    on_the_server(api, scenario)


def test_a_delete_spares_a_later_object_of_the_same_name(api: Background) -> None:
    async def scenario(client: Client) -> None:
        made = await client.create(NAMESPACE, NAMESPACE.body("spared"))
        with pytest.raises(Conflict):
            await client.delete(NAMESPACE, "spared", uid="another")
        with pytest.raises(Conflict):
            await client.delete(NAMESPACE, "spared", resource_version="1")
        assert await client.get(NAMESPACE, "spared") == made

    on_the_server(api, scenario)
