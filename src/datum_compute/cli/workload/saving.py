"""Keeps the manifest of a deployed workload in a file. Entry point: `save`."""

import os
from contextlib import suppress
from pathlib import Path

from datum_compute.cli.shell.run import Run
from datum_compute.cli.workload.manifest import names_other, saved_text
from datum_compute.kube.meta import Json

DEFAULT_FILE = "workload.yaml"


def save(run: Run, body: Json, file: str) -> None:
    """Writes the file, unless it is somebody else's; whatever goes wrong is a warning, the workload is deployed."""
    import shlex

    path = Path(run.environment.directory, file).resolve()
    name = str(body["metadata"]["name"])
    try:
        if path.exists() and (reason := names_other(path.read_text(encoding="utf-8", errors="replace"), name)):
            run.terminal.warn(f"  warning: {file} was left as it is: {reason}")
            return
        # The place it was deployed to is not part of it: others apply it elsewhere.
        _replace(path, saved_text(body, f"{run.program} deploy -f {shlex.quote(file)}"))
    except OSError as error:
        run.terminal.warn(f"  warning: could not save {file}: {error.strerror or error}")
        return
    run.terminal.note(f"Saved {file}")


def _replace(path: Path, text: str) -> None:
    """Whole or not at all; readable by its owner only when it is new, because it may hold values of variables."""
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
