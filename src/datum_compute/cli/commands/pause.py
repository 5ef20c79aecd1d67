"""Holds a rollout where it is, and lets it go on. Entry points: `pause`, `resume`."""

from datum_compute.answers.health import is_paused
from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.reasons import ROLLOUT_PAUSED as PAUSED_REASON
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.flags import workload_argument
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.results import WRITTEN, show_written, to_change
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.kube.meta import Json

CONFIRMED_SECONDS = 10.0
_LOOK_SECONDS = 0.5


@verb("pause", needs=[project, active_entitlement], outputs=WRITTEN)
@workload_argument
def pause(run: Run, workload: str) -> None:
    """Hold the rollout of a workload: no further instance is replaced.

    Scaling, places and deletion go on. What is deployed meanwhile rolls out when the rollout is resumed.
    """
    seen = to_change(run, workload)
    if is_paused(seen.object):
        show_written(run, WORKLOAD, seen, f'Rollout of workload "{workload}" is already paused.')
        return
    written = run.project.update(WORKLOAD, seen, lambda body: _annotated(body, "true")).after
    confirmed = _confirmed(run, workload)
    show_written(run, WORKLOAD, written, f'Rollout of workload "{workload}" is paused.')
    if not confirmed:
        run.terminal.warn(
            f"  warning: the server did not confirm it in {CONFIRMED_SECONDS:.0f} s; instances may still be replaced"
        )
    run.terminal.hint(f"Run '{run.try_next(f'rollout resume {workload}')}' to let it go on.")


@verb("resume", needs=[project, active_entitlement], outputs=WRITTEN)
@workload_argument
def resume(run: Run, workload: str) -> None:
    """Let a rollout go on that was paused."""
    seen = to_change(run, workload)
    if not is_paused(seen.object):
        show_written(run, WORKLOAD, seen, f'Rollout of workload "{workload}" is not paused.')
        return
    written = run.project.update(WORKLOAD, seen, lambda body: _annotated(body, None)).after
    show_written(run, WORKLOAD, written, f'Rollout of workload "{workload}" goes on.')
    run.terminal.hint(f"Run '{run.try_next(f'rollout status {workload}')}' to watch progress.")


def _annotated(body: Json, value: str | None) -> Json:
    """On the workload itself, not on its template: pausing must not roll anything."""
    metadata = body["metadata"]
    others = {key: text for key, text in (metadata.get("annotations") or {}).items() if key != ROLLOUT_PAUSED}
    annotations = others | ({ROLLOUT_PAUSED: value} if value is not None else {})
    return body | {"metadata": metadata | {"annotations": annotations}}


def _confirmed(run: Run, workload: str) -> bool:
    deadline = run.clock.monotonic() + CONFIRMED_SECONDS
    while not _says_paused(run.project.get(WORKLOAD, workload).object):
        if run.clock.monotonic() >= deadline:
            return False
        run.clock.sleep(_LOOK_SECONDS)
    return True


def _says_paused(workload: Workload) -> bool:
    conditions = workload.status.conditions if workload.status else ()
    return any(one.type == "Progressing" and one.reason == PAUSED_REASON for one in conditions)
