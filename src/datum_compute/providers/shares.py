"""How an instance's resources are shared among its containers. Entry point: `shares_of`."""

from collections.abc import Mapping, Sequence

from datum_compute.api.instance_types import CATALOG
from datum_compute.api.quantity import mebibytes, millicores
from datum_compute.api.template import InstanceRuntime, Quantity

_DEFAULT_MEMORY = "1024Mi"


def shares_of(runtime: InstanceRuntime) -> list[dict[str, Quantity]]:
    """Resources of each container: its own limit if it has one, else an equal share of those of the instance.

    Raises `ValueError` for an invalid amount. Without a known instance type, cpu is not limited.
    """
    assert runtime.sandbox is not None
    limits = [container.resources.limits if container.resources else {} for container in runtime.sandbox.containers]
    type_ = CATALOG.get(runtime.resources.instance_type)
    requests = runtime.resources.requests
    cpu = millicores(requests["cpu"]) if "cpu" in requests else type_.millicores if type_ else None
    memory = mebibytes(requests["memory"]) if "memory" in requests else type_.mebibytes if type_ else None
    parts: dict[str, Quantity | None] = {
        "cpu": f"{cpu // _without(limits, 'cpu')}m" if cpu else None,
        "memory": f"{memory // _without(limits, 'memory')}Mi" if memory else _DEFAULT_MEMORY,
    }
    return [{key: share for key, part in parts.items() if (share := own.get(key, part)) is not None} for own in limits]


def _without(limits: Sequence[Mapping[str, Quantity]], key: str) -> int:
    """Number of containers without a limit, but at least 1, because it is a divisor."""
    return max(1, sum(key not in own for own in limits))
