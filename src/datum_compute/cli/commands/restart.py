"""Replaces instances without changing anything else. Entry point: `command`, also `rollout restart`."""

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.labels import RESTARTED_AT, WORKLOAD_UID
from datum_compute.api.restarts import newest
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import Duration, message_option, option, workload_argument
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.results import WRITTEN, check_not_paused, show_written, to_change
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import edits, history
from datum_compute.cli.workload.follow import announce, follow, patience
from datum_compute.cli.workload.revisions import RESTART
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.meta import Json

TAKEN_UP_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


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

    if city is not None:
        seen, where = _restart_city(run, seen, city)
        show_written(run, WORKLOAD, seen, f'Restarting workload "{workload}" in {where} — rolling restart initiated.')
        history.record(run, seen, history.Change(RESTART, message or f"restart in {where}", seen))
    else:

        def edit(body: Json) -> Json:
            return body | {"spec": edits.with_restart(body["spec"], run.clock.now())}

        written = run.project.update(WORKLOAD, seen, edit)
        seen = written.after
        show_written(run, WORKLOAD, seen, f'Restarting workload "{workload}" — rolling restart initiated.')
        history.record(run, seen, history.Change(RESTART, message or "restart", written.before))
    if wait:
        announce(run, seen.object)
        follow(run, seen.object, patience(run, timeout))
    else:
        run.terminal.hint(f"Run '{run.try_next(f'rollout status {workload}')}' to watch progress.")


def _restart_city(run: Run, seen: Read[Workload], city: str) -> tuple[Read[Workload], str]:
    """Notes it on the workload, whose controller hands it on. A server that does not is helped along."""
    deployments = _in_city(run, seen.object, city)
    where = deployments[0].object.spec.city_code
    marks = [_mark(read.object) for read in deployments]
    mark = ""

    def edit(body: Json) -> Json:
        nonlocal mark
        body, mark = edits.with_city_restart(body, where, marks, run.clock.now())
        return body

    written = run.project.update(WORKLOAD, seen, edit).after
    left = _without(run, written.object, where, mark)
    for read in left:
        try:
            run.project.update(WORKLOAD_DEPLOYMENT, read, lambda body: edits.with_mark(body, mark))
        except Failure as failure:
            if not isinstance(failure.__cause__, Forbidden):
                raise
            raise _not_taken_up(seen.object.name, where) from failure
    return written, where


def _without(run: Run, workload: Workload, city: str, mark: str) -> list[Read[WorkloadDeployment]]:
    """The deployments of a city that still lack the restart after all the time they are given."""
    deadline, pause = run.clock.monotonic() + TAKEN_UP_SECONDS, _FIRST_PAUSE
    while True:
        found = [(read, _mark(read.object)) for read in _in_city(run, workload, city)]
        left = [read for read, own in found if newest(own, mark) != own]
        if not left or run.clock.monotonic() >= deadline:
            return left
        run.clock.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _mark(deployment: WorkloadDeployment) -> str | None:
    return deployment.spec.template.metadata.annotations.get(RESTARTED_AT)


def _not_taken_up(workload: str, city: str) -> Failure:
    from datum_compute.api.permissions import On, When, Who
    from datum_compute.api.roles import role_name

    role = role_name(Who.USER, On.PROJECT, When.CITY_RESTART)
    return Failure(
        f'the server did not restart workload "{workload}" in {city} within {TAKEN_UP_SECONDS:.0f} s, '
        "and you may not write its deployments",
        Exit.NOT_ALLOWED,
        details=[
            "The restart is noted on the workload and happens when compute takes it up.",
            f"A server that knows nothing of such notes needs the role {role}: ask an administrator.",
        ],
    )


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
