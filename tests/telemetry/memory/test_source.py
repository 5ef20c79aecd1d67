"""What readers find in memory: windows, limits, who sees what, and following without gaps."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.federation.lines import STDERR, Line, nanoseconds
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.telemetry.memory.lives import Lives
from datum_compute.telemetry.memory.ring import Ring
from datum_compute.telemetry.memory.source import MemorySource
from datum_compute.telemetry.merge import Item
from datum_compute.telemetry.query import parse
from datum_compute.telemetry.sources import Dropped, Entry, Notice, Reader, Window
from tests.telemetry.origins import READER, SECOND, life, line, origin
from tests.telemetry.origins import START as PAST

EVERYTHING = parse('{datum_workload_name=~".*"}')


class World:
    """A memory source in a simulation, and what its provider would report."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.ring = Ring(self.now)
        self.lives = Lives()
        self.source = MemorySource(self.ring, self.lives, self.now)

    def now(self) -> int:
        return nanoseconds(self.simulation.now())

    async def read(
        self,
        query: str = '{datum_workload_name="api"}',
        *,
        reader: Reader = READER,
        start: int = 0,
        end: int = 2**63,
        limit: int = 100,
        backward: bool = True,
    ) -> list[str]:
        entries = await self.source.read(reader, parse(query), Window(start, end, limit, backward))
        return [entry.text for entry in entries]


@pytest.fixture
def world(simulation: Simulation) -> World:
    return World(simulation)


class Following:
    """Everything that a follower got so far."""

    def __init__(self, items: AsyncIterator[Item]) -> None:
        self.items: list[Item] = []
        self._task = asyncio.create_task(self._collect(items))

    async def _collect(self, items: AsyncIterator[Item]) -> None:
        async for item in items:
            self.items.append(item)

    @property
    def texts(self) -> list[str]:
        return [item.text for item in self.items if isinstance(item, Entry)]

    @property
    def notices(self) -> list[tuple[str, str]]:
        return [(item.kind, item.instance or item.city) for item in self.items if isinstance(item, Notice)]

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


# Reading


async def test_a_window_includes_its_start_and_not_its_end(world: World) -> None:
    world.ring.add(origin(), [line(number) for number in range(5)])
    assert await world.read(start=line(1).time, end=line(3).time) == ["line 1", "line 2"]


async def test_a_limit_takes_the_newest_or_the_oldest(world: World) -> None:
    world.ring.add(origin(), [line(number) for number in range(5)])
    assert await world.read(limit=2) == ["line 3", "line 4"]
    assert await world.read(limit=2, backward=False) == ["line 0", "line 1"]


async def test_lines_of_several_instances_are_in_order_of_time(world: World) -> None:
    world.ring.add(origin("a"), [line(1), line(4)])
    world.ring.add(origin("b"), [line(2), line(3)])
    assert await world.read() == ["line 1", "line 2", "line 3", "line 4"]
    assert await world.read(limit=3) == ["line 2", "line 3", "line 4"]


async def test_a_clock_that_goes_back_does_not_change_the_order_within_a_stream(world: World) -> None:
    world.ring.add(origin(), [line(5, "first"), line(1, "second"), line(1, "third"), line(6, "fourth")])
    assert await world.read() == ["first", "second", "third", "fourth"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.booleans()), max_size=40),
    st.integers(1, 12),
    st.booleans(),
)
def test_any_limit_cuts_the_same_order(lines: list[tuple[str, int, bool]], limit: int, backward: bool) -> None:
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(1)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        world = World(loop)
        for number, (name, time, selected) in enumerate(lines):
            world.ring.add(origin(name), [line(time, f"{number}" if selected else "no")])
        query = '{datum_workload_name="api"} != "no"'
        whole = runner.run(world.read(query, limit=1000))
        assert sorted(map(int, whole)) == [number for number, (_, _, selected) in enumerate(lines) if selected]
        for name in "abc":
            numbers = [int(text) for text in whole if lines[int(text)][0] == name]
            assert numbers == sorted(numbers)
        part = runner.run(world.read(query, limit=limit, backward=backward))
        assert part == (whole[-limit:] if backward else whole[:limit])


async def test_filters_select_before_the_limit(world: World) -> None:
    world.ring.add(origin(), [line(number, f"even {number}" if number % 2 == 0 else "odd") for number in range(10)])
    assert await world.read('{datum_workload_name="api"} |= "even"', limit=2) == ["even 6", "even 8"]


async def test_a_reader_sees_only_their_project_and_namespaces(world: World) -> None:
    for of in (origin(), origin(project="other"), origin(namespace="web")):
        world.ring.add(of, [line(1, f"{of.project}/{of.namespace}")])
        world.lives.begin(life(of, world.now() - 3600 * SECOND))
    stored = '{datum_instance_name=~".+"} |= "/default" != "GET" != "starting"'
    assert await world.read(stored) == ["demo/default"]
    assert await world.read(stored, reader=Reader("other")) == ["other/default"]
    everything = '{datum_instance_name=~".+"} != "GET" != "listening" != "starting"'
    assert await world.read(everything, reader=Reader("demo", frozenset({"web"}))) == ["demo/web"]
    assert await world.read(everything, reader=Reader("demo", frozenset())) == []
    streams = await world.source.streams(Reader("demo", frozenset({"web"})), None, 0, world.now())
    assert {labels.datum_namespace_name for labels in streams} == {"web"}


async def test_simulated_lines_never_come_from_the_future(world: World) -> None:
    world.lives.begin(life(origin(), world.now()))
    assert await world.read() == []
    await world.simulation.advance(2)
    assert await world.read() == ["starting example.com/api:1", "listening on :8080"]


async def test_lines_of_a_simulated_instance_end_with_it_and_can_be_read_afterwards(world: World) -> None:
    world.lives.begin(life(origin(), world.now()))
    await world.simulation.advance(5)
    world.lives.end("uid-1", world.now())
    before = await world.read()
    await world.simulation.advance(3600)
    assert await world.read() == before != []


async def test_simulated_and_stored_lines_are_merged(world: World) -> None:
    world.lives.begin(life(origin(), PAST))
    world.ring.add(origin("b"), [Line(PAST + SECOND * 11 // 10, STDERR, "between")])
    assert await world.read(end=PAST + 2 * SECOND) == ["starting example.com/api:1", "between", "listening on :8080"]


async def test_the_streams_of_a_window_are_found(world: World) -> None:
    world.ring.started(origin("quiet"), PAST)
    world.ring.add(origin("old"), [line(1, stream=STDERR)])
    world.lives.begin(life(origin("simulated"), world.now() - SECOND, crashes=True))

    async def names(query: str | None, start: int, end: int) -> list[tuple[str, str]]:
        parsed = parse(query) if query else None
        streams = await world.source.streams(READER, parsed, start, end)
        return sorted((labels.datum_instance_name, labels.log_iostream) for labels in streams)

    now = world.now()
    running = [("quiet", "stdout"), ("simulated", "stderr"), ("simulated", "stdout")]
    assert await names(None, 0, now + 1) == sorted([("old", "stderr"), *running])
    assert await names(None, now, now + 1) == running
    assert await names('{datum_instance_name="quiet"}', 0, now + 1) == [("quiet", "stdout")]
    assert await names(None, now + SECOND, now + 2 * SECOND) == []


async def test_a_long_search_lets_others_run(world: World) -> None:
    world.lives.begin(life(origin(), world.now() - 7 * 24 * 3600 * SECOND))
    searching = asyncio.create_task(world.read('{datum_workload_name="api"} |= "nowhere"'))
    turns = 0
    while not searching.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    assert searching.result() == []


# Following


async def test_a_backlog_is_followed_by_what_is_new_without_gap_or_repetition(world: World) -> None:
    world.ring.started(origin(), PAST)
    world.ring.add(origin(), [line(number) for number in range(5)])
    async with world.source.follow(READER, EVERYTHING, 0, 3) as items:
        following = Following(items)
        for number in range(5, 8):
            world.ring.add(origin(), [line(number)])
            await world.simulation.settle()
        assert following.texts == [f"line {number}" for number in range(2, 8)]
        await following.end()
    assert world.ring._listeners == []
    assert world.lives._listeners == []


async def test_lines_added_while_the_backlog_is_read_come_once(world: World) -> None:
    world.ring.started(origin(), PAST)
    # A week of simulated lines without a match, so that reading the backlog takes a while.
    world.lives.begin(life(origin("simulated"), world.now() - 7 * 24 * 3600 * SECOND))
    world.ring.add(origin(), [line(number) for number in range(3)])

    async def write() -> None:
        for number in range(3, 50):
            world.ring.add(origin(), [line(number)])
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    async with world.source.follow(READER, parse('{datum_workload_name="api"} |= "line"'), 0, 100) as items:
        following = Following(items)
        await writing
        await world.simulation.settle()
        assert following.texts == [f"line {number}" for number in range(50)]
        await following.end()


async def test_simulated_lines_come_when_they_are_due(world: World) -> None:
    world.lives.begin(life(origin(), world.now()))
    await world.simulation.advance(10)
    started = world.now()
    async with world.source.follow(READER, EVERYTHING, 0, 100) as items:
        following = Following(items)
        await world.simulation.settle()
        assert following.texts == await world.read()
        await world.simulation.advance(60)
        entries = [item for item in following.items if isinstance(item, Entry)]
        assert [entry.text for entry in entries] == await world.read()
        assert sum(entry.time >= started for entry in entries) in (29, 30, 31)
        await following.end()


async def test_a_replaced_instance_is_one_notice_and_all_lines_of_both_generations(world: World) -> None:
    old, new = origin(generation="old"), origin(generation="new")
    world.lives.begin(life(old, world.now()))
    await world.simulation.advance(10)
    async with world.source.follow(READER, EVERYTHING, 0, 100) as items:
        following = Following(items)
        await world.simulation.advance(5)
        world.lives.end("old", world.now())
        await world.simulation.advance(1)
        world.lives.begin(life(new, world.now()))
        await world.simulation.advance(30)
        assert following.texts == await world.read()
        assert following.notices == [("generation", "api-default-dfw-0")]
        [notice] = [item for item in following.items if isinstance(item, Notice)]
        assert notice.message.endswith("replaced by generation new")
        await following.end()


async def test_instances_join_and_leave_with_one_notice_each(world: World) -> None:
    async with world.source.follow(READER, parse('{datum_city_code="DFW"}'), 0, 100) as items:
        following = Following(items)
        world.ring.started(origin("a"), world.now())
        world.ring.started(origin("a", container="sidecar"), world.now())
        world.ring.started(origin("elsewhere", city="AMS"), world.now())
        await world.simulation.advance(1)
        assert following.notices == [("joined", "a")]
        world.ring.ended(origin("a"), world.now())
        world.ring.ended(origin("a", container="sidecar"), world.now())
        await world.simulation.advance(10)
        assert following.notices == [("joined", "a"), ("left", "a")]
        await following.end()


async def test_a_city_that_falls_silent_is_one_notice_until_it_is_back(world: World) -> None:
    world.ring.started(origin(city="DFW"), PAST)
    async with world.source.follow(READER, EVERYTHING, 0, 100) as items:
        following = Following(items)
        for city in ("DFW", "DFW", "AMS"):
            world.ring.silent(city, "the container engine does not answer")
        await world.simulation.settle()
        assert following.notices == [("silent", "DFW")]
        world.ring.silent("DFW", "")
        world.ring.silent("AMS", "")
        await world.simulation.settle()
        assert following.notices == [("silent", "DFW"), ("back", "DFW")]
        await following.end()


async def test_who_comes_while_a_city_is_silent_hears_it(world: World) -> None:
    world.ring.silent("DFW", "the container engine does not answer")
    async with world.source.follow(READER, parse('{datum_city_code="DFW"}'), 0, 100) as items:
        following = Following(items)
        await world.simulation.settle()
        assert following.notices == [("silent", "DFW")]
        await following.end()


async def test_a_provider_never_waits_for_a_follower_who_takes_nothing(world: World) -> None:
    async with world.source.follow(READER, EVERYTHING, 0, 100) as items:
        world.ring.started(origin(), PAST)
        for number in range(15_000):
            world.ring.add(origin(), [line(number)])
        following = Following(items)
        await world.simulation.settle()
        assert following.texts == [f"line {number}" for number in range(5_000, 15_000)]
        assert sum(item.count for item in following.items if isinstance(item, Dropped)) == 5_000
        await following.end()
