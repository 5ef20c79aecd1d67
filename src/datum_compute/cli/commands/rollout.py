"""The verbs for rollouts. Entry point: `command`."""

from msgspec import Struct

from datum_compute.answers.health import is_paused
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.commands.history import command as history_verb
from datum_compute.cli.commands.pause import pause, resume
from datum_compute.cli.commands.restart import command as restart
from datum_compute.cli.commands.undo import command as undo
from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.flags import Count, fail_fast_option, option, timeout_option, verb, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.shell.tree import Verbs
from datum_compute.cli.show.progress import JsonBoard, board_for
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.workload import history
from datum_compute.cli.workload.follow import announce, earlier_change, follow, patience, show_once
from datum_compute.cli.workload.writing import hint_resume


class StatusFlags(Struct, frozen=True):
    workload: str
    watch: bool
    timeout: float | None
    revision: int | None
    fail_fast: bool


@verb("status", needs=ENTITLED_PROJECT, outputs=("table", "json"), flags=StatusFlags)
@workload_argument
@option("--watch/--no-watch", default=True, help="Continue until the rollout is complete.")
@timeout_option
@option("--revision", type=Count(), metavar="N", help="Fail unless this revision is the active one.")
@fail_fast_option
def status(run: Run, flags: StatusFlags) -> None:
    """Watch the rollout of a workload until it is complete.

    Ctrl-C detaches; the rollout continues. Without --timeout it waits forever in a terminal and 15 minutes elsewhere.
    """
    name = flags.workload
    read = run.project.get(WORKLOAD, name)
    workload = read.object
    board = JsonBoard(run) if run.terminal.structured else board_for(run)
    revisions = history.read(run.project, workload)
    if flags.revision is not None and revisions.current != flags.revision:
        active = f"#{revisions.current}" if revisions.current else "not known"
        raise Failure(
            f'revision #{flags.revision} of workload "{name}" is not the active one; that is {active}',
            next_command=f"rollout history {name}",
        )
    if is_paused(workload) and not workload.metadata.deleting:
        if run.terminal.structured:
            run.terminal.record({"complete": False, "elapsedSeconds": 0, "paused": True})
        run.terminal.show(f'Rollout of workload "{name}" is paused.')
        hint_resume(run, name)
        return
    if not run.terminal.structured:
        announce(run, workload, revisions)
    if flags.watch:
        earlier = earlier_change(run, read, revisions)
        follow(run, workload, patience(run, flags.timeout, fail_fast=flags.fail_fast), board, earlier=earlier)
    else:
        show_once(run, workload, board)


command = Verbs(
    "rollout",
    "Watch, restart, pause or undo a rollout, and show its history.",
    [status, history_verb, undo, restart, pause, resume],
    bare="status",
    aliases={"rollback": "undo"},
)
