"""What verbs that change a workload share. Entry points: `to_change`, `show_written`, `WRITTEN`."""

from typing import Any

from datum_compute.answers.health import is_paused
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.run import Run
from datum_compute.cli.talk.project import Read
from datum_compute.kube.kinds import Kind

NOTHING_DONE = "No changes made (dry run)."
ABORTED = "Aborted."
WRITTEN = ("table", "json", "yaml", "name")


def to_change(run: Run, name: str) -> Read[Workload]:
    """A workload that can still be changed."""
    seen = run.project.get(WORKLOAD, name)
    check_changeable(seen.object)
    return seen


def check_changeable(workload: Workload) -> None:
    if workload.metadata.deleting:
        raise Failure(
            f'workload "{workload.name}" is being deleted; wait until it is gone',
            Exit.FAILED,
            next_command=f"destroy {workload.name} --wait",
        )


def check_not_paused(workload: Workload) -> None:
    if is_paused(workload):
        raise Failure(
            f'the rollout of workload "{workload.name}" is paused',
            Exit.FAILED,
            next_command=f"rollout resume {workload.name}",
        )


def show_written(run: Run, kind: Kind[Any], written: Read[Any], sentence: str) -> None:
    """The sentence for people; with a structured format the object, or its name, on stdout as well."""
    run.terminal.show(sentence)
    match run.output:
        case "json" | "yaml":
            run.terminal.data(written.json, run.output)
        case "name":
            run.terminal.name(f"{kind.name.lower()}/{written.object.name}")


def agreed(run: Run, *, yes: bool) -> bool:
    """Without anybody to ask it goes on: whoever calls from a script has decided."""
    if yes or not run.terminal.asks or run.terminal.confirm("Apply? (Y/n): ", default=True):
        return True
    run.terminal.show(ABORTED)
    return False
