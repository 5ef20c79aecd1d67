"""Whether something that lost its original may be removed. Entry points: `verdict`, `Brake`, `Missing`.

Absence is never proof. Removal needs a positive sign, and even with one it stops when too much would go at once.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, TypeVar

from msgspec import Struct

from datum_compute.api.karmada import ORIGINAL_ANNOTATIONS
from datum_compute.api.labels import RELEASE
from datum_compute.kube.meta import KubeObject

K = TypeVar("K", bound=Hashable)

GRACE_SECONDS = 60.0  # for an original that our view has not heard of yet, and for Karmada to act
AT_ONCE = 10  # removals that are never too many, whatever share of all they are
SHARE = 0.1  # of everything of its kind; more than both is a mass removal
WINDOW_SECONDS = 600.0


class Sign(Enum):
    """What says that it may go."""

    NONE = "none"
    WITHDRAWN = "withdrawn"  # who withdrew it noted so
    RELEASED = "released"  # an operator says so


class Held(Enum):
    """Why it stays."""

    UNPROVEN = "unproven"
    SWITCHED_OFF = "switched-off"
    BRAKED = "braked"


def verdict(sign: Sign, *, enabled: bool, braked: bool) -> Held | None:
    """Why it is held; None when it may be removed. An operator's word counts more than the switch and the brake."""
    match sign:
        case Sign.RELEASED:
            return None
        case Sign.NONE:
            return Held.UNPROVEN
        case Sign.WITHDRAWN if not enabled:
            return Held.SWITCHED_OFF
        case Sign.WITHDRAWN if braked:
            return Held.BRAKED
    return None


def is_released(held: KubeObject) -> bool:
    """Whether an operator released this very object; a copy is not released with the original that it was made from."""
    annotations = held.metadata.annotations
    return annotations.get(RELEASE) == "true" and RELEASE not in annotations.get(ORIGINAL_ANNOTATIONS, "").split(",")


def is_mass(missing: int, removed: int, total: int) -> bool:
    """Whether what is missing now and what was removed lately are too many of `total`, which no longer has the latter.

    It depends on what is so and not on what was done before, so a restart does not release the brake.
    """
    return missing + removed > max(AT_ONCE, SHARE * (total + removed))


class Brake:
    """Remembers the removals of the last minutes. `now` is loop time."""

    def __init__(self) -> None:
        self._removed: deque[float] = deque()

    def holds(self, missing: int, total: int, now: float) -> bool:
        """Whether `missing` of `total` are too many to remove any of them without an operator's word."""
        while self._removed and self._removed[0] <= now - WINDOW_SECONDS:
            self._removed.popleft()
        return is_mass(missing, len(self._removed), total)

    def removed(self, now: float) -> None:
        self._removed.append(now)


class _Missing(Struct):
    since: float  # loop time
    held: Held | None = None


class Missing(Generic[K]):
    """What lost its original, since when, and why it is held. After a restart every grace begins anew."""

    def __init__(self) -> None:
        self._missing: dict[K, _Missing] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._missing

    def since(self, key: K, now: float) -> float:
        """The loop time at which it was first missed, which is now for what was not missed before."""
        return self._missing.setdefault(key, _Missing(now)).since

    def hold(self, key: K, why: Held) -> bool:
        """Notes that it stays; whether that is news."""
        missing = self._missing[key]
        is_news, missing.held = missing.held is not why, why
        return is_news

    def forget(self, key: K) -> None:
        self._missing.pop(key, None)

    def keep(self, is_kept: Callable[[K], bool]) -> None:
        """Forgets all others."""
        self._missing = {key: missing for key, missing in self._missing.items() if is_kept(key)}

    def count(self, before: float) -> int:
        """How many were missed at a loop time already."""
        return sum(missing.since <= before for missing in self._missing.values())

    def held(self) -> Counter[Held]:
        return Counter(missing.held for missing in self._missing.values() if missing.held is not None)
