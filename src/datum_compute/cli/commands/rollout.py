"""The verbs around a rollout. Entry point: `command`."""

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.commands.restart import command as restart
from datum_compute.cli.entitlement import active_entitlement
from datum_compute.cli.flags import Duration, option, workload_argument
from datum_compute.cli.flags import command as verb
from datum_compute.cli.follow import JsonBoard, LineBoard, follow, patience, show_once
from datum_compute.cli.run import Run, project
from datum_compute.cli.tree import Verbs


@verb("status", needs=[project, active_entitlement], outputs=("table", "json"))
@workload_argument
@option("--watch/--no-watch", default=True, help="Go on until the rollout is complete.")
@option("--timeout", type=Duration(), metavar="DURATION", help="Longest wait; 0 is for ever.")
@option("--fail-fast", is_flag=True, help="Give up when an instance has failed for a minute.")
def status(run: Run, workload: str, watch: bool, timeout: float | None, fail_fast: bool) -> None:
    """Watch the rollout of a workload until it is complete.

    Ctrl-C detaches; the rollout goes on. Waits for ever in a terminal and 15 minutes elsewhere, unless --timeout is
    given.
    """
    seen = run.project.get(WORKLOAD, workload).object
    board = JsonBoard(run) if run.output == "json" else LineBoard(run)
    if run.output == "table":
        run.terminal.note(f'Rolling workload "{workload}"')
    if watch:
        follow(run, seen, patience(run, timeout, fail_fast=fail_fast), board)
    else:
        show_once(run, seen, board)


command = Verbs("rollout", "Watch a rollout, or restart a workload.", [status, restart], bare="status")
