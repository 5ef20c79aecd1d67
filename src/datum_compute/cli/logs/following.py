"""New lines as they are written, whatever happens to the connection. Entry point: `Follower`."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from datum_compute.cli.logs.entries import Dropped, Entry, Frame, Notice
from datum_compute.cli.logs.memory import Memory
from datum_compute.cli.logs.pages import LARGEST, SECOND, Request, newest, oldest_first
from datum_compute.cli.logs.window import ALL, Window, nanoseconds
from datum_compute.cli.shell.environment import Clock
from datum_compute.cli.shell.failures import Failure

OVERLAP = 2 * SECOND  # read again after a break
POLL_OVERLAP = 10 * SECOND  # read again by each poll: lines may arrive late where they are stored
_POLL_SHORTEST, _POLL_LONGEST, _POLL_STEP = 0.5, 2.0, 0.25
_RETRY_SHORTEST, _RETRY_LONGEST = 1.0, 5.0


class NotFollowed(Exception):
    """The server has no way to follow lines; they can only be asked for again and again."""


class Lost(Failure):
    """There is no connection to the server, or it broke; trying again may help.

    `reason` says why, in short. `crowded` if the server serves too many others.
    """

    def __init__(self, reason: str, failure: Failure | None = None, *, crowded: bool = False) -> None:
        details, next_command = (failure.details, failure.next_command) if failure is not None else ((), "")
        super().__init__(failure.message if failure else reason, details=details, next_command=next_command)
        self.reason = reason
        self.crowded = crowded


class Source(Protocol):
    def lines(self, request: Request) -> Sequence[Entry]:
        """Raises a `Failure`, which is `Lost` if trying again may help."""
        ...

    def tail(self, query: str, start: int, limit: int) -> AbstractContextManager[Iterator[Frame]]:
        """Entering it raises `NotFollowed` or a `Failure`, which is `Lost` if trying again may help; so is one while
        reading."""
        ...


class Screen(Protocol):
    def begin(self) -> None:
        """The first connection was made."""
        ...

    def show(self, entries: Sequence[Entry]) -> None:
        """Also called without lines from time to time, to find out whether somebody still reads."""
        ...

    def notice(self, notice: Notice) -> None: ...

    def dropped(self, dropped: Sequence[Dropped]) -> None: ...

    def lost(self, since: datetime, reason: str) -> None: ...

    def back(self, seconds: float) -> None: ...


def next_poll(before: float, *, full: bool, fresh: bool) -> float:
    """Seconds until the next poll: none after a full page, few after new lines, more the longer there are none."""
    if full:
        return 0.0
    return _POLL_SHORTEST if fresh else min(max(before, _POLL_SHORTEST) + _POLL_STEP, _POLL_LONGEST)


class Contact:
    """Whether the server answers. Both ends of a silence are reported once, however often it was tried between."""

    def __init__(self, screen: Screen, clock: Clock) -> None:
        self._screen = screen
        self._clock = clock
        self._heard = clock.now()
        self._tried = clock.monotonic()
        self._is_lost = False
        self._pause = 0.0  # seconds before the next try

    def try_(self) -> None:
        self._tried = self._clock.monotonic()

    def connect(self) -> None:
        """The server answers, perhaps without anything to tell yet."""
        if self._is_lost:
            self._is_lost = False
            self._screen.back((self._clock.now() - self._heard).total_seconds())

    def hear(self) -> None:
        self.connect()
        self._heard = self._clock.now()
        self._pause = 0.0

    def lose(self, reason: str) -> None:
        """A try failed, or a connection ended. That alone is not reported: servers end connections all the time."""
        if self._pause and not self._is_lost:
            self._is_lost = True
            self._screen.lost(self._heard, reason)
        is_short = self._clock.monotonic() - self._tried < _RETRY_SHORTEST
        self._clock.sleep(max(self._pause, _RETRY_SHORTEST if is_short else 0.0))
        self._pause = min(max(self._pause * 2, _RETRY_SHORTEST), _RETRY_LONGEST)


class Follower:
    """Shows lines until it is interrupted or refused."""

    def __init__(self, source: Source, query: str, screen: Screen, clock: Clock) -> None:
        self._source = source
        self._query = query
        self._screen = screen
        self._clock = clock
        self._memory = Memory(rounds=True)
        self._contact = Contact(screen, clock)
        self._oldest: int | None = None  # lines before it were left out on purpose
        self._silent: dict[str, int] = {}  # since when, by city

    def follow(self, window: Window) -> None:
        start, limit = window.start, window.tail
        if window.tail == ALL:
            for page in oldest_first(self._source.lines, Request(self._query, start)):
                self._show(page)
            start, limit = self._resume_at(start, OVERLAP), LARGEST
        elif window.tail > LARGEST:
            self._show(newest(self._source.lines, Request(self._query, start), window.tail))
            start, limit = self._resume_at(start, OVERLAP), LARGEST
        elif window.tail == 0:
            start = self._oldest = nanoseconds(self._clock.now())
        try:
            self._tail(start, limit)
        except NotFollowed:
            if not self._memory.latest and limit:
                self._show(newest(self._source.lines, Request(self._query, start), limit))
            self._screen.begin()
            self._poll(start)

    def _tail(self, start: int, limit: int) -> None:
        connected = False  # ever
        while True:
            repeated = connected
            self._memory.begin()
            self._contact.try_()
            reason = "the connection ended"
            try:
                with self._source.tail(self._query, start, limit) as frames:
                    self._contact.connect()
                    if not connected:
                        self._screen.begin()
                        connected = True
                    for frame in frames:
                        self._contact.hear()
                        self._take(frame, repeated=repeated)
            except NotFollowed as error:
                if not connected:
                    raise
                reason = str(error)
            except Lost as error:
                if not connected and error.crowded:
                    raise
                reason = error.reason
            self._contact.lose(reason)
            start, limit = self._resume_at(start, OVERLAP), max(limit, LARGEST)

    def _poll(self, start: int) -> None:
        interval, past = _POLL_SHORTEST, False
        while True:
            self._clock.sleep(interval)
            self._memory.begin()
            self._contact.try_()
            try:
                page = self._source.lines(Request(self._query, self._resume_at(start, 0 if past else POLL_OVERLAP)))
            except Lost as error:
                self._contact.lose(error.reason)
                interval = 0.0
                continue
            self._contact.hear()
            fresh = self._fresh(page, repeated=True)
            self._screen.show(fresh)
            full = len(page) >= LARGEST
            past = full and not fresh  # the overlap alone fills a page
            interval = next_poll(interval, full=full, fresh=bool(fresh))
            self._memory.forget_before(self._resume_at(start, POLL_OVERLAP + SECOND))

    def _take(self, frame: Frame, *, repeated: bool) -> None:
        entries = frame.entries
        if repeated:
            self._find_back(entries)
        self._screen.show(self._fresh(entries, repeated=repeated))
        self._memory.forget_before(self._resume_at(0, OVERLAP + SECOND))
        if frame.dropped_entries:
            self._screen.dropped(frame.dropped_entries)
        if frame.notice is not None:
            self._note(frame.notice)

    def _find_back(self, entries: Sequence[Entry]) -> None:
        """Cities that came back while there was no connection, which nobody reports."""
        for entry in entries if self._silent else ():
            city = entry.labels.place
            if entry.time > self._silent.get(city, entry.time):
                self._note(Notice("back", city, time=nanoseconds(self._clock.now())))

    def _note(self, notice: Notice) -> None:
        match notice.kind:
            case "silent":
                if notice.city in self._silent:
                    return  # a new connection repeats it
                self._silent[notice.city] = notice.time
            case "back":
                if self._silent.pop(notice.city, None) is None:
                    return
        self._screen.notice(notice)

    def _show(self, entries: Sequence[Entry]) -> None:
        self._screen.show(self._fresh(entries, repeated=False))

    def _fresh(self, entries: Sequence[Entry], *, repeated: bool) -> list[Entry]:
        """Lines to show. A reading that overlaps with an earlier one may begin before the oldest line to show."""
        if entries and self._oldest is None:
            self._oldest = entries[0].time
        if repeated and self._oldest is not None:
            entries = [entry for entry in entries if entry.time >= self._oldest]
        return self._memory.fresh(entries)

    def _resume_at(self, start: int, overlap: int) -> int:
        """Where to read on: a city that is silent has not written less than the others, but it was not read."""
        if not self._memory.latest:
            return start
        return max(min((self._memory.latest, *self._silent.values())) - overlap, start)
