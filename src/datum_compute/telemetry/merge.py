"""Lines of many streams on their way to one reader: put into order, and bounded. Entry point: `Merge`.

No line waits longer than the delay, so an earlier line of another stream that comes later than that is out of order.
"""

import heapq
import sys
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from datum_compute.telemetry.sources import Dropped, Entry, Labels, Notice

Item = Entry | Notice | Dropped

MOST_LINES = 10_000
MOST_BYTES = 4 * 1024 * 1024

_LINE_BYTES = 64  # of a line in addition to its text

_Rank = tuple[int, int]  # time, and arrival among equal times


class Batch(Struct, frozen=True):
    """What goes out next. Lines that were given up are counted by stream."""

    items: Sequence[Entry | Notice]
    dropped: Sequence[Dropped]

    def __bool__(self) -> bool:
        return bool(self.items or self.dropped)


class Merge:
    """`add` takes whatever a source delivers, at any rate; `take` returns what may go out. `delay` is in seconds.

    A line waits for `delay`, then goes out in the order of time and arrival; as long as there is only one stream, at
    once. Within a stream the order never changes, whatever the times say. When the reader is slow, lines wait up to the
    limits, then the oldest are given up.
    """

    def __init__(self, delay: float, most_lines: int = MOST_LINES, most_bytes: int = MOST_BYTES) -> None:
        self._delay = delay
        self._most_lines = most_lines
        self._most_bytes = most_bytes
        self._arrivals = 0
        self._waiting: list[tuple[_Rank, Entry | Notice]] = []  # a heap
        self._due: deque[tuple[float, _Rank]] = deque()  # in order of arrival; some may have gone out already
        self._released: deque[Entry | Notice] = deque()
        self._latest: dict[Labels, int] = {}  # by stream, the time of its last line, or that of an earlier one if later
        self._ended: set[Labels] = set()  # of those
        self._dropped: dict[Labels, tuple[int, int]] = {}  # time of the last line, and how many
        self._lines = self._bytes = 0

    def add(self, item: Item, now: float) -> None:
        match item:
            case Dropped():
                self._drop(item.labels, item.time, item.count)
                return
            case Entry():
                time = self._latest[item.labels] = max(item.time, self._latest.get(item.labels, 0))
                self._ended.discard(item.labels)
                self._lines += 1
                self._bytes += _size(item)
            case Notice():
                time = item.time
        self._arrivals += 1
        rank = (time, self._arrivals)
        heapq.heappush(self._waiting, (rank, item))
        alone = len(self._latest) - len(self._ended) <= 1
        self._due.append((now if alone else now + self._delay, rank))
        self._release(now)
        while self._lines > self._most_lines or self._bytes > self._most_bytes:
            self._give_up()

    def forget(self, left: Callable[[Labels], bool]) -> None:
        """For streams that have ended: nothing waits for them any longer."""
        self._ended |= set(filter(left, self._latest))

    def next_due(self) -> float | None:
        """When `take` returns something; None if nothing waits."""
        if self._released or self._dropped:
            return 0.0
        return self._due[0][0] if self._waiting else None

    def take(self, now: float, most_bytes: int) -> Batch:
        """Removes what may go out, in its order, up to about this size."""
        self._release(now)
        items: list[Entry | Notice] = []
        size = 0
        while self._released and size < most_bytes:
            item = self._released.popleft()
            items.append(item)
            if isinstance(item, Entry):
                size += self._left(item)
        dropped = [Dropped(labels, time, count) for labels, (time, count) in self._dropped.items()]
        self._dropped = {}
        return Batch(items, dropped)

    def _release(self, now: float) -> None:
        """Moves lines that have waited long enough, and those of an earlier time that arrived after them."""
        latest: _Rank | None = None
        while self._due and self._due[0][0] <= now:
            rank = self._due.popleft()[1]
            latest = rank if latest is None else max(latest, rank)
        if latest is None:
            return
        while self._waiting and self._waiting[0][0] <= latest:
            self._released.append(heapq.heappop(self._waiting)[1])
        if not self._waiting:  # until then a late line of an ended stream has to find its place
            for labels in self._ended:
                del self._latest[labels]
            self._ended.clear()

    def _give_up(self) -> None:
        """Gives up the oldest line. Notices stay: they are rare, and a reader who is late needs them most."""
        notices: list[Notice] = []
        while True:
            item = self._released.popleft() if self._released else heapq.heappop(self._waiting)[1]
            if isinstance(item, Entry):
                break
            notices.append(item)
        self._released.extendleft(reversed(notices))
        self._left(item)
        self._drop(item.labels, item.time, 1)

    def _drop(self, labels: Labels, time: int, count: int) -> None:
        self._dropped[labels] = (time, self._dropped.get(labels, (0, 0))[1] + count)

    def _left(self, entry: Entry) -> int:
        size = _size(entry)
        self._lines -= 1
        self._bytes -= size
        return size


def _size(entry: Entry) -> int:
    return sys.getsizeof(entry.text) + _LINE_BYTES
