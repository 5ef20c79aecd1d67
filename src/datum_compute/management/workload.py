"""Turns each Workload into one deployment per placement and city. Entry point: `WorkloadController`."""

from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.labels import FEDERATOR_FINALIZER, ROLLOUT_PAUSED, WORKLOAD_FINALIZER, WORKLOAD_UID
from datum_compute.api.networking import LOCATION, LOCATION_BINDING, NETWORK, Network
from datum_compute.api.workload import PLACED, WORKLOAD, Workload
from datum_compute.federation.obstacles import Blocked, Obstacles, warn_of_obstacle
from datum_compute.federation.roles import PROJECT
from datum_compute.federation.scope import PROJECT_NAMESPACES
from datum_compute.kube import tracing
from datum_compute.kube.errors import Conflict
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import controller_reference
from datum_compute.kube.patches import changes
from datum_compute.management.placement import Wanted, is_paused, networks, offered_cities, wanted
from datum_compute.management.rollup import Blocker, is_rolled_out, without_networks, workload_status
from datum_compute.runtime import Change, Drop, Pass, Plane, Problems, Request, Source, controller_of, itself

BY_WORKLOAD = "by-workload"
BY_NETWORK = "by-network"


class WorkloadController:
    """Owns the deployments of a Workload and its status. With `networking`, the networks it names must exist first."""

    name = "workload"

    def __init__(self, *, networking: bool = False) -> None:
        self._networking = networking
        self._obstacles = Obstacles()

    def disengaged(self, plane: Plane) -> None:
        self._obstacles.forget_plane(plane.name)

    def sources(self) -> Sequence[Source[Any]]:
        by_network = {BY_NETWORK: _networks} if self._networking else {}
        sources: list[Source[Any]] = [
            Source(PROJECT, WORKLOAD, itself, {**by_network}, scope=PROJECT_NAMESPACES),
            Source(PROJECT, WORKLOAD_DEPLOYMENT, _workload_of, {BY_WORKLOAD: _workload_uid}),
            Source(PROJECT, LOCATION_BINDING, _every_workload, optional=True),
            Source(PROJECT, LOCATION, _every_workload, optional=True),
            Source(PROJECT, NAMESPACE),
        ]
        if self._networking:
            sources.append(Source(PROJECT, NETWORK, _of_network, optional=True))
        return sources

    async def reconcile(self, pass_: Pass) -> None:
        plane, write = pass_.plane, pass_.write
        workload = pass_.get(WORKLOAD)
        if workload is None:
            self._obstacles.forget(pass_.request)
            return
        if workload.metadata.deleting:
            await self._finalize(pass_, workload)
            return
        if _is_terminating(plane, workload.namespace):
            return  # the workload is about to be deleted, and no deployment can be created any more
        workload = await write.add_finalizer(workload, WORKLOAD_FINALIZER)
        if missing := self._missing_networks(plane, workload):
            await write.status(workload, without_networks(workload, missing, pass_.now()))
            return
        problems = Problems()
        existing = self._deployments(plane, workload)
        entries = wanted(workload, existing)
        orphans = _orphans(existing, entries)
        freshness = _Freshness(plane, workload)
        for orphan in orphans:
            with problems.collect(_subject(orphan.name)):
                await freshness.check()
                await write.delete(orphan)
        cities = _offered(plane)
        for entry in entries:
            if entry.existing or entry.city in cities:
                with problems.collect(_subject(entry.name)):
                    await self._upsert(pass_, workload, entry, freshness)

        if freshness.is_stale:
            problems.raise_worst()  # our view of the workload is outdated: nothing can be reported about it

        placements = {entry.name: entry.placement for entry in entries}
        placements |= {orphan.name: orphan.spec.placement_name for orphan in orphans}
        obstacles = self._obstacles.update(pass_.request, workload.metadata.generation, problems)
        blockers = [_unoffered(entry, cities) for entry in entries if entry.city not in cities]
        blockers += [
            Blocker(name, placement, obstacles[_subject(name)].reason, obstacles[_subject(name)].message)
            for name, placement in placements.items()
            if _subject(name) in obstacles
        ]
        # A deployment that could not be updated still has its earlier template.
        held = {entry.name for entry in entries if entry.held or _subject(entry.name) in obstacles}
        status = workload_status(workload, self._deployments(plane, workload), blockers, pass_.now(), held)
        with problems.collect(f"Workload {workload.name}"):
            after = await write.status(workload, status)
            warn_of_obstacle(pass_, PLACED, workload, after)
            if is_rolled_out(after) and not is_rolled_out(workload):
                pass_.events.normal(after, reasons.ROLLED_OUT, "All instances run the newest template")
        problems.raise_worst()

    def _missing_networks(self, plane: Plane, workload: Workload) -> list[str]:
        if not self._networking or not plane.serves(NETWORK):
            return []
        existing = plane.informer(NETWORK)
        return [name for name in networks(workload) if existing.get(workload.namespace, name) is None]

    async def _finalize(self, pass_: Pass, workload: Workload) -> None:
        """Waiting for deployments is no failure: the deletion of the last one starts the next pass."""
        freshness, problems = _Freshness(pass_.plane, workload), Problems()
        for deployment in self._deployments(pass_.plane, workload):
            if not deployment.metadata.deleting:
                with problems.collect(_subject(deployment.name)):
                    await freshness.check()
                    await pass_.write.delete(deployment)
        problems.raise_worst()
        if not self._deployments(pass_.plane, workload):
            await pass_.write.remove_finalizers(workload, WORKLOAD_FINALIZER)

    async def _upsert(self, pass_: Pass, workload: Workload, entry: Wanted, freshness: "_Freshness") -> None:
        """Raises `Blocked` when the name belongs to another workload, whose deployment is never touched."""
        labels = {WORKLOAD_UID: workload.metadata.uid}
        annotations = {ROLLOUT_PAUSED: "true"} if is_paused(workload) else {}
        current = entry.existing
        if current is None:
            other = pass_.informer(WORKLOAD_DEPLOYMENT).get(workload.namespace, entry.name)
            if other is not None and workload.metadata.uid in _workload_uid(other):
                return  # it is being deleted; the event of that starts the next pass
            if other is not None:
                raise _name_taken(entry, other)
            body = WORKLOAD_DEPLOYMENT.body(
                entry.name,
                workload.namespace,
                labels=labels,
                annotations=annotations | tracing.carried(workload),
                finalizers=[FEDERATOR_FINALIZER],
                ownerReferences=[controller_reference(workload)],
            )
            await freshness.check()
            await pass_.write.create(WORKLOAD_DEPLOYMENT, body | {"spec": entry.spec_json})
            pass_.events.normal(workload, reasons.CREATED, f"Created deployment {entry.name} in {entry.city}")
        elif not current.metadata.deleting:  # one that is being deleted is created anew by the next pass
            paused = {ROLLOUT_PAUSED: annotations.get(ROLLOUT_PAUSED)}
            if patch := changes(current, labels=labels, annotations=paused, spec=entry.spec_json):
                await freshness.check()
                after = await pass_.write.patch(current, tracing.with_spec(patch, current, workload))
                was, now = (deployment.spec.scale_settings.min_replicas for deployment in (current, after))
                if was != now:
                    message = f"Scaled deployment {entry.name} from {was} to {now}"
                    pass_.events.normal(workload, reasons.SCALED, message)

    def _deployments(self, plane: Plane, workload: Workload) -> list[WorkloadDeployment]:
        # Only in its own namespace: where the plane is a cell as well, their copies are in other namespaces.
        deployments = plane.informer(WORKLOAD_DEPLOYMENT).by(BY_WORKLOAD, workload.metadata.uid)
        return [deployment for deployment in deployments if deployment.namespace == workload.namespace]


class _Freshness:
    """Checks once per pass, before the first write, that the server has the workload as our cache has it.

    After the project was restored from a backup, the caches of two kinds can be of different times. A deployment that
    is created for a workload which only a cache still has is garbage-collected at once, and what runs is withdrawn with
    it; one that is changed back and forth no longer shows which of its specs is older.
    """

    def __init__(self, plane: Plane, workload: Workload) -> None:
        self._plane = plane
        self._workload = workload
        self._live: Workload | None = None
        self.is_stale = False

    async def check(self) -> None:
        """Raises `Conflict` when the workload is gone or has another spec."""
        cached = self._workload
        if self._live is None and not self.is_stale:
            self._live = await self._plane.client.find(WORKLOAD, cached.name, cached.namespace)
            self.is_stale = self._live is None or _version(self._live) != _version(cached)
        if self.is_stale:
            raise Conflict(f"workload {cached.name} has changed since it was cached", plane=self._plane.name)


def _version(workload: Workload) -> tuple[object, ...]:
    metadata = workload.metadata
    return metadata.uid, metadata.generation, metadata.deleting


def _is_terminating(plane: Plane, name: str) -> bool:
    namespace = plane.informer(NAMESPACE).get("", name)
    return namespace is not None and namespace.metadata.deleting


def _offered(plane: Plane) -> list[str]:
    """The cities of the project's bindings; of all locations where bindings are not served."""
    if plane.serves(LOCATION_BINDING):
        return offered_cities(binding.spec.topology for binding in plane.informer(LOCATION_BINDING).all())
    return offered_cities(location.spec.topology for location in plane.informer(LOCATION).all())


def _unoffered(entry: Wanted, cities: Sequence[str]) -> Blocker:
    """Does not suggest another choice, because users cannot change which cities their project is offered."""
    if cities:
        message = f'City "{entry.city}" is not offered to this project, which has {", ".join(cities)}'
    else:
        message = f'No locations are offered to this project, so city "{entry.city}" cannot be served'
    return Blocker(entry.name, entry.placement, reasons.NO_MATCHING_LOCATION, message)


def _name_taken(entry: Wanted, other: WorkloadDeployment) -> Blocked:
    message = (
        f"Deployment {entry.name} belongs to workload {other.spec.workload_ref.name} "
        f"(uid {other.spec.workload_ref.uid}); rename this workload or its placement, or remove the other"
    )
    return Blocked(reasons.DEPLOYMENT_NAME_TAKEN, message)


def _orphans(existing: Sequence[WorkloadDeployment], entries: Sequence[Wanted]) -> list[WorkloadDeployment]:
    """Deployments that the spec no longer names. A city that is merely not offered any more keeps its deployment."""
    wanted_uids = {entry.existing.metadata.uid for entry in entries if entry.existing}
    return [
        deployment
        for deployment in existing
        if deployment.metadata.uid not in wanted_uids and not deployment.metadata.deleting
    ]


def _subject(deployment: str) -> str:
    return f"Deployment {deployment}"


def _networks(workload: Workload) -> Iterable[str]:
    return (f"{workload.namespace}/{name}" for name in networks(workload))


def _of_network(plane: Plane, change: Change[Network]) -> Iterable[Request]:
    """Only a network that was created or deleted makes a difference."""
    if change.before is None or change.after is None:
        key = f"{change.object.namespace}/{change.object.name}"
        for workload in plane.informer(WORKLOAD).by(BY_NETWORK, key):
            yield Request(plane.name, workload.namespace, workload.name)


def _workload_uid(deployment: WorkloadDeployment) -> Iterable[str]:
    """The owner's; the spec's only without an owner, so that an edited spec can be repaired."""
    owner = deployment.metadata.controller
    return (owner.uid if owner is not None and owner.kind == WORKLOAD.name else deployment.spec.workload_ref.uid,)


def _workload_of(plane: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request | Drop]:
    yield from controller_of(WORKLOAD)(plane, change)
    # A deployment created by hand has no owner; only its reference says where it belongs.
    if change.object.metadata.controller is None and (name := change.object.spec.workload_ref.name):
        yield Request(plane.name, change.object.namespace, name)


def _every_workload(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    for workload in plane.informer(WORKLOAD).all():
        yield Request(plane.name, workload.namespace, workload.name)
