"""Watches a rollout until it is complete. Entry points: `follow`, `Patience`.

Shared by every verb that waits. The server is read when a watch says that something changed, every two seconds while
no watch is up, and now and then in any case.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, READY, Instance
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.durations import compact, elapsed
from datum_compute.cli.failures import Exit, Failure
from datum_compute.cli.health import Block, block, judge
from datum_compute.cli.joins import deployment_of
from datum_compute.cli.lines import Piece, aligned, bad, busy, good
from datum_compute.cli.rollout import Phase, Picture, Row, Tracker, picture
from datum_compute.cli.run import Run
from datum_compute.kube.meta import timestamp

TICK_SECONDS = 2.0
_READ_SECONDS = 10.0  # at the latest, whatever the watches say
_FAILING_SECONDS = 60.0
_ERRORS_TO_TELL = 5

_TITLES = ("PLACEMENT", "CITY", "UPDATED", "READY", "OLD", "PHASE")
_TONES = {Phase.DONE: good, Phase.PENDING: busy, Phase.UPDATING: busy, Phase.BLOCKED: bad}


class Patience(Struct, frozen=True):
    """How long to wait, and whether to give up on an instance that fails. 0 seconds is for ever."""

    seconds: float
    fail_fast: bool = False


def patience(run: Run, timeout: float | None, *, fail_fast: bool = False) -> Patience:
    """As the flags say; unless told, a person waits as long as they like and a script a quarter of an hour."""
    default = 0.0 if run.terminal.live else 900.0
    return Patience(default if timeout is None else timeout, fail_fast)


def follow(run: Run, workload: Workload, patience: Patience, board: "Board | None" = None) -> bool:
    """Shows the rollout of this generation. True when it is complete, false when the user detached.

    Raises `Failure` when it takes too long, an instance fails, or the workload is deleted.
    """
    following = _Following(run, workload, patience, board or LineBoard(run))
    complete = False
    try:
        following.until_complete()
        complete = True
    except KeyboardInterrupt:
        run.terminal.note("Detached. Rollout continues in background.")
    finally:
        following.board.ended(complete=complete, seconds=run.clock.monotonic() - following.started)
    return complete


def show_once(run: Run, workload: Workload, board: "Board | None" = None) -> bool:
    """Shows how far the rollout has come now, and tells whether it is complete."""
    following = _Following(run, workload, Patience(0), board or LineBoard(run))
    following.show_once()
    return following.tracker.complete


class _Following:
    def __init__(self, run: Run, workload: Workload, patience: Patience, board: "Board") -> None:
        self.run = run
        self.board = board
        self.name = workload.name
        self.uid = workload.metadata.uid
        self.target = workload.metadata.generation
        self.patience = patience
        self.started = run.clock.monotonic()
        self.tracker = Tracker()
        self.failing: dict[str, float] = {}
        self.errors = 0

    def until_complete(self) -> None:
        of_workload = f"{WORKLOAD_UID}={self.uid}"
        calls = [
            self.run.project.watch_call(WORKLOAD, name=self.name),
            self.run.project.watch_call(WORKLOAD_DEPLOYMENT, selector=of_workload),
        ]
        with self.run.watching(calls) as changes:
            seen: Picture | None = None
            read_at: float | None = None  # none: the last one failed, or something changed since
            while True:
                now = self.run.clock.monotonic()
                if read_at is None or not changes.trusted or now - read_at >= _READ_SECONDS:
                    fresh = self._read()
                    seen, read_at = fresh or seen, now if fresh else None
                if seen is not None and self._judged(now, seen):
                    return
                self._check_patience(now)
                if changes.wait(self._tick(now)):
                    read_at = None

    def show_once(self) -> None:
        seen = self._fetched()
        self.board.show(self.tracker.tick(self.started, seen, {}), seen)

    def _judged(self, now: float, seen: Picture) -> bool:
        causes: dict[str, Block] = {}
        if self.patience.fail_fast or self.tracker.unexplained(now, seen):
            instances = self._instances()
            causes = _causes(instances)
            if self.patience.fail_fast:
                self._check_failing(now, instances)
        self.board.show(self.tracker.tick(now, seen, causes), seen)
        return self.tracker.complete

    def _tick(self, now: float) -> float:
        left = self.started + self.patience.seconds - now
        return min(TICK_SECONDS, max(left, 0.0)) if self.patience.seconds else TICK_SECONDS

    def _check_patience(self, now: float) -> None:
        if self.patience.seconds and now - self.started >= self.patience.seconds:
            raise Failure(
                f"Still rolling out after {compact(self.patience.seconds)}; nothing was undone.",
                Exit.TIMED_OUT,
                next_command=f"status {self.name}",
            )

    def _read(self) -> Picture | None:
        """None when it could not be read; that is told once and does not end the wait."""
        try:
            seen = self._fetched()
        except Failure as failure:
            if failure.code is Exit.NOT_FOUND:
                raise
            self.errors += 1
            if self.errors == _ERRORS_TO_TELL:
                self.run.terminal.warn(f"  {failure.message}; still trying")
            return None
        self.errors = 0
        return seen

    def _fetched(self) -> Picture:
        workload = self.run.project.get(WORKLOAD, self.name).object
        if workload.metadata.uid != self.uid or workload.metadata.deleting:
            raise Failure(f'workload "{self.name}" was deleted while it was rolling out', Exit.NOT_FOUND)
        deployments = self.run.project.list(WORKLOAD_DEPLOYMENT, f"{WORKLOAD_UID}={self.uid}")
        return picture(workload, deployments.items, self.target)

    def _instances(self) -> list[Instance]:
        try:
            return self.run.project.list(INSTANCE, f"{WORKLOAD_UID}={self.uid}").items
        except Failure:
            return []  # the next read of the rollout tells it

    def _check_failing(self, now: float, instances: Iterable[Instance]) -> None:
        failing = {one.name: judge(one) for one in instances if judge(one).state.failed}
        self.failing = {name: self.failing.get(name, now) for name in failing}
        for name, since in sorted(self.failing.items()):
            if now - since >= _FAILING_SECONDS:
                message = failing[name].message
                raise Failure(
                    f"instance {name} does not start: {failing[name].status}",
                    Exit.ROLLOUT_FAILED,
                    details=[message] if message else [],
                    next_command=f"instances describe {name}",
                )


def _causes(instances: Sequence[Instance]) -> dict[str, Block]:
    """Why the first instance of each deployment that is not ready is not."""
    causes: dict[str, Block] = {}
    for instance in sorted(instances, key=lambda one: one.name):
        cause = block(instance.status.conditions, READY) if instance.status else None
        if cause is not None:
            causes.setdefault(deployment_of(instance), cause)
    return causes


class Board(Protocol):
    """Where the rows of a rollout are shown."""

    def show(self, rows: Sequence[Row], seen: Picture) -> None: ...

    def ended(self, *, complete: bool, seconds: float) -> None: ...


class LineBoard:
    """A line for each change, for people and for logs."""

    def __init__(self, run: Run) -> None:
        self._terminal = run.terminal
        self._titled = not run.settings.no_headers
        self._widths: list[int] = []

    def show(self, rows: Sequence[Row], seen: Picture) -> None:
        if not self._widths:
            self._begin(seen)
        for row in rows:
            if row.changed:
                self._terminal.note(aligned(_cells(row), self._widths, indent=2))
            if row.blocked is not None:
                self._terminal.note(
                    f"    Blocked reason: {row.blocked}", "    The rollout resumes on its own when this clears."
                )

    def ended(self, *, complete: bool, seconds: float) -> None:
        if complete:
            self._terminal.note(f"Rollout complete in {elapsed(seconds)}.")

    def _begin(self, seen: Picture) -> None:
        """Widths are fixed at the start, so that every later row stands under its title."""
        cells = [_TITLES, *((row.place.placement, row.place.city, "", "", "", "") for row in seen.rows)]
        self._widths = [max(len(row[index]) for row in cells) for index in range(len(_TITLES))]
        self._widths[-1] = max(len(phase.value) for phase in Phase)
        self._terminal.note("", *([aligned(_TITLES, self._widths, indent=2)] if self._titled else []))


class JsonBoard:
    """One JSON object for each change, and one at the end."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def show(self, rows: Sequence[Row], seen: Picture) -> None:
        for row in rows:
            numbers, cause = row.seen.numbers, row.blocked or row.seen.cause
            self._run.terminal.record(
                {
                    "time": timestamp(self._run.clock.now()),
                    "placement": row.seen.place.placement,
                    "city": row.seen.place.city,
                    "updated": numbers.updated,
                    "ready": numbers.ready,
                    "old": row.seen.old,
                    "desired": numbers.desired,
                    "phase": row.phase.value,
                    "reason": cause.reason if cause else "",
                    "message": cause.message if cause else "",
                }
            )

    def ended(self, *, complete: bool, seconds: float) -> None:
        self._run.terminal.record({"complete": complete, "elapsedSeconds": int(seconds)})


def _cells(row: Row) -> tuple[Piece, ...]:
    place, numbers = row.seen.place, row.seen.numbers
    counted = (str(numbers.updated), str(numbers.ready), str(row.seen.old))
    return (place.placement, place.city, *counted, _TONES[row.phase](row.phase.value))
