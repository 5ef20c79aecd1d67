"""Offers locations in place of the service catalog. Entry points: `LocationBindings`, `CellLocations`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.karmada import CLUSTER, Cluster
from datum_compute.api.labels import SERVICE_LABEL, TOPOLOGY_CITY
from datum_compute.api.networking import (
    AVAILABLE,
    LOCATION,
    LOCATION_BINDING,
    LOCATION_CLASS_LABEL,
    LOCATION_LABEL,
    MANAGED_CLASS,
    Location,
    LocationBinding,
)
from datum_compute.api.services import SERVICE_NAME
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.meta import Json
from datum_compute.runtime import Change, Drop, Fleet, Handle, Pass, Plane, Request, Source, itself
from datum_compute.runtime.caches.informer import UNSERVED_SECONDS

_MADE_HERE = {"app.kubernetes.io/managed-by": "datum-compute"}


def location_name(city: str) -> str:
    return city.lower().replace(" ", "-")


def location(city: str) -> Json:
    spec = {"locationClassName": MANAGED_CLASS, "topology": {TOPOLOGY_CITY: city}, "provider": {}}
    return LOCATION.body(location_name(city), labels=_MADE_HERE) | {"spec": spec}


def location_binding(city: str, owners: Sequence[Json] = (), display_name: str = "") -> Json:
    name = location_name(city)
    labels = {LOCATION_LABEL: name, LOCATION_CLASS_LABEL: MANAGED_CLASS, SERVICE_LABEL: SERVICE_NAME} | _MADE_HERE
    spec = {
        "locationRef": {"name": name},
        "locationClassName": MANAGED_CLASS,
        "displayName": display_name or city,
        "topology": {TOPOLOGY_CITY: city},
    }
    return LOCATION_BINDING.body(name, labels=labels, ownerReferences=list(owners)) | {"spec": spec}


def is_made_here(labels: Mapping[str, str]) -> bool:
    return _MADE_HERE.items() <= labels.items()


async def offer(project: Handle, binding: LocationBinding, *, served: bool) -> None:
    """Reports whether instances can run at the location of a binding."""
    outcome = (
        (True, "AllGatesOpen", "Instances can run here")
        if served
        else (False, "LocationNotReady", "No site serves this location any more")
    )
    condition = conditions.condition(AVAILABLE, *outcome, generation=binding.metadata.generation, now=project.now())
    await project.write.status(binding, conditions.status_with(binding, [condition]))


class LocationBindings:
    """Offers every project the cities of all clusters on the hub. Cities no longer served become unavailable."""

    name = "location-binding"
    sweep_role = PROJECT
    sweep_seconds = 300.0

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(HUB, CLUSTER, self._in_every_project), Source(PROJECT, LOCATION_BINDING, itself, optional=True))

    def sweep(self, plane: Plane) -> Iterable[Request | Drop]:
        for hub in self._fleet.of_role(HUB):
            for name in sorted(_cities(hub)):
                yield Request(plane.name, "", name)

    async def reconcile(self, pass_: Pass) -> None:
        if not pass_.serves(LOCATION_BINDING):
            return  # the sweep tries again
        city = _cities(pass_.on(HUB).plane).get(pass_.request.name)
        binding = pass_.get(LOCATION_BINDING)
        if binding is None and city is not None:
            try:
                binding = await pass_.write.create(LOCATION_BINDING, location_binding(city))
            except AlreadyExists:
                return  # its event leads here again
        if binding is not None and is_made_here(binding.metadata.labels) and not binding.metadata.deleting:
            await offer(pass_, binding, served=city is not None)

    def _in_every_project(self, hub: Plane, change: Change[Cluster]) -> Iterable[Request | Drop]:
        cities = {_city(cluster) for cluster in (change.before, change.after) if cluster is not None}
        for city in sorted(filter(None, cities)):
            for plane in self._fleet.of_role(PROJECT):
                yield Request(plane.name, "", location_name(city))


class CellLocations:
    """Creates a Location in a cell for each city that has a deployment there; by that, the cell serves the city."""

    name = "cell-location"

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, WORKLOAD_DEPLOYMENT, itself, when=_is_new, scope=CELL_NAMESPACES),
            Source(CELL, LOCATION, _deployments_of_deleted, optional=True),
        )

    async def reconcile(self, pass_: Pass) -> None:
        deployment = pass_.get(WORKLOAD_DEPLOYMENT)
        if deployment is None or not deployment.spec.city_code:
            return
        if not pass_.serves(LOCATION):
            pass_.no_later_than(UNSERVED_SECONDS)  # no event reports a kind that appears without objects
            return
        city = deployment.spec.city_code
        locations = pass_.informer(LOCATION).all()
        if any(location.spec.topology.get(TOPOLOGY_CITY) == city for location in locations):
            return
        try:
            await pass_.write.create(LOCATION, location(city))
        except AlreadyExists:
            return


def _deployments_of_deleted(plane: Plane, change: Change[Location]) -> Iterable[Request | Drop]:
    city = change.object.spec.topology.get(TOPOLOGY_CITY)
    for deployment in plane.informer(WORKLOAD_DEPLOYMENT).all() if change.after is None else ():
        if deployment.spec.city_code == city:
            yield Request(plane.name, deployment.namespace, deployment.name)


def _is_new(change: Change[WorkloadDeployment]) -> bool:
    before, after = change.before, change.after
    return after is not None and (before is None or before.spec.city_code != after.spec.city_code)


def _city(cluster: Cluster) -> str:
    return cluster.metadata.labels.get(TOPOLOGY_CITY, "")


def _cities(hub: Plane) -> dict[str, str]:
    """Cities by the name of their Location."""
    cities = sorted(filter(None, (_city(cluster) for cluster in hub.informer(CLUSTER).all())))
    return {location_name(city): city for city in cities}
