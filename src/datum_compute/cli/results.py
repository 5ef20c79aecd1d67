"""What verbs that write say about what they wrote. Entry points: `WRITTEN`, `show_written`."""

from typing import Any

from datum_compute.cli.project import Read
from datum_compute.cli.run import Run
from datum_compute.kube.kinds import Kind

WRITTEN = ("table", "json", "yaml", "name")


def show_written(run: Run, kind: Kind[Any], written: Read[Any], sentence: str) -> None:
    """The sentence for people; with a structured format the object, or its name, on stdout as well."""
    run.terminal.show(sentence)
    match run.output:
        case "json" | "yaml":
            run.terminal.data(written.json, run.output)
        case "name":
            run.terminal.name(f"{kind.name.lower()}/{written.object.name}")
