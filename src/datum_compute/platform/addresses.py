"""Assigns addresses to Instances in cells that lack the network operator. Entry point: `AddressController`."""

from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api import reasons
from datum_compute.api.addresses import addresses_of, annotation
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import NETWORK_ADDRESSES
from datum_compute.api.networking import NETWORK, NETWORK_CONTEXT, PRIVATE, READY, SUBNET, NetworkContext, Subnet
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.platform.address_book import BY_ADDRESS, WAITING, AddressBook, Full, Pool, by_address, waiting
from datum_compute.platform.network_indexes import (
    BY_CONTEXT,
    BY_NETWORK,
    by_context,
    by_network,
    instances_by_network,
    key,
    network_of,
    networks_of,
)
from datum_compute.platform.subnets import prefix_of
from datum_compute.runtime import Change, Handle, Pass, Plane, Request, Source
from datum_compute.runtime.caches.informer import UNSERVED_SECONDS

ADDRESSES_ASSIGNED = "AddressesAssigned"
"""A condition that only Instances have which had to wait for an address."""


class AddressController:
    """Writes on each Instance the addresses of its interfaces: one per family, from the subnets of their networks."""

    name = "network-addresses"

    def __init__(self) -> None:
        self._book = AddressBook()

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(
                CELL,
                INSTANCE,
                self._instance_changed,
                {BY_NETWORK: instances_by_network, BY_ADDRESS: by_address, WAITING: waiting},
                scope=CELL_NAMESPACES,
            ),
            Source(CELL, SUBNET, _instances_of_network, {BY_CONTEXT: by_context}, optional=True),
            Source(CELL, NETWORK_CONTEXT, None, {BY_NETWORK: by_network}, optional=True),
            Source(CELL, NETWORK, optional=True),
        )

    def disengaged(self, plane: Plane) -> None:
        self._book.forget(plane.name)

    async def reconcile(self, pass_: Pass) -> None:
        instance = pass_.get(INSTANCE)
        if instance is None or instance.metadata.deleting:
            return
        if not all(pass_.serves(kind) for kind in (NETWORK, NETWORK_CONTEXT, SUBNET)):
            pass_.no_later_than(UNSERVED_SECONDS)  # no event reports a kind that appears without objects
            return
        pools = [
            _pools(pass_.plane, instance, interface.network.name) for interface in instance.spec.network_interfaces
        ]
        if all(pools):  # otherwise a network is not ready, and the event of its subnet leads here again
            await self._assign(pass_, instance, pools)

    async def _assign(self, cell: Handle, instance: Instance, pools: Sequence[Sequence[Pool]]) -> None:
        try:
            text = annotation(self._book.choose(cell.plane, instance, pools))
        except Full as full:
            if NETWORK_ADDRESSES in instance.metadata.annotations:
                instance = await cell.write.patch(instance, {"metadata": {"annotations": {NETWORK_ADDRESSES: None}}})
            await _report(cell, instance, False, reasons.NETWORK_FAILED_TO_CREATE, str(full))
            return
        if instance.metadata.annotations.get(NETWORK_ADDRESSES) != text:
            instance = await cell.write.patch(instance, {"metadata": {"annotations": {NETWORK_ADDRESSES: text}}})
        self._book.written(cell.plane, instance)
        if conditions.is_false(conditions.of(instance), ADDRESSES_ASSIGNED):
            await _report(cell, instance, True, ADDRESSES_ASSIGNED, "The instance has its addresses")

    def _instance_changed(self, plane: Plane, change: Change[Instance]) -> Iterable[Request]:
        """An Instance that is new or has other addresses, and those that wait for the addresses it released."""
        before, after = change.before, change.after
        if before is not None and after is not None and _relevant(before) == _relevant(after):
            return
        if after is not None:
            yield Request(plane.name, after.namespace, after.name)
        if before is not None and addresses_of(before) is not None:
            self._book.released(plane, before)
            for network in networks_of(before):
                for instance in plane.informer(INSTANCE).by(WAITING, key(before.namespace, network)):
                    yield Request(plane.name, instance.namespace, instance.name)


def _relevant(instance: Instance) -> tuple[object, ...]:
    """The parts of an Instance that matter here; few of its changes affect them."""
    metadata = instance.metadata
    return metadata.uid, metadata.deleting, metadata.annotations.get(NETWORK_ADDRESSES), networks_of(instance)


def _instances_of_network(plane: Plane, change: Change[Subnet]) -> Iterable[Request]:
    network = network_of(plane, change.object)
    if network is not None:
        for instance in plane.informer(INSTANCE).by(BY_NETWORK, key(change.object.namespace, network)):
            yield Request(plane.name, instance.namespace, instance.name)


def _pools(plane: Plane, instance: Instance, network_name: str) -> list[Pool]:
    """One pool per family of the network; none while any of them is missing."""
    network = plane.informer(NETWORK).get(instance.namespace, network_name)
    context = _context(plane, instance, network_name)
    if network is None or context is None:
        return []
    pools: dict[str, Pool] = {}
    for subnet in plane.informer(SUBNET).by(BY_CONTEXT, key(context.namespace, context.name)):
        prefix = prefix_of(subnet.spec) if subnet.spec.subnet_class == PRIVATE else None
        if prefix is not None and conditions.is_true(conditions.of(subnet), READY):
            pools.setdefault(subnet.spec.ip_family, Pool(network_name, subnet.name, prefix))
    families = network.spec.ip_families
    return [pools[family] for family in families] if all(family in pools for family in families) else []


def _context(plane: Plane, instance: Instance, network: str) -> NetworkContext | None:
    """The network's context at the location of the Instance."""
    location = instance.spec.location.name if instance.spec.location else None
    for context in plane.informer(NETWORK_CONTEXT).by(BY_NETWORK, key(instance.namespace, network)):
        if location in (None, context.spec.location.name) and not context.metadata.deleting:
            return context
    return None


async def _report(cell: Handle, instance: Instance, status: bool, reason: str, message: str) -> None:
    generation, now = instance.metadata.generation, cell.now()
    update = conditions.condition(ADDRESSES_ASSIGNED, status, reason, message, generation=generation, now=now)
    await cell.write.status(instance, conditions.status_with(instance, [update]))
