"""Replaces instances without changing anything else. Entry point: `command`, also `rollout restart`."""

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli import edits, history
from datum_compute.cli.entitlement import active_entitlement
from datum_compute.cli.failures import Exit, Failure
from datum_compute.cli.flags import Duration, message_option, option, workload_argument
from datum_compute.cli.flags import command as verb
from datum_compute.cli.follow import announce, follow, patience
from datum_compute.cli.project import Read
from datum_compute.cli.results import WRITTEN, check_not_paused, show_written, to_change
from datum_compute.cli.revisions import RESTART
from datum_compute.cli.run import Run, project
from datum_compute.kube.meta import Json


@verb("restart", needs=[project, active_entitlement], outputs=WRITTEN)
@workload_argument
@option("--city", metavar="CITY", help="Only in this city; everywhere unless given.")
@option("--wait/--no-wait", default=False, help="Watch the rollout until it is complete.")
@option("--timeout", type=Duration(), metavar="DURATION", help="Longest wait; 0 is for ever.")
@message_option
def command(run: Run, workload: str, city: str | None, wait: bool, timeout: float | None, message: str) -> None:
    """Replace all instances, one at a time.

    From the highest ordinal down, with what they run now. The same as `rollout restart`.
    """
    seen = to_change(run, workload)
    check_not_paused(seen.object)

    def edit(body: Json) -> Json:
        return body | {"spec": edits.with_restart(body["spec"], run.clock.now())}

    if city is not None:
        deployments = _in_city(run, seen.object, city)
        for deployment in deployments:
            run.project.update(WORKLOAD_DEPLOYMENT, deployment, edit)
        where = deployments[0].object.spec.city_code
        show_written(run, WORKLOAD, seen, f'Restarting workload "{workload}" in {where} — rolling restart initiated.')
        history.record(run, seen, history.Change(RESTART, message or f"restart in {where}", seen))
    else:
        written = run.project.update(WORKLOAD, seen, edit)
        seen = written.after
        show_written(run, WORKLOAD, seen, f'Restarting workload "{workload}" — rolling restart initiated.')
        history.record(run, seen, history.Change(RESTART, message or "restart", written.before))
    if wait:
        announce(run, seen.object)
        follow(run, seen.object, patience(run, timeout))
    else:
        run.terminal.hint(f"Run '{run.try_next(f'rollout status {workload}')}' to watch progress.")


def _in_city(run: Run, workload: Workload, city: str) -> list[Read[WorkloadDeployment]]:
    found = run.project.list(WORKLOAD_DEPLOYMENT, f"{WORKLOAD_UID}={workload.metadata.uid}").found
    there = [read for read in found if read.object.spec.city_code.lower() == city.lower()]
    if not there:
        cities = sorted({read.object.spec.city_code for read in found})
        raise Failure(
            f'no deployment found for workload "{workload.name}" in city "{city}"',
            Exit.NOT_FOUND,
            details=[f"It runs in {', '.join(cities)}." if cities else "It runs nowhere yet."],
        )
    return there
