"""Turns each Workload into one deployment a placement and city. Entry point: `WorkloadController`."""

from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.labels import FEDERATOR_FINALIZER, ROLLOUT_PAUSED, WORKLOAD_FINALIZER, WORKLOAD_UID
from datum_compute.api.networking import LOCATION, LOCATION_BINDING, NETWORK, Network
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.meta import Json, missing_or_different, owner_reference, plain, same_json
from datum_compute.kube.patches import difference
from datum_compute.management.placement import Wanted, is_paused, networks, offered_cities, wanted
from datum_compute.management.rollup import Blocker, without_networks, workload_status
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, controller_of, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished
from datum_compute.runtime.writes import Writer

BY_WORKLOAD = "by-workload"
BY_NETWORK = "by-network"


class WorkloadController:
    """Owns the deployments of a Workload and its status. With `networking` it asks for the networks they name first."""

    name = "workload"

    def __init__(self, fleet: Fleet, clock: Clock, *, networking: bool = False) -> None:
        self._fleet = fleet
        self._clock = clock
        self._networking = networking

    def sources(self) -> Sequence[Source[Any]]:
        found: list[Source[Any]] = [
            Source(PROJECT, WORKLOAD, itself, {BY_NETWORK: _networks} if self._networking else {}),
            Source(PROJECT, WORKLOAD_DEPLOYMENT, _workload_of, {BY_WORKLOAD: _workload_uid}),
            Source(PROJECT, LOCATION_BINDING, _every_workload, optional=True),
            Source(PROJECT, LOCATION, _every_workload, optional=True),
        ]
        if self._networking:
            found.append(Source(PROJECT, NETWORK, _of_network, optional=True))
        return found

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        plane = self._fleet.plane(request.plane)
        workload = plane.informer(WORKLOAD).get(request.namespace, request.name)
        if workload is None:
            return
        write = plane.writer(self.name)
        if workload.metadata.deleting:
            await self._finalize(plane, write, workload)
            return
        workload = await write.add_finalizer(WORKLOAD, workload, WORKLOAD_FINALIZER)
        if missing := self._missing_networks(plane, workload):
            await write.status(WORKLOAD, workload, without_networks(workload, missing, self._clock.now()))
            return
        existing = self._deployments(plane, workload)
        entries = wanted(workload, existing)
        await self._remove_orphans(write, existing, entries)

        cities = _offered(plane)
        unoffered = [_unoffered(entry, cities) for entry in entries if entry.city not in cities]
        upserted = [
            await self._upsert(plane, write, workload, entry)
            for entry in entries
            if entry.existing or entry.city in cities
        ]
        clashes = [clash for clash in upserted if clash is not None]
        deployments = self._deployments(plane, workload)
        held = {entry.name for entry in entries if entry.held}
        status = workload_status(workload, deployments, [*unoffered, *clashes], self._clock.now(), held)
        await write.status(WORKLOAD, workload, status)
        for clash in clashes:
            raise Unfinished(clash.message)

    def _missing_networks(self, plane: Plane, workload: Workload) -> list[str]:
        if not self._networking or not plane.serves(NETWORK):
            return []
        found = plane.informer(NETWORK)
        return [name for name in networks(workload) if found.get(workload.namespace, name) is None]

    async def _finalize(self, plane: Plane, write: Writer, workload: Workload) -> None:
        """Waiting for deployments is no failure: the event of the last one brings us back."""
        for deployment in self._deployments(plane, workload):
            if not deployment.metadata.deleting:
                await write.delete(WORKLOAD_DEPLOYMENT, deployment)
        if not self._deployments(plane, workload):
            await write.remove_finalizers(WORKLOAD, workload, WORKLOAD_FINALIZER)

    async def _remove_orphans(
        self, write: Writer, existing: Sequence[WorkloadDeployment], entries: Sequence[Wanted]
    ) -> None:
        """Only what the spec no longer asks for goes; a city that is merely not offered any more stays (R20)."""
        kept = {entry.existing.metadata.uid for entry in entries if entry.existing}
        for deployment in existing:
            if deployment.metadata.uid not in kept and not deployment.metadata.deleting:
                await write.delete(WORKLOAD_DEPLOYMENT, deployment)

    async def _upsert(self, plane: Plane, write: Writer, workload: Workload, entry: Wanted) -> Blocker | None:
        """Returns what is in the way when the name belongs to somebody else, whose deployment is never touched."""
        labels = {WORKLOAD_UID: workload.metadata.uid}
        annotations = {ROLLOUT_PAUSED: "true"} if is_paused(workload) else {}
        found = entry.existing
        if found is None:
            other = plane.informer(WORKLOAD_DEPLOYMENT).get(workload.namespace, entry.name)
            if other is not None and workload.metadata.uid in _workload_uid(other):
                return None  # it goes away; the event of its end brings us back
            if other is not None:
                return _name_taken(entry, other)
            body = WORKLOAD_DEPLOYMENT.body(
                entry.name,
                workload.namespace,
                labels=labels,
                annotations=annotations,
                finalizers=[FEDERATOR_FINALIZER],
                ownerReferences=[
                    owner_reference(WORKLOAD.api_version, WORKLOAD.name, workload.metadata, controller=True)
                ],
            )
            await write.create(WORKLOAD_DEPLOYMENT, body | {"spec": entry.spec_json})
        elif not found.metadata.deleting:  # one that goes away is created anew by the event of its end
            patch: Json = {}
            if not same_json(found.spec_json, entry.spec_json):
                patch["spec"] = difference(plain(found.spec_json), plain(entry.spec_json))
            metadata: Json = {}
            if changed := missing_or_different(labels, found.metadata.labels):
                metadata["labels"] = changed
            if found.metadata.annotations.get(ROLLOUT_PAUSED) != annotations.get(ROLLOUT_PAUSED):
                metadata["annotations"] = {ROLLOUT_PAUSED: annotations.get(ROLLOUT_PAUSED)}
            if metadata:
                patch["metadata"] = metadata
            if patch:
                await write.patch(WORKLOAD_DEPLOYMENT, found, patch)
        return None

    def _deployments(self, plane: Plane, workload: Workload) -> list[WorkloadDeployment]:
        # Only beside the workload: where the plane is a cell as well, copies of them came back into other namespaces.
        found = plane.informer(WORKLOAD_DEPLOYMENT).by(BY_WORKLOAD, workload.metadata.uid)
        return [one for one in found if one.namespace == workload.namespace]


def _offered(plane: Plane) -> list[str]:
    """The cities of the project's bindings; where there are no bindings to be had, those of all locations."""
    if plane.serves(LOCATION_BINDING):
        return offered_cities(binding.spec.topology for binding in plane.informer(LOCATION_BINDING).all())
    return offered_cities(location.spec.topology for location in plane.informer(LOCATION).all())


def _unoffered(entry: Wanted, cities: Sequence[str]) -> Blocker:
    """Says what is so and not what to choose: which cities a project is offered is not its user's to change."""
    if cities:
        sentence = f'City "{entry.city}" is not offered to this project, which has {", ".join(cities)}'
    else:
        sentence = f'No locations are offered to this project, so city "{entry.city}" cannot be served'
    return Blocker(entry.name, entry.placement, reasons.NO_MATCHING_LOCATION, sentence)


def _name_taken(entry: Wanted, other: WorkloadDeployment) -> Blocker:
    sentence = (
        f"Deployment {entry.name} belongs to workload {other.spec.workload_ref.name} "
        f"(uid {other.spec.workload_ref.uid}); rename this workload or its placement, or remove the other"
    )
    return Blocker(entry.name, entry.placement, reasons.DEPLOYMENT_NAME_TAKEN, sentence)


def _networks(workload: Workload) -> Iterable[str]:
    return (f"{workload.namespace}/{name}" for name in networks(workload))


def _of_network(plane: Plane, change: Change[Network]) -> Iterable[Request]:
    """Only one that came or went can change anything."""
    if change.before is None or change.after is None:
        place = f"{change.object.namespace}/{change.object.name}"
        for workload in plane.informer(WORKLOAD).by(BY_NETWORK, place):
            yield Request(plane.name, workload.namespace, workload.name)


def _workload_uid(deployment: WorkloadDeployment) -> Iterable[str]:
    """Its owner's; that of its spec only where it has none, because a spec that was edited can then be put right."""
    owner = deployment.metadata.controller
    return (owner.uid if owner is not None and owner.kind == WORKLOAD.name else deployment.spec.workload_ref.uid,)


def _workload_of(plane: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request | Drop]:
    yield from controller_of(WORKLOAD)(plane, change)
    # One made by hand has no owner: nothing but its reference says where it belongs.
    if change.object.metadata.controller is None and (name := change.object.spec.workload_ref.name):
        yield Request(plane.name, change.object.namespace, name)


def _every_workload(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    for workload in plane.informer(WORKLOAD).all():
        yield Request(plane.name, workload.namespace, workload.name)
