"""Lines as sites send them: `TIME TEXT`. Entry points: `Splitter`, `parsed`, `Memory`, `Budget`.

Everything here decides without I/O. Nothing grows with what a container writes.
"""

from collections import Counter, deque
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache

LONGEST = 16 * 1024
_HEAD = 64  # for the time in front of a line
_REMEMBERED = 4096


class Splitter:
    """Cuts what arrives into lines. Of one that is too long, only the beginning is kept, with a mark at its end."""

    def __init__(self) -> None:
        self._begun = bytearray()
        self._skipping = False  # up to the end of the line

    def feed(self, piece: bytes) -> Iterator[bytes]:
        if self._skipping:
            _, newline, piece = piece.partition(b"\n")
            self._skipping = not newline
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._extend(end)
            yield self._line()
        self._extend(rest)

    def end(self) -> Iterator[bytes]:
        """What came after the last newline."""
        if self._begun:
            yield self._line()

    def skip(self, piece: bytes) -> int:
        """Gives up a piece, and the line that goes on after it; returns how many lines that makes."""
        is_within = not piece.endswith(b"\n")
        lines = piece.count(b"\n") + (is_within and not self._skipping)
        self._skipping = is_within
        self._begun.clear()
        return lines

    def _extend(self, part: bytes) -> None:
        self._begun += part[: max(LONGEST + _HEAD - len(self._begun), 0)]

    def _line(self) -> bytes:
        line = bytes(self._begun)
        self._begun.clear()
        return line


def parsed(line: bytes) -> tuple[int, str] | None:
    """Time in nanoseconds and text; None for a line without a time, such as a message of the site's own."""
    stamp, space, text = line.partition(b" ")
    time = nanoseconds(stamp)
    if time is None or (not space and text):
        return None
    if len(text) > LONGEST:
        return time, text[:LONGEST].decode("utf-8", "ignore") + "…"
    return time, text.decode("utf-8", "replace")


def nanoseconds(stamp: bytes) -> int | None:
    """A time such as 2026-11-16T11:03:12.955123456Z, exactly; None if it is none."""
    second, rest = stamp[:19], stamp[19:]
    fraction = b""
    if rest.startswith(b"."):
        digits = len(rest) - 1 - len(rest[1:].lstrip(b"0123456789"))
        fraction, rest = rest[1 : 1 + digits], rest[1 + digits :]
        if not 0 < digits <= 9:
            return None
    seconds = _whole_seconds(second, rest)
    if seconds is None:
        return None
    return seconds * 1_000_000_000 + int(fraction.ljust(9, b"0") or 0)


@lru_cache(maxsize=256)  # lines come many to a second
def _whole_seconds(second: bytes, zone: bytes) -> int | None:
    if len(second) != 19 or second[10:11] != b"T" or (zone != b"Z" and len(zone) != 6):
        return None
    try:
        moment = datetime.fromisoformat((second + (b"+00:00" if zone == b"Z" else zone)).decode("ascii"))
    except ValueError:
        return None
    return int(moment.astimezone(UTC).timestamp())


def written(time: int) -> str:
    """A time for a site, which cuts it to seconds."""
    return datetime.fromtimestamp(time // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Memory:
    """The last lines of a container that were seen, so that none is repeated when a stream is opened again.

    A site counts times in seconds when it is asked for lines since some time, so it sends some of them again. Lines
    that were seen as those of a `former` container of the same name are not repeated either: the hub may learn later
    than a reader that an Instance was replaced.
    """

    def __init__(self, former: "Memory | None" = None) -> None:
        self._lines: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        self._former = tuple(former._lines) if former is not None else ()
        self._expected: Counter[tuple[int, int]] = Counter()
        self._is_cut = False  # whether there are older lines that were left out
        self._oldest = -1
        self._before = False  # the first remembered line has not come again yet

    @property
    def newest(self) -> int | None:
        """The time of the newest line, None before the first."""
        return max((time for time, _ in self._lines), default=None)

    @property
    def since(self) -> int | None:
        """From when to read on: every line that may be missing is not older."""
        newest = self.newest
        return None if newest is None else newest - newest % 1_000_000_000

    def cut(self) -> None:
        """Lines before those that are remembered now were left out, and are not wanted later either."""
        self._is_cut = True

    def reopen(self) -> None:
        """What comes next begins anew, so the remembered lines are expected once more."""
        self._expected = Counter(self._lines)
        self._expected.update(self._former)
        is_cut = self._is_cut or len(self._lines) == _REMEMBERED
        self._oldest = min((time for time, _ in self._lines), default=-1) if is_cut else -1
        self._before = is_cut

    def is_new(self, time: int, text: str) -> bool:
        """Whether a line was not seen before; it is then remembered."""
        line = (time, hash(text))
        if self._expected[line] > 0:
            self._expected[line] -= 1
            self._before = False
            return False
        if time < self._oldest or (time == self._oldest and self._before):  # left out, or forgotten since
            return False
        self._lines.append(line)
        return True


class Budget:
    """How much may be read in a second. Times are those of the loop."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._left = float(rate)
        self._at = 0.0

    def take(self, amount: int, now: float) -> bool:
        """False, and nothing is taken, while what was taken before is too much."""
        self._refill(now)
        if self._left <= 0:
            return False
        self._left -= amount
        return True

    def spend(self, amount: int, now: float) -> float:
        """Takes it in any case; returns for how many seconds to pause."""
        self._refill(now)
        self._left -= amount
        return max(0.0, -self._left / self._rate)

    def _refill(self, now: float) -> None:
        self._left = min(float(self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
