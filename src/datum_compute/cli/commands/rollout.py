"""The verbs around a rollout. Entry point: `command`."""

from datum_compute.answers.health import is_paused
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.commands.history import command as history_verb
from datum_compute.cli.commands.pause import pause, resume
from datum_compute.cli.commands.restart import command as restart
from datum_compute.cli.commands.undo import command as undo
from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.flags import Count, Duration, option, workload_argument
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.shell.tree import Verbs
from datum_compute.cli.show.progress import JsonBoard, board_for
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.cli.workload import history
from datum_compute.cli.workload.follow import announce, earlier_change, follow, patience, show_once


@verb("status", needs=[project, active_entitlement], outputs=("table", "json"))
@workload_argument
@option("--watch/--no-watch", default=True, help="Go on until the rollout is complete.")
@option("--timeout", type=Duration(), metavar="DURATION", help="Longest wait; 0 is for ever.")
@option("--revision", type=Count(), metavar="N", help="Fail unless this revision is the active one.")
@option("--fail-fast", is_flag=True, help="Give up when an instance has failed for a minute.")
def status(run: Run, workload: str, watch: bool, timeout: float | None, revision: int | None, fail_fast: bool) -> None:
    """Watch the rollout of a workload until it is complete.

    Ctrl-C detaches; the rollout goes on. Waits for ever in a terminal and 15 minutes elsewhere, unless --timeout is
    given.
    """
    found = run.project.get(WORKLOAD, workload)
    seen = found.object
    board = JsonBoard(run) if run.output == "json" else board_for(run)
    known = history.read(run.project, seen)
    if revision is not None and known.current != revision:
        raise Failure(
            f'revision #{revision} of workload "{workload}" is not the active one; that is {_number(known.current)}',
            next_command=f"rollout history {workload}",
        )
    if is_paused(seen) and not seen.metadata.deleting:
        if run.output == "json":
            run.terminal.record({"complete": False, "elapsedSeconds": 0, "paused": True})
        run.terminal.show(f'Rollout of workload "{workload}" is paused.')
        run.terminal.hint(f"Run '{run.try_next(f'rollout resume {workload}')}' to let it go on.")
        return
    if run.output == "table":
        announce(run, seen, known)
    if watch:
        earlier = earlier_change(run, found, known)
        follow(run, seen, patience(run, timeout, fail_fast=fail_fast), board, earlier=earlier)
    else:
        show_once(run, seen, board)


def _number(number: int) -> str:
    return f"#{number}" if number else "not known"


command = Verbs(
    "rollout",
    "Watch, restart, pause or undo a rollout, and show its history.",
    [status, history_verb, undo, restart, pause, resume],
    bare="status",
    aliases={"rollback": "undo"},
)
