"""Watches a rollout until it is complete. Entry points: `follow`, `Patience`.

Shared by every verb that waits. The server is read when a watch says that something changed, every two seconds while
no watch is up, and now and then in any case.
"""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from datum_compute.answers.health import judge, workload_health
from datum_compute.answers.rollout import Picture, Tracker, picture
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.durations import compact, elapsed
from datum_compute.cli.show.fragments import last_revision
from datum_compute.cli.show.progress import Board, End, board_for
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import history
from datum_compute.cli.workload.revisions import Revisions

TICK_SECONDS = 2.0
_READ_SECONDS = 10.0  # at the latest, whatever the watches say
_FAILING_SECONDS = 60.0
_CAUSES = 5  # at most, in the sentence of a wait that was given up
_SILENCE_SECONDS = 5.0  # without a word from the server before that is said


class Patience(Struct, frozen=True):
    """How long to wait, and whether to give up on an instance that fails. 0 seconds is for ever."""

    seconds: float
    fail_fast: bool = False


def patience(run: Run, timeout: float | None, *, fail_fast: bool = False) -> Patience:
    """As the flags say; unless told, a person waits as long as they like and a script a quarter of an hour."""
    default = 0.0 if run.terminal.live else 900.0
    return Patience(default if timeout is None else timeout, fail_fast)


class Earlier(Struct, frozen=True):
    """A change that was there before anybody waited for it, and when it was made, where that is known."""

    at: datetime | None


def earlier_change(run: Run, seen: Read[Workload], known: Revisions | None = None) -> Earlier:
    return Earlier(last_revision(seen, _revisions(run, seen.object) if known is None else known))


def follow(
    run: Run,
    workload: Workload,
    patience: Patience,
    board: Board | None = None,
    *,
    earlier: Earlier | None = None,
    quietly: bool = False,
) -> bool:
    """Shows the rollout of this generation. True when it is complete, false when the user detached.

    `earlier` is for who comes later than the change; `quietly` shows nothing of a rollout that is complete already.
    Raises `Failure` when it takes too long, is paused, an instance fails, or the workload is deleted.
    """
    following = _Following(run, workload, patience, board or board_for(run))
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
        was_over = complete and following.ticks == 1
        is_known = earlier is None or (earlier.at is not None and not was_over)
        following.board.ended(End(complete, seconds if is_known else None))
    if detached:
        run.terminal.note("Detached. Rollout continues in background.")
    return complete


def announce(run: Run, workload: Workload, known: Revisions | None = None) -> None:
    """Tells what rolls out: the number of the revision and of the one before it, as far as there is a history."""
    if known is None:
        known = _revisions(run, workload)
    numbers = ""
    if known.active is not None:
        before = [entry.rev for entry in known.entries if entry.rev < known.active.rev]
        numbers = f"  rev #{before[-1]} → #{known.active.rev}" if before else f"  rev #{known.active.rev}"
    run.terminal.note(f'Rolling workload "{workload.name}"{numbers}')


def _revisions(run: Run, workload: Workload) -> Revisions:
    try:
        return history.read(run.project, workload)
    except Failure:
        return Revisions()  # not worth ending a wait for


def show_once(run: Run, workload: Workload, board: Board | None = None) -> bool:
    """Shows how far the rollout has come now, and tells whether it is complete."""
    following = _Following(run, workload, Patience(0), board or board_for(run))
    following.show_once()
    return following.tracker.complete


class _Deleting(Failure):
    """The workload goes, so that its rollout never ends."""


class _Read(Struct, frozen=True):
    """What the server reports, and what was made of it."""

    picture: Picture
    instances: list[Instance]


class _Following:
    def __init__(self, run: Run, workload: Workload, patience: Patience, board: Board) -> None:
        self.run = run
        self.board = board
        self.name = workload.name
        self.uid = workload.metadata.uid
        self.target = workload.metadata.generation
        self.patience = patience
        self.started = run.clock.monotonic()
        self.tracker = Tracker()
        self.failing: dict[str, float] = {}
        self.ticks = 0
        self.silent_since: float | None = None  # since when the server has not answered
        self.silence_reported = False

    def until_complete(self) -> None:
        of_workload = f"{WORKLOAD_UID}={self.uid}"
        calls = [
            self.run.project.watch_call(WORKLOAD, name=self.name),
            self.run.project.watch_call(WORKLOAD_DEPLOYMENT, selector=of_workload),
            self.run.project.watch_call(INSTANCE, selector=of_workload),
        ]
        with self.run.watching(calls) as changes:
            seen: _Read | None = None
            read_at: float | None = None  # none: the last one failed, or something changed since
            while True:
                now = self.run.clock.monotonic()
                if read_at is None or not changes.trusted or now - read_at >= _READ_SECONDS:
                    fresh = self._read(now)
                    seen, read_at = fresh or seen, now if fresh else None
                if seen is not None and self._judged(now, seen):
                    return
                self._check_patience(now)
                if changes.wait(self._tick(now)):
                    read_at = None

    def show_once(self) -> None:
        seen = self._fetched().picture
        self.board.show(self.tracker.tick(self.started, seen), seen)

    def is_complete(self) -> bool:
        try:
            self.tracker.tick(self.started, self._fetched().picture)
        except Failure:
            return False  # the wait tells it
        complete, self.tracker = self.tracker.complete, Tracker()
        return complete

    def _judged(self, now: float, seen: "_Read") -> bool:
        if self.patience.fail_fast:
            self._check_failing(now, seen.instances)
        rows = self.tracker.tick(now, seen.picture)
        self.ticks += 1
        self.board.show(rows, seen.picture)
        if self.tracker.settled and seen.picture.held:
            raise Failure(
                f'the rollout of workload "{self.name}" is paused: {seen.picture.held}',
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
            message = f"the server has not answered for {elapsed(now - self.silent_since)}; the rollout may go on"
        else:
            message = f"Still rolling out after {compact(self.patience.seconds)}; nothing was undone."
        causes: dict[str, list[str]] = {}
        for place, cause in sorted(self.tracker.causes.items()):
            causes.setdefault(str(cause), []).append(place.city)
        raise Failure(
            message,
            Exit.TIMED_OUT,
            details=[f"{', '.join(cities)}: {cause}" for cause, cities in causes.items()][:_CAUSES],
            next_command=f"status {self.name}",
        )

    def _read(self, now: float) -> "_Read | None":
        """None when it could not be read; that is said once it lasts, and does not end the wait."""
        try:
            seen = self._fetched()
        except Failure as failure:
            if failure.code is Exit.NOT_FOUND or isinstance(failure, _Deleting):
                raise
            if self.silent_since is None:
                self.silent_since = now
            if not self.silence_reported and self.run.clock.monotonic() - self.silent_since >= _SILENCE_SECONDS:
                self.silence_reported = True
                self.run.terminal.warn(f"  {failure.message}; still trying")
            return None
        self.silent_since, self.silence_reported = None, False
        return seen

    def _fetched(self) -> "_Read":
        workload = self.run.project.get(WORKLOAD, self.name).object
        if workload.metadata.uid != self.uid:
            raise Failure(f'workload "{self.name}" was deleted while it was rolling out', Exit.NOT_FOUND)
        of_workload = f"{WORKLOAD_UID}={self.uid}"
        deployments = self.run.project.list(WORKLOAD_DEPLOYMENT, of_workload).items
        if workload.metadata.deleting:
            why = workload_health(workload, deployments).detail
            sentence = ": ".join(filter(None, (f'workload "{self.name}" is being deleted', why)))
            raise _Deleting(sentence, next_command=f"status {self.name}")
        instances = self.run.project.list(INSTANCE, of_workload).items
        return _Read(picture(workload, deployments, instances, self.target), instances)

    def _check_failing(self, now: float, instances: Iterable[Instance]) -> None:
        failing = {one.name: judge(one) for one in instances if judge(one).state.failed}
        self.failing = {name: self.failing.get(name, now) for name in failing}
        for name, since in sorted(self.failing.items()):
            if now - since >= _FAILING_SECONDS:
                closer = f"Look closer:  {self.run.try_next(f'instances describe {name}')}"
                raise Failure(
                    f"instance {name} does not start: {failing[name].status}",
                    Exit.ROLLOUT_FAILED,
                    details=[*filter(None, [failing[name].message]), closer],
                    next_command=f"rollout undo {self.name}" if self._can_go_back() else "",
                )

    def _can_go_back(self) -> bool:
        """Whether an undo would find something; it does not on the very first deploy."""
        try:
            seen = self.run.project.get(WORKLOAD, self.name)
            return history.read(self.run.project, seen.object).undo_target(seen.body()["spec"]) is not None
        except Failure:
            return False
