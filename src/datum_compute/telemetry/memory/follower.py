"""One reader who follows what is in memory. Entry point: `Follower`."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from datum_compute.federation.lines import Origin
from datum_compute.federation.lives import Life
from datum_compute.telemetry.memory.ring import labels_of
from datum_compute.telemetry.memory.simulated_lines import next_time, oldest
from datum_compute.telemetry.merge import Item, Merge
from datum_compute.telemetry.presence import Presence
from datum_compute.telemetry.selection import Selection
from datum_compute.telemetry.sources import Entry, Notice

_TAKEN_BYTES = 256 * 1024


class Follower:
    """Hears of lines and instances as they come, and produces the lines of simulated ones when they are due.

    `now` is in nanoseconds. Nothing that reports to it waits: what its reader does not take is given up, the oldest
    first, and counted.
    """

    def __init__(self, selection: Selection, seed: int, now: Callable[[], int], start: int) -> None:
        self._selection = selection
        self._seed = seed
        self._now = now
        self._start = start
        self._queue = Merge(delay=0.0)  # keeps the order of arrival
        self._wake = asyncio.Event()
        self._presence = Presence()
        self._lives: list[tuple[int, int, Life]] = []  # a heap: when its next line is due, and a number
        self._ends: dict[str, int] = {}  # by generation; for lives with lines before their end
        self._count = 0
        self._silent: set[str] = set()

    def prepare(self, running: Iterable[Origin], lives: Iterable[Life], silent: dict[str, str], moment: int) -> None:
        """Begins with what is there; lines of `lives` before the moment are not produced."""
        for origin in running:
            if self._selection.container(origin):
                self._presence.came(origin, moment)
        for life in lives:
            if self._selection.container(life.origin):
                self._presence.came(life.origin, moment)
                self._expect(life, moment)
        for city, reason in silent.items():
            self.silent(city, reason)

    # What a ring reports

    def started(self, origin: Origin, time: int) -> None:
        if self._selection.container(origin) and (notice := self._presence.came(origin, time)) is not None:
            self._add(notice)

    def ended(self, origin: Origin, time: int) -> None:
        if self._selection.container(origin):
            self._presence.went(origin, asyncio.get_running_loop().time())
            self._wake.set()

    def added(self, project: str, entries: Sequence[Entry]) -> None:
        if project == self._selection.project:
            for entry in entries:
                if self._selection.entry(entry):
                    self._add(entry)

    def silent(self, city: str, reason: str) -> None:
        if not reason:
            if city in self._silent:
                self._silent.discard(city)
                self._add(Notice("back", city, "", self._now(), f"{city} answers again"))
            return
        cities = self._presence.cities
        if city not in self._silent and (city in cities if cities else self._selection.city(city)):
            self._silent.add(city)
            self._add(Notice("silent", city, "", self._now(), reason))

    # What simulated containers report

    def began(self, life: Life) -> None:
        if self._selection.container(life.origin):
            self.started(life.origin, self._now())
            self._expect(life, max(life.start, self._start))
            self._wake.set()

    def finished(self, life: Life, time: int) -> None:
        if self._selection.container(life.origin):
            self._ends[life.origin.generation] = time
            self.ended(life.origin, time)

    # What the reader takes

    async def items(self, backlog: Iterable[Entry]) -> AsyncIterator[Item]:
        for entry in backlog:
            yield entry
        while True:
            self._produce()
            batch = self._queue.take(0.0, _TAKEN_BYTES)
            for dropped in batch.dropped:
                yield dropped
            for item in batch.items:
                yield item
            if not batch:
                await self._wait()

    async def _wait(self) -> None:
        """Until something is reported or due."""
        loop = asyncio.get_running_loop()
        moments = []
        if self._lives:
            moments.append(loop.time() + max(self._lives[0][0] - self._now(), 0) / 1e9)
        if (departure := self._presence.next_departure()) is not None:
            moments.append(departure)
        timer = loop.call_at(min(moments), self._wake.set) if moments else None
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._wake.clear()

    def _produce(self) -> None:
        """Adds the lines of simulated containers that are due by now, and says who left."""
        now = self._now()
        while self._lives and self._lives[0][0] <= now:
            due, _, life = heapq.heappop(self._lives)
            end = self._ends.get(life.origin.generation)
            if end is not None and due >= end:
                continue
            for line in oldest(life, self._seed, due, due + 1):
                entry = Entry(line.time, labels_of(life.origin, line.stream), line.text)
                if self._selection.entry(entry):
                    self._add(entry)
            self._expect(life, due + 1)
        if not self._lives:
            self._ends.clear()
        for notice in self._presence.overdue(asyncio.get_running_loop().time(), now):
            self._add(notice)

    def _expect(self, life: Life, moment: int) -> None:
        self._count += 1
        heapq.heappush(self._lives, (next_time(life, self._seed, moment), self._count, life))

    def _add(self, item: Entry | Notice) -> None:
        self._queue.add(item, 0.0)
        self._wake.set()
