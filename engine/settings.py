"""What one engine consists of and where its files are, remembered between calls. Entry points: `Folder`, `Settings`."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.kube.files import write_private
from engine import ports

CELLS = {"pop-dfw": "DFW", "pop-ord": "ORD"}
HUB_PLANE = "downstream"
HOST_PLANE = "control-plane"  # of the management operator, and the first project
PROJECT_PLANES = (HOST_PLANE, "project-b")
RESTORABLE = (HUB_PLANE, "project-b")
SHARED_STORE = "etcd"


class Folder(Struct, frozen=True):
    """The places below the engine's folder."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def settings(self) -> Path:
        return self.root / "settings.json"

    @property
    def certificates(self) -> Path:
        return self.root / "certificates"

    def store(self, name: str) -> Path:
        """The data of an etcd."""
        return self.root / name

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def processes(self) -> Path:
        return self.root / "processes"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def containers(self) -> Path:
        """The logs of containers that nodes pretend to run."""
        return self.root / "containers"

    @property
    def services(self) -> Path:
        """The socket of whoever plays the network of Services for an engine to install on."""
        return self.root / "services.sock"

    @property
    def egress(self) -> Path:
        """Tells an API server to reach Services through that socket."""
        return self.root / "egress.yaml"

    @property
    def kubeconfigs(self) -> Path:
        return self.root / "kubeconfigs"

    def kubeconfig(self, plane: str, who: str = "") -> Path:
        """The administrator's, or that of an identity."""
        return self.kubeconfigs / who / f"{plane}.yaml"


class Plane(Struct, frozen=True):
    name: str
    role: str
    city: str = ""  # of a cell; none before compute is installed
    kwok: bool = False  # whether a cell has nodes that pretend to run Pods

    @property
    def server(self) -> str:
        """The name of its API server's process."""
        return f"{self.name}-apiserver"

    @property
    def store(self) -> str:
        """The name of the etcd that keeps its objects: one of its own where it can be restored without the others."""
        return f"{self.name}-{SHARED_STORE}" if self.name in RESTORABLE else SHARED_STORE


class Settings(Struct, frozen=True):
    cells: dict[str, str]  # name -> city
    kwok: tuple[str, ...] = ()
    ports: dict[str, int] = {}  # by listener
    empty: bool = False  # Kubernetes and Karmada alone, to install on

    @classmethod
    def read(cls, folder: Folder) -> "Settings":
        try:
            return msgspec.json.decode(folder.settings.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls(dict(CELLS))

    def write(self, folder: Folder) -> None:
        write_private(folder.settings, msgspec.json.format(msgspec.json.encode(self), indent=2))

    @property
    def planes(self) -> list[Plane]:
        """The hub first, because it takes longest."""
        cells = [Plane(name, CELL, "" if self.empty else city, name in self.kwok) for name, city in self.cells.items()]
        projects = (HOST_PLANE,) if self.empty else PROJECT_PLANES
        return [Plane(HUB_PLANE, HUB), *cells, *(Plane(name, PROJECT) for name in projects)]

    @property
    def stores(self) -> list[str]:
        return list(dict.fromkeys([SHARED_STORE, *(plane.store for plane in self.planes)]))

    def with_cells(self, cells: Mapping[str, str], kwok: Collection[str]) -> "Settings":
        """With these cells added; existing ones stay."""
        return msgspec.structs.replace(
            self, cells=self.cells | dict(cells), kwok=tuple(dict.fromkeys([*self.kwok, *kwok]))
        )

    def with_ports(self, listeners: Iterable[str]) -> "Settings":
        """Each listener keeps its port; those that have none get one."""
        missing = [name for name in listeners if name not in self.ports]
        chosen = ports.choose(len(missing), taken=frozenset(self.ports.values()))
        return msgspec.structs.replace(self, ports=self.ports | dict(zip(missing, chosen, strict=True)))
