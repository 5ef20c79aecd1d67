"""Goes back to an earlier revision of a workload. Entry point: `command`."""

from datum_compute.answers.rollout import version
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.commands.history import entry_of, spec_of
from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.flags import (
    Count,
    dry_run_option,
    option,
    verb,
    wait_options,
    workload_argument,
    yes_option,
)
from datum_compute.cli.shell.run import Run
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.workload import history
from datum_compute.cli.workload.changes import change_lines
from datum_compute.cli.workload.follow import WaitFlags, wait_for_rollout
from datum_compute.cli.workload.revisions import ROLLBACK, Entry, Revisions, spec_hash
from datum_compute.cli.workload.writing import (
    DRY_RUN,
    WRITE_OUTPUTS,
    approved,
    check_not_paused,
    show_written,
    to_change,
    traced,
)
from datum_compute.kube.meta import Json


class UndoFlags(WaitFlags, frozen=True):
    workload: str
    to_revision: int
    yes: bool
    dry_run: bool
    message: str


@verb("undo", needs=ENTITLED_PROJECT, outputs=WRITE_OUTPUTS, flags=UndoFlags)
@workload_argument
@option(
    "--to-revision",
    type=Count(0),
    default=0,
    metavar="N",
    help="Go back to this revision; 0, the default, is the previous one.",
)
@yes_option
@dry_run_option
@wait_options
def command(run: Run, flags: UndoFlags) -> None:
    """Bring back an earlier revision of a workload, as a new one.

    The whole spec comes back, including placements and replicas. The history keeps all its revisions.
    """
    name = flags.workload
    workload = to_change(run, name)
    check_not_paused(workload.object)
    revisions = history.read(run.project, workload.object)
    live: Json = workload.body()["spec"]
    target = _target(revisions, name, live, flags.to_revision)
    spec = spec_of(target)
    if target.spec_hash == spec_hash(live):
        show_written(
            run, WORKLOAD, workload, f'Workload "{name}" already matches revision #{target.rev}; nothing to do.'
        )
        return
    run.terminal.note(f'Changes to workload "{name}":', *(f"  {line}" for line in change_lines(live, spec)))

    def edit(body: Json) -> Json:
        return body | {"spec": spec}

    if flags.dry_run:
        show_written(run, WORKLOAD, run.project.update(WORKLOAD, workload, edit, dry_run=True).after, DRY_RUN)
        return
    if not approved(run, yes=flags.yes):
        return
    # A change from outside is recorded first, so that it can be undone as well.
    number = revisions.next_number + revisions.changed_outside(live)
    run.terminal.note(f"Creating revision #{number} (copy of #{target.rev})...")
    written = run.project.update(WORKLOAD, workload, traced(run, edit))
    text = flags.message or f"rollback to rev #{target.rev}"
    history.record(run, written.after, history.Change(ROLLBACK, text, written.before, target.rev))
    watch = "" if flags.wait else f" Run '{run.try_next(f'rollout status {name}')}' to watch progress."
    show_written(run, WORKLOAD, written.after, f"Rollout started.{watch}")
    if flags.wait:
        wait_for_rollout(run, written.after.object, flags, only=version(written.after.object))


def _target(revisions: Revisions, workload: str, live: Json, number: int) -> Entry:
    if not revisions.entries:
        raise Failure(f'no revision history for workload "{workload}"; cannot undo')
    target = entry_of(revisions, workload, number) if number else revisions.undo_target(live)
    if target is None:
        raise Failure("no previous revision to roll back to", next_command=f"rollout history {workload}")
    if target.rev == revisions.current and target.spec_hash == spec_hash(live):
        raise Failure(f"workload is already at revision #{target.rev}")
    return target
