"""Whether an object that lost its original may be removed. Entry points: `verdict`, `Brake`, `Missing`.

Absence is never proof. Removal needs a positive sign, and even then it stops when too much would be removed at once.
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

GRACE_SECONDS = 60.0  # for our caches to catch up, and for Karmada to act
AT_ONCE = 10  # removals that are never too many, whatever their share
SHARE = 0.1  # of all objects of the kind; more than both is a mass removal
WINDOW_SECONDS = 600.0


class Sign(Enum):
    """What shows that it may be removed."""

    NONE = "none"
    WITHDRAWN = "withdrawn"  # a note or journal entry says so
    RELEASED = "released"  # an operator released it


class Held(Enum):
    """Why it is kept."""

    UNPROVEN = "unproven"
    SWITCHED_OFF = "switched-off"
    BRAKED = "braked"


def verdict(sign: Sign, *, enabled: bool, braked: bool) -> Held | None:
    """Why it is held; None when it may be removed. A release by an operator overrides the switch and the brake."""
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


def is_released(object_: KubeObject) -> bool:
    """Whether an operator released this very object; a copy is not released together with its original."""
    annotations = object_.metadata.annotations
    return annotations.get(RELEASE) == "true" and RELEASE not in annotations.get(ORIGINAL_ANNOTATIONS, "").split(",")


def is_mass(missing: int, removed: int, total: int) -> bool:
    """Whether those missing now and those removed lately are too many; `total` no longer includes the latter.

    It depends mostly on the present state, so that a restart does not release the brake.
    """
    return missing + removed > max(AT_ONCE, SHARE * (total + removed))


class Brake:
    """Remembers the removals of the last minutes. `now` is loop time."""

    def __init__(self) -> None:
        self._removed: deque[float] = deque()

    def holds(self, missing: int, total: int, now: float) -> bool:
        """Whether `missing` of `total` are too many to remove any of them without a release by an operator."""
        while self._removed and self._removed[0] <= now - WINDOW_SECONDS:
            self._removed.popleft()
        return is_mass(missing, len(self._removed), total)

    def removed(self, now: float) -> None:
        self._removed.append(now)


class _Missing(Struct):
    since: float  # loop time
    held: Held | None = None


class Missing(Generic[K]):
    """What lost its original, since when, and why it is held. After a restart, every grace period begins anew."""

    def __init__(self) -> None:
        self._missing: dict[K, _Missing] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._missing

    def since(self, key: K, now: float) -> float:
        """The loop time at which it was first missed; now if it was not missed before."""
        return self._missing.setdefault(key, _Missing(now)).since

    def hold(self, key: K, reason: Held) -> bool:
        """Records why it is held. Returns whether that is new."""
        missing = self._missing[key]
        is_new, missing.held = missing.held is not reason, reason
        return is_new

    def forget(self, key: K) -> None:
        self._missing.pop(key, None)

    def keep(self, is_kept: Callable[[K], bool]) -> None:
        """Forgets all others."""
        self._missing = {key: missing for key, missing in self._missing.items() if is_kept(key)}

    def count(self, before: float) -> int:
        """How many were already missed at that loop time."""
        return sum(missing.since <= before for missing in self._missing.values())

    def held(self) -> Counter[Held]:
        return Counter(missing.held for missing in self._missing.values() if missing.held is not None)
