"""Watches a rollout until it is complete. Entry points: `follow`, `Patience`.

Shared by every verb that waits. State is read from the server when a watch reports a change, every two seconds while a
watch is down, and every ten seconds in any case.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.answers.health import instance_health, workload_health
from datum_compute.answers.rollout import Phase, Progress, Row, Tracker, rollout_progress, version
from datum_compute.answers.seen import Seen
from datum_compute.answers.sentences import head
from datum_compute.answers.walk import City
from datum_compute.answers.why import Answer
from datum_compute.answers.why import Block as CityBlock
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.reasons import Acts, todo
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.durations import compact, elapsed
from datum_compute.cli.show.fragments import updated_at
from datum_compute.cli.show.progress import Board, End, board_for
from datum_compute.cli.talk.project import Read, of_workload
from datum_compute.cli.talk.sighting import answered, base_of
from datum_compute.cli.workload import history
from datum_compute.cli.workload.revisions import Revisions
from datum_compute.cli.workload.writing import hint_progress

TICK_SECONDS = 2.0
_READ_SECONDS = 10.0  # at the latest, even if no watch reports a change
_FAILING_SECONDS = 60.0
_CAUSES = 5  # at most, in the error after a timeout
_SILENCE_SECONDS = 5.0  # without an answer from the server before the user is told


class Patience(Struct, frozen=True):
    """How long to wait, 0 for forever, and whether to give up when an instance fails."""

    seconds: float
    fail_fast: bool = False


def patience(run: Run, timeout: float | None, *, fail_fast: bool = False) -> Patience:
    """The patience that flags ask for; without --timeout forever in a terminal and 15 minutes elsewhere."""
    default = 0.0 if run.terminal.live else 900.0
    return Patience(default if timeout is None else timeout, fail_fast)


class WaitFlags(Struct, frozen=True):
    """The flags of verbs that can wait for a rollout."""

    wait: bool
    timeout: float | None


class Earlier(Struct, frozen=True):
    """A change made before this command, and when, if that is known."""

    at: datetime | None


def earlier_change(run: Run, workload: Read[Workload], revisions: Revisions | None = None) -> Earlier:
    return Earlier(updated_at(workload, _revisions(run, workload.object) if revisions is None else revisions))


def follow(
    run: Run,
    workload: Workload,
    patience: Patience,
    board: Board | None = None,
    *,
    earlier: Earlier | None = None,
    quietly: bool = False,
    only: str = "",
) -> bool:
    """Shows the rollout of this generation. Returns True when it is complete, False when the user detached.

    `earlier` is the change to wait for, if another command made it; `quietly` shows nothing if the rollout is complete
    already. `only` is a version whose rollout is meant: later ones, which count as well otherwise, end the wait. Raises
    `Failure` for that, and when it takes too long, is paused, an instance fails, or the workload is deleted.
    """
    following = _Following(run, workload, patience, board or board_for(run), only)
    if quietly and following.is_complete():
        return True
    complete = detached = False
    ago = 0.0
    if earlier is not None and earlier.at is not None:
        ago = max((run.clock.now() - earlier.at).total_seconds(), 0.0)
        following.board.began(ago)
    try:
        following.until_complete()
        complete = True
    except KeyboardInterrupt:
        detached = True
    finally:
        seconds = ago + run.clock.monotonic() - following.started
        was_complete = complete and following.ticks == 1
        is_known = earlier is None or (earlier.at is not None and not was_complete)
        following.board.ended(End(complete, seconds if is_known else None))
    if detached:
        run.terminal.note("Detached. Rollout continues in background.")
        hint_progress(run, workload.name)
    return complete


def wait_for_rollout(
    run: Run, workload: Workload, flags: WaitFlags, *, earlier: Earlier | None = None, only: str = ""
) -> None:
    announce(run, workload)
    follow(run, workload, patience(run, flags.timeout), earlier=earlier, only=only)


def announce(run: Run, workload: Workload, revisions: Revisions | None = None) -> None:
    """Prints what is rolled out: the active revision and the one before it, if there is a history."""
    if revisions is None:
        revisions = _revisions(run, workload)
    numbers, active = "", revisions.active
    if active is not None:
        before = [entry.rev for entry in revisions.entries if entry.rev < active.rev]
        numbers = f"  rev #{before[-1]} → #{active.rev}" if before else f"  rev #{active.rev}"
    run.terminal.note(f'Rolling workload "{workload.name}"{numbers}')


def _revisions(run: Run, workload: Workload) -> Revisions:
    try:
        return history.read(run.project, workload)
    except Failure:
        return Revisions()  # no reason to end the wait


def show_once(run: Run, workload: Workload, board: Board) -> None:
    """Shows the current state of the rollout."""
    _Following(run, workload, Patience(0), board).show_once()


class _Pointless(Failure):
    """The rollout that is waited for never ends, because the workload is being deleted or was changed again."""


class _Snapshot(Struct, frozen=True):
    """The state of a rollout when it was last read."""

    progress: Progress
    instances: list[Instance]
    workload: Read[Workload]
    seen: Seen


class _Following:
    def __init__(self, run: Run, workload: Workload, patience: Patience, board: Board, only: str = "") -> None:
        self.run = run
        self.only = only
        self.board = board
        self.workload = workload
        self.name = workload.name
        self.uid = workload.metadata.uid
        self.target = workload.metadata.generation
        self.patience = patience
        self.started = run.clock.monotonic()
        self.tracker = Tracker()
        self.failing: dict[str, float] = {}
        self.ticks = 0
        self.silent_since: float | None = None  # when the server stopped answering
        self.silence_reported = False
        self.snapshot: _Snapshot | None = None  # the last

    def until_complete(self) -> None:
        with self.run.watching(self.run.project.workload_watches(self.workload)) as changes:
            snapshot: _Snapshot | None = None
            read_at: float | None = None  # None: the last read failed, or something changed since
            while True:
                now = self.run.clock.monotonic()
                if read_at is None or not changes.trusted or now - read_at >= _READ_SECONDS:
                    fresh = self._try_read(now)
                    snapshot, read_at = fresh or snapshot, now if fresh else None
                if snapshot is not None and self._show(now, snapshot):
                    return
                self._check_patience(now)
                if changes.wait(self._tick(now)):
                    read_at = None

    def show_once(self) -> None:
        snapshot = self._read()
        rows = self._explained(self.tracker.tick(self.started, snapshot.progress), snapshot)
        self.board.show(rows, snapshot.progress)

    def is_complete(self) -> bool:
        try:
            self.tracker.tick(self.started, self._read().progress)
        except Failure:
            return False  # the wait reports it
        complete, self.tracker = self.tracker.complete, Tracker()
        return complete

    def _show(self, now: float, snapshot: _Snapshot) -> bool:
        """Shows the rollout and returns whether it is complete."""
        self.snapshot = snapshot
        if self.patience.fail_fast:
            self._check_failing(now, snapshot.instances)
        progress = snapshot.progress
        rows = self._explained(self.tracker.tick(now, progress), snapshot)
        self.ticks += 1
        self.board.show(rows, progress)
        if self.tracker.settled and progress.held:
            raise Failure(
                f'the rollout of workload "{self.name}" is paused: {progress.held}',
                next_command=f"rollout resume {self.name}",
            )
        return self.tracker.complete

    def _tick(self, now: float) -> float:
        return min(TICK_SECONDS, self._left(now)) if self.patience.seconds else TICK_SECONDS

    def _left(self, now: float) -> float:
        return max(self.started + self.patience.seconds - now, 0.0)

    def _check_patience(self, now: float) -> None:
        if not self.patience.seconds or self._left(now) > 0:
            return
        if self.silent_since is not None:
            message = f"the server has not answered for {elapsed(now - self.silent_since)}; the rollout may continue"
        else:
            message = f"Still rolling out after {compact(self.patience.seconds)}; nothing was undone."
        causes: dict[str, list[str]] = {}
        for place, cause in sorted(self.tracker.causes.items()):
            causes.setdefault(str(cause), []).append(place.city)
        raise Failure(
            message,
            Exit.TIMED_OUT,
            details=[
                *self._sentences(),
                *[f"{', '.join(cities)}: {cause}" for cause, cities in causes.items()][:_CAUSES],
            ],
            next_command=f"status {self.name}",
        )

    def _try_read(self, now: float) -> _Snapshot | None:
        """None if the read failed, which does not end the wait; the user is told if that lasts."""
        try:
            snapshot = self._read()
        except Failure as failure:
            if failure.code is Exit.NOT_FOUND or isinstance(failure, _Pointless):
                raise
            if self.silent_since is None:
                self.silent_since = now
            if not self.silence_reported and self.run.clock.monotonic() - self.silent_since >= _SILENCE_SECONDS:
                self.silence_reported = True
                self.run.terminal.warn(f"  {failure.message}; still trying")
            return None
        self.silent_since, self.silence_reported = None, False
        return snapshot

    def _read(self) -> _Snapshot:
        read = self.run.project.get(WORKLOAD, self.name)
        workload = read.object
        if workload.metadata.uid != self.uid:
            raise Failure(f'workload "{self.name}" was deleted while it was rolling out', Exit.NOT_FOUND)
        if self.only and version(workload) != self.only:
            raise _Pointless(
                f'workload "{self.name}" was changed again, so this version is no longer rolled out',
                next_command=f"rollout history {self.name}",
            )
        deployments = self.run.project.list(WORKLOAD_DEPLOYMENT, of_workload(workload)).items
        if workload.metadata.deleting:
            detail = workload_health(workload, deployments).detail
            sentence = ": ".join(filter(None, (f'workload "{self.name}" is being deleted', detail)))
            raise _Pointless(sentence, next_command=f"status {self.name}")
        instances = self.run.project.list(INSTANCE, of_workload(workload)).items
        seen = base_of(self.run.project, read, deployments, instances)
        return _Snapshot(rollout_progress(workload, deployments, instances, self.target), instances, read, seen)

    def _answer(self, snapshot: _Snapshot) -> Answer | None:
        """Why it is held up, as `why` would say; None if the server does not answer any more."""
        try:
            now = self.run.clock.now().astimezone()
            return answered(self.run.project, snapshot.workload, snapshot.seen, now)[1]
        except Failure:
            return None

    def _explained(self, rows: Sequence[Row], snapshot: _Snapshot) -> Sequence[Row]:
        """The rows, of which those that are blocked say why."""
        if not any(row.phase is Phase.BLOCKED for row in rows):
            return rows
        answer = self._answer(snapshot)
        cities = {city.place: city for city in answer.cities if city.finding is not None} if answer else {}
        now = self.run.clock.now().astimezone()
        return [_explained_row(row, cities.get(row.state.place), self.name, now) for row in rows]

    def _sentences(self) -> list[str]:
        """The sentence that a failure is reported with."""
        answer = self._answer(self.snapshot) if self.snapshot is not None else None
        return [answer.sentence] if answer is not None and answer.blocks else []

    def _check_failing(self, now: float, instances: Iterable[Instance]) -> None:
        healths = ((instance.name, instance_health(instance)) for instance in instances)
        failing = {name: health for name, health in healths if health.state.failed}
        self.failing = {name: self.failing.get(name, now) for name in failing}
        for name, since in sorted(self.failing.items()):
            if now - since >= _FAILING_SECONDS:
                closer = f"Look closer:  {self.run.try_next(f'instances describe {name}')}"
                raise Failure(
                    f"instance {name} does not start: {failing[name].status}",
                    Exit.ROLLOUT_FAILED,
                    details=[*self._sentences(), *filter(None, [failing[name].message]), closer],
                    next_command=f"rollout undo {self.name}" if self._can_undo() else "",
                )

    def _can_undo(self) -> bool:
        """Whether there is a revision to go back to; not after the first deploy."""
        try:
            read = self.run.project.get(WORKLOAD, self.name)
            return history.read(self.run.project, read.object).undo_target(read.body()["spec"]) is not None
        except Failure:
            return False


def _explained_row(row: Row, city: City | None, name: str, now: datetime) -> Row:
    if row.phase is not Phase.BLOCKED or city is None or city.finding is None:
        return row
    sentence = head(name, [CityBlock((city,))], [city], now, 0)
    advice = todo(city.finding.reason)
    if city.acts in (Acts.WAIT, Acts.STALLED, Acts.PLATFORM):
        advice = "The rollout resumes on its own when this clears."
    return replace(row, state=replace(row.state, sentence=sentence, advice=advice))
