"""Deletes a workload and everything it caused. Entry point: `command`."""

from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli import history
from datum_compute.cli.durations import compact
from datum_compute.cli.entitlement import active_entitlement
from datum_compute.cli.failures import Exit, Failure, usage
from datum_compute.cli.flags import Duration, option, workload_argument
from datum_compute.cli.flags import command as verb
from datum_compute.cli.lines import Line, Table
from datum_compute.cli.run import Run, project

_LOOK_SECONDS = 1.0


@verb("destroy", needs=[project, active_entitlement], outputs=("table", "name"))
@workload_argument
@option("-y", "--yes", is_flag=True, help="Do not ask.")
@option("--wait/--no-wait", default=False, help="Return only when everything is gone.")
@option("--timeout", type=Duration(), default=600.0, metavar="DURATION", help="Longest wait; 10m unless given.")
def command(run: Run, workload: str, yes: bool, wait: bool, timeout: float) -> None:
    """Delete a workload and all its instances, in every city."""
    seen = run.project.get(WORKLOAD, workload).object
    if seen.metadata.deleting:
        run.terminal.show(f"workload/{workload} is already being deleted.")
    else:
        run.terminal.note(*_facts(seen))
        if not yes and not _confirmed(run, workload):
            run.terminal.show("Aborted.")
            return
        run.project.delete(WORKLOAD, workload, seen.metadata.uid)
        run.terminal.show(f"workload/{workload} deleted.")
    history.forget(run.project, workload)
    if run.output == "name":
        run.terminal.name(f"workload/{workload}")
    if wait:
        _until_gone(run, seen, timeout)


def _facts(workload: Workload) -> list[str | Line | Table]:
    placements = workload.spec.placements
    cities = sorted({city for placement in placements for city in placement.city_codes})
    replicas = sum(one.scale_settings.min_replicas for one in placements)
    return [
        f"{'Workload:':<14} {workload.name}",
        f"{'Placements:':<14} {', '.join(one.name for one in placements) or '(none)'}",
        f"{'Cities:':<14} {', '.join(cities) or '(none)'}",
        f"{'Min replicas:':<14} {replicas}",
    ]


def _confirmed(run: Run, workload: str) -> bool:
    if not run.terminal.asks:
        raise usage(f'deleting workload "{workload}" has to be confirmed: pass -y to confirm', f"destroy {workload} -y")
    question = "This will delete workload and all its instances. Continue? (y/N): "
    return run.terminal.confirm(question, default=False)


def _until_gone(run: Run, workload: Workload, timeout: float) -> None:
    deadline = run.clock.monotonic() + timeout
    while (found := run.project.find(WORKLOAD, workload.name)) is not None:
        if found.object.metadata.uid != workload.metadata.uid:
            break  # a new one of the same name
        if timeout and run.clock.monotonic() >= deadline:
            raise Failure(
                f"workload/{workload.name} is still being deleted after {compact(timeout)}; it goes on by itself",
                Exit.TIMED_OUT,
                next_command=f"instances --workload={workload.name}",
            )
        run.clock.sleep(_LOOK_SECONDS)
    run.terminal.show(f"workload/{workload.name} is gone.")
