"""The network objects that a deployment needs before its Instances may start. Entry points: `Networking`, `failure_of`.

Each interface has a binding, which leads to a context, the network at the cell's location; a claim on the context leads
to a subnet. Everything is read from caches; only missing objects are created.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.labels import DEPLOYMENT_NAME, TOPOLOGY_CITY
from datum_compute.api.names import binding_name, subnet_claim_name
from datum_compute.api.networking import (
    IPV4,
    LOCATION,
    NETWORK_BINDING,
    NETWORK_CONTEXT,
    PRIVATE,
    READY,
    SUBNET,
    SUBNET_CLAIM,
    ConditionsStatus,
    Location,
    NetworkBinding,
    NetworkBindingStatus,
    NetworkContext,
    SubnetClaim,
    SubnetClaimStatus,
    SubnetStatus,
)
from datum_compute.cell.rollup import Network
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.meta import Json, KubeObject, controller_reference, owner_reference
from datum_compute.runtime import Change, Drop, Handle, Plane, Request, Source, controller_of

BY_CITY = "by-city"
_KINDS = (LOCATION, NETWORK_BINDING, NETWORK_CONTEXT, SUBNET_CLAIM, SUBNET)


class Networking:
    """Prepares the networks of deployments. All the objects that it waits for are watched."""

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, LOCATION, _of_location, optional=True),
            Source(CELL, NETWORK_BINDING, controller_of(WORKLOAD_DEPLOYMENT), optional=True),
            Source(CELL, NETWORK_CONTEXT, _placed_at(lambda context: context.spec.location.name), optional=True),
            Source(CELL, SUBNET_CLAIM, _placed_at(lambda claim: claim.spec.location.name), optional=True),
            Source(CELL, SUBNET, _placed_at(lambda subnet: subnet.spec.location.name), optional=True),
        )

    def location(self, plane: Plane, deployment: WorkloadDeployment) -> Location | None:
        """The first Location of the deployment's city; case matters."""
        locations = plane.informer(LOCATION).all()
        return next((location for location in locations if _city(location) == deployment.spec.city_code), None)

    def is_ready(self, plane: Plane, deployment: WorkloadDeployment) -> bool:
        """Whether the caches have everything that is needed."""
        location = self.location(plane, deployment)
        if location is None:
            return False
        networks = [interface.network.name for interface in deployment.spec.template.spec.network_interfaces]
        bindings = [
            plane.informer(NETWORK_BINDING).get(deployment.namespace, binding_name(deployment.name, index))
            for index in range(len(networks))
        ]
        return all(
            binding is not None
            and (binding.spec.network.name, binding.spec.location.name) == (network, location.name)
            and _has_subnet(plane, binding)
            for network, binding in zip(networks, bindings, strict=True)
        )

    async def prepare(self, cell: Handle, deployment: WorkloadDeployment) -> Network:
        """Creates what is missing."""
        plane = cell.plane
        location = self.location(plane, deployment)
        if location is None:
            return Network.NO_LOCATION
        if not all(plane.serves(kind) for kind in _KINDS):
            return Network.PROVISIONING
        for index, interface in enumerate(deployment.spec.template.spec.network_interfaces):
            binding = await self._binding(cell, deployment, index, interface.network.name, location.name)
            context = _context(plane, binding)
            if context is not None and _claim(plane, context) is None:
                await self._claim_subnet(cell, context)
        return Network.READY if self.is_ready(plane, deployment) else Network.PROVISIONING

    async def _binding(
        self, cell: Handle, deployment: WorkloadDeployment, index: int, network: str, location: str
    ) -> NetworkBinding:
        name = binding_name(deployment.name, index)
        spec: Json = {"network": {"name": network}, "location": _reference(location)}
        binding = cell.informer(NETWORK_BINDING).get(deployment.namespace, name)
        if binding is None:
            owner = controller_reference(deployment)
            body = NETWORK_BINDING.body(name, deployment.namespace, ownerReferences=[owner])
            binding = await cell.write.ensure(NETWORK_BINDING, body | {"spec": spec})
        is_other = (binding.spec.network.name, binding.spec.location.name) != (network, location)
        if _is_owned(binding, deployment) and is_other:
            binding = await cell.write.patch(binding, {"spec": spec})
        return binding

    async def _claim_subnet(self, cell: Handle, context: NetworkContext) -> None:
        """One claim serves all deployments on the context, so an existing one is as good."""
        owner = owner_reference(context)
        body = SUBNET_CLAIM.body(subnet_claim_name(context.name), context.namespace, ownerReferences=[owner])
        spec = {
            "subnetClass": PRIVATE,
            "ipFamily": IPV4,
            "networkContext": {"name": context.name},
            "location": _reference(context.spec.location.name),
        }
        with suppress(AlreadyExists):
            await cell.write.create(SUBNET_CLAIM, body | {"spec": spec})


def _has_subnet(plane: Plane, binding: NetworkBinding) -> bool:
    context = _context(plane, binding)
    claim = _claim(plane, context) if context is not None else None
    if context is None or claim is None or not _is_ready(claim.status):
        return False
    reference = claim.status.subnet_ref if claim.status else None
    subnet = plane.informer(SUBNET).get(context.namespace, reference.name) if reference is not None else None
    return subnet is not None and _is_ready(subnet.status)


def _context(plane: Plane, binding: NetworkBinding) -> NetworkContext | None:
    """The context of a binding, once both are Ready."""
    reference = binding.status.network_context_ref if binding.status else None
    if reference is None or not _is_ready(binding.status):
        return None
    context = plane.informer(NETWORK_CONTEXT).get(reference.namespace or binding.namespace, reference.name)
    return context if context is not None and _is_ready(context.status) else None


def _claim(plane: Plane, context: NetworkContext) -> SubnetClaim | None:
    wanted = (PRIVATE, IPV4, context.name, context.spec.location.name)
    for claim in plane.informer(SUBNET_CLAIM).all(context.namespace):
        spec = claim.spec
        if (spec.subnet_class, spec.ip_family, spec.network_context.name, spec.location.name) == wanted:
            return claim
    return None


def _reference(location: str) -> Json:
    return {"name": location, "namespace": ""}


def failure_of(plane: Plane, instance: Instance) -> str | None:
    """Why the network of an Instance could not be created, from its first failed binding; None without a failure."""
    owner = instance.metadata.controller
    deployment = owner.name if owner is not None else instance.metadata.labels.get(DEPLOYMENT_NAME, "")
    for index in range(len(instance.spec.network_interfaces)):
        binding = plane.informer(NETWORK_BINDING).get(instance.namespace, binding_name(deployment, index))
        ready = conditions.find(conditions.of(binding), READY) if binding is not None else None
        if ready is not None and (ready.status, ready.reason) == ("False", reasons.NETWORK_FAILED_TO_CREATE):
            return ready.message
    return None


def _is_ready(status: ConditionsStatus | NetworkBindingStatus | SubnetClaimStatus | SubnetStatus | None) -> bool:
    return status is not None and conditions.is_true(status.conditions, READY)


def _is_owned(binding: NetworkBinding, deployment: WorkloadDeployment) -> bool:
    owner = binding.metadata.controller
    return owner is not None and owner.uid == deployment.metadata.uid


def _city(location: Location) -> str:
    return location.spec.topology.get(TOPOLOGY_CITY, "")


def by_city(deployment: WorkloadDeployment) -> Iterable[str]:
    return (deployment.spec.city_code,)


def _of_location(plane: Plane, change: Change[Location]) -> Iterable[Request | Drop]:
    for city in sorted({_city(location) for location in (change.before, change.after) if location is not None}):
        yield from _in_city(plane, city)


def _in_city(plane: Plane, city: str) -> Iterable[Request]:
    for deployment in plane.informer(WORKLOAD_DEPLOYMENT).by(BY_CITY, city):
        yield Request(plane.name, deployment.namespace, deployment.name)


def _placed_at(location_of: Callable[[Any], str]) -> Callable[[Plane, Change[Any]], Iterable[Request | Drop]]:
    """From an object at a location to the deployments of its city."""

    def deployments(plane: Plane, change: Change[KubeObject]) -> Iterable[Request | Drop]:
        location = plane.informer(LOCATION).get("", location_of(change.object))
        if location is not None:
            yield from _in_city(plane, _city(location))

    return deployments
