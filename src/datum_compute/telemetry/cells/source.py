"""Logs of Instances, read live at their sites. Entry point: `CellSource`.

Nothing is stored here: what a site forgot is gone.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Protocol
from weakref import WeakValueDictionary

from msgspec import Struct

from datum_compute.federation.lines import nanoseconds
from datum_compute.kube.errors import ApiError
from datum_compute.runtime import Clock
from datum_compute.telemetry.cells.following import Following
from datum_compute.telemetry.cells.items import Items
from datum_compute.telemetry.cells.site_lines import Budget
from datum_compute.telemetry.cells.sites import Question, Sites, Trouble, answered_lines, trouble_of
from datum_compute.telemetry.cells.targets import Target
from datum_compute.telemetry.query import Query, line_matches, matches
from datum_compute.telemetry.sources import Dropped, Entry, Labels, Notice, Partial, Reader, SourceAway, Window

BYTES_OF_A_STREAM = 2 * 1024 * 1024  # per second
BYTES_IN_ALL = 8 * 1024 * 1024
_READS_AT_ONCE = 32
_READS_OF_A_PROJECT = 8  # so that a site that hangs holds up only those who wait for it


class Instances(Protocol):
    """The Instances that a project has."""

    def targets(self, reader: Reader) -> Sequence[Target]:
        """Raises `SourceAway` while they are not known."""
        ...

    def subscribe(self, project: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls back when they may have changed; the returned function unsubscribes."""
        ...


class _Container(Struct, frozen=True):
    target: Target
    name: str
    labels: Labels


def _silent_cities(containers: Sequence[_Container], answers: Sequence[Iterable[Entry] | Trouble]) -> Iterator[str]:
    for container, answer in zip(containers, answers, strict=True):
        if isinstance(answer, Trouble) and answer.of_site:
            yield container.labels.datum_city_code


class CellSource:
    """A `Source` over live sites. What one of them cannot tell is left out, or reported to those who follow."""

    delay = 0.3
    remembers = False
    previous_runs = True

    def __init__(self, instances: Instances, sites: Sites, clock: Clock) -> None:
        self._instances = instances
        self._sites = sites
        self._clock = clock
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # of projects that read
        self._budget = Budget(BYTES_IN_ALL)

    async def streams(self, reader: Reader, query: Query | None, start: int, end: int) -> Sequence[Labels]:
        return [container.labels for container in self._chosen(reader, query) if container.target.readable]

    async def read(self, reader: Reader, query: Query, window: Window) -> Sequence[Entry]:
        chosen = [container for container in self._chosen(reader, query) if container.target.readable]
        silent: set[str] = set()  # cells, so that each is waited for only once
        share = self._shares.setdefault(reader.project, asyncio.Semaphore(_READS_OF_A_PROJECT))
        answers = await asyncio.gather(*(self._window(container, query, window, silent, share) for container in chosen))
        troubles = [answer for answer in answers if isinstance(answer, Trouble) and answer.of_site]
        if troubles and len(troubles) == len(answers):
            raise SourceAway(f"{troubles[0].value}; try again in a moment")
        entries = [entry for answer in answers if not isinstance(answer, Trouble) for entry in answer]
        entries.sort(key=lambda entry: entry.time)
        entries = entries[-window.limit :] if window.backward else entries[: window.limit]
        return Partial(entries, _silent_cities(chosen, answers))

    @asynccontextmanager
    async def follow(
        self, reader: Reader, query: Query, start: int, limit: int
    ) -> AsyncIterator[AsyncIterator[Entry | Notice | Dropped]]:
        items = Items()
        following = Following(
            items,
            self._sites,
            self._clock,
            select=lambda: self._targets(reader, query),
            wants=lambda labels: matches(labels.values(), query),
            passes=lambda text: line_matches(text, query),
            start=start,
            limit=limit,
            budget=self._budget,
        )
        following.choose()
        unsubscribe = self._instances.subscribe(reader.project, following.look)
        task = asyncio.create_task(following.run(), name=f"logs of {reader.project}")
        task.add_done_callback(items.end)
        try:
            yield items
        finally:
            unsubscribe()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _targets(self, reader: Reader, query: Query) -> Sequence[Target]:
        found = self._instances.targets(reader)
        return [
            target
            for target in found
            if any(matches(target.labels(name).values(), query) for name in target.containers)
        ]

    def _chosen(self, reader: Reader, query: Query | None) -> list[_Container]:
        containers = (
            _Container(target, name, target.labels(name))
            for target in self._instances.targets(reader)
            for name in target.containers
        )
        return [found for found in containers if query is None or matches(found.labels.values(), query)]

    async def _window(
        self, container: _Container, query: Query, window: Window, silent: set[str], share: asyncio.Semaphore
    ) -> Iterable[Entry] | Trouble:
        """The lines of one container, at most as many as the window has; or why there are none."""
        async with share, self._reads:
            if container.target.cell in silent:
                return Trouble.AWAY
            now = nanoseconds(self._clock.now())
            tail = window.limit if window.backward and not query.filters and window.end >= now - 10**9 else None
            found, received = await self._fetched(container, query, window, tail)
            is_cut = tail is not None and received >= tail and not isinstance(found, Trouble) and len(found) < tail
            if is_cut:  # some of the newest lines are younger than the window, so older ones are missing
                found, _ = await self._fetched(container, query, window, None)
            if found is Trouble.AWAY:
                silent.add(container.target.cell)
            return found

    async def _fetched(
        self, container: _Container, query: Query, window: Window, tail: int | None
    ) -> tuple[deque[Entry] | Trouble, int]:
        """Lines, and how many the site sent."""
        door = self._sites.door(container.target.cell)
        if door is None:
            return Trouble.AWAY, 0
        loop, budget = asyncio.get_running_loop(), Budget(BYTES_OF_A_STREAM)
        found: deque[Entry] = deque(maxlen=window.limit if window.backward else None)
        received = 0
        question = Question(window.start, tail, window.previous)
        try:
            async with aclosing(answered_lines(door, container.target, container.name, question)) as lines:
                async for time, text, size in lines:
                    received += 1
                    now = loop.time()
                    if (pause := max(budget.spend(size, now), self._budget.spend(size, now))) > 0:
                        await asyncio.sleep(pause)
                    if window.start <= time < window.end and line_matches(text, query):
                        found.append(Entry(time, container.labels, text))
                        if not window.backward and len(found) >= window.limit:
                            break
        except ApiError as error:
            return trouble_of(error), received
        return found, received
