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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from datum_compute.local.choice import AUTO, CONTAINERS, VARIABLE, Wish
from datum_compute.local.containers import recall
from datum_compute.local.settings import Settings, limits_in_words
from datum_compute.local.state import (
    LocalError,
    Paths,
    Running,
    default_directory,
    hold,
    holder,
    is_locked,
    is_same_socket,
    kubeconfig_path,
    running,
)

__all__ = ["LocalError", "Running", "default_directory", "down", "kubeconfig_path", "reset", "status", "up"]

START_SECONDS = 60.0
STOP_SECONDS = 15.0
SILENT_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_REASON_LENGTH = 300

STOP, REMOVE = "stop", "remove"  # what is done with containers


class Report(Struct, frozen=True):
    """The one report of the background process: that it runs, why it cannot, or that another one is running."""

    running: Running | None = None
    error: str = ""
    busy: bool = False


class Outcome(Struct, frozen=True):
    """Which containers and networks were stopped or removed, or the `error` why they could not be."""

    containers: int = 0
    networks: int = 0
    images: tuple[str, ...] = ()  # which stay
    error: str = ""


class Start(Struct, frozen=True):
    """What the background process is started with."""

    directory: str
    port: int
    settings: Settings
    wish: Wish


def up(
    directory: Path,
    port: int = 0,
    wanted: Settings = Settings(),  # noqa: B008  (frozen)
    wish: Wish = Wish(),  # noqa: B008  (frozen)
) -> Running:
    """Returns when the federation is ready; it may already be running. Port 0 means the last one, if it is free.

    What is not wanted otherwise stays as it was chosen before. Without a wish, the environment says what should run the
    instances.
    """
    wish = replace(wish, instances=wish.instances or os.environ.get(VARIABLE, ""))
    if (found := running(directory)) is not None:
        return _suited(found, port, wanted, wish)
    paths = Paths(directory)
    _make_directory(directory)
    report = _launch(paths, Start(str(directory), port, wanted, wish))
    if report.busy:
        return _suited(_wait_for_other(directory), port, wanted, wish)
    if report.running is None:
        raise LocalError(report.error or f"the federation did not start; see {paths.output}")
    return report.running


def _suited(found: Running, port: int, wanted: Settings, wish: Wish) -> Running:
    """A federation that already runs, if it is the requested one."""
    has = Settings(found.names, found.limits)
    if port not in (0, found.port):
        difference = f"on port {found.port}"
    elif not Settings(cities=wanted.cities).agrees(has):
        difference = f"with cities {', '.join(found.cities)}"
    elif not wanted.agrees(has):
        difference = f"with limits of {limits_in_words(found.limits)}"
    elif wish.instances not in ("", AUTO, found.instances):
        difference = f"with {'instances in containers' if found.instances == CONTAINERS else 'simulated instances'}"
    elif found.engine is not None and wish.engine and not is_same_socket(wish.engine, found.engine.address):
        difference = f"with the engine at {found.engine.address}"
    else:
        return found
    raise LocalError(
        f"a federation already runs in {found.directory} {difference}; stop it with 'compute local down' to change that"
    )


def status(directory: Path) -> Running | None:
    return running(directory)


def down(directory: Path, tell: Callable[[str], None] = lambda text: None) -> bool:
    """Stops the federation of a directory and its containers; False when nothing runs. Its state stays.

    `tell` hears of a long wait, and of containers. They are stopped last, so that no controller starts them again; also
    if the federation was killed before.
    """
    stopped = _end_process(directory, tell)
    outcome = _clean(directory, STOP, tell)
    if outcome.error:
        tell(f"The containers were not stopped: {outcome.error}")
    elif outcome.containers:
        tell(f"{_containers(outcome.containers)} stopped.")
    return stopped or outcome.containers > 0


def _end_process(directory: Path, tell: Callable[[str], None]) -> bool:
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


def reset(directory: Path, tell: Callable[[str], None] = lambda text: None, *, leave: bool = False) -> bool:
    """Stops the federation and removes its containers, then everything it stored; False when there is nothing.

    Backups and images stay. With `leave`, containers stay too; otherwise nothing is removed if they cannot be.
    """
    _end_process(directory, tell)
    paths = Paths(directory)
    if leave:
        record = recall(paths).record
        if record.address:
            tell(f"The containers were left behind; they have the label {record.label}.")
    else:
        outcome = _clean(directory, REMOVE, tell)
        if outcome.error:
            raise LocalError(
                f"the containers could not be removed, so nothing was: {outcome.error}; start the engine and try "
                "again, or leave them behind with 'compute local reset --leave-containers'"
            )
        if outcome.containers:
            tell(f"{_containers(outcome.containers)} removed.")
        if outcome.images:
            tell(f"Images stay: {', '.join(outcome.images)}.")
    beside = [paths.log.with_name(f"{paths.log.name}{end}") for end in ("-wal", "-shm", "-journal", ".lock")]
    stored = [paths.log, *beside, paths.running, paths.kubeconfig, paths.output, paths.port, paths.proxy_port]
    stored += [paths.containers]
    if not directory.exists():
        return False
    with _held(paths):
        is_empty = not any(path.exists() for path in (*stored, paths.credentials))
        for path in stored:
            path.unlink(missing_ok=True)  # by name, and no other: a backup may lie here as well
        shutil.rmtree(paths.credentials, ignore_errors=True)
        paths.lock.unlink(missing_ok=True)
    return not is_empty


@contextmanager
def _held(paths: Paths) -> Iterator[None]:
    """Keeps a federation from being started while its files are removed."""
    try:
        lock = hold(paths.lock)
    except BlockingIOError:
        raise LocalError(
            f"a federation has been started in {paths.directory} meanwhile, so nothing was removed; try again"
        ) from None
    except OSError as error:
        raise LocalError(f"cannot write to {paths.directory}: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(lock)


def _containers(count: int) -> str:
    return "1 container was" if count == 1 else f"{count} containers were"


def _clean(directory: Path, action: str, tell: Callable[[str], None]) -> Outcome:
    """Stops or removes the containers of a federation that does not run, in a process of its own."""
    if not recall(Paths(directory)).record.address:
        return Outcome()  # no engine has anything of ours
    process = subprocess.Popen(
        [sys.executable, "-m", "datum_compute.local.cleanup", action, str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environ(),
    )
    try:
        output, errors = process.communicate(timeout=SILENT_SECONDS)
    except subprocess.TimeoutExpired:
        tell("Containers have 10 s to stop before they are killed.")
        output, errors = process.communicate()  # every call to an engine has a limit
    try:
        return msgspec.json.decode(output, type=Outcome)
    except msgspec.MsgspecError:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return Outcome(error=last[:_REASON_LENGTH] or "the process for it ended early")


def _environ() -> dict[str, str]:
    """For a process of ours: a single-file build is not installed where Python looks by itself."""
    here = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch(mode=0o600)
        probe.unlink(missing_ok=True)  # another start may have been here at the same time
    except OSError as error:
        reason = error.strerror or str(error)
        raise LocalError(f"cannot write to {directory}: {reason}; choose another directory with --dir") from None


def _launch(paths: Paths, start: Start) -> Report:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    output = os.open(paths.output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    before = os.fstat(output).st_size
    arguments = [str(write), msgspec.json.encode(start).decode()]
    command = [sys.executable, "-m", "datum_compute.local.process", *arguments]
    try:
        # Returns at once: the process leaves this session and goes on by itself.
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[write],
            env=_environ(),
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
    """The pipe also ends when the process dies, so this never waits for a process that is gone.

    White space before the report is a sign of life: the process removes many containers, say.
    """
    deadline = time.monotonic() + START_SECONDS
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([read], [], [], left)[0]:
            break
        piece = os.read(read, 65536)
        if not piece:
            if text.strip():
                return msgspec.json.decode(text, type=Report)
            return Report(
                error=f"the federation ended while it started{_last_words(paths, before)}; see {paths.output}"
            )
        text += piece
        deadline = time.monotonic() + START_SECONDS
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
