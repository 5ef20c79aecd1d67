"""When two parties undo each other's writes, ours become rare. Entry points: `Damper`, `Damped`.

A fight looks different from progress, however fast that is. In a fight the same thing is written to the same object
again and again, because in between somebody else changed it back, deleted what was created, or created what was
deleted. Progress writes something new, or finds the object as it was left. So a write counts when it repeats an earlier
one of the last minute, to the letter and for the same generation of the same object (one that was deleted and created
again asks anew), and when what is written is not as its author left it. What a controller undoes itself, as when it
deletes what it created for somebody who is gone, is no fight either. More than ten of those in a minute are one: from
then on there is one write per minute, until for a whole minute nobody wants it any more.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from msgspec import Struct

from datum_compute.kube.errors import ApiError
from datum_compute.runtime.requests import Request

LIMIT = 10
WINDOW = 60.0
REMEMBERED = 20_000
_OVER = 2 * WINDOW  # what was not written for so long is forgotten: whoever waits for the end of a window has come back

V = TypeVar("V")


class Author(Struct, frozen=True):
    """Who writes and for what: a request of a controller, and the uid and generation of the object that it names."""

    request: Request
    asked: tuple[str, int | None] | None  # None: the object is not there, or no source says what the request names


author: ContextVar[Author | None] = ContextVar("author", default=None)  # of the running pass


class Damped(ApiError):
    """A write that was not made, because it would only be undone again; `retry_after` says when it may be."""

    code, reason, retryable = 429, "Damped", True


class _Trail:
    """When a write was made, and whether it is wanted more often than it may be."""

    __slots__ = ("damped", "refused", "times")

    def __init__(self) -> None:
        self.times: list[float] = []  # the last ones, at most `LIMIT`
        self.damped = False
        self.refused = False  # since it was last made


class Damper:
    """Knows a write by a key of the caller's choice: a hash of everything that makes two writes the same."""

    def __init__(self) -> None:
        self._trails: OrderedDict[int, _Trail] = OrderedDict()
        self._left: OrderedDict[int, tuple[str, float]] = OrderedDict()  # how it was left, and when
        self._deeds: OrderedDict[int, tuple[int, float]] = OrderedDict()  # how often it was done, and when it was last

    def pause(self, key: int, now: float) -> float:
        """Seconds until the write may be made; 0 when it may be made now."""
        trail = self._trails.get(key)
        if trail is None:
            return 0.0
        left = trail.times[-1] + WINDOW - now
        if trail.damped and left <= 0:
            if not trail.refused:
                del self._trails[key]  # nobody asked for a whole window: whatever it was is over
            return 0.0
        if trail.damped or (len(trail.times) == LIMIT and now - trail.times[0] < WINDOW):
            trail.damped = trail.refused = True
            return left
        return 0.0

    def is_damped(self, key: int) -> bool:
        trail = self._trails.get(key)
        return trail is not None and trail.damped

    def made(self, key: int, now: float) -> None:
        trail = self._trails.get(key)
        if trail is None:
            trail = self._trails[key] = _Trail()
        else:
            self._trails.move_to_end(key)
        trail.times = [*trail.times[1 - LIMIT :], now]
        trail.refused = False
        _shorten(self._trails, lambda trail: trail.times[-1] < now - _OVER)

    def leaves(self, place: int, version: str, now: float) -> None:
        """Notes how an author left an object; `place` stands for both."""
        self._left[place] = (version, now)
        self._left.move_to_end(place)
        _shorten(self._left, lambda left: left[1] < now - _OVER)

    def count(self, deed: int, now: float) -> None:
        """Counts what a controller does to an object, so that the opposite can be told from a repetition."""
        self._deeds[deed] = (self.counted(deed) + 1, now)
        self._deeds.move_to_end(deed)
        _shorten(self._deeds, lambda counted: counted[1] < now - _OVER)

    def counted(self, deed: int) -> int:
        return self._deeds.get(deed, (0, 0.0))[0]

    def is_as_left(self, place: int, version: str) -> bool:
        left = self._left.get(place)
        return left is not None and left[0] == version


def _shorten(memory: OrderedDict[int, V], is_over: Callable[[V], bool]) -> None:
    """Forgets what is over, oldest first, and what is too much."""
    while memory and (len(memory) > REMEMBERED or is_over(next(iter(memory.values())))):
        memory.popitem(last=False)
