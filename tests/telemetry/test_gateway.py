"""The read API of logs: paths, answers, errors, limits, and how following behaves."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from datum_compute.federation.lines import STDERR, STDOUT, Line, nanoseconds
from datum_compute.kube.errors import Forbidden, Unauthorized, Unavailable
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.telemetry import gateway as gateway_module
from datum_compute.telemetry.callers.access import open_access
from datum_compute.telemetry.gateway import Gateway
from datum_compute.telemetry.memory.lives import Lives
from datum_compute.telemetry.memory.ring import Ring
from datum_compute.telemetry.memory.source import MemorySource
from datum_compute.telemetry.merge import Item
from datum_compute.telemetry.query import ALL_FILTERS, Query
from datum_compute.telemetry.sources import Entry, Labels, Partial, Reader, SourceAway, Window
from tests.conftest import count
from tests.telemetry.asgi import Open, ask
from tests.telemetry.origins import SECOND, START, life, line, origin

API = {"query": '{datum_workload_name="api"}'}
LONG_AGO = {"start": str(START - 3600 * SECOND)}


class World:
    """A gateway over memory in a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.ring = Ring(self.now)
        self.lives = Lives()
        self.source = MemorySource(self.ring, self.lives, self.now)
        self.reader: Reader | Exception | None = None
        self.gateway = Gateway(self.source, self.access, self.now)

    def now(self) -> int:
        return nanoseconds(self.simulation.now())

    async def access(self, plane: str, scope: Mapping[str, Any]) -> Reader:
        if isinstance(self.reader, Exception):
            raise self.reader
        return self.reader or await open_access(plane, scope)


@pytest.fixture
def world(simulation: Simulation) -> World:
    return World(simulation)


class FakeSource:
    """Delivers what a test puts into it."""

    delay = 0.1
    remembers = False
    previous_runs = True

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.silent: list[str] = []
        self.windows: list[Window] = []
        self.found: list[Labels] = []
        self.queue: asyncio.Queue[Item | None] = asyncio.Queue()

    async def read(self, reader: Reader, query: Query, window: Window) -> Sequence[Entry]:
        if self.failure is not None:
            raise self.failure
        self.windows.append(window)
        return Partial([], self.silent)

    async def streams(self, reader: Reader, query: Query | None, start: int, end: int) -> Sequence[Labels]:
        if self.failure is not None:
            raise self.failure
        return self.found

    @asynccontextmanager
    async def follow(self, reader: Reader, query: Query, start: int, limit: int) -> AsyncIterator[AsyncIterator[Item]]:
        async def items() -> AsyncIterator[Item]:
            while (item := await self.queue.get()) is not None:
                yield item
            raise SourceAway("nobody is there")

        yield items()


def fake(world: World) -> tuple[FakeSource, Gateway]:
    source = FakeSource()
    return source, Gateway(source, world.access, world.now)


# Answers


async def test_an_answer_names_the_cities_that_it_lacks(world: World) -> None:
    source, gateway = fake(world)
    _, body = await ask(gateway, "query_range", API | LONG_AGO)
    assert "warnings" not in body
    source.silent = ["SIN", "AMS", "AMS"]
    _, body = await ask(gateway, "query_range", API | LONG_AGO)
    assert body["warnings"] == [f"{city} does not answer; its lines are missing" for city in ("AMS", "SIN")]


async def test_lines_of_a_window_are_answered_newest_first(world: World) -> None:
    world.ring.add(origin(), [line(number) for number in range(3)])
    code, body = await ask(world.gateway, "query_range", API | LONG_AGO)
    assert code == 200
    assert body["status"] == "success"
    assert body["data"]["resultType"] == "streams"
    [stream] = body["data"]["result"]
    assert stream["stream"]["datum_instance_name"] == "api-default-dfw-0"
    assert stream["values"] == [[str(line(number).time), f"line {number}"] for number in (2, 1, 0)]


async def test_start_is_inclusive_and_end_exclusive_to_the_nanosecond(world: World) -> None:
    world.ring.add(origin(), [line(number) for number in range(3)])
    window = {"start": str(line(1).time), "end": str(line(2).time), "direction": "forward"}
    _, body = await ask(world.gateway, "query_range", API | window)
    assert [value[1] for value in body["data"]["result"][0]["values"]] == ["line 1"]


async def test_an_instant_query_is_the_hour_before_its_time(world: World) -> None:
    world.ring.add(origin(), [line(0), line(3599), line(3600)])
    _, body = await ask(world.gateway, "query", API | {"time": str(START + 3600 * SECOND)})
    assert [value[1] for value in body["data"]["result"][0]["values"]] == ["line 3599", "line 0"]


@pytest.mark.parametrize("query", ["vector(1)+vector(1)", "vector(1) + vector(1)", "vector(1) vector(1)"])
async def test_the_probe_of_grafana_is_answered(world: World, query: str) -> None:
    code, body = await ask(world.gateway, "query", {"query": query, "time": "1700000000"})
    assert code == 200
    assert body["data"] == {"resultType": "vector", "result": [{"metric": {}, "value": [1700000000.0, "2"]}]}


async def test_labels_values_and_series_are_listed(world: World) -> None:
    world.ring.add(origin(), [line(1)])
    world.ring.add(origin("api-default-ams-0", city="AMS"), [line(1, stream=STDERR)])
    world.ring.add(origin("web", workload="web", project="other"), [line(1)])
    _, labels = await ask(world.gateway, "labels", LONG_AGO)
    assert labels["data"] == sorted(Labels.__struct_fields__)
    _, values = await ask(world.gateway, "label/datum_city_code/values", LONG_AGO)
    assert values["data"] == ["AMS", "DFW"]
    query = {"query": '{log_iostream="stderr"}'}
    _, values = await ask(world.gateway, "label/datum_city_code/values", LONG_AGO | query)
    assert values["data"] == ["AMS"]
    assert (await ask(world.gateway, "label/unknown/values", LONG_AGO))[1]["data"] == []
    assert (await ask(world.gateway, "label/datum_workload_name/values", LONG_AGO))[1]["data"] == ["api"]
    either = [("match[]", '{datum_city_code="AMS"}'), ("match[]", '{datum_workload_name="api"}')]
    _, series = await ask(world.gateway, "series", [*either, *LONG_AGO.items()])
    assert [labels["datum_city_code"] for labels in series["data"]] == ["AMS", "DFW"]


async def test_the_run_before_the_last_restart_is_asked_for_where_it_is_known(world: World) -> None:
    source, gateway = fake(world)
    _, body = await ask(gateway, "query_range", API | {"previous": "true"})
    assert body["previous"] is True
    assert source.windows[0].previous
    _, body = await ask(world.gateway, "query_range", API | {"previous": "true"})
    assert "previous" not in body


# Errors


@pytest.mark.parametrize(
    ("name", "parameters", "named"),
    [
        ("query_range", {}, "the parameter query is missing"),
        ("query_range", {"query": "{"}, "a label is expected"),
        ("query_range", {"query": '{a=~"(x+)+"}'}, "the repetition + of a group that has one inside"),
        ("query_range", {"query": '{a="b"} |~ "c"'}, "the filter |~ on lines"),
        ("query_range", API | {"start": "soon"}, "the parameter start is not a time"),
        ("query_range", API | {"direction": "up"}, "the parameter direction"),
        ("query_range", API | {"start": "1700000001", "end": "1700000000"}, "the parameter end is before start"),
        ("query", {"query": 'rate({a="b"}[5m])'}, 'begins with "rate('),
        ("series", {}, "the parameter match[] is missing"),
        ("series", {"match[]": "{}"}, "the selector {} is empty"),
        ("label/datum_city_code/values", {"query": "{}"}, "the selector {} is empty"),
        ("tail", {"query": "{}"}, "the selector {} is empty"),
        ("tail", API | {"delay": "9000"}, "the parameter delay"),
    ],
)
async def test_a_bad_request_names_what_is_wrong(
    world: World, name: str, parameters: dict[str, str], named: str
) -> None:
    code, body = await ask(world.gateway, name, parameters)
    assert code == 400
    assert (body["status"], body["errorType"]) == ("error", "bad_data")
    assert named in body["error"]


async def test_a_source_that_evaluates_patterns_on_lines_gets_them(world: World) -> None:
    gateway = Gateway(FakeSource(), world.access, world.now, ALL_FILTERS)
    assert (await ask(gateway, "query_range", {"query": '{a="b"} |~ "c"'}))[0] == 200


@pytest.mark.parametrize("name", ["query_range", "tail", "labels"])
@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (Unauthorized("who are you"), 401, "Unauthorized"),
        (Forbidden("not you"), 403, "Forbidden"),
        (Unavailable("cannot tell"), 503, "ServiceUnavailable"),
    ],
)
async def test_who_may_not_read_gets_a_status(
    world: World, name: str, error: Exception, code: int, reason: str
) -> None:
    world.reader = error
    answered, body = await ask(world.gateway, name, API)
    assert answered == code
    assert (body["kind"], body["reason"], body["message"]) == ("Status", reason, str(error))


@pytest.mark.parametrize("name", ["query_range", "tail", "labels"])
async def test_a_source_that_is_away_is_503(world: World, name: str) -> None:
    source, gateway = fake(world)
    source.failure = SourceAway("the hub does not answer")
    code, body = await ask(gateway, name, API)
    assert (code, body["message"]) == (503, "the hub does not answer")


async def test_an_answer_that_takes_too_long_is_504(world: World) -> None:
    class Slow(FakeSource):
        async def read(self, reader: Reader, query: Query, window: Window) -> Sequence[Entry]:
            await asyncio.sleep(3600)
            return []

    started = world.simulation.time()
    code, body = await ask(Gateway(Slow(), world.access, world.now), "query_range", API)
    assert (code, body["reason"]) == (504, "Timeout")
    assert world.simulation.time() - started == pytest.approx(30)


async def test_a_defect_is_500_without_its_words(world: World) -> None:
    source, gateway = fake(world)
    source.failure = RuntimeError("secret")
    with structlog.testing.capture_logs() as logs:
        code, body = await ask(gateway, "query_range", API)
    assert code == 500
    assert "secret" not in str(body)
    assert len(logs) == 1


async def test_unknown_paths_and_methods_are_refused(world: World) -> None:
    assert (await ask(world.gateway, "push", API))[0] == 404
    assert (await ask(world.gateway, "label/a/b", API))[0] == 404
    assert (await ask(world.gateway, "query_range", API, method="POST"))[0] == 405


# Following


async def test_following_sends_the_backlog_then_every_new_line(world: World) -> None:
    world.ring.started(origin(), START)
    world.ring.add(origin(), [line(number) for number in range(10)])
    tail = Open(world.gateway, "tail", API | {"start": str(START), "limit": "3"})
    await world.simulation.advance(0.1)
    assert tail.code == 200
    assert tail.headers["content-type"] == "application/x-ndjson"
    assert tail.texts == ["line 7", "line 8", "line 9"]
    world.ring.add(origin(), [line(10)])
    await world.simulation.advance(0.03)  # one stream alone does not wait
    assert tail.texts[-1] == "line 10"
    await tail.leave()
    assert tail.complete


async def test_lines_of_several_streams_arrive_by_time_after_the_delay(world: World) -> None:
    for name in ("a", "b"):
        world.ring.started(origin(name), START)
        world.ring.add(origin(name), [line(0)])
    tail = Open(world.gateway, "tail", API | {"start": str(START), "delay": "500"})
    await world.simulation.advance(1)
    world.ring.add(origin("b"), [line(2, "second")])
    await world.simulation.advance(0.3)
    world.ring.add(origin("a"), [line(1, "first")])
    assert len(tail.texts) == 2
    await world.simulation.advance(0.25)
    assert tail.texts[2:] == ["first", "second"]
    await tail.leave()


async def test_a_quiet_tail_shows_that_it_is_alive(world: World) -> None:
    tail = Open(world.gateway, "tail", API)
    await world.simulation.advance(46)
    assert tail.frames == [{}, {}, {}]
    await tail.leave()


async def test_a_notice_arrives_between_the_lines_of_both_generations(world: World) -> None:
    world.ring.started(origin(generation="old"), START)
    tail = Open(world.gateway, "tail", API)
    await world.simulation.advance(1)
    world.ring.add(origin(generation="old"), [line(1, "old")])
    world.ring.ended(origin(generation="old"), START + 2 * SECOND)
    world.ring.started(origin(generation="new"), START + 3 * SECOND)
    world.ring.add(origin(generation="new"), [line(4, "new")])
    await world.simulation.advance(1)
    kinds = ["notice" if "notice" in frame else frame["streams"][0]["values"][0][1] for frame in tail.frames]
    assert kinds == ["old", "notice", "new"]
    [notice] = tail.notices
    assert (notice["kind"], notice["city"], notice["instance"]) == ("generation", "DFW", "api-default-dfw-0")
    assert int(notice["time"]) == START + 3 * SECOND
    await tail.leave()


async def test_a_client_that_takes_nothing_loses_the_oldest_lines_and_is_told_how_many(world: World) -> None:
    world.ring.started(origin(), START)
    tail = Open(world.gateway, "tail", API)
    await world.simulation.advance(1)
    tail.stall()
    for number in range(12_000):
        world.ring.add(origin(), [line(number)])
        if number % 100 == 0:
            await world.simulation.settle()
    await world.simulation.advance(10)
    tail.resume()
    await world.simulation.advance(10)
    assert tail.dropped + len(tail.texts) == 12_000
    assert 9_900 <= len(tail.texts) <= 11_000
    assert tail.texts[-1] == "line 11999"
    assert not tail.done()
    await tail.leave()


async def test_a_client_that_takes_nothing_for_half_a_minute_is_closed(world: World) -> None:
    world.ring.started(origin(), START)
    tail = Open(world.gateway, "tail", API)
    await world.simulation.advance(1)
    tail.stall()
    world.ring.add(origin(), [line(1)])
    await world.simulation.advance(29)
    assert not tail.done()
    await world.simulation.advance(2)
    assert tail.done()
    assert not tail.complete


async def test_a_source_that_goes_away_ends_the_answer_after_its_last_line(world: World) -> None:
    source, gateway = fake(world)
    tail = Open(gateway, "tail", API)
    for number in range(3):
        source.queue.put_nowait(Entry(number, Labels(datum_instance_name=f"i{number}"), f"line {number}"))
    source.queue.put_nowait(None)
    await world.simulation.advance(1)
    assert tail.texts == ["line 0", "line 1", "line 2"]
    assert tail.complete


# Limits


async def test_a_query_that_selects_too_many_containers_is_refused_with_their_number(world: World) -> None:
    for number in range(257):
        world.ring.started(origin(f"api-{number}"), START)
        world.ring.add(origin(f"api-{number}"), [line(1), line(2, stream=STDERR)])
    code, body = await ask(world.gateway, "tail", API)
    assert (code, body["reason"]) == (429, "TooManyRequests")
    assert "selects 257 containers" in body["message"]
    assert "narrow the query by datum_workload_name" in body["message"]
    world.ring.ended(origin("api-0"), START)
    tail = Open(world.gateway, "tail", API)
    await world.simulation.advance(1)
    assert tail.code == 200
    await tail.leave()


async def test_a_project_has_a_number_of_tails(world: World) -> None:
    tails = [Open(world.gateway, "tail", API) for _ in range(16)]
    await world.simulation.advance(1)
    code, body = await ask(world.gateway, "tail", API)
    assert code == 429
    assert "16 readers follow logs of project demo already" in body["message"]
    other = Open(world.gateway, "tail", API, plane="other")
    await world.simulation.advance(1)
    assert other.code == 200
    await tails[0].leave()
    again = Open(world.gateway, "tail", API)
    await world.simulation.advance(1)
    assert again.code == 200
    for tail in (*tails[1:], other, again):
        await tail.leave()
    assert world.gateway._tails == {}
    assert world.gateway._streams == 0


async def test_all_tails_together_have_a_number_of_streams(world: World) -> None:
    for number in range(256):
        world.ring.started(origin(f"api-{number}"), START)
    tails = [Open(world.gateway, "tail", API) for _ in range(4)]
    await world.simulation.advance(1)
    code, body = await ask(world.gateway, "tail", API)
    assert code == 429
    assert "1024 containers are followed already, and this query selects 256" in body["message"]
    for tail in tails:
        await tail.leave()


# Rights that change while somebody follows


async def test_a_tail_ends_when_its_reader_loses_the_right(world: World) -> None:
    tail = Open(world.gateway, "tail", API)
    await world.simulation.advance(50)
    world.reader = Forbidden("no longer")
    await world.simulation.advance(5)
    assert not tail.done()
    await world.simulation.advance(10)
    assert tail.complete
    assert (await ask(world.gateway, "tail", API))[0] == 403


async def test_a_tail_ends_when_its_reader_may_read_other_namespaces(world: World) -> None:
    world.reader = Reader("demo", frozenset({"default", "web"}))
    tail = Open(world.gateway, "tail", API)
    await world.simulation.advance(61)
    assert not tail.done()
    world.reader = Reader("demo", frozenset({"default"}))
    await world.simulation.advance(61)
    assert tail.complete


async def test_a_tail_goes_on_while_nothing_changes(world: World) -> None:
    world.lives.begin(life(origin(), world.now()))
    tail = Open(world.gateway, "tail", API)
    await world.simulation.advance(600)
    assert not tail.done()
    assert len(tail.texts) in range(298, 304)
    await tail.leave()


async def test_a_websocket_is_refused(world: World) -> None:
    with pytest.raises(Exception, match="not by WebSocket"):
        await world.gateway("demo", f"{gateway_module.ROOT}tail", {"type": "websocket"}, None, None)  # type: ignore[arg-type]


# Many instances, many lines


async def test_a_hundred_instances_are_followed_without_a_line_lost_doubled_or_out_of_order(world: World) -> None:
    origins = [origin(f"api-{number}", generation=f"uid-{number}") for number in range(100)]
    for of in origins:
        world.ring.started(of, world.now())
    tail = Open(world.gateway, "tail", API | {"start": str(world.now())})
    random = world.simulation.random
    seconds = count(3, 60)
    for second in range(seconds):
        written = [(of, number) for of in origins for number in range(second * 10, second * 10 + 10)]
        moments = sorted(random.random() for _ in written)
        random.shuffle(written)
        written.sort(key=lambda line: line[1])  # each container in its own order
        passed = 0.0
        for (of, number), moment in zip(written, moments, strict=True):
            if moment - passed > 0.01:
                await world.simulation.advance(moment - passed)
                passed = moment
            world.ring.add(of, [Line(world.now(), STDOUT, str(number))])
        await world.simulation.advance(1 - passed)
    await world.simulation.advance(1)
    found: dict[str, list[int]] = {}
    for instance, text in tail.lines:
        found.setdefault(instance, []).append(int(text))
    assert found == {of.instance: list(range(seconds * 10)) for of in origins}
    await tail.leave()
