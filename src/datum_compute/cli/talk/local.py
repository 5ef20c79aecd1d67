"""What a local federation says about addresses on this machine. Entry points: `find_overview`, `Overview`."""

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from datum_compute.kube.errors import ApiError
from datum_compute.kube.transport import Call

if TYPE_CHECKING:
    from datum_compute.cli.shell.run import Run

PATH = "/local/v1/endpoints"


class Port(Struct, frozen=True):
    port: int
    protocol: str
    address: str = ""  # empty if it is not published on this machine


class Endpoint(Struct, frozen=True):
    project: str
    workload: str
    city: str
    instance: str
    available: bool
    ports: tuple[Port, ...]


class Overview(Struct, frozen=True):
    project: str  # the one whose workloads have addresses
    proxy: int  # the port of these addresses
    instances: str  # containers or simulated
    endpoints: tuple[Endpoint, ...]

    def ports_of(self, project: str, instance: str) -> tuple[Port, ...]:
        """The ports of an instance that can be reached on this machine."""
        found = (each.ports for each in self.endpoints if (each.project, each.instance) == (project, instance))
        return tuple(port for port in next(found, ()) if port.address)

    def is_available(self, workload: str) -> bool:
        """Whether an instance of a workload that has an address is."""
        own = (each for each in self.endpoints if (each.project, each.workload) == (self.project, workload))
        return any(each.available for each in own)

    def url(self, workload: str, city: str = "") -> str:
        return f"http://{'.'.join(filter(None, (city.lower(), workload, 'localhost')))}:{self.proxy}/"


def find_overview(run: "Run") -> Overview | None:
    """None if the target is not a local federation, or one of a version that does not know these addresses."""
    target = run.target
    if not target.local or target.platform is None:
        return None
    try:
        answer = target.platform.transport.call(Call("GET", PATH))
        return msgspec.json.decode(answer.body, type=Overview) if answer.code == 200 else None
    except (ApiError, msgspec.MsgspecError):
        return None
