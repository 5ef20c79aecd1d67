"""Lines that were read before, so that they are recognized when they are read again. Entry point: `Memory`."""

from collections import Counter
from collections.abc import Iterable

from datum_compute.cli.logs.entries import Entry

_LARGEST = 20_000  # lines to remember before the oldest are forgotten


class Memory:
    """A reading that repeats part of an earlier one repeats all lines of that part. So a line is new unless it was
    there as often before, and equal lines of one moment, which some engines write, are not lost."""

    def __init__(self) -> None:
        self._counts: Counter[Entry] = Counter()
        self._expected: Counter[Entry] = Counter()
        self.latest = 0  # the time of the newest line

    def begin(self) -> None:
        """A new reading begins: lines that were there before may come again."""
        self._expected = self._counts.copy()

    def fresh(self, entries: Iterable[Entry]) -> list[Entry]:
        """The lines that were not there before, which are remembered."""
        new = []
        for entry in entries:
            if self._expected[entry] > 0:
                self._expected[entry] -= 1
                continue
            self._counts[entry] += 1
            self.latest = max(self.latest, entry.time)
            new.append(entry)
        return new

    def forget_before(self, time: int) -> None:
        """Lines before this time are not read again. Called often, works when it is worth it."""
        if len(self._counts) > _LARGEST:
            self._counts = Counter({entry: count for entry, count in self._counts.items() if entry.time >= time})
            self._expected = Counter({entry: count for entry, count in self._expected.items() if entry.time >= time})
