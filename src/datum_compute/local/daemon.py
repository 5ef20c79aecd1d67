"""Starts and stops a local federation as a background process. Entry points: `up`, `down`, `status`, `reset`.

The process reports through a pipe: either that it is ready, or one sentence why it cannot be. It holds a lock on its
directory for as long as it lives, so that two never serve the same file.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from datum_compute.local.settings import Settings, limits_in_words
from datum_compute.local.state import (
    LocalError,
    Paths,
    Running,
    default_directory,
    holder,
    is_locked,
    kubeconfig_path,
    running,
)

__all__ = ["LocalError", "Running", "default_directory", "down", "kubeconfig_path", "reset", "status", "up"]

START_SECONDS = 60.0
STOP_SECONDS = 15.0
SILENT_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_REASON_LENGTH = 300


class Report(Struct, frozen=True):
    """The one report of the background process: that it runs, why it cannot, or that another one is running."""

    running: Running | None = None
    error: str = ""
    busy: bool = False


def up(directory: Path, port: int = 0, wanted: Settings = Settings()) -> Running:  # noqa: B008  (frozen)
    """Returns when the federation is ready; it may already be running. Port 0 means the last one, if it is free.

    What is not wanted otherwise stays as it was chosen before.
    """
    if (found := running(directory)) is not None:
        return _suited(found, port, wanted)
    paths = Paths(directory)
    _make_directory(directory)
    report = _launch(paths, port, wanted)
    if report.busy:
        return _suited(_wait_for_other(directory), port, wanted)
    if report.running is None:
        raise LocalError(report.error or f"the federation did not start; see {paths.output}")
    return report.running


def _suited(found: Running, port: int, wanted: Settings) -> Running:
    """A federation that already runs, if it is the requested one."""
    has = Settings(found.names, found.limits)
    if port not in (0, found.port):
        difference = f"on port {found.port}"
    elif not Settings(cities=wanted.cities).agrees(has):
        difference = f"with cities {', '.join(found.cities)}"
    elif not wanted.agrees(has):
        difference = f"with limits of {limits_in_words(found.limits)}"
    else:
        return found
    raise LocalError(
        f"a federation already runs in {found.directory} {difference}; stop it with 'compute local down' to change that"
    )


def status(directory: Path) -> Running | None:
    return running(directory)


def down(directory: Path, tell: Callable[[str], None] = lambda text: None) -> bool:
    """Stops the federation of a directory; False when none runs. Its state stays. `tell` hears of a long wait."""
    lock = Paths(directory).lock
    pid = holder(lock)
    if pid is None:
        return False

    def ends(seconds: float, number: signal.Signals | None = None) -> bool:
        if number is not None:
            with suppress(ProcessLookupError):  # it ended by itself a moment ago
                os.kill(pid, number)
        return _until(lambda: not is_locked(lock), seconds)

    if ends(SILENT_SECONDS, signal.SIGTERM):
        return True
    tell(f"Process {pid} takes long to stop; it is killed in {STOP_SECONDS:.0f} s, and nothing stored is lost.")
    if ends(STOP_SECONDS) or ends(STOP_SECONDS, signal.SIGKILL):
        return True
    raise LocalError(f"process {pid} does not stop; end it by hand and try again")


def reset(directory: Path) -> bool:
    """Stops the federation and removes everything it stored; False when there is nothing. Backups stay."""
    down(directory)
    paths = Paths(directory)
    beside = [paths.log.with_name(f"{paths.log.name}{end}") for end in ("-wal", "-shm", "-journal", ".lock")]
    stored = [paths.log, *beside, paths.running, paths.kubeconfig, paths.output, paths.port, paths.proxy_port]
    stored += [paths.containers]
    is_empty = not any(path.exists() for path in (*stored, paths.credentials))
    for path in (*stored, paths.lock):
        path.unlink(missing_ok=True)  # by name, and no other: a backup may lie here as well
    shutil.rmtree(paths.credentials, ignore_errors=True)
    return not is_empty


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch(mode=0o600)
        probe.unlink(missing_ok=True)  # another start may have been here at the same time
    except OSError as error:
        reason = error.strerror or str(error)
        raise LocalError(f"cannot write to {directory}: {reason}; choose another directory with --dir") from None


def _launch(paths: Paths, port: int, wanted: Settings) -> Report:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    output = os.open(paths.output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    before = os.fstat(output).st_size
    arguments = [str(paths.directory), str(port), str(write), msgspec.json.encode(wanted).decode()]
    command = [sys.executable, "-m", "datum_compute.local.process", *arguments]
    # A single-file build is not installed where Python looks by itself.
    here = str(Path(__file__).parents[2])
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}
    try:
        # Returns at once: the process leaves this session and goes on by itself.
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[write],
            env=environ,
            check=False,
        )
    finally:
        os.close(write)
        os.close(output)
    try:
        return _read_report(read, paths, before)
    finally:
        os.close(read)


def _read_report(read: int, paths: Paths, before: int) -> Report:
    """The pipe also ends when the process dies, so this never waits for a process that is gone."""
    deadline = time.monotonic() + START_SECONDS
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([read], [], [], left)[0]:
            break
        piece = os.read(read, 65536)
        if not piece:
            if text:
                return msgspec.json.decode(text, type=Report)
            return Report(
                error=f"the federation ended while it started{_last_words(paths, before)}; see {paths.output}"
            )
        text += piece
    if (pid := holder(paths.lock)) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return Report(error=f"the federation was not ready after {START_SECONDS:.0f} s; see {paths.output}")


def _last_words(paths: Paths, before: int) -> str:
    """The end of the output of a process that could not report: the last line of a traceback is the reason."""
    try:
        lines = paths.output.read_bytes()[before:].decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" ({last[:_REASON_LENGTH]})" if last else ""


def _wait_for_other(directory: Path) -> Running:
    """Two were started at once: the first one serves both."""
    if not _until(lambda: running(directory) is not None, START_SECONDS):
        raise LocalError(f"another federation is starting in {directory} and did not get ready; try again")
    found = running(directory)
    if found is None:
        raise LocalError(f"the other federation in {directory} ended; try again")
    return found


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(_LOOK_SECONDS)
    return condition()
