"""Shows each cell Instance in its project, as a copy nobody edits. Entry point: `Projector`."""

from collections.abc import Iterable, Sequence
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED, READY, Instance
from datum_compute.api.labels import (
    CLAIM_FINALIZER,
    DEPLOYMENT_NAME,
    DEPLOYMENT_UID,
    INSTANCE_FINALIZER,
    UPSTREAM_CLUSTER,
    UPSTREAM_NAMESPACE,
)
from datum_compute.api.names import hub_namespace
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Condition, Json, missing_or_different, owner_reference, plain, same_json
from datum_compute.kube.patches import difference
from datum_compute.management.metrics import HUB_TO_PROJECTION, ManagementMetrics
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished
from datum_compute.runtime.writes import Writer

_log = structlog.get_logger(__name__)


class _Home(Struct, frozen=True):
    """The project namespace that a hub namespace stands for, and the labels that say so."""

    plane: Plane
    namespace: str
    labels: dict[str, str]


class Projector:
    """Owns the Instances of a project plane. Requests name the hub Instance."""

    name = "instance-projector"
    sweep_role = PROJECT
    sweep_seconds = 600.0

    def __init__(self, fleet: Fleet, clock: Clock, hub: str, *, metrics: ManagementMetrics | None = None) -> None:
        self._fleet = fleet
        self._clock = clock
        self._hub = hub
        self._metrics = metrics or ManagementMetrics()

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(HUB, INSTANCE, itself),
            Source(HUB, NAMESPACE, _of_namespace),
            Source(PROJECT, INSTANCE, self._of_projection),
            Source(PROJECT, WORKLOAD_DEPLOYMENT),
            Source(PROJECT, NAMESPACE, self._of_project_namespace),
        )

    def group(self, request: Request) -> str:
        """All requests name the hub, but each is written to its own project: a slow one holds up only itself."""
        return request.namespace

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Projections whose hub Instance is not there: its end may have come while nobody watched."""
        originals = self._fleet.plane(self._hub).informer(INSTANCE) if self._fleet.has(self._hub) else None
        for projection in plane.informer(INSTANCE).all():
            for request in self._original(plane, projection):
                if originals is None or originals.get(request.namespace, request.name) is None:
                    yield request

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        hub = self._fleet.plane(request.plane)
        home = await self._home(hub, request.namespace)
        if home is None:
            return
        original = hub.informer(INSTANCE).get(request.namespace, request.name)
        if original is None:
            await self._remove(home, request.name)
        elif not original.metadata.deleting:
            await self._project(home, original, pass_)

    async def _home(self, hub: Plane, name: str) -> _Home | None:
        """Whose Instances a hub namespace holds: said by its labels, proved by the uid in its name (invariant 9)."""
        namespace = hub.informer(NAMESPACE).get("", name)
        identity = Identity.of(namespace.metadata.labels) if namespace is not None else None
        if namespace is None or identity is None:
            return None
        plane = self._fleet.plane(identity.project)
        claimed = plane.informer(NAMESPACE).get("", identity.namespace)
        if claimed is None or hub_namespace(claimed.metadata.uid) != name:
            # A namespace that is gone takes its projections along; one that never was its own gets nothing.
            return None
        labels = {key: namespace.metadata.labels[key] for key in (UPSTREAM_CLUSTER, UPSTREAM_NAMESPACE)}
        return _Home(plane, identity.namespace, labels)

    async def _project(self, home: _Home, original: Instance, pass_: Pass) -> None:
        if missing_or_different(home.labels, original.metadata.labels):
            raise Unfinished(f"the identity labels of {original.name} differ from those of its hub namespace")
        deployment = original.metadata.labels.get(DEPLOYMENT_NAME, "")
        owner = home.plane.informer(WORKLOAD_DEPLOYMENT).get(home.namespace, deployment)
        if owner is None:
            raise Unfinished(f"deployment {deployment or '(no label)'} of {original.name} is not in the project (yet)")
        write = home.plane.writer(self.name)
        before = found = home.plane.informer(INSTANCE).get(home.namespace, original.name)
        labels = original.metadata.labels | {DEPLOYMENT_UID: owner.metadata.uid}
        if found is None:
            try:
                found = await write.create(INSTANCE, _new(home, original, labels, owner))
            except AlreadyExists:
                found = await home.plane.client.get(INSTANCE, original.name, home.namespace)
        if _is_a_real_one(found):
            _log.warning("an instance of its own stands where a projection should", instance=found.name)
            return
        after = await self._update(write, found, original, labels, owner)
        if after is not before:
            self._metrics.arrived(HUB_TO_PROJECTION, pass_)
            self._warn(home.plane, before, after)

    async def _update(
        self, write: Writer, found: Instance, original: Instance, labels: dict[str, str], owner: WorkloadDeployment
    ) -> Instance:
        metadata: Json = {}
        if changed := missing_or_different(labels, found.metadata.labels):
            metadata["labels"] = changed
        if [reference.uid for reference in found.metadata.owner_references] != [owner.metadata.uid]:
            metadata["ownerReferences"] = [_owner(owner)]
        patch: Json = {"metadata": metadata} if metadata else {}
        if not same_json(found.spec_json, original.spec_json):
            patch["spec"] = difference(plain(found.spec_json), plain(original.spec_json))
        if patch:
            found = await write.patch_seen(INSTANCE, found, patch)
        return await write.status(INSTANCE, found, plain(original.status_json))

    def _warn(self, project: Plane, before: Instance | None, after: Instance) -> None:
        """What a cell warns of is told here as well, because its users see no other plane (R21)."""
        for type_ in (READY, QUOTA_GRANTED):
            seen, now = _condition(before, type_), _condition(after, type_)
            if now is None or now.reason not in reasons.WARNINGS or (seen is not None and seen.reason == now.reason):
                continue
            project.events.warning(self.name, INSTANCE, after, now.reason, now.message, now=self._clock.now())

    async def _remove(self, home: _Home, name: str) -> None:
        """The projection goes with its hub Instance; what is not one of ours stays."""
        found = home.plane.informer(INSTANCE).get(home.namespace, name)
        if (
            found is not None
            and not found.metadata.deleting
            and not missing_or_different(home.labels, found.metadata.labels)
            and any(owner.kind == WORKLOAD_DEPLOYMENT.name for owner in found.metadata.owner_references)
            and not _is_a_real_one(found)
        ):
            await home.plane.writer(self.name).delete(INSTANCE, found)

    def _of_projection(self, project: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
        """From a projection to its hub Instance, so that an edited, deleted or left-over one is put right.

        Both sides of a change count: the label that says it is a projection may be what was taken away.
        """
        seen = [projection for projection in (change.before, change.after) if projection is not None]
        yield from dict.fromkeys(request for projection in seen for request in self._original(project, projection))

    def _of_project_namespace(self, project: Plane, change: Change[Namespace]) -> Iterable[Request]:
        """A namespace that this process only now hears of may have Instances on the hub already.

        One that was made anew may be heard of only by a list, as a change of the one before.
        """
        is_new = change.before is None or change.before.metadata.uid != change.object.metadata.uid
        if is_new and self._fleet.has(self._hub):
            home = hub_namespace(change.object.metadata.uid)
            for instance in self._fleet.plane(self._hub).informer(INSTANCE).all(home):
                yield Request(self._hub, home, instance.name)

    def _original(self, project: Plane, projection: Instance) -> Iterable[Request]:
        namespace = project.informer(NAMESPACE).get("", projection.namespace)
        if namespace is not None and UPSTREAM_CLUSTER in projection.metadata.labels:
            yield Request(self._hub, hub_namespace(namespace.metadata.uid), projection.name)


def _of_namespace(hub: Plane, change: Change[Namespace]) -> Iterable[Request]:
    """A hub namespace that got its labels: what could not be shown before can be now."""
    if change.before is None or change.before.metadata.labels != change.object.metadata.labels:
        for instance in hub.informer(INSTANCE).all(change.object.name):
            yield Request(hub.name, instance.namespace, instance.name)


def _condition(instance: Instance | None, type_: str) -> Condition | None:
    status = instance.status if instance is not None else None
    return conditions.find(status.conditions, type_) if status is not None else None


def _is_a_real_one(instance: Instance) -> bool:
    """Whether it is a cell's own Instance: both planes may be one API server."""
    return INSTANCE_FINALIZER in instance.metadata.finalizers or CLAIM_FINALIZER in instance.metadata.finalizers


def _owner(owner: WorkloadDeployment) -> Json:
    return owner_reference(WORKLOAD_DEPLOYMENT.api_version, WORKLOAD_DEPLOYMENT.name, owner.metadata, controller=False)


def _new(home: _Home, original: Instance, labels: dict[str, str], owner: WorkloadDeployment) -> Json:
    body = INSTANCE.body(original.name, home.namespace, labels=labels, ownerReferences=[_owner(owner)])
    return body | {"spec": original.spec_json}
