"""Logs over live sites: windows, following, sites that fall silent, and what tenants never see."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from datum_compute.kube.errors import Forbidden, Unavailable
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.telemetry.cells import source as module
from datum_compute.telemetry.cells.following import LONGEST_PAUSE, REPLACED_SECONDS
from datum_compute.telemetry.cells.source import CellSource
from datum_compute.telemetry.cells.targets import Target
from datum_compute.telemetry.parameters import parse_time
from datum_compute.telemetry.query import Query, parse
from datum_compute.telemetry.sources import Dropped, Entry, Notice, Partial, Reader, SourceAway, Window
from tests.telemetry.sites import Cell, Cells, target

SECOND = 10**9
READER = Reader("demo", frozenset({"default"}))
ALL = parse('{datum_workload_name="api"}')
FIRST = target()
SECOND_TARGET = target("api-default-ams-0", cell="ams", city="AMS")


class Instances:
    """What the hub says that a project has."""

    def __init__(self, *targets: Target) -> None:
        self.found: list[Target] = list(targets)
        self.away = False
        self._subscribers: list[Callable[[], None]] = []

    def targets(self, reader: Reader) -> Sequence[Target]:
        if self.away:
            raise SourceAway("not known yet")
        return [item for item in self.found if reader.namespaces is None or item.namespace in reader.namespaces]

    def subscribe(self, project: str, changed: Callable[[], None]) -> Callable[[], None]:
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def set(self, *targets: Target) -> None:
        self.found = list(targets)
        self.changed()

    def changed(self) -> None:
        for callback in list(self._subscribers):
            callback()


class World:
    """Two sites, and what runs there."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.dfw, self.ams = Cell(), Cell()
        self.sites = Cells(dfw=self.dfw, ams=self.ams)
        self.instances = Instances(FIRST, SECOND_TARGET)
        self.source = CellSource(self.instances, self.sites, simulation)
        self.dfw.start("ns-default", FIRST.instance)
        self.ams.start("ns-default", SECOND_TARGET.instance)
        self.number = 0

    @property
    def now(self) -> int:
        return int(self.simulation.now().timestamp() * 1e9)

    def write(self, where: Target, text: str = "", ago: float = 0) -> str:
        self.number += 1
        text = text or f"line {self.number}"
        self.sites.cells[where.cell].write(where.place, where.instance, self.now - int(ago * SECOND), text)
        return text

    async def read(self, query: Query = ALL, **window: Any) -> list[str]:
        whole = {"start": 0, "end": self.now + 1, "limit": 100} | window
        return [entry.text for entry in await self.source.read(READER, query, Window(**whole))]

    @asynccontextmanager
    async def following(self, query: Query = ALL, start: int = 0, limit: int = 100) -> AsyncIterator[list[Any]]:
        """Everything that a reader gets, as it comes."""
        items: list[Any] = []
        async with self.source.follow(READER, query, start, limit) as found:

            async def pump() -> None:
                async for item in found:
                    items.append(item)

            task = asyncio.create_task(pump())
            await self.simulation.settle()
            try:
                yield items
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def texts(items: Sequence[Any]) -> list[str]:
    return [item.text for item in items if isinstance(item, Entry)]


def notices(items: Sequence[Any]) -> list[tuple[str, str, str]]:
    return [(item.kind, item.city, item.instance) for item in items if isinstance(item, Notice)]


@pytest.fixture
def world(simulation: Simulation) -> World:
    return World(simulation)


# Windows


async def test_lines_of_all_sites_are_read_in_order_of_time(world: World) -> None:
    for where, text, ago in ((FIRST, "one", 4), (SECOND_TARGET, "two", 3), (FIRST, "three", 2)):
        world.write(where, text, ago)
    assert await world.read() == ["one", "two", "three"]
    assert await world.read(limit=2) == ["two", "three"]
    assert await world.read(limit=2, backward=False) == ["one", "two"]
    assert await world.read(start=world.now - 3 * SECOND) == ["two", "three"], "the start is inclusive"
    assert await world.read(end=world.now - 2 * SECOND) == ["one", "two"], "the end is not"


async def test_a_query_narrows_what_is_read(world: World) -> None:
    for where, text in ((FIRST, "GET /"), (FIRST, "POST /"), (SECOND_TARGET, "GET /")):
        world.write(where, text, 1)
    assert await world.read(parse('{datum_city_code="DFW"} |= "GET"')) == ["GET /"]
    assert await world.read(parse('{datum_instance_name=~".+"} != "GET"')) == ["POST /"]
    assert await world.read(parse('{datum_workload_name="other"}')) == []
    assert await world.read(parse('{other="x"}')) == []


async def test_a_query_never_widens_what_may_be_read(world: World) -> None:
    foreign = target("api-default-dfw-0", namespace="secret")
    world.dfw.start("ns-secret", foreign.instance)
    world.dfw.write("ns-secret", foreign.instance, world.now - SECOND, "secret")
    world.instances.set(FIRST, foreign)
    assert await world.read(parse('{datum_instance_name=~".+"}')) == []
    assert await world.read(parse('{datum_namespace_name="secret"}')) == []
    found = await world.source.streams(READER, None, 0, world.now)
    assert [labels.datum_namespace_name for labels in found] == ["default"]


async def test_a_foreign_pod_is_not_read(world: World) -> None:
    """As long as its provider does not say that it runs the Instance, something else may have its name."""
    foreign = target(runs=False)
    world.write(FIRST, "somebody else's")
    world.instances.set(foreign)
    assert await world.read() == []
    async with world.following() as items:
        await asyncio.sleep(60)
        assert items == []
    assert world.dfw.calls == []


async def test_only_what_is_needed_is_read_of_a_long_log(world: World) -> None:
    for number in range(500):
        world.write(FIRST, str(number), 1)
    assert len(await world.read(limit=10)) == 10
    assert [call.query.get("tailLines") for call in world.dfw.calls] == ["10"]
    assert await world.read(parse('{datum_city_code="DFW"} |= "7"'), limit=2) == ["487", "497"]
    assert world.dfw.calls[-1].query.get("tailLines") is None, "filters may pass any line"


@pytest.mark.parametrize("start", ["999999d", "0001-01-01T00:00:00Z"])
async def test_a_window_may_begin_long_before_all_lines(world: World, start: str) -> None:
    world.write(FIRST, "one")
    assert await world.read(start=parse_time("start", start, world.now)) == ["one"]


async def test_lines_after_the_window_hide_none_in_it(world: World) -> None:
    world.write(FIRST, "before", 0.5)
    end = world.now - SECOND // 4
    for number in range(5):
        world.write(FIRST, str(number))
    assert await world.read(end=end, limit=3) == ["before"]


async def test_the_run_before_the_last_restart_can_be_read(world: World) -> None:
    world.write(FIRST, "panic")
    world.dfw.start("ns-default", FIRST.instance)
    world.write(FIRST, "started")
    assert await world.read() == ["started"]
    assert await world.read(previous=True) == ["panic"], "the other was never restarted"


async def test_a_site_that_does_not_answer_is_left_out(world: World) -> None:
    world.write(FIRST, "one")
    world.ams.die()
    assert await world.read() == ["one"]
    world.ams.trouble = Forbidden("pods is forbidden: User system:serviceaccount:compute-system:x")
    assert await world.read() == ["one"]
    world.dfw.die()
    with pytest.raises(SourceAway) as away:
        await world.read()
    assert str(away.value) == "the site does not answer; try again in a moment"


async def test_cities_that_are_left_out_are_named(world: World) -> None:
    world.write(FIRST, "one")
    whole = Window(0, world.now + 1, 100)
    found = await world.source.read(READER, ALL, whole)
    assert isinstance(found, Partial)
    assert found.silent == ()
    world.ams.die()
    found = await world.source.read(READER, ALL, whole)
    assert isinstance(found, Partial)
    assert found.silent == ("AMS",)


async def test_a_site_that_hangs_is_waited_for_once(world: World) -> None:
    many = [target(f"api-default-ams-{number}", cell="ams", city="AMS") for number in range(100)]
    for item in many:
        world.ams.start(item.place, item.instance)
    world.instances.set(FIRST, *many)
    world.write(FIRST, "one")
    world.ams.hangs = True
    began = world.simulation.time()
    assert await world.read() == ["one"]
    assert world.simulation.time() - began < 25


async def test_a_project_whose_site_hangs_holds_up_no_other_project(world: World) -> None:
    many = [target(f"api-default-ams-{number}", cell="ams", city="AMS", namespace="shop") for number in range(100)]
    world.instances.set(FIRST, *many)
    world.write(FIRST, "one")
    world.ams.hangs = True
    whole = Window(0, world.now + 1, 100)
    other = asyncio.create_task(world.source.read(Reader("shop", frozenset({"shop"})), ALL, whole))
    await world.simulation.settle()
    began = world.simulation.time()
    assert await world.read() == ["one"]
    assert world.simulation.time() - began < 1
    with pytest.raises(SourceAway):
        await other


async def test_a_cell_that_cannot_be_called_is_a_silent_city(world: World) -> None:
    world.instances.set(FIRST, target("api-default-sin-0", cell="sin", city="SIN"))
    world.write(FIRST, "one")
    assert await world.read() == ["one"]
    async with world.following() as items:
        assert notices(items) == [("silent", "SIN", "")]


# Following


async def test_a_reader_gets_the_newest_lines_and_then_every_new_one(world: World) -> None:
    for number in range(5):
        world.write(FIRST if number % 2 else SECOND_TARGET, str(number), 5 - number)
    async with world.following(limit=3) as items:
        assert texts(items) == ["2", "3", "4"]
        world.write(FIRST, "new")
        await world.simulation.settle()
        assert texts(items) == ["2", "3", "4", "new"]
    assert notices(items) == []


async def test_a_backlog_can_be_left_out(world: World) -> None:
    world.write(FIRST, "old", 5)
    async with world.following(limit=0) as items:
        world.write(FIRST, "new")
        await world.simulation.settle()
        assert texts(items) == ["new"]


@pytest.mark.parametrize("limit", [0, 1, 3, 10, 100])
async def test_older_lines_of_the_same_second_stay_out(world: World, limit: int) -> None:
    """A site cuts times to seconds, and sends them again."""
    for number in range(10):
        world.write(FIRST, f"old {number}", 0.5)
    async with world.following(limit=limit) as items:
        world.write(FIRST, "new")
        await world.simulation.settle()
        world.dfw.cut()
        await asyncio.sleep(5)
        assert texts(items) == [*(f"old {number}" for number in range(10 - min(limit, 10), 10)), "new"]


async def test_a_line_is_followed_at_once(world: World) -> None:
    async with world.following() as items:
        await asyncio.sleep(300)
        began = world.simulation.time()
        world.write(FIRST, "new")
        await world.simulation.until(lambda: _async(bool(texts(items))), 10, "the line")
        assert world.simulation.time() - began < 0.1


async def _async(value: bool) -> bool:
    return value


async def test_connections_that_break_lose_and_double_nothing(world: World) -> None:
    generator = random.Random(7)
    written = []
    async with world.following() as items:
        for _ in range(200):
            written.append(world.write(generator.choice((FIRST, SECOND_TARGET))))
            if generator.random() < 0.1:
                generator.choice((world.dfw, world.ams)).cut()
            await asyncio.sleep(generator.random() * 0.3)
        await asyncio.sleep(LONGEST_PAUSE)
        assert sorted(texts(items)) == sorted(written)
        assert len(texts(items)) == len(written)
    assert notices(items) == []


async def test_one_dead_site_holds_up_no_other(world: World) -> None:
    """Lines of the living go on at once, and those of the dead follow when it is back, none lost and none doubled."""
    late: list[float] = []
    written = []
    async with world.following() as items:
        for second in range(120):
            if second == 20:
                world.ams.die()
            if second == 80:
                world.ams.trouble = None
            written += [world.write(FIRST), world.write(SECOND_TARGET)]
            began, text = world.simulation.time(), written[-2]
            await world.simulation.until(lambda: _async(written[-2] in texts(items)), 5, text)  # noqa: B023
            late.append(world.simulation.time() - began)
            await asyncio.sleep(1 - (world.simulation.time() - began))
        await asyncio.sleep(LONGEST_PAUSE)
        assert max(late) < 0.3
        assert sorted(texts(items)) == sorted(written)
        assert notices(items) == [("silent", "AMS", ""), ("back", "AMS", "")]
    for where in (FIRST, SECOND_TARGET):
        times = [item.time for item in items if isinstance(item, Entry) and item.labels.datum_city_code == where.city]
        assert times == sorted(times)


async def test_a_site_that_hangs_without_a_word_is_noticed(world: World) -> None:
    async with world.following() as items:
        world.write(SECOND_TARGET, "one")
        await asyncio.sleep(1)
        world.ams.hangs = True
        await asyncio.sleep(35)
        assert notices(items) == [("silent", "AMS", "")]
        world.write(SECOND_TARGET, "two")
        world.ams.hangs = False
        world.ams._notify()
        await asyncio.sleep(LONGEST_PAUSE + 1)
        assert notices(items)[1:] == [("back", "AMS", "")]
        assert texts(items) == ["one", "two"]


async def test_a_cluster_that_is_not_ready_is_silent_at_once(world: World) -> None:
    async with world.following() as items:
        world.ams.hangs = True
        world.sites.unready.add("ams")
        world.instances.changed()
        await world.simulation.settle()
        assert notices(items) == [("silent", "AMS", "")]
        world.write(SECOND_TARGET, "one")
        world.ams.hangs = False
        world.ams._notify()
        world.sites.unready.clear()
        world.instances.changed()
        await asyncio.sleep(LONGEST_PAUSE + 1)
        assert notices(items) == [("silent", "AMS", ""), ("back", "AMS", "")]
        assert texts(items) == ["one"]


async def test_a_dead_site_does_not_delay_the_first_lines_of_others(world: World) -> None:
    world.write(FIRST, "one", 1)
    world.ams.hangs = True
    async with world.following() as items:
        await asyncio.sleep(4)
        assert texts(items) == ["one"]


async def test_first_lines_that_come_too_late_are_delivered_later(world: World) -> None:
    """A site that stops within its answer has sent lines already; none of them counts as delivered."""
    written = [world.write(FIRST, f"old {number}", 60 - number) for number in range(20)]
    world.dfw.stops_within_answers = True
    async with world.following() as items:
        await asyncio.sleep(5)
        world.dfw.stops_within_answers = False
        world.dfw._notify()
        await asyncio.sleep(LONGEST_PAUSE)
        written.append(world.write(FIRST, "new"))
        await world.simulation.settle()
        assert texts(items) == written


async def test_instances_join_and_leave(world: World) -> None:
    third = target("api-default-dfw-1")
    async with world.following() as items:
        world.dfw.start(third.place, third.instance)
        world.write(third, "hello")
        world.instances.set(FIRST, SECOND_TARGET, third)
        await asyncio.sleep(1)
        assert notices(items) == [("joined", "DFW", third.instance)]
        assert texts(items) == ["hello"]
        world.write(third, "bye")
        world.dfw.remove(third.place, third.instance)
        world.instances.set(FIRST, SECOND_TARGET)
        await asyncio.sleep(REPLACED_SECONDS + 1)
        assert notices(items)[1:] == [("left", "DFW", third.instance)]
        assert texts(items) == ["hello", "bye"], "an open stream runs to its end"


async def test_a_replaced_instance_is_a_new_generation(world: World) -> None:
    successor = target(generation="4f1c2a9e-1")
    async with world.following() as items:
        world.write(FIRST, "old")
        await asyncio.sleep(1)
        world.dfw.remove(FIRST.place, FIRST.instance)
        world.instances.set(SECOND_TARGET)
        await asyncio.sleep(2)
        world.instances.set(target(generation="4f1c2a9e-1", runs=False), SECOND_TARGET)
        await asyncio.sleep(1)
        world.dfw.start(FIRST.place, FIRST.instance)
        world.write(successor, "new")
        world.instances.set(successor, SECOND_TARGET)
        await asyncio.sleep(2)
        assert texts(items) == ["old", "new"]
        assert notices(items) == [("generation", "DFW", FIRST.instance)]
    [notice] = [item for item in items if isinstance(item, Notice)]
    assert notice.message.split()[-1] == "4f1c2a9e-1"
    generations = [item.labels.k8s_pod_uid for item in items if isinstance(item, Entry)]
    assert generations == [FIRST.generation, "4f1c2a9e-1"]


async def test_lines_that_were_read_before_the_hub_knew_of_the_successor_are_not_repeated(world: World) -> None:
    async with world.following() as items:
        world.dfw.remove(FIRST.place, FIRST.instance)
        world.dfw.start(FIRST.place, FIRST.instance)
        world.write(FIRST, "started")
        await asyncio.sleep(5)
        assert texts(items) == ["started"]
        world.instances.set(target(generation="next"), SECOND_TARGET)
        world.write(FIRST, "more")
        await asyncio.sleep(5)
        assert sorted(texts(items)) == ["more", "started"]


async def test_a_container_that_restarts_is_followed_on(world: World) -> None:
    async with world.following() as items:
        world.write(FIRST, "one")
        await asyncio.sleep(1)
        world.dfw.start(FIRST.place, FIRST.instance)
        world.write(FIRST, "two")
        await asyncio.sleep(5)
        assert texts(items) == ["one", "two"]
    assert notices(items) == []


async def test_what_is_open_goes_on_while_the_hub_is_away(world: World) -> None:
    async with world.following() as items:
        world.instances.away = True
        world.instances.changed()
        await asyncio.sleep(5)
        world.write(FIRST, "one")
        await world.simulation.settle()
        assert texts(items) == ["one"]
    assert notices(items) == []


async def test_nothing_can_be_followed_while_it_is_not_known_what_runs(world: World) -> None:
    world.instances.away = True
    with pytest.raises(SourceAway):
        async with world.source.follow(READER, ALL, 0, 0):
            pass


async def test_output_without_end_is_given_up_and_counted(world: World) -> None:
    async with world.following() as items:
        for _ in range(80):
            world.write(FIRST, "x" * 100_000)
        await asyncio.sleep(2)
        world.write(FIRST, "calm again")
        await asyncio.sleep(2)
        assert texts(items)[-1] == "calm again"
    lost = sum(item.count for item in items if isinstance(item, Dropped))
    assert lost + len(texts(items)) >= 81
    assert lost > 0
    assert all(len(text) <= 16 * 1024 + 1 for text in texts(items))


async def test_what_one_project_reads_costs_no_line_that_another_follows(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BYTES_IN_ALL", 100_000)
    world = World(simulation)
    for _ in range(200):
        world.write(FIRST, "x" * 10_000, 1)
    async with world.following(parse('{datum_city_code="AMS"}')) as items:
        whole = Window(0, world.now + 1, 1000)
        other = asyncio.create_task(world.source.read(Reader("shop", frozenset({"default"})), ALL, whole))
        written = []
        for _ in range(20):
            await asyncio.sleep(0.5)
            written.append(world.write(SECOND_TARGET))
        assert not other.done()
        assert len(await other) >= 200
        assert not any(isinstance(item, Dropped) for item in items)
        assert texts(items) == written


async def test_a_reader_never_sees_the_words_of_a_site(world: World) -> None:
    async with world.following() as items:
        world.ams.trouble = Unavailable("dial tcp 10.1.2.3:6443: node-17 is on fire")
        world.ams.cut()
        world.dfw.trouble = Forbidden("User system:serviceaccount:compute-system:compute-management cannot get pods")
        world.dfw.cut()
        await asyncio.sleep(5)
        messages = {item.city: item.message for item in items if isinstance(item, Notice)}
    assert messages == {"AMS": "the site does not answer", "DFW": "the site cannot be read"}


async def test_a_site_at_rest_costs_one_small_call_in_ten_seconds(world: World) -> None:
    async with world.following():
        await asyncio.sleep(5)
        before = len(world.dfw.calls)
        await asyncio.sleep(100)
        assert len(world.dfw.calls) - before <= 10
        assert all(call.query.get("limitBytes") for call in world.dfw.calls[before:])
