"""The newest lines of every instance, in memory. Entry point: `Ring`."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from msgspec import Struct

from datum_compute.federation.lines import Line, Origin
from datum_compute.telemetry.sources import Entry, Labels

MOST_LINES = 1000  # of an instance, over its generations
MOST_BYTES = 256 * 1024
MOST_BYTES_TOGETHER = 32 * 1024 * 1024
MOST_ENDED = 500  # names of instances
KEEP_NANOSECONDS = 24 * 3600 * 1_000_000_000  # after the end of an instance

_LINE_BYTES = 64  # of a line in addition to its text
_GIVEN_UP_AT_ONCE = 16 * 1024  # bytes, so that not every line has to look for the largest instance
_MOST_LABELS = 64  # sets of labels that an instance remembers without need


class Place(Struct, frozen=True):
    """The name of an instance; it stays the same when the instance is replaced."""

    project: str
    namespace: str
    instance: str


class Listener(Protocol):
    """Hears what happens to all instances, at once; none of its methods waits."""

    def started(self, origin: Origin, time: int) -> None: ...

    def ended(self, origin: Origin, time: int) -> None: ...

    def added(self, project: str, entries: Sequence[Entry]) -> None:
        """New lines of one container."""
        ...

    def silent(self, city: str, reason: str) -> None: ...


class _Lines:
    """The lines of one place, oldest first."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.bytes = 0
        self.running: dict[Origin, int] = {}  # with the time of its first start
        self._labels: dict[tuple[Origin, str], Labels] = {}  # shared by all lines of a stream

    def labels(self, origin: Origin, stream: str) -> Labels:
        known = self._labels.get((origin, stream))
        if known is None:
            if len(self._labels) >= _MOST_LABELS:
                self._labels.clear()
            known = self._labels[origin, stream] = labels_of(origin, stream)
        return known

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.bytes += _size(entry)
        while len(self.entries) > MOST_LINES or self.bytes > MOST_BYTES:
            self.give_up()

    def give_up(self) -> None:
        self.bytes -= _size(self.entries.popleft())


class Ring:
    """Receives the lines of a provider (it is a `Sink`) and keeps the newest. `now` is in nanoseconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._places: dict[Place, _Lines] = {}
        self._ended: dict[Place, int] = {}  # in order of their end
        self._bytes = 0
        self._listeners: list[Listener] = []
        self.silent_cities: dict[str, str] = {}  # with the reason

    @property
    def bytes(self) -> int:
        return self._bytes

    # What a provider reports

    def started(self, origin: Origin, time: int) -> None:
        lines = self._place(origin)
        if origin in lines.running:
            return
        lines.running[origin] = time
        self._ended.pop(_place_of(origin), None)
        for listener in tuple(self._listeners):
            listener.started(origin, time)

    def ended(self, origin: Origin, time: int) -> None:
        place = _place_of(origin)
        lines = self._places.get(place)
        if lines is None or lines.running.pop(origin, None) is None:
            return
        for listener in tuple(self._listeners):
            listener.ended(origin, time)
        if not lines.running:
            self._ended[place] = time
        self._forget_ended()

    def add(self, origin: Origin, lines: Sequence[Line]) -> None:
        if not lines:
            return
        place = self._place(origin)
        before = place.bytes
        entries = [Entry(line.time, place.labels(origin, line.stream), line.text) for line in lines]
        for entry in entries:
            place.add(entry)
        self._bytes += place.bytes - before
        if not place.running:
            self._ended.setdefault(_place_of(origin), self._now())  # nobody will say that it ended
        for listener in tuple(self._listeners):
            listener.added(origin.project, entries)
        while self._bytes > MOST_BYTES_TOGETHER:
            self._shrink()

    def latest(self, origin: Origin, count: int) -> Sequence[Line]:
        lines = self._places.get(_place_of(origin))
        if lines is None:
            return []
        of_origin = (
            Line(entry.time, entry.labels.log_iostream, entry.text)
            for entry in reversed(lines.entries)
            if entry.labels.k8s_pod_uid == origin.generation and entry.labels.k8s_container_name == origin.container
        )
        return list(islice(of_origin, count))[::-1]

    def silent(self, city: str, reason: str) -> None:
        if self.silent_cities.get(city, "") == reason:
            return
        if reason:
            self.silent_cities[city] = reason
        else:
            del self.silent_cities[city]
        for listener in tuple(self._listeners):
            listener.silent(city, reason)

    # What readers see

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def entries(self, project: str, selects: Callable[[Labels], bool] = lambda labels: True) -> Iterator[Entry]:
        """The lines of streams of a project, those of each instance in the order in which they were written."""
        self._forget_ended()
        for place, lines in self._places.items():
            if place.project == project:
                yield from _selected(lines.entries, selects)

    def running(self, project: str) -> Iterator[tuple[Origin, int]]:
        """The containers that run, with the time of their first start."""
        for place, lines in self._places.items():
            if place.project == project:
                yield from lines.running.items()

    def _place(self, origin: Origin) -> _Lines:
        place = _place_of(origin)
        lines = self._places.get(place)
        if lines is None:
            lines = self._places[place] = _Lines()
        return lines

    def _shrink(self) -> None:
        """The instance with the most gives up its oldest lines."""
        largest = max(self._places.values(), key=_bytes_of)
        before = largest.bytes
        while largest.entries and before - largest.bytes < _GIVEN_UP_AT_ONCE:
            largest.give_up()
        self._bytes -= before - largest.bytes

    def _forget_ended(self) -> None:
        while self._ended:
            place, ended = next(iter(self._ended.items()))
            if len(self._ended) <= MOST_ENDED and ended + KEEP_NANOSECONDS > self._now():
                return
            del self._ended[place]
            self._bytes -= self._places.pop(place).bytes


def _selected(entries: Iterable[Entry], selects: Callable[[Labels], bool]) -> Iterator[Entry]:
    last, selected = None, False
    for entry in entries:
        if entry.labels is not last:  # most lines are of the same stream as the one before
            last, selected = entry.labels, selects(entry.labels)
        if selected:
            yield entry


def labels_of(origin: Origin, stream: str) -> Labels:
    return Labels(
        datum_workload_name=origin.workload,
        datum_instance_name=origin.instance,
        k8s_container_name=origin.container,
        log_iostream=stream,
        k8s_pod_uid=origin.generation,
        datum_namespace_name=origin.namespace,
        datum_placement_name=origin.placement,
        datum_city_code=origin.city,
    )


def _place_of(origin: Origin) -> Place:
    return Place(origin.project, origin.namespace, origin.instance)


def _size(entry: Entry) -> int:
    return sys.getsizeof(entry.text) + _LINE_BYTES


def _bytes_of(lines: _Lines) -> int:
    return lines.bytes
