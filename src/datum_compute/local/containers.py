"""What a local federation remembers about its containers, in containers.json. Entry points: `recall`, `Record`.

The id is on every container, and the only proof that a container belongs to this federation. A directory that was
copied or moved therefore gets a new one: otherwise two processes would remove each other's containers.
"""

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from datum_compute.api.labels import LOCAL, LOCAL_DIRECTORY
from datum_compute.kube.files import write_private
from datum_compute.local.state import LocalError, Paths

_MACHINE_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class Record(Struct, frozen=True):
    """`address` is that of the engine which may hold containers or networks of ours, and `engine` what it calls itself;
    both are empty if there are none."""

    id: str
    directory: str
    machine: str  # a digest of its id, empty where machines have none
    instances: str = ""  # containers or simulated; empty before the first start
    address: str = ""
    engine: str = ""

    @property
    def label(self) -> str:
        """What to look for to find the containers."""
        return f"{LOCAL}={self.id}"


class Recalled(Struct, frozen=True):
    """`former` is the record of the directory that this one is a copy of."""

    record: Record
    former: Record | None = None


def machine() -> str:
    """Tells this machine from others, without giving away its id."""
    for file in _MACHINE_FILES:
        try:
            text = file.read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if text:
            return hashlib.sha256(f"datum-compute {text}".encode()).hexdigest()[:32]
    return ""


def recall(
    paths: Paths, machine: Callable[[], str] = machine, new_id: Callable[[], str] = lambda: secrets.token_hex(16)
) -> Recalled:
    """The record of this directory; a new one if there is none, or if it was written elsewhere. Writes nothing."""
    here, this_machine = str(paths.directory.resolve()), machine()
    stored = _stored(paths.containers)
    if stored is None:
        return Recalled(Record(new_id(), here, this_machine))
    if (stored.directory, stored.machine) == (here, this_machine):
        return Recalled(stored)
    moved = Record(new_id(), here, this_machine, stored.instances)
    return Recalled(moved, former=stored)


def remember(paths: Paths, record: Record) -> None:
    if _stored(paths.containers) != record:
        write_private(paths.containers, msgspec.json.format(msgspec.json.encode(record)))


def _stored(path: Path) -> Record | None:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LocalError(
            f"{path} cannot be read ({reason}), so it is not known which containers are ours; remove the file to start "
            f"with a new id: containers of before keep the label {LOCAL_DIRECTORY}={path.parent}"
        ) from None
    if len(record.id) != 32 or not set(record.id) <= set("0123456789abcdef"):
        raise LocalError(f"{path} has no valid id; remove the file to start with a new one")
    return record
