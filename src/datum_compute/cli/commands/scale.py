"""How many instances run in each city. Entry point: `command`."""

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.failures import usage
from datum_compute.cli.shell.flags import Duration, Replicas, message_option, option, workload_argument
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.results import WRITTEN, show_written, to_change
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.cli.workload import edits, history
from datum_compute.cli.workload.changes import change_lines
from datum_compute.cli.workload.follow import announce, earlier_change, follow, patience
from datum_compute.cli.workload.revisions import SCALE
from datum_compute.kube.meta import Json


def _check(workload: str, min_: int | None, **others: object) -> None:
    if min_ is None:
        raise usage("--min is required", f"scale {workload} --min=2")


@verb("scale", needs=[project, active_entitlement], outputs=WRITTEN, check=_check)
@workload_argument
@option("--min", "min_", type=Replicas(), metavar="N", help="Instances to run in each city.")
@option("--placement", metavar="NAME", help="Only this placement; all of them unless given.")
@option("--wait/--no-wait", default=False, help="Watch the rollout until it is complete.")
@option("--timeout", type=Duration(), metavar="DURATION", help="Longest wait; 0 is for ever.")
@message_option
def command(
    run: Run, workload: str, min_: int, placement: str | None, wait: bool, timeout: float | None, message: str
) -> None:
    """Set how many instances run in each city.

    Nothing restarts: instances are added, or the highest ordinals removed.
    """
    seen = to_change(run, workload)
    placements = edits.placements(seen.body()["spec"])
    names = [str(one.get("name")) for one in placements]
    if not placements:
        run.terminal.show("workload has no placements; nothing to scale")
        return
    if placement is not None and placement not in names:
        raise usage(f'workload "{workload}" has no placement "{placement}"; it has {", ".join(sorted(names))}')

    def edit(body: Json) -> Json:
        return body | {"spec": edits.with_min_replicas(body["spec"], min_, placement)}

    written = run.project.update(WORKLOAD, seen, edit)
    if not written.changed:
        show_written(run, WORKLOAD, seen, f'Workload "{workload}" already has min replicas {min_}.')
    else:
        number = 1 if placement is not None else len(names)
        sentence = f'Scaled workload "{workload}" — min replicas set to {min_} across {number} placement(s).'
        show_written(run, WORKLOAD, written.after, sentence)
        lines = change_lines(written.before.body()["spec"], written.after.body()["spec"])
        history.record(run, written.after, history.Change(SCALE, message or "; ".join(lines), written.before))
    if wait:
        announce(run, written.after.object)
        earlier = None if written.changed else earlier_change(run, written.after)
        follow(run, written.after.object, patience(run, timeout), earlier=earlier)
    elif written.changed:
        run.terminal.hint(f"Run '{run.try_next(f'rollout status {workload}')}' to watch progress.")
