"""Pauses and resumes a rollout. Entry points: `pause`, `resume`."""

from datum_compute.answers.health import is_paused
from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.reasons import ROLLOUT_PAUSED as PAUSED_REASON
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.flags import verb, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.workload.writing import WRITE_OUTPUTS, hint_progress, hint_resume, show_written, to_change
from datum_compute.kube.meta import Json

CONFIRM_SECONDS = 10.0
_POLL_SECONDS = 0.5


@verb("pause", needs=ENTITLED_PROJECT, outputs=WRITE_OUTPUTS)
@workload_argument
def pause(run: Run, workload: str) -> None:
    """Pause the rollout of a workload: no further instance is replaced.

    Scaling, changes of cities and deletion still happen. New templates roll out when the rollout is resumed.
    """
    read = to_change(run, workload)
    if is_paused(read.object):
        show_written(run, WORKLOAD, read, f'Rollout of workload "{workload}" is already paused.')
        return
    written = run.project.update(WORKLOAD, read, lambda body: _annotated(body, "true")).after
    confirmed = _is_confirmed(run, workload)
    show_written(run, WORKLOAD, written, f'Rollout of workload "{workload}" is paused.')
    if not confirmed:
        run.terminal.warn(
            f"  warning: the server did not confirm it in {CONFIRM_SECONDS:.0f} s; instances may still be replaced"
        )
    hint_resume(run, workload)


@verb("resume", needs=ENTITLED_PROJECT, outputs=WRITE_OUTPUTS)
@workload_argument
def resume(run: Run, workload: str) -> None:
    """Resume a rollout that was paused."""
    read = to_change(run, workload)
    if not is_paused(read.object):
        show_written(run, WORKLOAD, read, f'Rollout of workload "{workload}" is not paused.')
        return
    written = run.project.update(WORKLOAD, read, lambda body: _annotated(body, None)).after
    show_written(run, WORKLOAD, written, f'Rollout of workload "{workload}" is resumed.')
    hint_progress(run, workload)


def _annotated(body: Json, value: str | None) -> Json:
    """Annotates the workload, not its template: pausing must not roll anything."""
    metadata = body["metadata"]
    others = {key: text for key, text in (metadata.get("annotations") or {}).items() if key != ROLLOUT_PAUSED}
    annotations = others | ({ROLLOUT_PAUSED: value} if value is not None else {})
    return body | {"metadata": metadata | {"annotations": annotations}}


def _is_confirmed(run: Run, workload: str) -> bool:
    deadline = run.clock.monotonic() + CONFIRM_SECONDS
    while not _reports_paused(run.project.get(WORKLOAD, workload).object):
        if run.clock.monotonic() >= deadline:
            return False
        run.clock.sleep(_POLL_SECONDS)
    return True


def _reports_paused(workload: Workload) -> bool:
    conditions = workload.status.conditions if workload.status else ()
    return any(condition.type == "Progressing" and condition.reason == PAUSED_REASON for condition in conditions)
