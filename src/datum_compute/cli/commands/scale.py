"""Sets how many instances run in each city. Entry point: `command`."""

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.failures import usage
from datum_compute.cli.shell.flags import MIN_REPLICAS, option, verb, wait_options, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.workload import edits, history
from datum_compute.cli.workload.changes import change_lines
from datum_compute.cli.workload.follow import WaitFlags, earlier_change, wait_for_rollout
from datum_compute.cli.workload.revisions import SCALE
from datum_compute.cli.workload.writing import WRITE_OUTPUTS, hint_progress, show_written, to_change, traced
from datum_compute.kube.meta import Json


class ScaleFlags(WaitFlags, frozen=True):
    workload: str
    min_: int | None
    placement: str | None
    message: str


def _check(flags: ScaleFlags) -> None:
    if flags.min_ is None:
        raise usage("--min is required", f"scale {flags.workload} --min=2")


@verb("scale", needs=ENTITLED_PROJECT, outputs=WRITE_OUTPUTS, flags=ScaleFlags, check=_check)
@workload_argument
@option("--min", "min_", type=MIN_REPLICAS, metavar="N", help="Instances to run in each city.")
@option("--placement", metavar="NAME", help="Only this placement; all of them by default.")
@wait_options
def command(run: Run, flags: ScaleFlags) -> None:
    """Set how many instances run in each city.

    Nothing restarts: instances are added, or those with the highest ordinals removed.
    """
    name, replicas, placement = flags.workload, flags.min_, flags.placement
    assert replicas is not None
    workload = to_change(run, name)
    placements = [str(item.get("name")) for item in edits.placements(workload.body()["spec"])]
    if not placements:
        run.terminal.show("workload has no placements; nothing to scale")
        return
    if placement is not None and placement not in placements:
        raise usage(f'workload "{name}" has no placement "{placement}"; it has {", ".join(sorted(placements))}')

    def edit(body: Json) -> Json:
        return body | {"spec": edits.with_min_replicas(body["spec"], replicas, placement)}

    written = run.project.update(WORKLOAD, workload, traced(run, edit))
    if not written.changed:
        show_written(run, WORKLOAD, workload, f'Workload "{name}" already has min replicas {replicas}.')
    else:
        number = 1 if placement is not None else len(placements)
        sentence = f'Scaled workload "{name}" — min replicas set to {replicas} across {number} placement(s).'
        show_written(run, WORKLOAD, written.after, sentence)
        lines = change_lines(written.before.body()["spec"], written.after.body()["spec"])
        history.record(run, written.after, history.Change(SCALE, flags.message or "; ".join(lines), written.before))
    if flags.wait:
        earlier = None if written.changed else earlier_change(run, written.after)
        wait_for_rollout(run, written.after.object, flags, earlier=earlier)
    elif written.changed:
        hint_progress(run, name)
