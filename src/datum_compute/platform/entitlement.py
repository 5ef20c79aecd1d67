"""Activates a project's entitlement and gives it what comes with it. Entry point: `EntitlementController`."""

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
from datum_compute.kube.meta import Json, KubeObject, owner_reference, plain, timestamp
from datum_compute.platform.grants import default_grants
from datum_compute.platform.locations import is_made_here, location_binding, offer
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Pass, Request
from datum_compute.runtime.writes import Writer

T = TypeVar("T", bound=KubeObject)


class EntitlementController:
    """Every request for compute is granted at once, with the default quota of the install.

    `cities` come with it; where somebody else offers them, there are none here.
    """

    name = "entitlement"

    def __init__(self, fleet: Fleet, clock: Clock, *, cities: Sequence[str] = (), limits: Mapping[str, int]) -> None:
        self._fleet = fleet
        self._clock = clock
        self._cities = tuple(cities)
        self._limits = dict(limits)

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(PROJECT, SERVICE_ENTITLEMENT, itself),
            Source(PROJECT, LOCATION_BINDING, _of_removed),
            Source(PROJECT, RESOURCE_GRANT, _of_removed),
            Source(PROJECT, NAMESPACE),
        )

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        plane = self._fleet.plane(request.plane)
        entitlement = plane.informer(SERVICE_ENTITLEMENT).get("", request.name)
        if entitlement is None or entitlement.metadata.deleting:
            return  # bindings and grants are owned by it and go with it
        if entitlement.spec.service_ref.name != SERVICE_OBJECT:
            return
        write = plane.writer(self.name)
        await self._provide(plane, write, entitlement)
        await self._activate(write, entitlement)

    async def _provide(self, plane: Plane, write: Writer, entitlement: ServiceEntitlement) -> None:
        owner = owner_reference(
            SERVICE_ENTITLEMENT.api_version, SERVICE_ENTITLEMENT.name, entitlement.metadata, controller=True
        )
        for city in self._cities:
            binding = await _ensure(plane, write, LOCATION_BINDING, location_binding(city, [owner]))
            if binding is not None and is_made_here(binding.metadata.labels):
                await offer(write, binding, self._clock, served=True)
        await _ensure(plane, write, NAMESPACE, NAMESPACE.body(QUOTA_NAMESPACE))
        for grant in default_grants(plane.name, self._limits, owner):
            await _ensure(plane, write, RESOURCE_GRANT, grant)

    async def _activate(self, write: Writer, entitlement: ServiceEntitlement) -> None:
        before = entitlement.status
        generation, now = entitlement.metadata.generation, self._clock.now()
        ready = conditions.condition(
            READY, True, "EntitlementActive", "Compute is enabled for this project", generation=generation, now=now
        )
        entitled_at = before.entitled_at if before and before.entitled_at else now
        status: Json = plain(entitlement.status_json) | {
            "phase": "Active",
            "origin": "Direct",
            "serviceName": SERVICE_NAME,
            "entitledAt": timestamp(entitled_at),
            "observedGeneration": generation,
            "conditions": conditions.to_json(conditions.updated(conditions.of(entitlement), [ready])),
        }
        await write.status(SERVICE_ENTITLEMENT, entitlement, status)


def _of_removed(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    """What came with an entitlement is made again when it is gone, also if an earlier one of its name took it along."""
    owner = change.object.metadata.controller
    if change.after is None and owner is not None and owner.kind == SERVICE_ENTITLEMENT.name:
        yield Request(plane.name, "", owner.name)


async def _ensure(plane: Plane, write: Writer, kind: Kind[T], body: Json) -> T | None:
    """What there is, or what was missing and is made now; what an operator changed by hand stays changed."""
    metadata = body["metadata"]
    found = plane.informer(kind).get(metadata.get("namespace", ""), metadata["name"])
    if found is not None:
        return found
    try:
        return await write.create(kind, body)
    except AlreadyExists:
        return None
