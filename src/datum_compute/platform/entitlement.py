"""Activates entitlements, and creates the objects that come with them. Entry point: `EntitlementController`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.quota import QUOTA_NAMESPACE, RESOURCE_GRANT
from datum_compute.api.services import (
    READY,
    SERVICE_ENTITLEMENT,
    SERVICE_NAME,
    SERVICE_OBJECT,
    ServiceEntitlement,
)
from datum_compute.federation.roles import PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, KubeObject, controller_reference, timestamp
from datum_compute.platform.grants import default_grants
from datum_compute.platform.locations import is_made_here, location_binding, offer
from datum_compute.runtime import Change, Pass, Plane, Request, Source, itself
from datum_compute.runtime.caches.informer import UNSERVED_SECONDS

T = TypeVar("T", bound=KubeObject)


class EntitlementController:
    """Grants every request for compute at once, with the default quota.

    Each entitlement also offers `cities`, displayed by their `names`, unless another component offers them.
    """

    name = "entitlement"

    def __init__(
        self,
        *,
        cities: Sequence[str] = (),
        names: Mapping[str, str] = {},
        limits: Mapping[str, int],
    ) -> None:
        self._cities = tuple(cities)
        self._names = dict(names)
        self._limits = dict(limits)

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(PROJECT, SERVICE_ENTITLEMENT, itself, optional=True),
            Source(PROJECT, LOCATION_BINDING, _owner_of_deleted, optional=True),
            Source(PROJECT, RESOURCE_GRANT, _owner_of_deleted, optional=True),
            Source(PROJECT, NAMESPACE),
        )

    async def reconcile(self, pass_: Pass) -> None:
        entitlement = pass_.get(SERVICE_ENTITLEMENT)
        if entitlement is None or entitlement.metadata.deleting:
            return  # bindings and grants are garbage-collected with it
        if entitlement.spec.service_ref.name != SERVICE_OBJECT:
            return
        if not all(pass_.serves(kind) for kind in (LOCATION_BINDING, RESOURCE_GRANT)):
            pass_.no_later_than(UNSERVED_SECONDS)  # no event reports a kind that appears without objects
        await self._provide(pass_, entitlement)
        await self._activate(pass_, entitlement)

    async def _provide(self, pass_: Pass, entitlement: ServiceEntitlement) -> None:
        owner = controller_reference(entitlement)
        for city in self._cities if pass_.serves(LOCATION_BINDING) else ():
            body = location_binding(city, [owner], self._names.get(city, city))
            binding = await _ensure(pass_, LOCATION_BINDING, body)
            if binding is not None and is_made_here(binding.metadata.labels):
                await offer(pass_, binding, served=True)
        if not pass_.serves(RESOURCE_GRANT):
            return  # without quota there is nothing to grant
        await _ensure(pass_, NAMESPACE, NAMESPACE.body(QUOTA_NAMESPACE))
        for grant in default_grants(pass_.name, self._limits, owner):
            await _ensure(pass_, RESOURCE_GRANT, grant)

    async def _activate(self, pass_: Pass, entitlement: ServiceEntitlement) -> None:
        before = entitlement.status
        generation, now = entitlement.metadata.generation, pass_.now()
        ready = conditions.condition(
            READY, True, "EntitlementActive", "Compute is enabled for this project", generation=generation, now=now
        )
        entitled_at = before.entitled_at if before and before.entitled_at else now
        status = conditions.status_with(
            entitlement,
            [ready],
            phase="Active",
            origin="Direct",
            serviceName=SERVICE_NAME,
            entitledAt=timestamp(entitled_at),
            observedGeneration=generation,
        )
        await pass_.write.status(entitlement, status)


def _owner_of_deleted(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    """Maps a deleted object to its entitlement, which creates it again, even if it belonged to a former entitlement."""
    owner = change.object.metadata.controller
    if change.after is None and owner is not None and owner.kind == SERVICE_ENTITLEMENT.name:
        yield Request(plane.name, "", owner.name)


async def _ensure(pass_: Pass, kind: Kind[T], body: Json) -> T | None:
    """The object, created if it is missing; changes by an operator are kept."""
    metadata = body["metadata"]
    existing = pass_.informer(kind).get(metadata.get("namespace", ""), metadata["name"])
    if existing is not None:
        return existing
    try:
        return await pass_.write.create(kind, body)
    except AlreadyExists:
        return None
