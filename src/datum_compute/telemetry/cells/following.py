"""Everything that Instances write from now on, wherever they run. Entry point: `Following`."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import structlog

from datum_compute.federation.lines import nanoseconds
from datum_compute.kube.errors import ApiError
from datum_compute.runtime import Clock
from datum_compute.telemetry.cells.items import Items
from datum_compute.telemetry.cells.site_lines import Budget, Memory, Splitter, parsed
from datum_compute.telemetry.cells.sites import (
    Question,
    Sites,
    Trouble,
    answered_lines,
    first_line,
    log_call,
    trouble_of,
)
from datum_compute.telemetry.cells.targets import Target
from datum_compute.telemetry.sources import Dropped, Entry, Labels, Notice, SourceAway

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
PROBE_SECONDS = 10.0
BACKLOG_SECONDS = 3.0  # for the lines before the first; a site that takes longer delivers them later
REPLACED_SECONDS = 10.0  # in which a successor may appear before an Instance counts as gone
LAST_SECONDS = 60.0  # for the last lines of an Instance that is gone
REPORT_SECONDS = 1.0  # between two reports of lines that were given up
STREAM_BYTES = 2 * 1024 * 1024  # per second
OWN_BYTES = 64 * 1024  # per second of a live stream, whatever all others take

_log = structlog.get_logger(__name__)


class _Site:
    """A site as the reader knows it."""

    def __init__(self, cell: str, city: str, ready: bool) -> None:
        self.cell = cell
        self.city = city
        self.ready = ready
        self.silent = False
        self.heard = 0.0  # loop time
        self.reading: set[asyncio.Task[Any]] = set()


class _Stream:
    """One container of one generation of an Instance."""

    def __init__(self, target: Target, container: str) -> None:
        self.target = target
        self.container = container
        self.labels = target.labels(container)
        self.memory = Memory()
        self.wake = asyncio.Event()
        self.ended = False
        self.limited = False  # whether it begins with a limited number of lines
        self.current = False  # whether all lines up to now were read
        self.task: asyncio.Task[None] | None = None


class Following:
    """Keeps one stream open for each container that is selected. `look` is to be called when that may have changed."""

    def __init__(
        self,
        items: Items,
        sites: Sites,
        clock: Clock,
        *,
        select: Callable[[], Sequence[Target]],
        wants: Callable[[Labels], bool],
        passes: Callable[[str], bool],
        start: int,
        limit: int,
        budget: Budget,
    ) -> None:
        self._items = items
        self._sites = sites
        self._clock = clock
        self._select = select
        self._wants = wants
        self._passes = passes
        self._start = start
        self._limit = limit
        self._budget = budget
        self._changed = asyncio.Event()
        self._targets: dict[tuple[str, str], Target] = {}
        self._gone: dict[tuple[str, str], tuple[float, Target]] = {}  # until a successor appears, or time passes
        self._streams: dict[tuple[str, str, str, str], _Stream] = {}
        self._former: dict[tuple[str, str, str], _Stream] = {}  # by namespace, Instance and container
        self._known: dict[str, _Site] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def look(self) -> None:
        self._changed.set()

    def choose(self) -> None:
        """Raises `SourceAway` if it is not known what to follow."""
        self._targets = {target.key: target for target in self._select()}

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await self._begin()
            tasks.create_task(self._probe())
            while True:
                self._update()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._next_look()):
                        await self._changed.wait()
                self._changed.clear()

    # What is followed

    async def _begin(self) -> None:
        """Reads the newest lines of all streams together, before any of them goes on."""
        assert self._tasks is not None
        streams = [stream for target in self._targets.values() for stream in self._open(target)]
        for stream in streams:
            stream.limited = True
        reads = [self._tasks.create_task(self._catch_up(stream, emit=False)) for stream in streams]
        done, late = await asyncio.wait(reads, timeout=BACKLOG_SECONDS) if reads else (set(), set())
        for read in late:
            read.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for stream, read in zip(streams, reads, strict=True):
            if read in late:
                stream.memory = Memory()  # what it read was not delivered, so it is read again
        entries = sorted((entry for read in reads if read in done for entry in read.result()), key=_time)
        for entry in entries[-self._limit :] if self._limit else ():
            self._items.add(entry)
        for stream in streams:
            self._start_stream(stream)

    def _update(self) -> None:
        try:
            wanted = {target.key: target for target in self._select()}
        except SourceAway:
            return  # the hub was left for a moment; what is open goes on
        now = asyncio.get_running_loop().time()
        for key in self._targets.keys() - wanted.keys():
            self._gone[key] = (now + REPLACED_SECONDS, self._targets[key])
            self._leave(self._targets[key])
        for key, target in wanted.items():
            former = self._targets.get(key) or self._gone.pop(key, (0.0, None))[1]
            self._meet(former, target)
        self._targets = wanted
        for key, (until, target) in list(self._gone.items()):
            if now >= until:
                del self._gone[key]
                self._notice("left", target.city, target.instance, "is gone")
                for name in target.containers:
                    self._former.pop((*key, name), None)
        for site in self._known.values():
            self._look_at(site)

    def _meet(self, former: Target | None, target: Target) -> None:
        if former is None:
            self._notice("joined", target.city, target.instance, "began")
        elif former.generation != target.generation:
            self._leave(former)
            self._notice("generation", target.city, target.instance, f"replaced by generation {target.generation}")
        for stream in self._open(target):
            self._start_stream(stream)
        for name in target.containers:
            known = self._streams.get((*target.key, target.generation, name))
            if known is not None and known.target != target:
                known.target = target
                known.wake.set()

    def _open(self, target: Target) -> list[_Stream]:
        """New streams for the containers of a target that have none."""
        opened = []
        for name in target.containers:
            key = (*target.key, target.generation, name)
            if key in self._streams or not self._wants(target.labels(name)):
                continue
            self._streams[key] = stream = _Stream(target, name)
            self._site(target)
            opened.append(stream)
        return opened

    def _start_stream(self, stream: _Stream) -> None:
        assert self._tasks is not None
        stream.task = self._tasks.create_task(self._follow(stream))

    def _leave(self, target: Target) -> None:
        """An open stream runs to its end, for a while, and is not opened again."""
        for key, stream in list(self._streams.items()):
            if key[:3] == (*target.key, target.generation):
                del self._streams[key]
                self._former[*target.key, stream.container] = stream
                stream.ended = True
                stream.wake.set()
                if stream.task is not None:
                    asyncio.get_running_loop().call_later(LAST_SECONDS, stream.task.cancel)

    def _next_look(self) -> float | None:
        now = asyncio.get_running_loop().time()
        return max(0.0, min(until for until, _ in self._gone.values()) - now) if self._gone else None

    # One stream

    async def _follow(self, stream: _Stream) -> None:
        pause = FIRST_PAUSE
        while not stream.ended:
            if stream.target.readable:
                self._succeed(stream)
                before = stream.memory.newest
                if not stream.current:
                    await self._catch_up(stream, emit=True)
                if stream.current:
                    stream.current = False
                    await self._live(stream)
                if stream.memory.newest != before:
                    pause = FIRST_PAUSE
            with suppress(TimeoutError):
                async with asyncio.timeout(pause if stream.target.readable else None):
                    await stream.wake.wait()
                    pause = FIRST_PAUSE
            stream.wake.clear()
            pause = min(2 * pause, LONGEST_PAUSE)

    def _succeed(self, stream: _Stream) -> None:
        """Two runs cannot have one name: what the former stream still reads, if anything, is its successor's."""
        former = self._former.pop((*stream.target.key, stream.container), None)
        if former is not None and former is not stream:
            stream.memory = Memory(former.memory)
            if former.task is not None:
                former.task.cancel()

    async def _catch_up(self, stream: _Stream, *, emit: bool) -> list[Entry]:
        """Reads what is missing. Its answer also proves that the site answers."""
        target, memory = stream.target, stream.memory
        if not target.readable:
            return []
        site, door = self._site(target), self._sites.door(target.cell)
        if door is None:
            self._fall_silent(site, Trouble.AWAY)
            return []
        tail = max(self._limit, 1) if stream.limited and memory.newest is None else None
        question = Question(self._start if memory.since is None else memory.since, tail)
        memory.reopen()
        found: list[Entry] = []
        received = 0
        loop, pace = asyncio.get_running_loop(), Budget(STREAM_BYTES)
        try:
            async with aclosing(answered_lines(door, target, stream.container, question)) as lines:
                async for time, text, size in lines:
                    received += 1
                    now = loop.time()
                    if (pause := max(pace.spend(size, now), self._budget.spend(size, now))) > 0:
                        await asyncio.sleep(pause)
                    if not memory.is_new(time, text) or time < self._start or not self._passes(text):
                        continue
                    entry = Entry(time, stream.labels, text)
                    if emit:
                        self._items.add(entry)
                        await self._items.room()
                    else:
                        found.append(entry)
            if tail is not None and received >= tail:
                memory.cut()
            self._hear(site)
            stream.current = True
        except ApiError as error:
            self._fail(site, trouble_of(error), error)
        return found[-self._limit :] if self._limit else []

    async def _live(self, stream: _Stream) -> None:
        """Reads until the site ends the stream, or falls silent."""
        site, door = self._site(stream.target), self._sites.door(stream.target.cell)
        if door is None:
            return
        reading = asyncio.create_task(self._receive(stream, site), name="stream of a container")
        site.reading.add(reading)
        try:
            await asyncio.wait({reading})
            if not reading.cancelled() and (error := reading.exception()) is not None:
                if not isinstance(error, ApiError):
                    raise error
                self._fail(site, trouble_of(error), error)
        finally:
            site.reading.discard(reading)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _receive(self, stream: _Stream, site: _Site) -> None:
        target, memory = stream.target, stream.memory
        door = self._sites.door(target.cell)
        assert door is not None
        since = self._start if memory.since is None else memory.since
        memory.reopen()
        loop, splitter = asyncio.get_running_loop(), Splitter()
        pace, own = Budget(STREAM_BYTES), Budget(OWN_BYTES)
        lost, reported = 0, 0.0
        call = log_call(target, stream.container, Question(since, follow=True))
        async with door.pieces(call) as pieces:
            async for piece in pieces:
                self._hear(site)
                now = loop.time()
                size = len(piece)
                if not (pace.take(size, now) and (own.take(size, now) or self._budget.take(size, now))):
                    lost += splitter.skip(piece)
                    continue
                if lost and now - reported >= REPORT_SECONDS:
                    self._items.add(Dropped(stream.labels, self._now(), lost))
                    lost, reported = 0, now
                for line in splitter.feed(piece):
                    self._accept(stream, line)
                await self._items.room()
        if lost:
            self._items.add(Dropped(stream.labels, self._now(), lost))
        for line in splitter.end():
            self._accept(stream, line)

    def _accept(self, stream: _Stream, line: bytes) -> None:
        entry = parsed(line)
        if entry is None:
            return
        time, text = entry
        if stream.memory.is_new(time, text) and time >= self._start and self._passes(text):
            self._items.add(Entry(time, stream.labels, text))

    # Sites

    def _site(self, target: Target) -> _Site:
        site = self._known.get(target.cell)
        if site is None:
            site = self._known[target.cell] = _Site(target.cell, target.city, self._sites.ready(target.cell))
        return site

    def _look_at(self, site: _Site) -> None:
        was, site.ready = site.ready, self._sites.ready(site.cell)
        if was and not site.ready:
            self._fall_silent(site, Trouble.AWAY)
        elif site.ready and not was:
            for stream in self._streams.values():
                if stream.target.cell == site.cell:
                    stream.wake.set()

    def _hear(self, site: _Site) -> None:
        site.heard = asyncio.get_running_loop().time()
        if site.silent:
            site.silent = False
            self._notice("back", site.city, "", "the site answers again")
            for stream in self._streams.values():
                if stream.target.cell == site.cell:
                    stream.wake.set()

    def _fail(self, site: _Site, trouble: Trouble, error: ApiError) -> None:
        if not trouble.of_site:
            self._hear(site)
            return
        if not site.silent:
            _log.warning("logs of a cell cannot be read", cell=site.cell, error=str(error))
        self._fall_silent(site, trouble)

    def _fall_silent(self, site: _Site, trouble: Trouble) -> None:
        if not site.silent:
            site.silent = True
            self._notice("silent", site.city, "", trouble.value)
        for reading in list(site.reading):
            reading.cancel()

    async def _probe(self) -> None:
        """A stream without lines does not say whether its site still answers."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            now = asyncio.get_running_loop().time()
            quiet = [site for site in self._known.values() if site.reading and now - site.heard >= PROBE_SECONDS]
            await asyncio.gather(*map(self._try, quiet))

    async def _try(self, site: _Site) -> None:
        stream = next((stream for stream in self._streams.values() if stream.target.cell == site.cell), None)
        door = self._sites.door(site.cell)
        if stream is None or door is None:
            return
        try:
            await first_line(door, stream.target, stream.container)
            self._hear(site)
        except ApiError as error:
            self._fail(site, trouble_of(error), error)

    # To the reader

    def _notice(self, kind: str, city: str, instance: str, message: str) -> None:
        self._items.add(Notice(kind, city, instance, self._now(), message))

    def _now(self) -> int:
        return nanoseconds(self._clock.now())


def _time(entry: Entry) -> int:
    return entry.time
