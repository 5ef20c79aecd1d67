"""The files in the directory of a local federation, and whether one runs there. Entry points: `running`, `Paths`.

Imports nothing heavy: every `compute` command asks here whether there is something to talk to.
"""

import fcntl
import os
from pathlib import Path

import msgspec
from msgspec import Struct

DIRECTORY_VARIABLE = "DATUM_COMPUTE_LOCAL_DIR"


class LocalError(Exception):
    """One sentence for the user, with the next step."""


class Engine(Struct, frozen=True):
    """The container engine in use."""

    name: str  # and version
    address: str


def is_same_socket(address: str, other: str) -> bool:
    """Whether two addresses of engines are the same socket, perhaps through a link."""
    first, second = (os.path.realpath(each.removeprefix("unix://")) for each in (address, other))
    return first == second


class Running(Struct, frozen=True, rename="camel"):
    """A running federation."""

    pid: int
    port: int
    url: str
    directory: str
    project: str
    cities: list[str]
    names: dict[str, str] = {}  # of the cities, by code
    limits: dict[str, int] = {}  # of a project, by resource type
    proxy: int = 0  # the port on which workloads answer
    instances: str = "simulated"  # or containers
    summary: str = ""  # the same in words, with the engine
    engine: Engine | None = None
    notes: list[str] = []  # lines for whoever starts it


class Paths(Struct, frozen=True):
    directory: Path

    @property
    def log(self) -> Path:
        return self.directory / "federation.db"

    @property
    def lock(self) -> Path:
        """Held by the process that serves this directory, for as long as it lives."""
        return self.directory / "lock"

    @property
    def running(self) -> Path:
        return self.directory / "running.json"

    @property
    def port(self) -> Path:
        """The last port, so that kubeconfigs stay valid over a restart."""
        return self.directory / "port"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig.yaml"

    @property
    def output(self) -> Path:
        """The log of the process."""
        return self.directory / "federation.log"

    @property
    def backups(self) -> Path:
        return self.directory / "backups"

    @property
    def credentials(self) -> Path:
        return self.directory / "credentials"

    @property
    def containers(self) -> Path:
        """What runs the instances, and whose containers are ours."""
        return self.directory / "containers.json"

    @property
    def proxy_port(self) -> Path:
        """The last port of the proxy, so that addresses of workloads stay valid over a restart."""
        return self.directory / "proxy-port"


def default_directory() -> Path:
    if chosen := os.environ.get(DIRECTORY_VARIABLE):
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "datum-compute"


def kubeconfig_path(directory: Path) -> Path:
    return Paths(directory).kubeconfig


def running(directory: Path) -> Running | None:
    """The federation that serves this directory, by its lock and not by a process id, because ids are reused."""
    paths = Paths(directory)
    if not is_locked(paths.lock):
        return None
    try:
        return msgspec.json.decode(paths.running.read_bytes(), type=Running)
    except (OSError, msgspec.MsgspecError):
        return None  # it is starting, and will say so when it is ready


def is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such directory, or not ours to look into
        return False
    return False


def hold(path: Path) -> int:
    """Takes the lock until the file that is returned is closed. Raises `BlockingIOError` if somebody else has it.

    Who had it may have removed the file: a lock on that would keep nobody out.
    """
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                os.truncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def holder(path: Path) -> int | None:
    """The process that holds the lock now."""
    if not is_locked(path):
        return None
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
