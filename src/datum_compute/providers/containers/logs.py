"""Follows the logs of containers into a sink. Entry point: `ContainerLogs`.

Whenever a log is opened, its last lines are read and those that the sink has are left out, so that nothing is lost or
repeated when an engine, a container or this process is restarted.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress

import structlog

from datum_compute.federation.lines import STDERR, Line, Origin, Sink
from datum_compute.providers.containers.lines import (
    NOTICE,
    Allowance,
    CatchUp,
    Gap,
    Joiner,
    is_old,
    line_time,
)
from datum_compute.providers.engine.interface import PODMAN, ContainerEngine, EngineError
from datum_compute.providers.engine.streams import Frames
from datum_compute.runtime.clock import Clock

log = structlog.get_logger(__name__)

BACKLOG = 1000  # lines
RATE = 2_000_000  # bytes a second that are parsed of one container
TOTAL_RATE = 8_000_000  # and of all together
_QUIET_RATE = 32_000  # that every container may write, however much others do
_PASSED_RATE, _TOTAL_PASSED_RATE = 8_000_000, 16_000_000  # that are passed over; the engine keeps the rest for us
_IDLE = 0.5  # seconds without a byte after which a backlog is over
_NOTICE_SECONDS = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0
_FAREWELL = 5.0  # seconds in which the last lines of a container that was removed may still arrive
_RUNNING = ("running", "paused", "restarting")


class ContainerLogs:
    """The followers of all containers. Used on one event loop."""

    def __init__(self, sink: Sink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._followers: dict[str, _Follower] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._parsed = Allowance(TOTAL_RATE)
        self._passed = Allowance(_TOTAL_PASSED_RATE)

    def follow(self, engine: ContainerEngine, id: str, origin: Origin) -> None:
        """A container runs. To be called whenever one was started or found running; again does no harm."""
        follower = self._followers.get(id)
        if follower is None:
            pace = _Pace(self._parsed, self._passed)
            follower = self._followers[id] = _Follower(engine, id, origin, self._sink, self._clock, pace)
            follower.task = asyncio.create_task(follower.run())
            self._tasks.add(follower.task)
            follower.task.add_done_callback(self._tasks.discard)
            follower.task.add_done_callback(_report)
        follower.again(engine)

    def leave(self, id: str) -> None:
        """A container was removed, or is no longer ours. Its last lines are still read."""
        follower = self._followers.pop(id, None)
        if follower is not None:
            follower.leave()

    async def finish(self, ids: Iterable[str]) -> None:
        """Waits until everything was read of containers that have ended. To be called before they are removed, because
        engines deliver lines late, and none after that; one that has too much to say is not waited for."""
        reading = [follower.idle.wait() for id in ids if (follower := self._followers.get(id)) is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await asyncio.gather(*reading)

    @property
    def followed(self) -> frozenset[str]:
        return frozenset(self._followers)

    async def close(self) -> None:
        self._followers.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Pace:
    """Decides which chunks of a log are parsed and which are passed over, and waits where neither may be."""

    def __init__(self, all_parsed: Allowance, all_passed: Allowance) -> None:
        self._quiet = Allowance(_QUIET_RATE)
        self._parsed = (Allowance(RATE), all_parsed)
        self._passed = (Allowance(_PASSED_RATE), all_passed)

    async def admits(self, size: int, backlog: bool) -> bool:
        now = asyncio.get_running_loop().time()
        if not self._quiet.delay(now):
            self._quiet.take(size)
            return True
        if backlog:
            await self._wait(self._parsed)
        elif any(allowance.delay(now) for allowance in self._parsed):
            await self._wait(self._passed)
            self._take(self._passed, size)
            return False
        self._take(self._parsed, size)
        return True

    async def _wait(self, allowances: tuple[Allowance, ...]) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(allowance.delay(loop.time()) for allowance in allowances))

    def _take(self, allowances: tuple[Allowance, ...], size: int) -> None:
        for allowance in allowances:
            allowance.take(size)


class _Follower:
    """Follows one container until it is left."""

    def __init__(self, engine: ContainerEngine, id: str, origin: Origin, sink: Sink, clock: Clock, pace: _Pace) -> None:
        self.task: asyncio.Task[None] | None = None
        self._engine = engine
        self._id = id
        self._origin = origin
        self._sink = sink
        self._clock = clock
        self._pace = pace
        self._wanted = asyncio.Event()
        self.idle = asyncio.Event()  # set while there is nothing to read
        self._leaving = False
        self._joiner = Joiner()
        self._newest: dict[str, int] = {}  # time of the last line, by stream
        self._gap = Gap()
        self._next_notice = 0.0

    def again(self, engine: ContainerEngine) -> None:
        self._engine = engine
        self.idle.clear()
        self._wanted.set()

    def leave(self) -> None:
        self._leaving = True
        self._wanted.set()
        if self.task is not None:
            asyncio.get_running_loop().call_later(_FAREWELL, self.task.cancel)

    async def run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._leaving:
            self._wanted.clear()
            began = asyncio.get_running_loop().time()
            if await self._read_to_the_end():
                pause = _FIRST_PAUSE
                if not self._wanted.is_set():
                    self.idle.set()
                    await self._wanted.wait()
                continue
            if asyncio.get_running_loop().time() - began > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _read_to_the_end(self) -> bool:
        """Reads the log once; returns whether the container has ended, so that there is no more to read."""
        opened = self._now()
        known = [line for line in self._sink.latest(self._origin, BACKLOG) if not line.text.startswith(NOTICE)]
        self._newest = {line.stream: line.time for line in known}
        self._joiner, news = Joiner(), CatchUp(known, opened, BACKLOG)
        try:
            with suppress(EngineError):  # whoever looks after the engine says that it is away
                await self._read(news, opened)
            ended = await self._has_ended()
        except EngineError:
            ended = False
        # Without a newline at its end a line may still be growing, and is read again when the container goes on.
        last = self._joiner.finish() if ended else []
        self._deliver([*_new(news, last), *news.decide()], opened)
        self._report_gap()
        return ended

    async def _has_ended(self) -> bool:
        found = await self._engine.inspect(self._id)
        return found is None or found.state.status not in _RUNNING

    async def _read(self, news: CatchUp, opened: int) -> None:
        frames, live, begun = Frames(), False, False
        # All of it where something would be missing otherwise. The engine bounds its size.
        tail = None if self._engine.info.product == PODMAN else BACKLOG
        async with aclosing(self._engine.logs(self._id, tail)) as chunks:
            while True:
                if begun and (news.undecided or not live):
                    reading = asyncio.ensure_future(anext(chunks, b""))
                    if not await _within(reading, _IDLE):
                        live = True
                        self._deliver(news.decide(), opened)
                    chunk = await reading
                else:
                    chunk = await anext(chunks, b"")
                if not chunk:
                    return
                begun = True
                if not await self._pace.admits(len(chunk), backlog=not live):
                    self._pass_over(frames, chunk, opened)
                    continue
                lines = [line for piece in frames.feed(chunk) for line in self._joiner.add(*piece)]
                live = live or any(not is_old(line, opened) for line in lines)
                self._deliver(_new(news, lines), opened)

    def _pass_over(self, frames: Frames, chunk: bytes, opened: int) -> None:
        lines, torn = frames.skip(chunk)
        beginnings = self._joiner.tear(torn)
        self._gap.lines += max(lines - len(beginnings), 0)
        self._gap.size += len(chunk)
        self._deliver(beginnings, opened)

    def _deliver(self, lines: Sequence[Line], opened: int) -> None:
        if not lines:
            return
        arrival = self._now()
        delivered = [
            Line(self._in_order(line.stream, line_time(line.time, arrival, opened)), line.stream, line.text)
            for line in lines
        ]
        if asyncio.get_running_loop().time() >= self._next_notice:
            self._report_gap()
        self._sink.add(self._origin, delivered)

    def _in_order(self, stream: str, time: int) -> int:
        """Readers sort by time, and lines of a stream must not change places when only their second is known."""
        self._newest[stream] = max(time, self._newest.get(stream, 0))
        return self._newest[stream]

    def _report_gap(self) -> None:
        if self._gap.size:
            self._sink.add(self._origin, [Line(self._in_order(STDERR, self._now()), STDERR, str(self._gap))])
            self._gap = Gap()
            self._next_notice = asyncio.get_running_loop().time() + _NOTICE_SECONDS

    def _now(self) -> int:
        return round(self._clock.now().timestamp() * 1_000_000) * 1000


def _new(news: CatchUp, lines: Iterable[Line]) -> list[Line]:
    return [line for read in lines for line in news.add(read)]


async def _within(reading: "asyncio.Future[bytes]", seconds: float) -> bool:
    """Whether something was read in time; what has not been goes on being read, unless this is cancelled."""
    try:
        return bool((await asyncio.wait([reading], timeout=seconds))[0])
    except asyncio.CancelledError:
        reading.cancel()
        await asyncio.wait([reading])
        raise


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the log of a container is no longer followed", exc_info=error)
