"""Where the instances of a local federation can be reached, as its caches know now. Entry points: `Endpoints`,
`Endpoint`."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from datum_compute.answers.health import State, instance_health
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CITY_CODE, PLACEMENT_NAME, WORKLOAD_NAME
from datum_compute.api.workload import WORKLOAD
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import CELL
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime import Fleet, Plane

Published = Callable[[], Mapping[str, Mapping[str, int]]]
"""Ports on this machine, such as 37991 for `8080/tcp`, by the uid of the instance in its cell."""

LOOPBACK = "127.0.0.1"
_INDEX = "local-endpoints"  # Instances of a cell by namespace and workload


class Port(Struct, frozen=True):
    port: int
    protocol: str
    address: str = ""  # on this machine; empty if there is none


class Endpoint(Struct, frozen=True):
    """An instance: its place, its state as lists show it, and its ports in the order of the spec."""

    project: str
    namespace: str
    workload: str
    placement: str
    city: str
    instance: str
    state: str
    available: bool
    ports: list[Port]

    @property
    def web(self) -> Port | None:
        """The port for requests: the first one of TCP."""
        return next((port for port in self.ports if port.protocol == "TCP"), None)


class Endpoints:
    """`published` is None if instances are simulated, and have no ports on this machine."""

    def __init__(self, fleet: Fleet, project: str, published: Published | None = None) -> None:
        self._fleet = fleet
        self._home = Identity(project, "default")
        self._published = published

    @property
    def simulated(self) -> bool:
        return self._published is None

    def all(self) -> list[Endpoint]:
        """Of all projects, by place."""
        found = [
            self._endpoint(instance, identity, ports)
            for ports in (self._ports(),)
            for plane, namespace, identity in self._namespaces()
            for instance in plane.informer(INSTANCE).all(namespace)
        ]
        return sorted(found, key=lambda each: (each.project, each.namespace, each.workload, each.city, each.instance))

    def of(self, workload: str) -> list[Endpoint]:
        """Of a workload of the default project, by name."""
        ports = self._ports()
        found = []
        for plane, namespace, identity in self._namespaces():
            if identity == self._home:
                informer = plane.informer(INSTANCE)
                informer.index(_INDEX, _workload_of)
                instances = informer.by(_INDEX, f"{namespace}/{workload}")
                found += [self._endpoint(instance, identity, ports) for instance in instances]
        return sorted(found, key=lambda each: each.instance)

    def cities(self, workload: str) -> list[str] | None:
        """The cities of a workload of the default project, as its placements list them; None if there is none."""
        if not self._fleet.has(self._home.project):
            return None
        found = self._fleet.plane(self._home.project).informer(WORKLOAD).get(self._home.namespace, workload)
        if found is None:
            return None
        return list(dict.fromkeys(city for placement in found.spec.placements for city in placement.city_codes))

    def _ports(self) -> Mapping[str, Mapping[str, int]]:
        return self._published() if self._published is not None else {}

    def _namespaces(self) -> Iterator[tuple[Plane, str, Identity]]:
        for plane in self._fleet.of_role(CELL):
            for namespace in plane.informer(NAMESPACE).all():
                if (identity := Identity.of(namespace.metadata.labels)) is not None:
                    yield plane, namespace.name, identity

    def _endpoint(self, instance: Instance, identity: Identity, published: Mapping[str, Mapping[str, int]]) -> Endpoint:
        health = instance_health(instance)
        labels = instance.metadata.labels
        return Endpoint(
            identity.project,
            identity.namespace,
            labels.get(WORKLOAD_NAME, ""),
            labels.get(PLACEMENT_NAME, ""),
            labels.get(CITY_CODE, ""),
            instance.name,
            health.status,
            health.state is State.AVAILABLE,
            _ports(instance, published.get(instance.metadata.uid, {})),
        )


def _workload_of(instance: Instance) -> Sequence[str]:
    name = instance.metadata.labels.get(WORKLOAD_NAME, "")
    return (f"{instance.namespace}/{name}",) if name else ()


def _ports(instance: Instance, published: Mapping[str, int]) -> list[Port]:
    sandbox = instance.spec.runtime.sandbox
    ports: dict[tuple[int, str], Port] = {}
    for port in (port for container in (sandbox.containers if sandbox else ()) for port in container.ports):
        on_host = published.get(f"{port.port}/{port.protocol.lower()}")
        address = f"{LOOPBACK}:{on_host}" if on_host else ""
        ports.setdefault((port.port, port.protocol), Port(port.port, port.protocol, address))
    return list(ports.values())
