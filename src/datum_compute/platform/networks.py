"""Sets up networks in cells that lack the network operator. Entry point: `NetworkController`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.labels import NETWORK_FINALIZER
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
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.kube.meta import Json, controller_reference
from datum_compute.platform.network_indexes import BY_CONTEXT, BY_NETWORK, by_context, by_network, key, network_of
from datum_compute.platform.subnets import BadRange, IPNetwork, carve, prefix_of, range_of
from datum_compute.runtime import Change, Handle, Pass, Plane, Request, Source, itself
from datum_compute.runtime.caches.informer import UNSERVED_SECONDS

_MADE_HERE = {"app.kubernetes.io/managed-by": "datum-compute"}
_KINDS = (NETWORK, NETWORK_BINDING, NETWORK_CONTEXT, SUBNET_CLAIM, SUBNET)

_Outcome = tuple[bool, str, str]  # whether it succeeded, the reason, and the message


class _SubnetRequest(Struct, frozen=True):
    name: str
    subnet_class: str
    family: str
    start: str = ""
    length: int = 0


class NetworkController:
    """Does what the network operator and a fabric would do in a cell: whatever is requested is ready at once.

    A Network that a binding names is created if it does not exist, and deleted with its last binding. The Network is
    always the one in the binding's own namespace, whatever the binding says: another namespace is another project.
    """

    name = "network"

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, NETWORK, itself, optional=True, scope=CELL_NAMESPACES),
            Source(
                CELL,
                NETWORK_BINDING,
                _named_network,
                {BY_NETWORK: by_network},
                optional=True,
                scope=CELL_NAMESPACES,
            ),
            Source(CELL, NETWORK_CONTEXT, _named_network, {BY_NETWORK: by_network}, optional=True),
            Source(CELL, SUBNET_CLAIM, _network_of_context, {BY_CONTEXT: by_context}, optional=True),
            Source(CELL, SUBNET, _network_of_context, {BY_CONTEXT: by_context}, optional=True),
        )

    async def reconcile(self, pass_: Pass) -> None:
        namespace, name = pass_.request.namespace, pass_.request.name
        if not all(pass_.serves(kind) for kind in _KINDS):
            pass_.no_later_than(UNSERVED_SECONDS)  # no event reports a kind that appears without objects
            return
        all_bindings = pass_.informer(NETWORK_BINDING).by(BY_NETWORK, key(namespace, name))
        bindings = [binding for binding in all_bindings if not binding.metadata.deleting]
        network = pass_.informer(NETWORK).get(namespace, name)
        if network is None and bindings:
            body = NETWORK.body(name, namespace, labels=_MADE_HERE, finalizers=[NETWORK_FINALIZER])
            network = await pass_.write.ensure(NETWORK, body | {"spec": {"ipam": {"mode": "Auto"}}})
        elif network is not None and not network.metadata.deleting and not all_bindings and is_made_here(network):
            await pass_.write.delete(network)
            network = pass_.informer(NETWORK).get(namespace, name)
        if network is None:
            return
        if network.metadata.deleting:
            await self._tear_down(pass_, network)
            return
        network = await pass_.write.add_finalizer(network, NETWORK_FINALIZER)
        for location in dict.fromkeys(binding.spec.location for binding in bindings):
            context, failure = await self._set_up(pass_, network, location)
            for binding in bindings:
                if binding.spec.location == location:
                    reference = {"namespace": context.namespace, "name": context.name}
                    outcomes = {READY: _outcome("NetworkContextReady", failure)}
                    await _report(pass_, binding, outcomes, networkContextRef=reference)

    async def _tear_down(self, cell: Handle, network: Network) -> None:
        """Deletes the contexts first; their subnets and claims are garbage-collected with them."""
        network_key = key(network.namespace, network.name)
        for context in cell.informer(NETWORK_CONTEXT).by(BY_NETWORK, network_key):
            if not context.metadata.deleting:
                await cell.write.delete(context)
        if not cell.informer(NETWORK_CONTEXT).by(BY_NETWORK, network_key):
            await cell.write.remove_finalizers(network, NETWORK_FINALIZER)

    async def _set_up(self, cell: Handle, network: Network, location: LocationRef) -> tuple[NetworkContext, str | None]:
        """The network's context at a location, and the sentence that says why it failed, if it did."""
        name = f"{network.name}-{location.name}"
        context = cell.informer(NETWORK_CONTEXT).get(network.namespace, name)
        if context is None:
            owner = controller_reference(network)
            body = NETWORK_CONTEXT.body(name, network.namespace, ownerReferences=[owner])
            spec = {"network": {"name": network.name}, "location": _reference(location)}
            context = await cell.write.ensure(NETWORK_CONTEXT, body | {"spec": spec})
        failure = await self._subnets(cell, network, context)
        outcomes = {PROGRAMMED: _outcome("Programmed", failure), READY: _outcome("Ready", failure)}
        await _report(cell, context, outcomes)
        return context, failure

    async def _subnets(self, cell: Handle, network: Network, context: NetworkContext) -> str | None:
        """Creates the claimed subnets, and one for IPv6 if the network has it; returns why that failed, if it did."""
        all_claims = cell.informer(SUBNET_CLAIM).by(BY_CONTEXT, key(context.namespace, context.name))
        claims = [claim for claim in all_claims if not claim.metadata.deleting]
        requests = [_requested_by(claim) for claim in claims]
        families = {request.family for request in requests}
        if IPV6 in network.spec.ip_families and IPV6 not in families:
            requests.append(_SubnetRequest(f"{context.name}-ipv6", PRIVATE, IPV6))
        try:
            for family in (*network.spec.ip_families, *families):
                range_of(network.spec, network.metadata.uid, family)
            for request in requests:
                await self._subnet(cell, network, context, request)
        except BadRange as error:
            return f'Network "{network.name}" cannot be set up here. {error}'
        for claim in claims:
            ready = (True, "SubnetReady", "The subnet is ready")
            reference = {"name": claim.name}
            await _report(cell, claim, {ALLOCATED: ready, PROGRAMMED: ready, READY: ready}, subnetRef=reference)
        return None

    async def _subnet(self, cell: Handle, network: Network, context: NetworkContext, request: _SubnetRequest) -> None:
        subnet = cell.informer(SUBNET).get(context.namespace, request.name)
        if subnet is None:
            version = 6 if request.family == IPV6 else 4
            prefix = carve(
                range_of(network.spec, network.metadata.uid, request.family),
                [taken for taken in _prefixes(cell.plane, network) if taken.version == version],
                family=request.family,
                length=request.length,
                start=request.start,
                near=context.spec.location.name,
            )
            owner = controller_reference(context)
            body = SUBNET.body(request.name, context.namespace, ownerReferences=[owner])
            spec = {
                "subnetClass": request.subnet_class,
                "networkContext": {"name": context.name},
                "location": _reference(context.spec.location),
                "ipFamily": request.family,
                "startAddress": str(prefix.network_address),
                "prefixLength": prefix.prefixlen,
            }
            subnet = await cell.write.ensure(SUBNET, body | {"spec": spec})
        outcomes = {
            ALLOCATED: (True, "PrefixAllocated", "The subnet has its addresses"),
            PROGRAMMED: (True, "Programmed", "The subnet is programmed here"),
            READY: (True, "Ready", "The subnet is ready"),
        }
        start, length = subnet.spec.start_address, subnet.spec.prefix_length
        await _report(cell, subnet, outcomes, startAddress=start, prefixLength=length)


def is_made_here(network: Network) -> bool:
    return _MADE_HERE.items() <= network.metadata.labels.items()


def _requested_by(claim: SubnetClaim) -> _SubnetRequest:
    spec = claim.spec
    return _SubnetRequest(claim.name, spec.subnet_class, spec.ip_family, spec.start_address, spec.prefix_length)


def _prefixes(plane: Plane, network: Network) -> Iterator[IPNetwork]:
    """Address ranges of all subnets that the network has."""
    for context in plane.informer(NETWORK_CONTEXT).by(BY_NETWORK, key(network.namespace, network.name)):
        for subnet in plane.informer(SUBNET).by(BY_CONTEXT, key(context.namespace, context.name)):
            if (prefix := prefix_of(subnet.spec)) is not None:
                yield prefix


def _reference(location: LocationRef) -> Json:
    return {"name": location.name, "namespace": location.namespace}


def _outcome(success_reason: str, failure: str | None) -> _Outcome:
    if failure is not None:
        return False, reasons.NETWORK_FAILED_TO_CREATE, failure
    return True, success_reason, "The network is ready here"


async def _report(
    cell: Handle,
    object_: NetworkBinding | NetworkContext | SubnetClaim | Subnet,
    outcomes: Mapping[str, _Outcome],
    **fields: object,
) -> None:
    """Writes one condition per outcome, and other fields of the status."""
    generation, now = object_.metadata.generation, cell.now()
    updates = [
        conditions.condition(type_, *outcome, generation=generation, now=now) for type_, outcome in outcomes.items()
    ]
    await cell.write.status(object_, conditions.status_with(object_, updates, **fields))


def _named_network(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    for object_ in (change.before, change.after):
        if object_ is not None:
            yield Request(plane.name, object_.namespace, object_.spec.network.name)


def _network_of_context(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    network = network_of(plane, change.object)
    if network is not None:
        yield Request(plane.name, change.object.namespace, network)
