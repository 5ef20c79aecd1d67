"""How much quota an Instance needs. Entry point: `requests`."""

from collections.abc import Iterable, Mapping

from datum_compute.api.instance_types import CATALOG
from datum_compute.api.quantity import mebibytes, millicores
from datum_compute.api.quota import INSTANCES, MEMORY, VCPUS
from datum_compute.api.template import InstanceRuntime

_Size = tuple[int, int]  # millicores, MiB


def requests(runtime: InstanceRuntime) -> dict[str, int]:
    """Amounts per resource type: always one instance, and its size where that is known."""
    size = _limits(runtime) or _amounts(runtime.resources.requests) or _catalog(runtime.resources.instance_type)
    return {INSTANCES: 1} | ({VCPUS: size[0], MEMORY: size[1]} if size else {})


def _limits(runtime: InstanceRuntime) -> _Size | None:
    """The sum over all containers, if every container has both limits."""
    if runtime.sandbox is None:
        return None
    sizes = [
        _amounts(container.resources.limits if container.resources else {}) for container in runtime.sandbox.containers
    ]
    return _sum(size for size in sizes if size) if sizes and all(sizes) else None


def _sum(sizes: Iterable[_Size]) -> _Size | None:
    cpus, memories = zip(*sizes, strict=True)
    return sum(cpus), sum(memories)


def _amounts(amounts: Mapping[str, int | str]) -> _Size | None:
    if "cpu" not in amounts or "memory" not in amounts:
        return None
    try:
        return millicores(amounts["cpu"]), mebibytes(amounts["memory"])
    except ValueError:
        return None  # an unreadable size cannot be claimed; the count still is


def _catalog(instance_type: str) -> _Size | None:
    size = CATALOG.get(instance_type)
    return (size.millicores, size.mebibytes) if size else None
