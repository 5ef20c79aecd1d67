"""Logs from a store with Loki's API: what is sent there, and what comes back to users."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.runtime import Clock
from datum_compute.telemetry import loki_source as module
from datum_compute.telemetry.loki_source import LokiSource, enforced, labels_of, selects_nothing
from datum_compute.telemetry.query import ALL_FILTERS, Matcher, Query, QueryError, matches, parse, write
from datum_compute.telemetry.sources import Entry, Labels, Notice, Reader, SourceAway, Window

SECOND = 10**9
PROJECT = "project_name"
READER = Reader("demo", frozenset({"default"}))
ALL = parse('{datum_workload_name="api"}')


class Store:
    """Loki, as far as it is asked: selects by labels and time, and answers in pages."""

    def __init__(self) -> None:
        self.streams: dict[tuple[tuple[str, str], ...], list[tuple[int, str]]] = {}
        self.requests: list[web.Request] = []
        self.code = 200

    def write(self, time: int, text: str, **labels: str) -> None:
        self.streams.setdefault(tuple(sorted(labels.items())), []).append((time, text))

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        if self.code != 200:
            return web.Response(status=self.code, text="level=error tenant=7 on ingester-3")
        parameters = request.query
        query = parse(parameters.get("query") or parameters["match[]"], ALL_FILTERS)
        chosen = {key: lines for key, lines in self.streams.items() if matches(dict(key), query)}
        if request.path.endswith("/series"):
            return web.json_response({"status": "success", "data": [dict(key) for key in chosen]})
        start, end = int(parameters["start"]), int(parameters["end"])
        backward = parameters["direction"] == "backward"
        lines = [(time, text, key) for key, found in chosen.items() for time, text in found if start <= time < end]
        lines.sort(key=lambda line: line[0], reverse=backward)
        result: dict[Any, list[list[str]]] = {}
        for time, text, key in lines[: int(parameters["limit"])]:
            result.setdefault(key, []).append([str(time), text])
        found = [{"stream": dict(key), "values": values} for key, values in result.items()]
        return web.json_response({"status": "success", "data": {"resultType": "streams", "result": found}})

    @asynccontextmanager
    async def listening(self, token_file: Path | None = None, clock: Clock | None = None) -> AsyncIterator[LokiSource]:
        application = web.Application()
        application.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        source = LokiSource(f"http://127.0.0.1:{port}/", PROJECT, token_file, clock or _Clock())
        try:
            yield source
        finally:
            await source.close()
            await runner.cleanup()


class _LateClock:
    """As long after the time of day as `seconds` says."""

    def __init__(self) -> None:
        self.seconds = 0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.seconds)


class _Clock:
    def now(self) -> datetime:
        return datetime.now(UTC)


def now() -> int:
    return int(datetime.now(UTC).timestamp() * 1e9)


def labels(project: str = "demo", namespace: str = "default", **more: str) -> dict[str, str]:
    own = {"datum_workload_name": "api", "datum_instance_name": "api-main-dfw-0", "datum_namespace_name": namespace}
    return {PROJECT: project, "node": "node-17"} | own | more


@pytest.mark.parametrize(
    ("query", "reader", "sent"),
    [
        ('{datum_workload_name="api"}', Reader("demo"), '{project_name="demo", datum_workload_name="api"}'),
        (
            '{datum_workload_name=~"a.+"} |= "x"',
            Reader("demo", frozenset({"b", "a.c"})),
            '{project_name="demo", datum_namespace_name=~"a\\\\.c|b", datum_workload_name=~"a.+"} |= "x"',
        ),
        (
            '{datum_namespace_name="secret"}',
            READER,
            '{project_name="demo", datum_namespace_name=~"default", datum_namespace_name="secret"}',
        ),
        ('{node="", datum_city_code!="DFW"}', Reader("demo"), '{project_name="demo", datum_city_code!="DFW"}'),
    ],
)
def test_a_query_is_sent_with_our_matchers_and_only_with_our_labels(query: str, reader: Reader, sent: str) -> None:
    assert write(enforced(parse(query), reader, PROJECT)) == sent


@pytest.mark.parametrize(
    ("query", "nothing"),
    [
        ('{project_name="shop"}', True),
        ('{project_name=~".+", datum_workload_name="api"}', True),
        ('{node!=""}', True),
        ('{node=""}', False),
        ('{node!~".+"}', False),
        ('{datum_workload_name="api"}', False),
    ],
)
def test_a_label_that_is_not_ours_has_an_empty_value(query: str, nothing: bool) -> None:
    assert selects_nothing(parse(query), Reader("demo")) is nothing


def test_who_may_read_nowhere_selects_nothing() -> None:
    assert selects_nothing(None, Reader("demo", frozenset()))


NAMES = st.sampled_from([PROJECT, "node", *Labels.__struct_fields__])
MATCHERS = st.builds(
    Matcher, NAMES, st.sampled_from(["=", "!=", "=~", "!~"]), st.sampled_from(["", "shop", ".+", ".*"])
)


@given(st.lists(MATCHERS, min_size=1))
def test_no_query_selects_another_project(matchers: list[Matcher]) -> None:
    query = enforced(Query(tuple(matchers)), READER, PROJECT)
    assert parse(write(query)) == query
    assert not matches(labels("shop"), query)
    assert not matches(labels("demo", "secret"), query)


def test_only_our_labels_are_left_in_answers() -> None:
    assert labels_of(labels()).values() == {
        "datum_workload_name": "api",
        "datum_instance_name": "api-main-dfw-0",
        "datum_namespace_name": "default",
    }


def test_lines_of_the_project_are_read_by_window() -> None:
    async def run() -> None:
        store = Store()
        for number in range(5):
            store.write(number * SECOND, str(number), **labels())
            store.write(number * SECOND, "another project's", **labels("shop"))
            store.write(number * SECOND, "another namespace's", **labels(namespace="secret"))
        async with store.listening() as source:

            async def texts(**window: Any) -> list[str]:
                found = await source.read(READER, ALL, Window(**({"start": 0, "end": 10**12, "limit": 9} | window)))
                return [entry.text for entry in found]

            assert await texts() == ["0", "1", "2", "3", "4"]
            assert await texts(limit=2) == ["3", "4"]
            assert await texts(limit=2, backward=False) == ["0", "1"]
            assert await texts(start=SECOND, end=3 * SECOND) == ["1", "2"]
            found = await source.streams(READER, None, 0, 10**12)
            assert [item.datum_namespace_name for item in found] == ["default"]
            assert await source.streams(READER, parse('{node="node-17"}'), 0, 10**12) == []
        assert {request.path for request in store.requests} == {"/loki/api/v1/query_range", "/loki/api/v1/series"}

    asyncio.run(run())


def test_the_token_is_read_for_each_call(tmp_path: Path) -> None:
    async def run() -> None:
        store, file = Store(), tmp_path / "token"
        async with store.listening(file) as source:
            with pytest.raises(SourceAway):
                await source.streams(READER, None, 0, 1)
            for token in ("one", "two"):
                file.write_text(f"{token}\n")
                await source.streams(READER, None, 0, 1)
        assert [request.headers["Authorization"] for request in store.requests] == ["Bearer one", "Bearer two"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "error"), [(400, QueryError), (401, SourceAway), (302, SourceAway), (500, SourceAway)]
)
def test_the_words_of_a_store_are_not_for_users(code: int, error: type[Exception]) -> None:
    async def run() -> None:
        store = Store()
        store.code = code
        async with store.listening() as source:
            with pytest.raises(error) as raised:
                await source.read(READER, ALL, Window(0, 1, 1))
            assert "ingester" not in str(raised.value)

    asyncio.run(run())


def test_a_store_that_is_not_there_is_away() -> None:
    async def run() -> None:
        source = LokiSource("http://127.0.0.1:1", PROJECT, None, _Clock())
        with pytest.raises(SourceAway, match="does not answer"):
            await source.read(READER, ALL, Window(0, 1, 1))
        await source.close()

    asyncio.run(run())


def test_following_asks_again_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store has lines of some streams later than those of others, and may be away for a while."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)

    async def run() -> list[Any]:
        store, began = Store(), now()
        for number in range(5):
            store.write(began - 10**9 + number, f"old {number}", **labels())
        items: list[Any] = []
        async with store.listening() as source, source.follow(READER, ALL, 0, 2) as found:

            async def pump() -> None:
                async for item in found:
                    items.append(item)

            pumping = asyncio.create_task(pump())

            async def until(text: str) -> None:
                """Or a notice of this kind."""
                async with asyncio.timeout(10):
                    while text not in [getattr(item, "text", getattr(item, "kind", "")) for item in items]:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)

            try:
                await until("old 4")
                store.write(now() - SECOND // 10, "new", **labels())
                store.write(now() - SECOND, "late", **labels(datum_instance_name="api-main-ams-0"))
                store.write(now(), "another project's", **labels("shop"))
                await until("new")
                await until("late")
                store.code = 500
                store.write(now() - 1, "meanwhile", **labels())
                await until("silent")
                store.code = 200
                await until("meanwhile")
            finally:
                pumping.cancel()
                await asyncio.gather(pumping, return_exceptions=True)
        return items

    items = asyncio.run(run())
    texts = [item.text for item in items if isinstance(item, Entry)]
    assert texts[:2] == ["old 3", "old 4"], "the newest first, and no older ones later"
    assert sorted(texts[2:]) == ["late", "meanwhile", "new"]
    assert [item.kind for item in items if isinstance(item, Notice)] == ["silent", "back"]


def test_what_a_store_missed_is_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage of any length only one page is in memory, and a second outage within it repeats nothing."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(module, "_PAGE", 10)

    async def run() -> None:
        store, clock, began = Store(), _LateClock(), now()
        written = [f"line {number}" for number in range(100)]
        store.write(began - 1, "old", **labels())
        async with (
            asyncio.timeout(10),
            store.listening(clock=clock) as source,
            source.follow(READER, ALL, began - SECOND, 5) as found,
        ):
            items = [await anext(found)]
            store.code = 500
            items.append(await anext(found))
            for number, text in enumerate(written):
                store.write(began + number // 3 * SECOND, text, **labels())
            clock.seconds = 60
            store.code = 200
            store.requests.clear()
            items += [await anext(found) for _ in range(5)]
            assert len(store.requests) == 1
            store.code = 500
            while len(texts := [item.text for item in items if isinstance(item, Entry)]) < 101:
                items.append(await anext(found))
                if isinstance(items[-1], Notice):
                    store.code = 200
        assert texts == ["old", *written]
        assert [item.kind for item in items if isinstance(item, Notice)] == ["silent", "back", "silent", "back"]

    asyncio.run(run())
