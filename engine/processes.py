"""The processes of one engine: started, inspected and stopped by name, and no others. Entry point: `Processes`.

Before it becomes the program, a process records its pid, start time and boot. So nothing is lost when the harness dies
at any moment, and a later process with the same pid is never mistaken for it.
"""

import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from engine import EngineError

# `$0` is the file of the record, `$@` the program; its pid and start time are those of the shell that it replaces.
_LAUNCH = 'cat "/proc/$$/stat" /proc/sys/kernel/random/boot_id > "$0.new" && mv "$0.new" "$0" && exec "$@"'
_LAUNCH_SECONDS = 10.0
_POLL_SECONDS = 0.01


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    EXITED = "exited"  # by itself, or with the machine
    STOPPED = "stopped"  # never started, or stopped by us


class _Record(Struct, frozen=True):
    pid: int
    started: int  # clock ticks since boot
    boot: str

    @classmethod
    def read(cls, path: Path) -> "_Record | None":
        try:
            stat, boot = path.read_text("utf-8").splitlines()
        except (FileNotFoundError, ValueError):
            return None
        return cls(int(stat.split(" ", 1)[0]), _started(stat), boot)

    def stat(self) -> str | None:
        """The kernel's line about this very process; None when it is gone."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text("utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return None
        return stat if (_started(stat), _boot()) == (self.started, self.boot) else None


class Processes:
    """The processes recorded below one folder."""

    def __init__(self, records: Path, logs: Path) -> None:
        self._records = records
        self._logs = logs

    def names(self) -> list[str]:
        """Every process that was started and not stopped, alive or not."""
        if not self._records.is_dir():
            return []
        return sorted(path.name for path in self._records.iterdir() if path.suffix != ".new")

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def state(self, name: str) -> State:
        record = _Record.read(self._records / name)
        if record is None:
            return State.STOPPED
        stat = record.stat()
        match _letter(stat) if stat else "Z":
            case "Z" | "X":
                return State.EXITED
            case "T" | "t":
                return State.PAUSED
            case _:
                return State.RUNNING

    def alive(self, name: str) -> bool:
        return self.state(name) in (State.RUNNING, State.PAUSED)

    def command(self, name: str) -> list[str]:
        """The command it was started with; empty when it is gone."""
        record = _Record.read(self._records / name)
        if record is None or record.stat() is None:
            return []
        with suppress(OSError):
            return Path(f"/proc/{record.pid}/cmdline").read_text("utf-8").split("\0")[:-1]
        return []

    def memory(self, name: str) -> int:
        """Bytes, with shared memory counted proportionally; 0 when it is gone."""
        record = _Record.read(self._records / name)
        if record is None or record.stat() is None:
            return 0
        with suppress(OSError, ValueError):
            lines = Path(f"/proc/{record.pid}/smaps_rollup").read_text("utf-8").splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        return 0

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it in a session of its own, so that it outlives this process and no Ctrl-C reaches it."""
        if self.alive(name):
            raise EngineError(f"{name} runs already")
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        record = self._records / name
        record.unlink(missing_ok=True)
        pid = os.posix_spawn(
            "/bin/sh",
            ["/bin/sh", "-c", _LAUNCH, str(record), *command],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        deadline = time.monotonic() + _LAUNCH_SECONDS
        while _Record.read(record) is None:
            if time.monotonic() > deadline or os.waitpid(pid, os.WNOHANG)[0]:
                raise EngineError(f"{name} could not be started; see {self.log(name)}")
            time.sleep(_POLL_SECONDS)

    def pause(self, name: str) -> None:
        """Returns when all its threads are stopped."""
        self._signal(name, signal.SIGSTOP)
        deadline = time.monotonic() + _LAUNCH_SECONDS
        while not self._stands_still(name):
            if time.monotonic() > deadline:
                raise EngineError(f"{name} could not be paused")
            time.sleep(_POLL_SECONDS)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def stop(self, names: Sequence[str], grace: float) -> list[str]:
        """Terminates all of them, kills those that have not ended after `grace` seconds, and returns the latter."""
        for name in names:
            with self._handle(name) as handle:
                if handle is not None:
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
                    signal.pidfd_send_signal(handle, signal.SIGCONT)  # a paused process receives no other signal
        deadline = time.monotonic() + grace
        late = [name for name in names if not self._ended(name, deadline)]
        self.kill(late)
        for name in names:
            (self._records / name).unlink(missing_ok=True)
        return late

    def kill(self, names: Sequence[str]) -> None:
        """Like a crash: they stay recorded, as `exited`."""
        for name in names:
            with self._handle(name) as handle:
                if handle is not None:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        for name in names:
            self._ended(name, time.monotonic() + _LAUNCH_SECONDS)

    def _stands_still(self, name: str) -> bool:
        """The kernel stops one thread after the other."""
        record = _Record.read(self._records / name)
        if record is None or record.stat() is None:
            raise EngineError(f"{name} does not run")
        threads = Path(f"/proc/{record.pid}/task").glob("*/stat")
        with suppress(FileNotFoundError, ProcessLookupError):  # of a thread that ended just now
            return all(_letter(thread.read_text("utf-8")) in "Tt" for thread in threads)
        return False

    def _signal(self, name: str, number: signal.Signals) -> None:
        with self._handle(name) as handle:
            if handle is None:
                raise EngineError(f"{name} does not run")
            signal.pidfd_send_signal(handle, number)

    def _ended(self, name: str, deadline: float) -> bool:
        with self._handle(name) as handle:
            ended = handle is None or _wait(handle, deadline)
        record = _Record.read(self._records / name)
        if ended and record is not None and record.stat() is not None:
            with suppress(ChildProcessError):  # another process started it, so we cannot wait for it
                os.waitpid(record.pid, os.WNOHANG)
        return ended

    @contextmanager
    def _handle(self, name: str) -> Iterator[int | None]:
        """A descriptor of the process, None when it is gone. Compared after it is opened, so it is certainly ours."""
        record = _Record.read(self._records / name)
        try:
            handle = os.pidfd_open(record.pid) if record is not None else None
        except ProcessLookupError:
            handle = None
        if record is None or handle is None:
            yield None
            return
        try:
            stat = record.stat()
            yield handle if stat is not None and _letter(stat) not in "ZX" else None
        finally:
            os.close(handle)


def _wait(handle: int, deadline: float) -> bool:
    watch = select.poll()
    watch.register(handle, select.POLLIN)
    return bool(watch.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _started(stat: str) -> int:
    return int(_fields(stat)[19])


def _letter(stat: str) -> str:
    return _fields(stat)[0]


def _fields(stat: str) -> list[str]:
    """What follows the name, which may hold anything, spaces and parentheses included."""
    return stat.rpartition(")")[2].split()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
