"""What verbs that change a workload share. Entry points: `to_change`, `show_written`, `WRITTEN`."""

from typing import Any

from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.failures import Exit, Failure
from datum_compute.cli.project import Read
from datum_compute.cli.run import Run
from datum_compute.kube.kinds import Kind

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
            Exit.CONFLICT,
            next_command=f"destroy {workload.name} --wait",
        )


def show_written(run: Run, kind: Kind[Any], written: Read[Any], sentence: str) -> None:
    """The sentence for people; with a structured format the object, or its name, on stdout as well."""
    run.terminal.show(sentence)
    match run.output:
        case "json" | "yaml":
            run.terminal.data(written.json, run.output)
        case "name":
            run.terminal.name(f"{kind.name.lower()}/{written.object.name}")
