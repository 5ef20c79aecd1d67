"""Saves the manifest of a deployed workload. Entry point: `save`."""

import os
from contextlib import suppress
from pathlib import Path

from datum_compute.cli.shell.run import Run
from datum_compute.cli.workload.manifest import overwrite_problem, saved_text
from datum_compute.kube.meta import Json

DEFAULT_FILE = "workload.yaml"


def save(run: Run, body: Json, file: str) -> None:
    """Writes the file, unless it is not ours; any problem is only a warning, because the workload is deployed."""
    import shlex

    path = Path(run.environment.directory, file).resolve()
    name = str(body["metadata"]["name"])
    try:
        if path.exists() and (reason := overwrite_problem(path.read_text(encoding="utf-8", errors="replace"), name)):
            advice = "save it elsewhere with --save=PATH, or pass --no-save"
            run.terminal.warn(f"  warning: {file} was not overwritten: {reason}; {advice}")
            return
        # Without flags for the target: others may apply it elsewhere.
        _replace(path, saved_text(body, f"{run.program} deploy -f {shlex.quote(file)}"))
    except OSError as error:
        run.terminal.warn(f"  warning: could not save {file}: {error.strerror or error}")
        return
    run.terminal.note(f"Saved {file}")


def _replace(path: Path, text: str) -> None:
    """Replaces the file atomically. A new file is readable by its owner only: it may contain values of variables."""
    import tempfile

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        if path.exists():
            os.chmod(temporary, path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
