"""Counts and logs what keeps caches from following their plane. Entry points: `Failures`, `LogThrottle`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable

import structlog

from datum_compute.kube.errors import ApiError
from datum_compute.runtime.caches.phases import Phase, advice, phase_of

REPEAT_SECONDS = 300.0

_log = structlog.get_logger(__name__)


class LogThrottle:
    """Lets a log line through when it is new, and again every few minutes."""

    def __init__(self) -> None:
        self._logged_at: dict[Hashable, float] = {}

    def is_due(self, key: Hashable) -> bool:
        now = asyncio.get_running_loop().time()
        due = now - self._logged_at.get(key, float("-inf")) >= REPEAT_SECONDS
        if due:
            self._logged_at[key] = now
        return due


class Failures:
    """The failures of one plane, reported by its caches when they cannot list or watch, and when they can again.

    The first failure in a phase is logged as a warning, repeated every few minutes while it lasts. When no cache fails
    any more, another warning says so and `on_recovery` is called. Defects, which are unforeseen errors, are logged with
    their traceback at the same pace.
    """

    def __init__(self, plane: str, on_recovery: Callable[[], None] | None = None) -> None:
        self.by_phase: Counter[tuple[str, str]] = Counter()  # failed lists and watches, by kind and phase
        self.defects: Counter[tuple[str, str]] = Counter()  # by kind and phase
        self._plane = plane
        self._on_recovery = on_recovery
        self._failing: dict[str, Phase] = {}  # by cache
        self._since: float | None = None  # loop time of the first failure
        self._throttle = LogThrottle()
        self._warned = False  # about the current failures

    @property
    def any(self) -> bool:
        """Whether anything ever failed."""
        return bool(self.by_phase or self.defects)

    @property
    def phase(self) -> Phase | None:
        """The earliest phase in which a cache is failing; None when all caches follow the plane."""
        return min(self._failing.values(), key=list(Phase).index, default=None)

    def failed(self, cache: str, kind: str, error: ApiError, doing: Phase) -> None:
        """Records a list or watch that failed."""
        phase = phase_of(error, doing)
        self.by_phase[kind, phase.value] += 1
        self._failing[cache] = phase
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
        if self._throttle.is_due(phase):
            self._warned = True
            _log.warning(
                "plane cannot be followed",
                plane=self._plane,
                phase=phase.value,
                kind=kind,
                error=str(error),
                check=advice(error, phase, cache),
            )

    def recovered(self, cache: str) -> None:
        """Records that a cache has an open watch, or nothing to watch."""
        if self._failing.pop(cache, None) is None or self._failing or self._since is None:
            return
        if self._warned:
            seconds = round(asyncio.get_running_loop().time() - self._since, 1)
            _log.warning("plane is followed again", plane=self._plane, after_seconds=seconds)
        self._since, self._warned = None, False
        if self._on_recovery is not None:
            self._on_recovery()

    def skipped(self, cache: str, kind: str, error: ApiError) -> None:
        """Records that a best-effort kind may not be listed; nobody waits for it."""
        phase = phase_of(error, Phase.LIST)
        if self._throttle.is_due((kind, phase)):
            _log.info(
                "kind cannot be listed, going on without it",
                plane=self._plane,
                phase=phase.value,
                kind=kind,
                error=str(error),
                check=advice(error, phase, cache),
            )
        self.recovered(cache)

    def crashed(self, kind: str, phase: str, error: Exception) -> None:
        """Records an unforeseen error: a defect of this program, or a server that breaks the protocol."""
        self.defects[kind, phase] += 1
        if self._throttle.is_due((kind, phase)):
            _log.error("defect on a plane", plane=self._plane, kind=kind, phase=phase, exc_info=error)
