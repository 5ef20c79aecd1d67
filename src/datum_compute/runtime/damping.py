"""Slows down writes that somebody else keeps undoing. Entry points: `Damper`, `Damped`.

A fight differs from progress, however fast that is. In a fight the same thing is written to the same object again and
again, because in between somebody else changed it back, deleted what was created, or created what was deleted. Progress
writes something new, or finds the object as it was left. So a write counts when it exactly repeats an earlier one of
the last minute, for the same generation of the same object, and the target is not as its author left it. What a
controller undoes itself, such as creating and later deleting an object, is no fight either. After more than ten such
writes in a minute there is one per minute, until nobody asks for it for a whole minute.
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
_OVER = 2 * WINDOW  # a write is forgotten after this: whoever waits for the end of a window has come back

V = TypeVar("V")


class Author(Struct, frozen=True):
    """Who writes, and why: a request, and the uid and generation of the object that it names."""

    request: Request
    desired: tuple[str, int | None] | None  # None: the object is missing, or no source maps it to itself


author: ContextVar[Author | None] = ContextVar("author", default=None)  # of the running pass


class Damped(ApiError):
    """A write that was not made, because it would only be undone again; `retry_after` says when it may be made."""

    code, reason, retryable = 429, "Damped", True


class _Trail:
    """When a write was made, and whether it is damped."""

    __slots__ = ("damped", "refused", "times")

    def __init__(self) -> None:
        self.times: list[float] = []  # the last `LIMIT` ones
        self.damped = False
        self.refused = False  # since the write was last made


class Damper:
    """Identifies writes by a key of the caller's choice: a hash of everything that makes two writes the same."""

    def __init__(self) -> None:
        self._trails: OrderedDict[int, _Trail] = OrderedDict()
        self._versions: OrderedDict[int, tuple[str, float]] = OrderedDict()  # as left by an author, and when
        self._counts: OrderedDict[int, tuple[int, float]] = OrderedDict()  # how often, and when last

    def pause(self, key: int, now: float) -> float:
        """Seconds until the write may be made; 0 when it may be made now."""
        trail = self._trails.get(key)
        if trail is None:
            return 0.0
        left = trail.times[-1] + WINDOW - now
        if trail.damped and left <= 0:
            if not trail.refused:
                del self._trails[key]  # nobody asked for a whole window: the fight is over
            return 0.0
        if trail.damped or (len(trail.times) == LIMIT and now - trail.times[0] < WINDOW):
            trail.damped = trail.refused = True
            return left
        return 0.0

    def is_damped(self, key: int) -> bool:
        trail = self._trails.get(key)
        return trail is not None and trail.damped

    def record(self, key: int, now: float) -> None:
        trail = self._trails.get(key)
        if trail is None:
            trail = self._trails[key] = _Trail()
        else:
            self._trails.move_to_end(key)
        trail.times = [*trail.times[1 - LIMIT :], now]
        trail.refused = False
        _shorten(self._trails, lambda trail: trail.times[-1] < now - _OVER)

    def record_version(self, target: int, version: str, now: float) -> None:
        """Records the version in which an author left an object; `target` identifies both."""
        self._versions[target] = (version, now)
        self._versions.move_to_end(target)
        _shorten(self._versions, lambda entry: entry[1] < now - _OVER)

    def is_as_left(self, target: int, version: str) -> bool:
        entry = self._versions.get(target)
        return entry is not None and entry[0] == version

    def count(self, action: int, now: float) -> None:
        """Counts an action of a controller on an object, to tell its opposite from a repetition."""
        self._counts[action] = (self.times(action) + 1, now)
        self._counts.move_to_end(action)
        _shorten(self._counts, lambda entry: entry[1] < now - _OVER)

    def times(self, action: int) -> int:
        return self._counts.get(action, (0, 0.0))[0]


def _shorten(memory: OrderedDict[int, V], is_over: Callable[[V], bool]) -> None:
    """Drops what is over, oldest first, and what is too much."""
    while memory and (len(memory) > REMEMBERED or is_over(next(iter(memory.values())))):
        memory.popitem(last=False)
