"""What verbs that change a workload share. Entry points: `to_change`, `traced`, `show_written`,
`approved`."""

from collections.abc import Callable
from typing import Any

from datum_compute.answers.health import is_paused
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.views import Page, object_view
from datum_compute.cli.talk.project import Read
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json

DRY_RUN = "No changes made (dry run)."
ABORTED = "Aborted."
WRITE_OUTPUTS = ("table", "json", "yaml", "name")


def to_change(run: Run, name: str) -> Read[Workload]:
    """Reads a workload that is about to be changed; fails if it is being deleted."""
    workload = run.project.get(WORKLOAD, name)
    check_not_deleting(workload.object)
    return workload


def check_not_deleting(workload: Workload) -> None:
    if workload.metadata.deleting:
        raise Failure(
            f'workload "{workload.name}" is being deleted; wait until it is gone',
            next_command=f"destroy {workload.name} --wait",
        )


def check_not_paused(workload: Workload) -> None:
    if is_paused(workload):
        raise Failure(
            f'the rollout of workload "{workload.name}" is paused', next_command=f"rollout resume {workload.name}"
        )


def traced(run: Run, edit: Callable[[Json], Json]) -> Callable[[Json], Json]:
    """The same edit, which notes the trace of this command on the workload if it changes the spec."""

    def edit_and_note(body: Json) -> Json:
        after = edit(body)
        return after if after["spec"] == body.get("spec") else run.trace.noted_on(after, run.project.name)

    return edit_and_note


def show_written(run: Run, kind: Kind[Any], written: Read[Any], sentence: str) -> None:
    """Shows the sentence to people, and with a structured format also the object, or its name, on stdout."""
    run.terminal.show(sentence)
    run.show(object_view(kind, written, lambda _now: Page(())))


def approved(run: Run, *, yes: bool) -> bool:
    """Whether to apply a change. Without anybody to ask it is applied: a script has decided."""
    if yes or not run.terminal.asks or run.terminal.confirm("Apply? (Y/n): ", default=True):
        return True
    run.terminal.show(ABORTED)
    return False


def hint_progress(run: Run, workload: str) -> None:
    run.terminal.hint(f"Run '{run.try_next(f'rollout status {workload}')}' to watch progress.")


def hint_resume(run: Run, workload: str) -> None:
    run.terminal.hint(f"Run '{run.try_next(f'rollout resume {workload}')}' to resume it.")
