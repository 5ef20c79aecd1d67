"""Turns each Workload into one deployment a placement and city. Entry point: `WorkloadController`."""

from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.labels import FEDERATOR_FINALIZER, WORKLOAD_FINALIZER, WORKLOAD_UID
from datum_compute.api.networking import LOCATION_BINDING, LocationBinding
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.meta import Json, missing_or_different, owner_reference, plain, same_json
from datum_compute.kube.patches import difference
from datum_compute.management.placement import Wanted, offered_cities, wanted
from datum_compute.management.rollup import Unoffered, workload_status
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, controller_of, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished
from datum_compute.runtime.writes import Writer

BY_WORKLOAD = "by-workload"


class WorkloadController:
    """Owns the deployments of a Workload and its status."""

    name = "workload"

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(PROJECT, WORKLOAD, itself),
            Source(PROJECT, WORKLOAD_DEPLOYMENT, _workload_of, {BY_WORKLOAD: _workload_uid}),
            Source(PROJECT, LOCATION_BINDING, _every_workload),
        )

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
        existing = self._deployments(plane, workload)
        entries = wanted(workload, existing)
        await self._remove_orphans(write, existing, entries)

        cities = offered_cities(plane.informer(LOCATION_BINDING).all())
        unoffered = [_unoffered(entry, cities) for entry in entries if entry.city not in cities]
        clashes = [
            await self._upsert(plane, write, workload, entry)
            for entry in entries
            if entry.existing or entry.city in cities
        ]
        deployments = self._deployments(plane, workload)
        status = workload_status(workload, deployments, unoffered, self._clock.now())
        await write.status(WORKLOAD, workload, status)
        for clash in filter(None, clashes):
            raise Unfinished(clash)

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

    async def _upsert(self, plane: Plane, write: Writer, workload: Workload, entry: Wanted) -> str | None:
        """Returns a sentence when the name belongs to somebody else."""
        labels = {WORKLOAD_UID: workload.metadata.uid}
        found = entry.existing
        if found is None:
            other = plane.informer(WORKLOAD_DEPLOYMENT).get(workload.namespace, entry.name)
            if other is not None:
                return (
                    f"deployment {entry.name} belongs to workload {other.spec.workload_ref.name} "
                    f"(uid {other.spec.workload_ref.uid}); rename this workload or remove the other"
                )
            body = WORKLOAD_DEPLOYMENT.body(
                entry.name,
                workload.namespace,
                labels=labels,
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
            if changed := missing_or_different(labels, found.metadata.labels):
                patch["metadata"] = {"labels": changed}
            if patch:
                await write.patch(WORKLOAD_DEPLOYMENT, found, patch)
        return None

    def _deployments(self, plane: Plane, workload: Workload) -> list[WorkloadDeployment]:
        return plane.informer(WORKLOAD_DEPLOYMENT).by(BY_WORKLOAD, workload.metadata.uid)


def _unoffered(entry: Wanted, cities: Sequence[str]) -> Unoffered:
    if cities:
        sentence = f'City "{entry.city}" is not offered to this project; choose one of {", ".join(cities)}'
    else:
        sentence = f'No locations are offered to this project, so city "{entry.city}" cannot be served'
    return Unoffered(entry.name, entry.placement, sentence)


def _workload_uid(deployment: WorkloadDeployment) -> Iterable[str]:
    return (deployment.spec.workload_ref.uid,)


def _workload_of(plane: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request | Drop]:
    yield from controller_of(WORKLOAD)(plane, change)
    # One made by hand has no owner: nothing but its reference says where it belongs.
    if change.object.metadata.controller is None and (name := change.object.spec.workload_ref.name):
        yield Request(plane.name, change.object.namespace, name)


def _every_workload(plane: Plane, change: Change[LocationBinding]) -> Iterable[Request]:
    for workload in plane.informer(WORKLOAD).all():
        yield Request(plane.name, workload.namespace, workload.name)
