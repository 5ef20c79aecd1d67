"""Watches a rollout until it is complete. Entry points: `follow`, `Patience`.

Shared by every verb that waits. The server is read when a watch says that something changed, every two seconds while
no watch is up, and now and then in any case.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, READY, Instance
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli import history
from datum_compute.cli.boards import Board, board_for
from datum_compute.cli.durations import compact
from datum_compute.cli.failures import Exit, Failure
from datum_compute.cli.health import Block, block, judge
from datum_compute.cli.joins import deployment_of
from datum_compute.cli.revisions import Revisions
from datum_compute.cli.rollout import Picture, Tracker, picture
from datum_compute.cli.run import Run

TICK_SECONDS = 2.0
_READ_SECONDS = 10.0  # at the latest, whatever the watches say
_FAILING_SECONDS = 60.0
_ERRORS_TO_TELL = 5


class Patience(Struct, frozen=True):
    """How long to wait, and whether to give up on an instance that fails. 0 seconds is for ever."""

    seconds: float
    fail_fast: bool = False


def patience(run: Run, timeout: float | None, *, fail_fast: bool = False) -> Patience:
    """As the flags say; unless told, a person waits as long as they like and a script a quarter of an hour."""
    default = 0.0 if run.terminal.live else 900.0
    return Patience(default if timeout is None else timeout, fail_fast)


def follow(run: Run, workload: Workload, patience: Patience, board: Board | None = None) -> bool:
    """Shows the rollout of this generation. True when it is complete, false when the user detached.

    Raises `Failure` when it takes too long, an instance fails, or the workload is deleted.
    """
    following = _Following(run, workload, patience, board or board_for(run))
    complete = detached = False
    try:
        following.until_complete()
        complete = True
    except KeyboardInterrupt:
        detached = True
    finally:
        following.board.ended(complete=complete, seconds=run.clock.monotonic() - following.started)
    if detached:
        run.terminal.note("Detached. Rollout continues in background.")
    return complete


def announce(run: Run, workload: Workload, known: Revisions | None = None) -> None:
    """Tells what rolls out: the number of the revision and of the one before it, as far as there is a history."""
    if known is None:
        try:
            known = history.read(run.project, workload)
        except Failure:
            known = Revisions()  # not worth ending a wait for
    numbers = ""
    if known.active is not None:
        before = [entry.rev for entry in known.entries if entry.rev < known.active.rev]
        numbers = f"  rev #{before[-1]} → #{known.active.rev}" if before else f"  rev #{known.active.rev}"
    run.terminal.note(f'Rolling workload "{workload.name}"{numbers}')


def show_once(run: Run, workload: Workload, board: Board | None = None) -> bool:
    """Shows how far the rollout has come now, and tells whether it is complete."""
    following = _Following(run, workload, Patience(0), board or board_for(run))
    following.show_once()
    return following.tracker.complete


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


def _causes(instances: Sequence[Instance]) -> dict[str, Block]:
    """Why the first instance of each deployment that is not ready is not."""
    causes: dict[str, Block] = {}
    for instance in sorted(instances, key=lambda one: one.name):
        cause = block(instance.status.conditions, READY) if instance.status else None
        if cause is not None:
            causes.setdefault(deployment_of(instance), cause)
    return causes
