"""Brings back what was asked of a workload before. Entry point: `command`."""

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.commands.history import spec_of, wanted
from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.flags import Count, Duration, message_option, option, workload_argument
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.results import NOTHING_DONE, WRITTEN, agreed, check_not_paused, show_written, to_change
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.cli.workload import history
from datum_compute.cli.workload.changes import change_lines
from datum_compute.cli.workload.follow import announce, follow, patience
from datum_compute.cli.workload.revisions import ROLLBACK, Entry, Revisions, spec_hash
from datum_compute.kube.meta import Json


@verb("undo", needs=[project, active_entitlement], outputs=WRITTEN)
@workload_argument
@option(
    "--to-revision",
    type=Count(0),
    default=0,
    metavar="N",
    help="Go back to this one; 0, as without it, is the previous.",
)
@option("-y", "--yes", is_flag=True, help="Do not ask.")
@option("--dry-run", is_flag=True, help="Let the server check it, and change nothing.")
@option("--wait/--no-wait", default=False, help="Watch the rollout until it is complete.")
@option("--timeout", type=Duration(), metavar="DURATION", help="Longest wait; 0 is for ever.")
@message_option
def command(
    run: Run,
    workload: str,
    to_revision: int,
    yes: bool,
    dry_run: bool,
    wait: bool,
    timeout: float | None,
    message: str,
) -> None:
    """Bring back an earlier revision of a workload, as a new one.

    The whole spec comes back, places and numbers included. Nothing is taken out of the history.
    """
    seen = to_change(run, workload)
    check_not_paused(seen.object)
    known = history.read(run.project, seen.object)
    live: Json = seen.body()["spec"]
    target = _target(known, workload, live, to_revision)
    spec = spec_of(target)
    if target.spec_hash == spec_hash(live):
        sentence = f'Workload "{workload}" already is as revision #{target.rev} asks; nothing to do.'
        show_written(run, WORKLOAD, seen, sentence)
        return
    run.terminal.note(f'Changes to workload "{workload}":', *(f"  {line}" for line in change_lines(live, spec)))

    def edit(body: Json) -> Json:
        return body | {"spec": spec}

    if dry_run:
        checked = run.project.update(WORKLOAD, seen, edit, dry_run=True)
        show_written(run, WORKLOAD, checked.after, NOTHING_DONE)
        return
    if not agreed(run, yes=yes):
        return
    # What was changed from outside is put into the history first, so that it can be undone as well.
    number = known.next_number + known.changed_outside(live)
    run.terminal.note(f"Creating revision #{number} (copy of #{target.rev})...")
    written = run.project.update(WORKLOAD, seen, edit)
    text = message or f"rollback to rev #{target.rev}"
    history.record(run, written.after, history.Change(ROLLBACK, text, written.before, target.rev))
    watch = "" if wait else f" Run '{run.try_next(f'rollout status {workload}')}' to watch progress."
    show_written(run, WORKLOAD, written.after, f"Rollout started.{watch}")
    if wait:
        announce(run, written.after.object)
        follow(run, written.after.object, patience(run, timeout))


def _target(known: Revisions, workload: str, live: Json, number: int) -> Entry:
    if not known.entries:
        raise Failure(f'no revision history for workload "{workload}"; cannot undo')
    target = wanted(known, workload, number) if number else known.undo_target(live)
    if target is None:
        raise Failure("no previous revision to roll back to", next_command=f"rollout history {workload}")
    if target.rev == known.current and target.spec_hash == spec_hash(live):
        raise Failure(f"workload is already at revision #{target.rev}")
    return target
