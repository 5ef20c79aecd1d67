"""Prepares networks in cells without the network operator, and addresses in them. Entry point: `NetworkController`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import ip_network
from typing import Any

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.addresses import addresses_of, annotation
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import NETWORK_ADDRESSES, NETWORK_FINALIZER
from datum_compute.api.networking import (
    ALLOCATED,
    IPV6,
    NETWORK,
    NETWORK_BINDING,
    NETWORK_CONTEXT,
    PRIVATE,
    PROGRAMMED,
    READY,
    SUBNET,
    SUBNET_CLAIM,
    LocationRef,
    Network,
    NetworkBinding,
    NetworkContext,
    Subnet,
    SubnetClaim,
)
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import is_foreign, waking
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition, Json, controller_reference
from datum_compute.platform.addresses import (
    BY_ADDRESS,
    BY_NETWORK,
    WAITING,
    AddressBook,
    Full,
    Pool,
    by_address,
    by_network,
    networks_of,
    waiting,
)
from datum_compute.platform.subnets import BadRange, IPNetwork, carve, range_of
from datum_compute.runtime import Change, Handle, Pass, Plane, Request, Source
from datum_compute.runtime.caches.informer import UNSERVED_SECONDS

ADDRESSES_ASSIGNED = "AddressesAssigned"
"""A condition of an Instance that had to wait for an address; others never get it."""

_MADE_HERE = {"app.kubernetes.io/managed-by": "datum-compute"}
_BY_CONTEXT = "by-context"
_OF_NETWORK, _OF_INSTANCE = "network/", "instance/"  # what a request is about


class _Wanted(Struct, frozen=True):
    """A subnet to be."""

    name: str
    subnet_class: str
    family: str
    start: str = ""
    length: int = 0


_KINDS = (NETWORK, NETWORK_BINDING, NETWORK_CONTEXT, SUBNET_CLAIM, SUBNET)


class NetworkController:
    """What the network operator and a fabric would do for a cell: everything that is asked for is there at once.

    A network that a binding names and nobody made is made here, and goes with its last binding. A binding's network is
    always the one of its own namespace, whatever it says: another namespace is another project.
    """

    name = "network"

    def __init__(self) -> None:
        self._book = AddressBook()

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, NETWORK, _itself, optional=True),
            Source(CELL, NETWORK_BINDING, _of(_bound_network), {BY_NETWORK: _place_of(_bound_network)}, optional=True),
            Source(
                CELL, NETWORK_CONTEXT, _of(_context_network), {BY_NETWORK: _place_of(_context_network)}, optional=True
            ),
            Source(CELL, SUBNET_CLAIM, _of_context, {_BY_CONTEXT: _place_of(_claimed_context)}, optional=True),
            Source(CELL, SUBNET, _of_subnet, {_BY_CONTEXT: _place_of(_claimed_context)}, optional=True),
            Source(
                CELL, INSTANCE, self._of_instance, {BY_NETWORK: by_network, BY_ADDRESS: by_address, WAITING: waiting}
            ),
            waking(NETWORK, lambda network: _OF_NETWORK + network.name),
            waking(NETWORK_BINDING, lambda binding: _OF_NETWORK + _bound_network(binding)),
            waking(INSTANCE, lambda instance: _OF_INSTANCE + instance.name),
        )

    def disengaged(self, plane: Plane) -> None:
        self._book.forget(plane.name)

    async def reconcile(self, pass_: Pass) -> None:
        request = pass_.request
        if is_foreign(pass_.plane, request.namespace):
            return
        if not all(pass_.serves(kind) for kind in _KINDS):
            pass_.no_later_than(UNSERVED_SECONDS)  # a kind that comes is not told of while it is empty
            return
        if request.name.startswith(_OF_NETWORK):
            await self._network(pass_, request.namespace, request.name.removeprefix(_OF_NETWORK))
            return
        instance = pass_.informer(INSTANCE).get(request.namespace, request.name.removeprefix(_OF_INSTANCE))
        if instance is not None and not instance.metadata.deleting:
            await self._address(pass_, instance)

    # Networks

    async def _network(self, cell: Handle, namespace: str, name: str) -> None:
        asking = cell.informer(NETWORK_BINDING).by(BY_NETWORK, _place(namespace, name))
        bindings = [binding for binding in asking if not binding.metadata.deleting]
        network = cell.informer(NETWORK).get(namespace, name)
        if network is None and bindings:
            body = NETWORK.body(name, namespace, labels=_MADE_HERE, finalizers=[NETWORK_FINALIZER])
            network = await cell.write.ensure(NETWORK, body | {"spec": {"ipam": {"mode": "Auto"}}})
        elif network is not None and not network.metadata.deleting and not asking and is_made_here(network):
            await cell.write.delete(network)
            network = cell.informer(NETWORK).get(namespace, name)
        if network is None:
            return
        if network.metadata.deleting:
            await self._tear_down(cell, network)
            return
        network = await cell.write.add_finalizer(network, NETWORK_FINALIZER)
        for location in dict.fromkeys(binding.spec.location for binding in bindings):
            context, failure = await self._context_at(cell, network, location)
            for binding in bindings:
                if binding.spec.location == location:
                    await self._bind(cell, binding, context, failure)

    async def _tear_down(self, cell: Handle, network: Network) -> None:
        """Its contexts go first, and take their subnets and claims along."""
        place = _place(network.namespace, network.name)
        for context in cell.informer(NETWORK_CONTEXT).by(BY_NETWORK, place):
            if not context.metadata.deleting:
                await cell.write.delete(context)
        if not cell.informer(NETWORK_CONTEXT).by(BY_NETWORK, place):
            await cell.write.remove_finalizers(network, NETWORK_FINALIZER)

    async def _context_at(
        self, cell: Handle, network: Network, location: LocationRef
    ) -> tuple[NetworkContext, str | None]:
        """The network at a location, with its subnets; and the sentence why it cannot be, if so."""
        name = f"{network.name}-{location.name}"
        context = cell.informer(NETWORK_CONTEXT).get(network.namespace, name)
        if context is None:
            owner = controller_reference(network)
            body = NETWORK_CONTEXT.body(name, network.namespace, ownerReferences=[owner])
            spec = {"network": {"name": network.name}, "location": _reference(location)}
            context = await cell.write.ensure(NETWORK_CONTEXT, body | {"spec": spec})
        failure = await self._subnets(cell, network, context)
        said = {PROGRAMMED: _outcome("Programmed", failure), READY: _outcome("Ready", failure)}
        await self._report(cell, context, said)
        return context, failure

    async def _bind(self, cell: Handle, binding: NetworkBinding, context: NetworkContext, failure: str | None) -> None:
        said = {READY: _outcome("NetworkContextReady", failure)}
        reference = {"namespace": context.namespace, "name": context.name}
        await self._report(cell, binding, said, networkContextRef=reference)

    async def _subnets(self, cell: Handle, network: Network, context: NetworkContext) -> str | None:
        """Makes those that are claimed, and one for IPv6 where the network asks for it; else the sentence why not."""
        place = _place(context.namespace, context.name)
        claims = [one for one in cell.informer(SUBNET_CLAIM).by(_BY_CONTEXT, place) if not one.metadata.deleting]
        wanted = [
            _Wanted(one.name, one.spec.subnet_class, one.spec.ip_family, one.spec.start_address, one.spec.prefix_length)
            for one in claims
        ]
        families = {one.family for one in wanted}
        if IPV6 in network.spec.ip_families and IPV6 not in families:
            wanted.append(_Wanted(f"{context.name}-ipv6", PRIVATE, IPV6))
        try:
            for family in (*network.spec.ip_families, *families):
                range_of(network.spec, network.metadata.uid, family)
            for one in wanted:
                await self._subnet(cell, network, context, one)
        except BadRange as error:
            return f'Network "{network.name}" cannot be set up here. {error}'
        for claim in claims:
            subnet_ref = {"subnetRef": {"name": claim.name}}
            fine = (True, "SubnetReady", "The subnet is ready")
            await self._report(cell, claim, {ALLOCATED: fine, PROGRAMMED: fine, READY: fine}, **subnet_ref)
        return None

    async def _subnet(self, cell: Handle, network: Network, context: NetworkContext, wanted: _Wanted) -> None:
        subnet = cell.informer(SUBNET).get(context.namespace, wanted.name)
        if subnet is None:
            prefix = carve(
                range_of(network.spec, network.metadata.uid, wanted.family),
                [one for one in self._taken(cell.plane, network) if one.version == (6 if wanted.family == IPV6 else 4)],
                family=wanted.family,
                length=wanted.length,
                start=wanted.start,
                near=context.spec.location.name,
            )
            owner = controller_reference(context)
            body = SUBNET.body(wanted.name, context.namespace, ownerReferences=[owner])
            spec = {
                "subnetClass": wanted.subnet_class,
                "networkContext": {"name": context.name},
                "location": _reference(context.spec.location),
                "ipFamily": wanted.family,
                "startAddress": str(prefix.network_address),
                "prefixLength": prefix.prefixlen,
            }
            subnet = await cell.write.ensure(SUBNET, body | {"spec": spec})
        await self._report(
            cell,
            subnet,
            {
                ALLOCATED: (True, "PrefixAllocated", "The subnet has its addresses"),
                PROGRAMMED: (True, "Programmed", "The subnet is programmed here"),
                READY: (True, "Ready", "The subnet is ready"),
            },
            startAddress=subnet.spec.start_address,
            prefixLength=subnet.spec.prefix_length,
        )

    def _taken(self, plane: Plane, network: Network) -> Iterator[IPNetwork]:
        for context in plane.informer(NETWORK_CONTEXT).by(BY_NETWORK, _place(network.namespace, network.name)):
            for subnet in plane.informer(SUBNET).by(_BY_CONTEXT, _place(context.namespace, context.name)):
                if (prefix := _prefix(subnet)) is not None:
                    yield prefix

    # Addresses

    async def _address(self, cell: Handle, instance: Instance) -> None:
        interfaces = [self._pools(cell.plane, instance, one.network.name) for one in instance.spec.network_interfaces]
        if not all(interfaces):
            return  # some network is not ready; its subnet will tell
        try:
            text = annotation(self._book.choose(cell.plane, instance, interfaces))
        except Full as full:
            if NETWORK_ADDRESSES in instance.metadata.annotations:
                instance = await cell.write.patch(instance, {"metadata": {"annotations": {NETWORK_ADDRESSES: None}}})
            await self._tell(cell, instance, (False, reasons.NETWORK_FAILED_TO_CREATE, str(full)))
            return
        if instance.metadata.annotations.get(NETWORK_ADDRESSES) != text:
            instance = await cell.write.patch(instance, {"metadata": {"annotations": {NETWORK_ADDRESSES: text}}})
        self._book.written(cell.plane, instance)
        if conditions.is_false(conditions.of(instance), ADDRESSES_ASSIGNED):
            await self._tell(cell, instance, (True, ADDRESSES_ASSIGNED, "The instance has its addresses"))

    async def _tell(self, cell: Handle, instance: Instance, said: tuple[bool, str, str]) -> None:
        await self._report(cell, instance, {ADDRESSES_ASSIGNED: said})

    def _pools(self, plane: Plane, instance: Instance, network_name: str) -> list[Pool]:
        """One a family of the network; none while any of them is missing."""
        network = plane.informer(NETWORK).get(instance.namespace, network_name)
        context = self._context(plane, instance, network_name)
        if network is None or context is None:
            return []
        found: dict[str, Pool] = {}
        for subnet in plane.informer(SUBNET).by(_BY_CONTEXT, _place(context.namespace, context.name)):
            prefix = _prefix(subnet) if subnet.spec.subnet_class == PRIVATE else None
            if prefix is not None and conditions.is_true(conditions.of(subnet), READY):
                found.setdefault(subnet.spec.ip_family, Pool(network_name, subnet.name, prefix))
        families = network.spec.ip_families
        return [found[family] for family in families] if all(family in found for family in families) else []

    def _context(self, plane: Plane, instance: Instance, network: str) -> NetworkContext | None:
        contexts = plane.informer(NETWORK_CONTEXT).by(BY_NETWORK, _place(instance.namespace, network))
        location = instance.spec.location.name if instance.spec.location else None
        here = [one for one in contexts if location in (None, one.spec.location.name) and not one.metadata.deleting]
        return here[0] if here else None

    def _of_instance(self, plane: Plane, change: Change[Instance]) -> Iterable[Request]:
        """New ones and those whose addresses changed; and, when some are released, those that wait for one."""
        before, after = change.before, change.after
        if before is not None and after is not None and _concerns(before) == _concerns(after):
            return
        if after is not None:
            yield Request(plane.name, after.namespace, _OF_INSTANCE + after.name)
        if before is not None and addresses_of(before) is not None:
            self._book.released(plane, before)
            for network in networks_of(before):
                for one in plane.informer(INSTANCE).by(WAITING, _place(before.namespace, network)):
                    yield Request(plane.name, one.namespace, _OF_INSTANCE + one.name)

    # Writing

    async def _report(self, cell: Handle, object_: Any, said: dict[str, tuple[bool, str, str]], **also: object) -> None:
        generation, now = object_.metadata.generation, cell.now()
        wanted: list[Condition] = [
            conditions.condition(type_, status, reason, message, generation=generation, now=now)
            for type_, (status, reason, message) in said.items()
        ]
        await cell.write.status(object_, conditions.status_with(object_, wanted, **also))


def is_made_here(network: Network) -> bool:
    return _MADE_HERE.items() <= network.metadata.labels.items()


def _reference(location: LocationRef) -> Json:
    return {"name": location.name, "namespace": location.namespace}


def _prefix(subnet: Subnet) -> IPNetwork | None:
    """None for one that somebody else made, and that nobody has given its addresses yet."""
    try:
        return ip_network(f"{subnet.spec.start_address}/{subnet.spec.prefix_length}")
    except ValueError:
        return None


def _concerns(instance: Instance) -> tuple[object, ...]:
    """What of an Instance is looked at here; most of its changes are none of it."""
    metadata = instance.metadata
    return metadata.uid, metadata.deleting, metadata.annotations.get(NETWORK_ADDRESSES), networks_of(instance)


def _outcome(well: str, failure: str | None) -> tuple[bool, str, str]:
    if failure is not None:
        return False, reasons.NETWORK_FAILED_TO_CREATE, failure
    return True, well, "The network is ready here"


# Which network an object belongs to


def _place(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def _bound_network(binding: NetworkBinding) -> str:
    return binding.spec.network.name


def _context_network(context: NetworkContext) -> str:
    return context.spec.network.name


def _claimed_context(claim: SubnetClaim | Subnet) -> str:
    return claim.spec.network_context.name


def _place_of(name: Callable[[Any], str]) -> Callable[[Any], Iterable[str]]:
    return lambda object_: (_place(object_.namespace, name(object_)),)


def _itself(plane: Plane, change: Change[Network]) -> Iterable[Request]:
    yield Request(plane.name, change.object.namespace, _OF_NETWORK + change.object.name)


def _of(name: Callable[[Any], str]) -> Callable[[Plane, Change[Any]], Iterable[Request]]:
    def requests(plane: Plane, change: Change[Any]) -> Iterable[Request]:
        for object_ in (change.before, change.after):
            if object_ is not None:
                yield Request(plane.name, object_.namespace, _OF_NETWORK + name(object_))

    return requests


def _of_context(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    context = plane.informer(NETWORK_CONTEXT).get(change.object.namespace, _claimed_context(change.object))
    if context is not None:
        yield Request(plane.name, context.namespace, _OF_NETWORK + _context_network(context))


def _of_subnet(plane: Plane, change: Change[Subnet]) -> Iterable[Request]:
    """Its network, and every Instance that is to have an address of it."""
    for request in _of_context(plane, change):
        yield request
        place = _place(request.namespace, request.name.removeprefix(_OF_NETWORK))
        for instance in plane.informer(INSTANCE).by(BY_NETWORK, place):
            yield Request(plane.name, instance.namespace, _OF_INSTANCE + instance.name)
