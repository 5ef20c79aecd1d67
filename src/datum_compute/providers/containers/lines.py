"""Makes lines of what a container writes, without I/O. Entry points: `Joiner`, `CatchUp`, `Allowance`."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from datum_compute.federation.lines import Line
from datum_compute.providers.engine.streams import split_time

LONGEST_LINE = 16 << 10  # bytes
CUT = "…"
_SECOND = 1_000_000_000
_LATE = 10 * _SECOND  # no line arrives so long after it was written, unless it is read again


class Joiner:
    """Joins the frames of a log into lines. A line that is too long is cut, and one that is not UTF-8 mended."""

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}
        self._torn: set[str] = set()

    def add(self, stream: str, piece: bytes, begins: bool) -> Iterator[Line]:
        """The lines that end with a piece of a frame, at the times that the engine gives. To be read to the end."""
        time = 0
        if begins:
            time, piece = split_time(piece)
        if stream in self._torn:
            _, newline, piece = piece.partition(b"\n")
            if not newline:
                return
            self._torn.discard(stream)
        *ends, rest = piece.split(b"\n")
        for end in ends:
            pending = self._pending.pop(stream, None)
            yield pending.line(stream, end) if pending else Line(time, stream, _text(end))
        if rest:
            pending = self._pending.get(stream)
            if pending is None:
                pending = self._pending[stream] = _Pending(time)
            pending.add(rest)

    def tear(self, torn: frozenset[str]) -> list[Line]:
        """After a gap: what there was of lines ends here, and on the `torn` streams the next line begins only after a
        newline."""
        lines = [pending.line(stream, b"", cut=True) for stream, pending in self._pending.items()]
        self._pending.clear()
        self._torn = set(torn)
        return lines

    def finish(self) -> list[Line]:
        """What a container wrote last, without a newline."""
        lines = [pending.line(stream, b"") for stream, pending in self._pending.items()]
        self._pending.clear()
        return lines


class _Pending:
    """The beginning of a line."""

    def __init__(self, time: int) -> None:
        self._time = time
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data += data[: LONGEST_LINE + 1 - len(self._data)]

    def line(self, stream: str, end: bytes, *, cut: bool = False) -> Line:
        self.add(end)
        text = _text(bytes(self._data))
        return Line(self._time, stream, text if not cut or text.endswith(CUT) else text + CUT)


def _text(data: bytes) -> str:
    if len(data) <= LONGEST_LINE:
        return data.decode(errors="replace")
    end = LONGEST_LINE
    while end > LONGEST_LINE - 4 and data[end] & 0xC0 == 0x80:  # not inside a character
        end -= 1
    return data[:end].decode(errors="replace") + CUT


def line_time(engine: int, arrival: int, opened: int) -> int:
    """When a line was written. Some engines only know the second; a line that came after the log was `opened` was then
    written about when it arrived."""
    if engine and (engine % _SECOND or engine + _SECOND <= opened):
        return engine
    return max(arrival, engine)


def is_old(line: Line, opened: int) -> bool:
    """Whether a line was surely there before the log was opened."""
    return line.time + (0 if line.time % _SECOND else _SECOND) <= opened


class CatchUp:
    """Leaves out what is known of a log that is read again from a point before its end.

    An engine that gives nanoseconds tells exactly what is new. Of one that gives seconds, the backlog is collected and
    compared with the known lines; among equal lines it may be wrong. If nothing is known, the newest lines of the
    backlog are.
    """

    def __init__(self, known: Sequence[Line], opened: int, backlog: int) -> None:
        self._known = known
        self._opened = opened
        self._collected: deque[Line] = deque(maxlen=backlog)
        self._done = False
        self._exact = False
        self._newest = {line.stream: line.time for line in known}
        self._equal = Counter(line for line in known if line.time == self._newest[line.stream])

    @property
    def undecided(self) -> bool:
        return bool(self._collected)

    def add(self, line: Line) -> Sequence[Line]:
        """The lines that are new, now that this one came."""
        if self._done:
            return (line,)
        if line.time % _SECOND and self._known and not self._collected:
            self._exact = True
        if self._exact:
            return (line,) if self._is_new(line) else ()
        self._collected.append(line)
        if line.time > self._opened or (not self._known and not is_old(line, self._opened)):
            return self.decide()
        return ()

    def decide(self) -> Sequence[Line]:
        """The backlog is over."""
        collected = list(self._collected)
        self._collected.clear()
        self._done = self._done or bool(collected)
        return collected[overlap(self._known, collected) :]

    def _is_new(self, line: Line) -> bool:
        newest = self._newest.get(line.stream)
        if newest is None:
            return True
        if line.time == newest:
            self._equal[line] -= 1
        if line.time < newest or (line.time == newest and self._equal[line] >= 0):
            return False
        del self._newest[line.stream]  # all that follows is new, even if the engine's clock is set back
        return True


def overlap(known: Sequence[Line], backlog: Sequence[Line]) -> int:
    """How many lines at the beginning of a backlog are known: up to where it contains most of the known lines in their
    order, and then most of them next to each other. Of equal places it is the first, which is right if both begin with
    the log.

    What was written in a later second than the newest known line arrived is new. What was written long before it is
    known, even if the line was left out at the time.
    """
    if not known:
        return 0
    arrived = known[-1].time
    lowest, highest = 0, len(backlog)
    for index, line in enumerate(backlog):
        if line.time < arrived - _LATE:
            lowest = index + 1
        elif line.time > arrived:
            highest = index
            break
    best, most = lowest, (0, 0)
    for position in range(lowest + 1, highest + 1):
        if _same(known[-1], backlog[position - 1]) and min(position, len(known)) >= most[0]:
            found = _common(known, backlog, position)
            if found > most:
                best, most = position, found
    return best


def _common(known: Sequence[Line], backlog: Sequence[Line], position: int) -> tuple[int, int]:
    """How many of the last known lines are before a position, passing over what was left out; and how many are directly
    before it."""
    matched = adjacent = 0
    for index in range(position - 1, -1, -1):
        if _same(known[-1 - matched], backlog[index]):
            adjacent += matched == position - 1 - index
            matched += 1
            if matched == len(known):
                break
    return matched, adjacent


def _same(one: Line, other: Line) -> bool:
    return one.text == other.text and one.stream == other.stream


class Allowance:
    """So many bytes a second, and as many at once as make up a second. What is taken may exceed what is left: the next
    has to wait for it."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._level = rate
        self._at = 0.0

    def delay(self, now: float) -> float:
        """Seconds until something may be taken."""
        self._level = min(self._rate, self._level + (now - self._at) * self._rate)
        self._at = now
        return max(-self._level / self._rate, 0.0)

    def take(self, size: int) -> None:
        self._level -= size


class Gap(Struct):
    """What was left out since it was last said."""

    lines: int = 0
    size: int = 0

    def __str__(self) -> str:
        amount = f"{self.size / 1e6:.1f} MB" if self.size >= 100_000 else f"{self.size / 1e3:.1f} kB"
        return f"{NOTICE}{self.lines:,} lines ({amount}): the container writes faster than its log is read)"


NOTICE = "(left out here: "
