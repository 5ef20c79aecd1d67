"""Replaces instances without changing anything else. Entry point: `command`, also `rollout restart`."""

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.labels import RESTARTED_AT
from datum_compute.api.restarts import newest
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import option, verb, wait_options, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.project import Read, of_workload
from datum_compute.cli.workload import edits, history
from datum_compute.cli.workload.follow import WaitFlags, wait_for_rollout
from datum_compute.cli.workload.revisions import RESTART
from datum_compute.cli.workload.writing import (
    WRITE_OUTPUTS,
    check_not_paused,
    hint_progress,
    show_written,
    to_change,
    traced,
)
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.meta import Json

ACCEPT_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class RestartFlags(WaitFlags, frozen=True):
    workload: str
    city: str | None
    message: str


@verb("restart", needs=ENTITLED_PROJECT, outputs=WRITE_OUTPUTS, flags=RestartFlags)
@workload_argument
@option("--city", metavar="CITY", help="Only in this city; everywhere by default.")
@wait_options
def command(run: Run, flags: RestartFlags) -> None:
    """Replace all instances, one at a time.

    From the highest ordinal down, with the same template. The same as `rollout restart`.
    """
    name = flags.workload
    workload = to_change(run, name)
    check_not_paused(workload.object)
    if flags.city is not None:
        workload, city = _restart_city(run, workload, flags.city)
        show_written(run, WORKLOAD, workload, f'Restarting workload "{name}" in {city} — rolling restart initiated.')
        history.record(run, workload, history.Change(RESTART, flags.message or f"restart in {city}", workload))
    else:

        def edit(body: Json) -> Json:
            return body | {"spec": edits.with_restart(body["spec"], run.clock.now())}

        written = run.project.update(WORKLOAD, workload, traced(run, edit))
        workload = written.after
        show_written(run, WORKLOAD, workload, f'Restarting workload "{name}" — rolling restart initiated.')
        history.record(run, workload, history.Change(RESTART, flags.message or "restart", written.before))
    if flags.wait:
        wait_for_rollout(run, workload.object, flags)
    else:
        hint_progress(run, name)


def _restart_city(run: Run, workload: Read[Workload], city: str) -> tuple[Read[Workload], str]:
    """Notes the restart on the workload for its controller to carry out.

    For a server that does not know these notes, the deployments are restarted from here.
    """
    deployments = _deployments(run, workload.object, city)
    code = deployments[0].object.spec.city_code
    times = [_restarted_at(read.object) for read in deployments]
    time = ""

    def edit(body: Json) -> Json:
        nonlocal time
        body, time = edits.with_city_restart(body, code, times, run.clock.now())
        return run.trace.noted_on(body, run.project.name)

    written = run.project.update(WORKLOAD, workload, edit).after
    for read in _not_restarted(run, written.object, code, time):
        try:
            run.project.update(WORKLOAD_DEPLOYMENT, read, lambda body: edits.with_deployment_restart(body, time))
        except Failure as failure:
            if not isinstance(failure.__cause__, Forbidden):
                raise
            raise _not_accepted(workload.object.name, code) from failure
    return written, code


def _not_restarted(run: Run, workload: Workload, city: str, time: str) -> list[Read[WorkloadDeployment]]:
    """The deployments of a city that the server has still not restarted after some seconds."""
    deadline, pause = run.clock.monotonic() + ACCEPT_SECONDS, _FIRST_PAUSE
    while True:
        times = [(read, _restarted_at(read.object)) for read in _deployments(run, workload, city)]
        left = [read for read, own in times if newest(own, time) != own]
        if not left or run.clock.monotonic() >= deadline:
            return left
        run.clock.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _restarted_at(deployment: WorkloadDeployment) -> str | None:
    return deployment.spec.template.metadata.annotations.get(RESTARTED_AT)


def _not_accepted(workload: str, city: str) -> Failure:
    from datum_compute.api.permissions import On, When, Who
    from datum_compute.api.roles import role_name

    role = role_name(Who.USER, On.PROJECT, When.CITY_RESTART)
    return Failure(
        f'the server did not restart workload "{workload}" in {city} within {ACCEPT_SECONDS:.0f} s, '
        "and you may not write its deployments",
        Exit.NOT_ALLOWED,
        details=[
            "The restart is noted on the workload and happens when the server processes the note.",
            f"A server that does not know these notes needs the role {role}: ask an administrator.",
        ],
    )


def _deployments(run: Run, workload: Workload, city: str) -> list[Read[WorkloadDeployment]]:
    """The deployments of a workload in a city; fails if there are none."""
    everywhere = run.project.list(WORKLOAD_DEPLOYMENT, of_workload(workload)).found
    deployments = [read for read in everywhere if read.object.spec.city_code.lower() == city.lower()]
    if not deployments:
        cities = sorted({read.object.spec.city_code for read in everywhere})
        raise Failure(
            f'no deployment found for workload "{workload.name}" in city "{city}"',
            Exit.NOT_FOUND,
            details=[f"It runs in {', '.join(cities)}." if cities else "It does not run anywhere yet."],
        )
    return deployments
