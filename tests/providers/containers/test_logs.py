"""Logs of containers reach the sink whole, in order and once, whatever the engine does."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime

import pytest

from datum_compute.federation.lines import STDERR, STDOUT, Line, Origin
from datum_compute.providers.containers import logs as container_logs
from datum_compute.providers.containers.logs import ContainerLogs
from datum_compute.runtime.testing.simulation import Simulation
from tests.providers.engine_boxes import Dialect, Image
from tests.providers.engine_model import EngineModel, Mishap

WEB = Origin("demo", "default", "web", "main", "DFW", "web-main-dfw-0", "uid", "app")
BODY = {"Image": "app:1"}


class Collected:
    """A sink."""

    def __init__(self) -> None:
        self.lines: dict[Origin, list[Line]] = {}

    def started(self, origin: Origin, time: int) -> None: ...

    def ended(self, origin: Origin, time: int) -> None: ...

    def silent(self, city: str, reason: str) -> None: ...

    def add(self, origin: Origin, lines: Sequence[Line]) -> None:
        self.lines.setdefault(origin, []).extend(lines)

    def latest(self, origin: Origin, count: int) -> Sequence[Line]:
        return self.lines.get(origin, [])[-count:]

    def texts(self, origin: Origin = WEB) -> list[str]:
        return [line.text for line in self.lines.get(origin, [])]


class Following:
    """A model with a running container `web` that is followed."""

    def __init__(self, dialect: Dialect, simulation: Simulation) -> None:
        self.model = EngineModel(dialect, simulation.now)
        self.model.images["app:1"] = Image()
        self.sink = Collected()
        self.simulation = simulation
        self.logs = ContainerLogs(self.sink, simulation)

    async def start(self) -> str:
        id = await self.model.create("web", BODY)
        await self.again()
        return id

    async def again(self) -> None:
        await self.model.start("web")
        self.logs.follow(self.model, self.model.box("web").id, WEB)
        await self.simulation.advance(1)

    async def write(self, *texts: str) -> None:
        for text in texts:
            self.model.write("web", f"{text}\n")
            await self.simulation.advance(0.01)


@pytest.fixture(params=list(Dialect))
def following(request: pytest.FixtureRequest, runner: asyncio.Runner, simulation: Simulation) -> Iterator[Following]:
    following = Following(request.param, simulation)
    yield following
    runner.run(following.logs.close())


async def test_lines_arrive_at_once_with_their_times(following: Following, simulation: Simulation) -> None:
    await following.start()
    await simulation.advance(0.25)
    await following.write("one")
    now: datetime = simulation.now()
    [line] = following.sink.lines[WEB]
    assert line.text == "one"
    assert line.stream == STDOUT
    assert abs(line.time / 1e9 - now.timestamp()) < 0.1


async def test_what_was_written_before_is_read_first(following: Following, simulation: Simulation) -> None:
    await following.model.create("web", BODY)
    await following.model.start("web")
    await following.write(*(f"line {number}" for number in range(1200)))
    await simulation.advance(60)
    await following.again()
    assert following.sink.texts() == [f"line {number}" for number in range(200, 1200)]
    assert following.sink.lines[WEB][-1].time / 1e9 < simulation.now().timestamp() - 59


async def test_nothing_is_lost_or_repeated_over_a_restart_of_the_container(following: Following) -> None:
    await following.start()
    await following.write("a", "b")
    following.model.end("web", 3)
    await following.simulation.advance(1)
    following.model.write("web", "said while nobody looked\n")
    await following.again()
    await following.write("c")
    assert following.sink.texts() == ["a", "b", "said while nobody looked", "c"]


async def test_nothing_is_lost_or_repeated_while_the_engine_is_away(following: Following) -> None:
    await following.start()
    await following.write("a", "b", "a", "b")
    following.model.away = True
    await following.write("c", "d")
    await following.simulation.advance(40)
    following.model.away = False
    await following.simulation.advance(40)
    await following.write("e")
    assert following.sink.texts() == ["a", "b", "a", "b", "c", "d", "e"]
    times = [line.time for line in following.sink.lines[WEB]]
    assert times == sorted(times)


async def test_a_rotated_log_is_opened_again(following: Following) -> None:
    await following.start()
    await following.write("a", "b", "c")
    following.model.rotate("web", 1)
    await following.simulation.advance(1)
    await following.write("d")
    following.model.rotate("web", 0)
    await following.simulation.advance(1)
    await following.write("e")
    await following.simulation.advance(1)
    assert following.sink.texts() == ["a", "b", "c", "d", "e"]


async def test_a_second_look_at_a_running_container_changes_nothing(following: Following) -> None:
    id = await following.start()
    await following.write("a")
    for _ in range(3):
        following.logs.follow(following.model, id, WEB)
        await following.simulation.advance(5)
    assert following.model.calls.count(f"logs {id}") == 1


async def test_the_end_of_a_line_without_newline_is_told_once(following: Following) -> None:
    id = await following.start()
    following.model.write("web", "panic", STDERR)
    following.model.end("web", 2)
    await following.simulation.advance(1)
    following.logs.follow(following.model, id, WEB)  # a late look
    await following.simulation.advance(60)
    assert following.sink.texts() == ["panic"]


async def test_the_last_lines_of_a_removed_container_arrive(following: Following) -> None:
    id = await following.start()
    following.model.write("web", "bye\n")
    following.model.remove_by_hand("web")
    following.logs.leave(id)
    assert following.logs.followed == frozenset()
    await following.simulation.advance(6)
    assert following.sink.texts() == ["bye"]


async def test_nothing_is_lost_while_the_log_of_a_new_container_is_opened(following: Following) -> None:
    await following.model.create("web", BODY)
    await following.model.start("web")
    following.logs.follow(following.model, following.model.box("web").id, WEB)
    for number in range(20):
        following.model.write("web", f"line {number}\n")
        await following.simulation.advance(0.001)
    await following.simulation.advance(1)
    assert following.sink.texts() == [f"line {number}" for number in range(20)]


async def test_a_container_that_ended_can_be_removed_once_its_last_lines_are_read(following: Following) -> None:
    id = await following.start()
    following.model.write("web", "bye\n")
    following.model.end("web", 0)
    await following.logs.finish([id, "unknown"])
    assert following.sink.texts() == ["bye"]


async def test_a_container_that_goes_on_is_not_waited_for(following: Following) -> None:
    id, began = await following.start(), following.simulation.now()
    await following.logs.finish([id])
    assert (following.simulation.now() - began).total_seconds() <= 10


async def test_a_log_that_cannot_be_opened_is_tried_again(following: Following) -> None:
    following.model.trouble("logs", Mishap.BROKEN, 3)
    await following.start()
    await following.write("a")
    await following.simulation.advance(5)
    assert following.sink.texts() == ["a"]


async def test_a_flood_is_cut_counted_and_said(simulation: Simulation) -> None:
    following = Following(Dialect.DOCKER, simulation)
    await following.start()
    await simulation.advance(1)
    text = "x" * 1000
    written = 0
    for _ in range(10):  # seconds, with 5 MB in each
        for _ in range(5000):
            following.model.write("web", f"{written} {text}\n")
            written += 1
        await simulation.advance(1)
    await following.write("after")
    await simulation.advance(20)
    following.model.end("web", 0)
    await simulation.advance(1)
    await following.logs.close()

    lines = following.sink.lines[WEB]
    notices = [line for line in lines if line.text.startswith("(left out here: ")]
    texts = [line.text for line in lines if line not in notices]
    left_out = sum(int(line.text.split()[3].replace(",", "")) for line in notices)
    assert texts[-1] == "after"
    assert len(texts) - 1 + left_out == written
    numbers = [int(text.split()[0]) for text in texts[:-1]]
    assert numbers == sorted(set(numbers))
    parsed = sum(map(len, texts))
    assert 10 * 1.8e6 < parsed < 12 * container_logs.RATE
    assert 5 <= len(notices) <= 12


async def test_others_are_not_harmed_by_floods(simulation: Simulation) -> None:
    following = Following(Dialect.DOCKER, simulation)
    await following.start()
    for number in range(6):
        name = f"flood-{number}"
        id = await following.model.create(name, BODY)
        await following.model.start(id)
        following.logs.follow(following.model, id, Origin("demo", "default", name, "m", "DFW", name, "uid", "app"))
    await simulation.advance(1)
    for second in range(3):
        for number in range(6):
            for _ in range(2000):
                following.model.write(f"flood-{number}", "y" * 2000 + "\n")
        await following.write(f"calm {second}")
        before = simulation.now()
        assert following.sink.texts()[-1] == f"calm {second}"
        await simulation.advance(1)
        assert simulation.now() > before
    assert following.sink.texts() == ["calm 0", "calm 1", "calm 2"]
    await following.logs.close()
