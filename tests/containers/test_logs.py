"""Logs of containers of a real engine, followed into a sink."""

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from datum_compute.federation.lines import STDERR, STDOUT, Origin
from datum_compute.providers.containers import logs as container_logs
from datum_compute.providers.containers.lines import NOTICE
from datum_compute.providers.containers.logs import ContainerLogs
from datum_compute.providers.engine.client import EngineClient
from datum_compute.runtime.clock import SystemClock
from tests.containers.podman import Podman
from tests.containers.test_engine import body, settled
from tests.providers.containers.test_logs import WEB, Collected

LOUD = Origin("demo", "default", "loud", "main", "DFW", "loud-main-dfw-0", "uid", "app")


@pytest.fixture
def sink() -> Collected:
    return Collected()


@pytest.fixture
def logs(sink: Collected, runner: asyncio.Runner) -> Iterator[ContainerLogs]:
    followers = ContainerLogs(sink, SystemClock())
    yield followers
    runner.run(followers.close())


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.02)


async def start(engine: EngineClient, logs: ContainerLogs, *arguments: str, **host: object) -> str:
    id = await engine.create("web", body(*arguments, **host))
    await engine.start(id)
    logs.follow(engine, id, WEB)
    return id


async def test_numbered_lines_arrive_in_order_once_and_soon(
    engine: EngineClient, logs: ContainerLogs, sink: Collected
) -> None:
    began = time.time_ns()
    id = await start(engine, logs, "count", "40", "20ms")
    await until(lambda: len(sink.texts()) >= 40)
    assert sink.texts() == [f"line {number}" for number in range(1, 41)]
    times = [line.time for line in sink.lines[WEB]]
    assert times == sorted(times)
    assert began - 1e9 < times[0] < times[-1] < time.time_ns()
    assert times[-1] - times[0] > 0.3e9  # they were written over 0.8 s
    await engine.stop(id, 1)


async def test_lines_come_from_both_streams_and_the_last_without_a_follower(
    engine: EngineClient, logs: ContainerLogs, sink: Collected
) -> None:
    id = await start(engine, logs, "both")
    await settled(engine, id, "exited")
    await until(lambda: len(sink.texts()) >= 2)
    assert {(line.stream, line.text) for line in sink.lines[WEB]} == {(STDOUT, "to stdout"), (STDERR, "to stderr")}


async def test_nothing_is_lost_or_repeated_over_restarts_of_container_and_engine(
    podman: Podman, engine: EngineClient, logs: ContainerLogs, sink: Collected
) -> None:
    id = await start(engine, logs, "count", "80", "20ms")
    await until(lambda: len(sink.texts()) >= 80)
    await engine.stop(id, 1)
    await logs.finish(
        [id]
    )  # Podman may skip lines of a container that is started again before it has read the last ones
    await engine.start(id)
    logs.follow(engine, id, WEB)
    await until(lambda: len(sink.texts()) >= 90)
    await asyncio.to_thread(podman.stop)
    assert len(sink.texts()) < 161  # so some are written while nobody can read them
    await asyncio.to_thread(podman.start)
    await until(lambda: len(sink.texts()) >= 161)
    await engine.remove(id)
    logs.leave(id)
    lines = [f"line {number}" for number in range(1, 81)]
    assert sink.texts() == [*lines, "stopped", *lines]


async def test_the_last_lines_before_a_removal_arrive(
    engine: EngineClient, logs: ContainerLogs, sink: Collected
) -> None:
    id = await start(engine, logs, "count", "100000", "5ms")
    await until(lambda: len(sink.texts()) >= 50)
    await engine.stop(id, 5)
    await logs.finish([id])
    await engine.remove(id)
    logs.leave(id)
    *lines, last = sink.texts()
    assert last == "stopped"
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]


async def test_hostile_output_becomes_harmless_lines(
    engine: EngineClient, logs: ContainerLogs, sink: Collected
) -> None:
    await start(engine, logs, "hostile")
    await until(lambda: any(text.endswith("…") for text in sink.texts()))
    assert sink.texts()[0] == "\ufffd\ufffd\x00binary\ufffd"
    assert max(map(len, sink.texts())) <= 16385
    assert not any("\n" in text for text in sink.texts())


async def test_a_flood_is_bounded_counted_and_does_not_delay_others(
    engine: EngineClient, logs: ContainerLogs, sink: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_logs, "RATE", 400_000)  # which Podman exceeds on any machine
    flood = await engine.create("flood", body("flood"))
    await engine.start(flood)
    logs.follow(engine, flood, LOUD)
    await start(engine, logs, "count", "50", "40ms")
    began = time.monotonic()
    await until(lambda: len(sink.texts()) >= 50)
    assert sink.texts() == [f"line {number}" for number in range(1, 51)]
    await until(lambda: any(line.text.startswith(NOTICE) for line in sink.lines.get(LOUD, [])))
    seconds = time.monotonic() - began
    size = sum(len(line.text) for line in sink.lines[LOUD])
    assert size < 500_000 * (seconds + 4)
    await engine.remove(flood)
    logs.leave(flood)
