"""Indexes that lead from a network to its objects. Entry points: `BY_NETWORK`, `BY_CONTEXT`, `key`.

A reference always means an object of the same namespace, because another namespace is another project.
"""

from collections.abc import Iterable, Iterator

from datum_compute.api.instance import Instance
from datum_compute.api.networking import NETWORK_CONTEXT, NetworkBinding, NetworkContext, Subnet, SubnetClaim
from datum_compute.runtime import Plane

BY_NETWORK = "by-network"
BY_CONTEXT = "by-context"


def key(namespace: str, name: str) -> str:
    """The index value for a network or a context."""
    return f"{namespace}/{name}"


def by_network(object_: NetworkBinding | NetworkContext) -> Iterable[str]:
    yield key(object_.namespace, object_.spec.network.name)


def by_context(object_: SubnetClaim | Subnet) -> Iterable[str]:
    yield key(object_.namespace, object_.spec.network_context.name)


def instances_by_network(instance: Instance) -> Iterator[str]:
    for network in networks_of(instance):
        yield key(instance.namespace, network)


def networks_of(instance: Instance) -> list[str]:
    """Names of the networks that an Instance is attached to, without repetition."""
    return list(dict.fromkeys(interface.network.name for interface in instance.spec.network_interfaces))


def network_of(plane: Plane, object_: SubnetClaim | Subnet) -> str | None:
    """Name of the network whose context a subnet or a claim belongs to; None when the context does not exist."""
    context = plane.informer(NETWORK_CONTEXT).get(object_.namespace, object_.spec.network_context.name)
    return context.spec.network.name if context is not None else None
