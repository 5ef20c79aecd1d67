"""Turns each Workload into one deployment a placement and city. Entry point: `WorkloadController`."""

from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.labels import FEDERATOR_FINALIZER, ROLLOUT_PAUSED, WORKLOAD_FINALIZER, WORKLOAD_UID
from datum_compute.api.networking import LOCATION, LOCATION_BINDING, NETWORK, Network
from datum_compute.api.workload import PLACED, WORKLOAD, Workload
from datum_compute.federation.obstacles import Blocked, StableMessages, obstacles
from datum_compute.federation.roles import PROJECT
from datum_compute.federation.scope import PROJECT_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.kube.errors import Conflict, NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import controller_reference
from datum_compute.kube.patches import changes
from datum_compute.management.placement import Wanted, is_paused, networks, offered_cities, wanted
from datum_compute.management.rollup import Blocker, is_rolled_out, without_networks, workload_status
from datum_compute.runtime import Change, Drop, Pass, Plane, Problems, Request, Source, controller_of, itself

BY_WORKLOAD = "by-workload"
BY_NETWORK = "by-network"


class WorkloadController:
    """Owns the deployments of a Workload and its status. With `networking` it asks for the networks they name first."""

    name = "workload"

    def __init__(self, *, networking: bool = False) -> None:
        self._networking = networking
        self._wordings = StableMessages()

    def disengaged(self, plane: Plane) -> None:
        self._wordings.forget_plane(plane.name)

    def sources(self) -> Sequence[Source[Any]]:
        found: list[Source[Any]] = [
            Source(
                PROJECT,
                WORKLOAD,
                itself,
                {BY_NETWORK: _networks} if self._networking else {},
                scope=PROJECT_NAMESPACES,
            ),
            Source(PROJECT, WORKLOAD_DEPLOYMENT, _workload_of, {BY_WORKLOAD: _workload_uid}),
            Source(PROJECT, LOCATION_BINDING, _every_workload, optional=True),
            Source(PROJECT, LOCATION, _every_workload, optional=True),
            Source(PROJECT, NAMESPACE),
        ]
        if self._networking:
            found.append(Source(PROJECT, NETWORK, _of_network, optional=True))
        return found

    async def reconcile(self, pass_: Pass) -> None:
        request, plane, write = pass_.request, pass_.plane, pass_.write
        workload = pass_.get(WORKLOAD)
        if workload is None:
            self._wordings.forget(request)
            return
        if workload.metadata.deleting:
            await self._finalize(pass_, workload)
            return
        if _terminates(plane, workload.namespace):
            return  # it is about to be deleted, and its deployments cannot be made again
        workload = await write.add_finalizer(workload, WORKLOAD_FINALIZER)
        if missing := self._missing_networks(plane, workload):
            await write.status(workload, without_networks(workload, missing, pass_.now()))
            return
        problems = Problems()
        existing = self._deployments(plane, workload)
        entries = wanted(workload, existing)
        orphans = _orphans(existing, entries)
        confirmed = _Confirmed(plane, workload)
        for orphan in orphans:
            with problems.collect(_subject(orphan.name)):
                await confirmed.now()
                await write.delete(orphan)
        cities = _offered(plane)
        for entry in entries:
            if entry.existing or entry.city in cities:
                with problems.collect(_subject(entry.name)):
                    await self._upsert(pass_, workload, entry, confirmed)

        if confirmed.is_refuted:
            problems.raise_worst()  # what we know of the workload is not the newest: nothing can be said about it

        placements = {entry.name: entry.placement for entry in entries}
        placements |= {orphan.name: orphan.spec.placement_name for orphan in orphans}
        refused = self._wordings.settled(request, workload.metadata.generation, obstacles(problems))
        blockers = [_unoffered(entry, cities) for entry in entries if entry.city not in cities]
        blockers += [
            Blocker(name, placement, refused[_subject(name)].reason, refused[_subject(name)].message)
            for name, placement in placements.items()
            if _subject(name) in refused
        ]
        # What was refused still has the template from before.
        held = {entry.name for entry in entries if entry.held or _subject(entry.name) in refused}
        status = workload_status(workload, self._deployments(plane, workload), blockers, pass_.now(), held)
        with problems.collect(f"Workload {workload.name}"):
            after = await write.status(workload, status)
            self._tell(pass_, workload, after)
        problems.raise_worst()

    def _tell(self, pass_: Pass, before: Workload, after: Workload) -> None:
        """An event when something cannot be made, or for another reason than before, and when a rollout is complete."""
        was, now = conditions.find(conditions.of(before), PLACED), conditions.find(conditions.of(after), PLACED)
        if now is not None and now.reason in reasons.OBSTACLES and (was is None or was.message != now.message):
            pass_.events.warning(after, now.reason, now.message)
        if is_rolled_out(after) and not is_rolled_out(before):
            pass_.events.normal(after, reasons.ROLLED_OUT, "All instances run the newest template")

    def _missing_networks(self, plane: Plane, workload: Workload) -> list[str]:
        if not self._networking or not plane.serves(NETWORK):
            return []
        found = plane.informer(NETWORK)
        return [name for name in networks(workload) if found.get(workload.namespace, name) is None]

    async def _finalize(self, pass_: Pass, workload: Workload) -> None:
        """Waiting for deployments is no failure: the event of the last one brings us back."""
        confirmed, problems = _Confirmed(pass_.plane, workload), Problems()
        for deployment in self._deployments(pass_.plane, workload):
            if not deployment.metadata.deleting:
                with problems.collect(_subject(deployment.name)):
                    await confirmed.now()
                    await pass_.write.delete(deployment)
        problems.raise_worst()
        if not self._deployments(pass_.plane, workload):
            await pass_.write.remove_finalizers(workload, WORKLOAD_FINALIZER)

    async def _upsert(self, pass_: Pass, workload: Workload, entry: Wanted, confirmed: "_Confirmed") -> None:
        """`Blocked` when the name belongs to another workload, whose deployment is never touched."""
        labels = {WORKLOAD_UID: workload.metadata.uid}
        annotations = {ROLLOUT_PAUSED: "true"} if is_paused(workload) else {}
        found = entry.existing
        if found is None:
            other = pass_.informer(WORKLOAD_DEPLOYMENT).get(workload.namespace, entry.name)
            if other is not None and workload.metadata.uid in _workload_uid(other):
                return  # it goes away; the event of its end brings us back
            if other is not None:
                raise _name_taken(entry, other)
            body = WORKLOAD_DEPLOYMENT.body(
                entry.name,
                workload.namespace,
                labels=labels,
                annotations=annotations,
                finalizers=[FEDERATOR_FINALIZER],
                ownerReferences=[controller_reference(workload)],
            )
            await confirmed.now()
            await pass_.write.create(WORKLOAD_DEPLOYMENT, body | {"spec": entry.spec_json})
            pass_.events.normal(workload, reasons.CREATED, f"Created deployment {entry.name} in {entry.city}")
        elif not found.metadata.deleting:  # one that goes away is created anew by the event of its end
            paused = {ROLLOUT_PAUSED: annotations.get(ROLLOUT_PAUSED)}
            if patch := changes(found, labels=labels, annotations=paused, spec=entry.spec_json):
                await confirmed.now()
                after = await pass_.write.patch(found, patch)
                was, now = (deployment.spec.scale_settings.min_replicas for deployment in (found, after))
                if was != now:
                    sentence = f"Scaled deployment {entry.name} from {was} to {now}"
                    pass_.events.normal(workload, reasons.SCALED, sentence)

    def _deployments(self, plane: Plane, workload: Workload) -> list[WorkloadDeployment]:
        # Only beside the workload: where the plane is a cell as well, copies of them came back into other namespaces.
        found = plane.informer(WORKLOAD_DEPLOYMENT).by(BY_WORKLOAD, workload.metadata.uid)
        return [one for one in found if one.namespace == workload.namespace]


class _Confirmed:
    """Whether a workload is what our cache says, asked once in a pass and before anything follows from it.

    After the project was restored from a backup the caches of two kinds can be of different times. A deployment that is
    made for a workload which only a cache still has is collected at once, and what runs is withdrawn with it; one that
    is changed back and forth no longer tells which of its specs is the older.
    """

    def __init__(self, plane: Plane, workload: Workload) -> None:
        self._plane = plane
        self._workload = workload
        self._live: Workload | None = None
        self.is_refuted = False

    async def now(self) -> None:
        """Raises `Conflict` when the workload is gone or asks for something else."""
        workload = self._workload
        if self._live is None and not self.is_refuted:
            try:
                self._live = await self._plane.client.get(WORKLOAD, workload.name, workload.namespace)
            except NotFound:
                self.is_refuted = True
            else:
                self.is_refuted = _asked(self._live) != _asked(workload)
        if self.is_refuted:
            raise Conflict(f"workload {workload.name} is not as it was seen", plane=self._plane.name)


def _asked(workload: Workload) -> tuple[object, ...]:
    metadata = workload.metadata
    return metadata.uid, metadata.generation, metadata.deleting


def _terminates(plane: Plane, namespace: str) -> bool:
    found = plane.informer(NAMESPACE).get("", namespace)
    return found is not None and found.metadata.deleting


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


def _name_taken(entry: Wanted, other: WorkloadDeployment) -> Blocked:
    sentence = (
        f"Deployment {entry.name} belongs to workload {other.spec.workload_ref.name} "
        f"(uid {other.spec.workload_ref.uid}); rename this workload or its placement, or remove the other"
    )
    return Blocked(reasons.DEPLOYMENT_NAME_TAKEN, sentence)


def _orphans(existing: Sequence[WorkloadDeployment], entries: Sequence[Wanted]) -> list[WorkloadDeployment]:
    """Only what the spec no longer asks for goes; a city that is merely not offered any more stays (R20)."""
    kept = {entry.existing.metadata.uid for entry in entries if entry.existing}
    return [found for found in existing if found.metadata.uid not in kept and not found.metadata.deleting]


def _subject(deployment: str) -> str:
    return f"Deployment {deployment}"


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
