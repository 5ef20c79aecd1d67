"""What goes wrong while a plane is followed: counted, and logged once in a while. Entries: `Troubles`, `Repeats`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable

import structlog

from datum_compute.kube.errors import ApiError
from datum_compute.runtime.caches.phases import Phase, advice, phase_of

REPEAT_SECONDS = 300.0

_log = structlog.get_logger(__name__)


class Repeats:
    """Lets a line of the log through when it is new, and again every few minutes."""

    def __init__(self) -> None:
        self._logged_at: dict[Hashable, float] = {}

    def is_due(self, what: Hashable) -> bool:
        now = asyncio.get_running_loop().time()
        due = now - self._logged_at.get(what, float("-inf")) >= REPEAT_SECONDS
        if due:
            self._logged_at[what] = now
        return due


class Troubles:
    """Of one plane. Its caches report here when they cannot list or watch, and when they can again.

    The first failure of a phase is a warning, repeated every few minutes while it lasts; when no cache fails any more,
    another says so and `on_over` is called. Defects, which are errors that nobody foresaw, cost only what they were met
    in; they are logged with their traceback at the same pace.
    """

    def __init__(self, plane: str, on_over: Callable[[], None] | None = None) -> None:
        self.failures: Counter[tuple[str, str]] = Counter()  # lists and watches that failed, by kind and phase
        self.defects: Counter[tuple[str, str]] = Counter()  # by kind and phase
        self._plane = plane
        self._on_over = on_over
        self._failing: dict[str, Phase] = {}  # by cache
        self._since: float | None = None  # loop time at which the first of them began to
        self._repeats = Repeats()
        self._warned = False  # about what is failing now

    @property
    def any(self) -> bool:
        """Whether anything ever failed."""
        return bool(self.failures or self.defects)

    @property
    def phase(self) -> Phase | None:
        """The earliest phase in which a cache fails now; None when all caches follow."""
        return min(self._failing.values(), key=list(Phase).index, default=None)

    def failed(self, cache: str, kind: str, error: ApiError, doing: Phase) -> None:
        """A list or watch did not succeed."""
        phase = phase_of(error, doing)
        self.failures[kind, phase.value] += 1
        self._failing[cache] = phase
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
        if self._repeats.is_due(phase):
            self._warned = True
            _log.warning(
                "plane cannot be followed",
                plane=self._plane,
                phase=phase.value,
                kind=kind,
                error=str(error),
                check=advice(error, phase, cache),
            )

    def follows(self, cache: str) -> None:
        """A watch is open, or there is nothing to watch."""
        if self._failing.pop(cache, None) is None or self._failing or self._since is None:
            return
        if self._warned:
            seconds = round(asyncio.get_running_loop().time() - self._since, 1)
            _log.warning("plane is followed again", plane=self._plane, after_seconds=seconds)
        self._since, self._warned = None, False
        if self._on_over is not None:
            self._on_over()

    def done_without(self, cache: str, kind: str, error: ApiError) -> None:
        """A kind that is good to have may not be listed, and nobody waits for it."""
        phase = phase_of(error, Phase.LIST)
        if self._repeats.is_due((kind, phase)):
            _log.info(
                "kind cannot be listed, going on without it",
                plane=self._plane,
                phase=phase.value,
                kind=kind,
                error=str(error),
                check=advice(error, phase, cache),
            )
        self.follows(cache)

    def crashed(self, kind: str, phase: str, error: Exception) -> None:
        """An error that nobody foresaw: a defect of ours, or a server that does what none may."""
        self.defects[kind, phase] += 1
        if self._repeats.is_due((kind, phase)):
            _log.error("defect on a plane", plane=self._plane, kind=kind, phase=phase, exc_info=error)
