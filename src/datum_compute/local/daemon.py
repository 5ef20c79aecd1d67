"""Starts and stops a local federation as a background process. Entry points: `up`, `down`, `status`, `backup`,
`reset`.

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

from datum_compute.local.state import Paths, Running, default_directory, holder, is_locked, kubeconfig_path, running

__all__ = ["LocalError", "Running", "backup", "default_directory", "down", "kubeconfig_path", "reset", "status", "up"]

START_SECONDS = 60.0
STOP_SECONDS = 20.0
_LOOK_SECONDS = 0.05


class LocalError(Exception):
    """One sentence for the user, with the next step."""


class Report(Struct, frozen=True):
    """What the background process says, once: that it runs, why it cannot, or that another one is at it."""

    running: Running | None = None
    error: str = ""
    busy: bool = False


def up(directory: Path, port: int = 0) -> Running:
    """Returns when the federation is ready; one that runs already is fine. Port 0 keeps the last one, if it is free."""
    if (found := running(directory)) is not None:
        if port not in (0, found.port):
            raise LocalError(
                f"a federation runs in {directory} on port {found.port} already; "
                "stop it with 'compute local down' to use another port"
            )
        return found
    paths = Paths(directory)
    _make_directory(directory)
    report = _launch(paths, port)
    if report.busy:
        return _wait_for_other(directory)
    if report.running is None:
        raise LocalError(report.error or f"the federation did not start; see {paths.output}")
    return report.running


def status(directory: Path) -> Running | None:
    return running(directory)


def down(directory: Path) -> bool:
    """Stops the federation of a directory; False when none runs. Its state stays."""
    lock = Paths(directory).lock
    pid = holder(lock)
    if pid is None:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):  # it ended by itself a moment ago
            os.kill(pid, number)
        if _until(lambda: not is_locked(lock), STOP_SECONDS):
            return True
    raise LocalError(f"process {pid} does not stop; end it by hand and try again")


def backup(directory: Path, to: Path) -> None:
    """Copies the state as it is at this moment; the federation may run meanwhile, or not."""
    from datum_compute.embedded.log import LogError, copy

    source = Paths(directory).log
    if not source.exists():
        raise LocalError(f"there is nothing to back up in {directory}; start a federation with 'compute local up'")
    try:
        os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise LocalError(f"{to} exists already; choose another name for the backup") from None
    except OSError as error:
        raise LocalError(f"cannot write to {to}: {error.strerror}; choose another place for the backup") from None
    try:
        copy(source, to)
    except BaseException as error:
        to.unlink(missing_ok=True)  # half a backup is worse than none
        if isinstance(error, LogError):
            raise LocalError(f"the backup was not made: {error}") from None
        raise


def reset(directory: Path) -> None:
    """Stops the federation and removes everything it stored."""
    down(directory)
    paths = Paths(directory)
    beside = [paths.log.with_name(f"{paths.log.name}{end}") for end in ("-wal", "-shm", "-journal", ".lock")]
    for path in (paths.log, *beside, paths.running, paths.kubeconfig, paths.output, paths.port, paths.lock):
        path.unlink(missing_ok=True)  # by name, and no other: a backup may lie here as well
    shutil.rmtree(paths.credentials, ignore_errors=True)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch(mode=0o600)
        probe.unlink(missing_ok=True)  # another start may have been here at the same time
    except OSError as error:
        reason = error.strerror or str(error)
        raise LocalError(f"cannot write to {directory}: {reason}; choose another directory with --dir") from None


def _launch(paths: Paths, port: int) -> Report:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    output = os.open(paths.output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    command = [sys.executable, "-m", "datum_compute.local.process", str(paths.directory), str(port), str(write)]
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
        return _read_report(read, paths)
    finally:
        os.close(read)


def _read_report(read: int, paths: Paths) -> Report:
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
            return Report(error=f"the federation ended while it started; see {paths.output}")
        text += piece
    if (pid := holder(paths.lock)) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return Report(error=f"the federation was not ready after {START_SECONDS:.0f} s; see {paths.output}")


def _wait_for_other(directory: Path) -> Running:
    """Two were started at once: the one that came first serves both."""
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
