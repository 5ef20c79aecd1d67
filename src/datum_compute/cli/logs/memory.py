"""Lines that were read before, so that they are recognized when they are read again. Entry point: `Memory`."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from datum_compute.cli.logs.entries import Entry, Labels

_SECOND = 1_000_000_000
_ROUNDING = _SECOND * 3 // 2  # from a whole second to when a line of that second has arrived
_LARGEST = 20_000  # lines to remember before the oldest are forgotten


class Memory:
    """A reading that repeats part of an earlier one repeats all lines of that part. So a line is new unless it was
    there as often before, and equal lines of one moment, which some engines write, are not lost.

    With `rounds`, a line may come again with its time cut down to the second: some engines keep no more of the time of
    a line than that, so a server that was restarted knows no more.
    """

    def __init__(self, *, rounds: bool = False) -> None:
        self._rounds = rounds
        self._counts: Counter[Entry] = Counter()
        self._expected: Counter[Entry] = Counter()
        self._times: dict[tuple[Labels, str], list[int]] | None = None  # of the lines that may come again, in order
        self.latest = 0  # the time of the newest line

    def begin(self) -> None:
        """A new reading begins: lines that were there before may come again."""
        self._expected = self._counts.copy()
        self._times = None

    def fresh(self, entries: Iterable[Entry]) -> list[Entry]:
        """The lines that were not there before, which are remembered."""
        new = []
        for entry in entries:
            former = self._former(entry)
            if former is not None:
                self._expected[former] -= 1
                continue
            self._counts[entry] += 1
            self.latest = max(self.latest, entry.time)
            new.append(entry)
        return new

    def _former(self, entry: Entry) -> Entry | None:
        """The line that this one repeats."""
        if self._expected[entry] > 0:
            return entry
        if not self._rounds or entry.time % _SECOND:
            return None
        if self._times is None:
            self._times = defaultdict(list)
            for known in sorted(self._expected, key=lambda known: known.time):
                self._times[known.labels, known.text].append(known.time)
        for time in self._times.get((entry.labels, entry.text), ()):
            former = Entry(time, entry.labels, entry.text)
            if 0 < time - entry.time <= _ROUNDING and self._expected[former] > 0:
                return former
        return None

    def forget_before(self, time: int) -> None:
        """Lines before this time are not read again. Called often, works when it is worth it."""
        if len(self._counts) > _LARGEST:
            self._counts = Counter({entry: count for entry, count in self._counts.items() if entry.time >= time})
            self._expected = Counter({entry: count for entry, count in self._expected.items() if entry.time >= time})
