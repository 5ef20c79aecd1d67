"""Lines that this process has in memory, or can work out. Entry point: `MemorySource`."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

from datum_compute.federation.lines import STDERR, STDOUT, Line
from datum_compute.telemetry.memory.follower import Follower
from datum_compute.telemetry.memory.lives import Lives, Span
from datum_compute.telemetry.memory.ring import Ring, labels_of
from datum_compute.telemetry.memory.simulated_lines import newest, oldest
from datum_compute.telemetry.merge import Item
from datum_compute.telemetry.query import Query
from datum_compute.telemetry.selection import Selection
from datum_compute.telemetry.sources import Entry, Labels, Reader, Window

_DELAY = 0.1
_LINES_AT_ONCE = 1000  # looked at before others get a turn

_Ranked = tuple[int, Entry]  # by time, without going back within a stream


class MemorySource:
    """Reads the lines of containers from a ring, and works out those of simulated ones. `now` is in nanoseconds."""

    delay = _DELAY
    remembers = True
    previous_runs = False

    def __init__(self, ring: Ring, lives: Lives, now: Callable[[], int], seed: int = 0) -> None:
        self._ring = ring
        self._lives = lives
        self._now = now
        self._seed = seed

    async def read(self, reader: Reader, query: Query, window: Window) -> Sequence[Entry]:
        selection = Selection(reader, query)
        entries = self._ring.entries(reader.project, selection.stream)
        stored = [entry for entry in entries if window.start <= entry.time < window.end]
        return await self._select(selection, stored, window)

    async def streams(self, reader: Reader, query: Query | None, start: int, end: int) -> Sequence[Labels]:
        selection, found, now = Selection(reader, query), dict[Labels, None](), self._now()
        for entry in self._ring.entries(reader.project, selection.stream):
            if start <= entry.time < end:
                found[entry.labels] = None
        for origin, began in self._ring.running(reader.project):
            if began < end and now >= start:
                found[labels_of(origin, STDOUT)] = None
        for span in self._lives.spans(reader.project):
            if span.life.start < end and (span.end is None or span.end > start) and now >= start:
                found[labels_of(span.life.origin, STDOUT)] = None
                if span.life.crashes:
                    found[labels_of(span.life.origin, STDERR)] = None
        return [labels for labels in found if selection.stream(labels)]

    @asynccontextmanager
    async def follow(self, reader: Reader, query: Query, start: int, limit: int) -> AsyncIterator[AsyncIterator[Item]]:
        selection, moment = Selection(reader, query), self._now()
        follower = Follower(selection, self._seed, self._now, start)
        # From here to the last statement before `await`, nothing else runs: no line is missed or comes twice.
        spans = list(self._lives.spans(reader.project))
        follower.prepare(
            (origin for origin, _ in self._ring.running(reader.project)),
            (span.life for span in spans if span.end is None),
            self._ring.silent_cities,
            moment,
        )
        self._ring.listen(follower)
        self._lives.listen(follower)
        try:
            entries = self._ring.entries(reader.project, selection.stream)
            stored = [entry for entry in entries if entry.time >= start]
            window = Window(start, moment, limit)
            yield follower.items(await self._select(selection, stored, window, spans))
        finally:
            self._ring.leave(follower)
            self._lives.leave(follower)

    async def _select(
        self, selection: Selection, stored: Sequence[Entry], window: Window, spans: Sequence[Span] | None = None
    ) -> list[Entry]:
        """The newest (or oldest) selected lines of those stored and those of simulated containers, in order of time."""
        if spans is None:
            spans = list(self._lives.spans(selection.project))
        ranked = [pair for pair in _ranked(stored) if selection.line(pair[1].text)]
        if window.backward:
            ranked = _last_of_each(ranked, window.limit)
        ranked.sort(key=_rank)
        if window.backward:
            ranked.reverse()
        lines = [self._simulated(span, window) for span in spans if selection.container(span.life.origin)]
        found: list[Entry] = []
        merged: Iterator[_Ranked] = heapq.merge(ranked, *lines, key=_rank, reverse=window.backward)
        for number, (_, entry) in enumerate(merged, 1):
            if selection.entry(entry):
                found.append(entry)
                if len(found) >= window.limit:
                    break
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found[::-1] if window.backward else found

    def _simulated(self, span: Span, window: Window) -> Iterator[_Ranked]:
        life = span.life
        end = min(window.end, self._now(), span.end if span.end is not None else window.end)
        lines: Iterator[Line] = (newest if window.backward else oldest)(life, self._seed, window.start, end)
        labels = {stream: labels_of(life.origin, stream) for stream in (STDOUT, STDERR)}
        for line in lines:
            yield line.time, Entry(line.time, labels[line.stream], line.text)


def _last_of_each(ranked: list[_Ranked], limit: int) -> list[_Ranked]:
    """Leaves out lines of each stream that cannot be among the newest, because sorting costs most."""
    if len(ranked) <= limit:
        return ranked
    found: list[_Ranked] = []
    counts: dict[int, int] = {}  # by the identity of labels, which the lines of a stream share
    for pair in reversed(ranked):
        stream = id(pair[1].labels)
        count = counts.get(stream, 0)
        if count < limit:
            counts[stream] = count + 1
            found.append(pair)
    return found[::-1]


def _ranked(entries: Iterable[Entry]) -> Iterator[_Ranked]:
    """With the time by which each takes its place: clocks may go back, but the order within a stream stays."""
    latest: dict[Labels, int] = {}
    last: Labels | None = None
    rank = 0
    for entry in entries:
        if entry.labels is not last:  # most lines are of the same stream as the one before
            if last is not None:
                latest[last] = rank
            last, rank = entry.labels, latest.get(entry.labels, entry.time)
        rank = max(rank, entry.time)
        yield rank, entry


def _rank(ranked: _Ranked) -> int:
    return ranked[0]
