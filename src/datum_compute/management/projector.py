"""Shows each cell Instance in its project, as a read-only projection. Entry point: `Projector`."""

from collections.abc import Iterable, Sequence
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import PROJECTED, WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED, READY, Instance
from datum_compute.api.labels import (
    CLAIM_FINALIZER,
    DEPLOYMENT_NAME,
    DEPLOYMENT_UID,
    INSTANCE_FINALIZER,
    UPSTREAM_CLUSTER,
    UPSTREAM_NAMESPACE,
)
from datum_compute.api.names import deployment_of, hub_namespace
from datum_compute.federation.identity import Identity
from datum_compute.federation.metrics import HUB_TO_PROJECTION
from datum_compute.federation.obstacles import Obstacles
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube import conditions, tracing
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Condition, Json, missing_or_different, owner_reference, same_json
from datum_compute.kube.patches import changes
from datum_compute.management.federated_status import with_obstacle, without_refused_view
from datum_compute.management.metrics import ManagementMetrics
from datum_compute.management.projection import projected_status
from datum_compute.runtime import (
    Change,
    Drop,
    Fleet,
    Handle,
    Pass,
    Plane,
    Problem,
    Problems,
    Request,
    Source,
    Unfinished,
    Writer,
    itself,
)
from datum_compute.runtime.once import Once

_log = structlog.get_logger(__name__)


class _Home(Struct, frozen=True):
    """The project namespace that a hub namespace belongs to, and the labels that identify it."""

    project: Handle
    namespace: str
    labels: dict[str, str]


class Projector:
    """Owns the Instances of a project plane. Requests name the hub Instance."""

    name = "instance-projector"
    sweep_role = PROJECT
    sweep_seconds = 600.0

    def __init__(self, fleet: Fleet, hub: str, *, metrics: ManagementMetrics | None = None) -> None:
        self._fleet = fleet
        self._hub = hub
        self._metrics = metrics or ManagementMetrics()
        self._logged: Once[tuple[str, str]] = Once()  # where, and what was wrong there
        self._obstacles = Obstacles()

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(HUB, INSTANCE, itself),
            Source(HUB, NAMESPACE, _of_hub_namespace),
            Source(HUB, WORKLOAD_DEPLOYMENT),
            Source(PROJECT, INSTANCE, self._of_projection),
            Source(PROJECT, WORKLOAD_DEPLOYMENT, self._of_owner, when=_is_new),
            Source(PROJECT, NAMESPACE, self._of_project_namespace),
        )

    def disengaged(self, plane: Plane) -> None:
        self._obstacles.forget_plane(plane.name)

    def group(self, request: Request) -> str:
        """All requests name the hub, but each writes to one project: a slow project holds up only itself."""
        return request.namespace

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Projections without a hub Instance, which may have been deleted while nobody watched."""
        originals = self._fleet.plane(self._hub).informer(INSTANCE) if self._fleet.has(self._hub) else None
        for projection in plane.informer(INSTANCE).all():
            for request in self._original(plane, projection):
                if originals is None or originals.get(request.namespace, request.name) is None:
                    yield request

    async def reconcile(self, pass_: Pass) -> None:
        original = pass_.get(INSTANCE)
        if original is None:
            self._obstacles.forget(pass_.request)  # also if its project left before
        home = self._home(pass_)
        if home is None:
            return
        if original is None:
            await self._remove(pass_, home)
            owner = home.project.informer(WORKLOAD_DEPLOYMENT).get(home.namespace, deployment_of(pass_.request.name))
            if owner is not None:
                await self._report_refusals(pass_, home, owner, ())
        elif not original.metadata.deleting:
            await self._show(pass_, home, original)

    def _home(self, pass_: Pass) -> _Home | None:
        """The project namespace that the labels of a hub namespace name, if the uid in its own name proves it."""
        name = pass_.request.namespace
        namespace = pass_.informer(NAMESPACE).get("", name)
        if namespace is None:
            return None
        identity = Identity.of(namespace.metadata.labels)
        if identity is None:
            if self._logged.first((name, "")):
                _log.warning("instances not projected: hub namespace names no project", namespace=name)
            return None
        project = pass_.on(self._fleet.plane(identity.project))
        claimed = project.informer(NAMESPACE).get("", identity.namespace)
        if claimed is None or claimed.metadata.deleting:
            return None  # its projections are deleted with it
        if hub_namespace(claimed.metadata.uid) != name:
            if self._logged.first((name, identity.project)):
                _log.warning(
                    "instances not projected: hub namespace names a project namespace with another uid",
                    namespace=name,
                    project=identity.project,
                    named=identity.namespace,
                )
            return None
        labels = {key: namespace.metadata.labels[key] for key in (UPSTREAM_CLUSTER, UPSTREAM_NAMESPACE)}
        return _Home(project, identity.namespace, labels)

    async def _show(self, pass_: Pass, home: _Home, original: Instance) -> None:
        if missing_or_different(home.labels, original.metadata.labels):
            raise Unfinished(f"the identity labels of {original.name} differ from those of its hub namespace")
        deployment = original.metadata.labels.get(DEPLOYMENT_NAME, "")
        owner = home.project.informer(WORKLOAD_DEPLOYMENT).get(home.namespace, deployment)
        if owner is None:
            if deployment and _is_withdrawn(pass_.plane, original.namespace, deployment):
                return  # the Instance will be deleted as well, once its site has stopped it
            raise Unfinished(f"deployment {deployment or '(no label)'} of {original.name} is not in the project (yet)")
        problems = Problems()
        with problems.collect(f"The view of instance {original.name}"):
            await self._project(pass_, home, original, owner)
        with problems.collect(f"Deployment {owner.name}"):
            await self._report_refusals(pass_, home, owner, tuple(problems))
        problems.raise_worst()

    async def _report_refusals(
        self, pass_: Pass, home: _Home, owner: WorkloadDeployment, problems: Sequence[Problem]
    ) -> None:
        """A refused projection has no status to report it, so its deployment does, for the first of them by name."""
        request = pass_.request
        earlier = self._obstacles.known(request)
        current = self._obstacles.update(request, owner.metadata.generation, problems)
        for subject in current.keys() - earlier.keys():
            home.project.events.warning(owner, current[subject].reason, current[subject].message)
        if not current and conditions.find(conditions.of(owner), PROJECTED) is None:
            return
        instances = [
            instance
            for instance in sorted(pass_.informer(INSTANCE).all(request.namespace), key=lambda instance: instance.name)
            if instance.metadata.labels.get(DEPLOYMENT_NAME) == owner.name
        ]
        requests = [Request(request.plane, instance.namespace, instance.name) for instance in instances]
        refusals = [obstacle for other in requests for obstacle in self._obstacles.known(other).values()]
        if refusals:
            answered = owner.status is not None
            status = with_obstacle(owner, (PROJECTED,), refusals[0], pass_.now(), answered=answered)
        elif problems or not all(_is_shown(home, instance) for instance in instances):
            return  # an outage, or a refusal before the last restart that has not been tried again
        else:
            status = without_refused_view(owner)
        await home.project.write.status(owner, status)

    async def _project(self, pass_: Pass, home: _Home, original: Instance, owner: WorkloadDeployment) -> None:
        write = home.project.write
        before = projection = home.project.informer(INSTANCE).get(home.namespace, original.name)
        labels = original.metadata.labels | {DEPLOYMENT_UID: owner.metadata.uid}
        if projection is None:
            if owner.metadata.deleting:
                return  # its Instances and their projections are deleted with it
            try:
                projection = await write.create(INSTANCE, _new(home, original, labels, owner))
                home.project.events.normal(projection, reasons.CREATED, f"Created in {owner.spec.city_code}")
            except AlreadyExists:
                projection = await home.project.client.get(INSTANCE, original.name, home.namespace)
        if _is_original(projection):
            key = f"{projection.namespace}/{projection.name}"
            if self._logged.first((key, home.project.name)):
                _log.warning("instance not projected: name is taken", instance=key, project=home.project.name)
            return
        after = await self._update(write, projection, original, labels, owner)
        if after is not before:
            self._metrics.arrived(HUB_TO_PROJECTION, pass_)
            _emit_events(home.project, before, after)

    async def _update(
        self, write: Writer, projection: Instance, original: Instance, labels: dict[str, str], owner: WorkloadDeployment
    ) -> Instance:
        if patch := changes(projection, labels=labels, owners=[owner_reference(owner)], spec=original.spec_json):
            projection = await write.patch_if_unchanged(projection, tracing.with_spec(patch, projection, original))
        return await write.status(projection, projected_status(original, projection.metadata.generation))

    async def _remove(self, pass_: Pass, home: _Home) -> None:
        """Deletes the projection of a deleted hub Instance, and nothing that only has its name."""
        projection = home.project.informer(INSTANCE).get(home.namespace, pass_.request.name)
        if (
            projection is not None
            and not projection.metadata.deleting
            and not missing_or_different(home.labels, projection.metadata.labels)
            and any(owner.kind == WORKLOAD_DEPLOYMENT.name for owner in projection.metadata.owner_references)
            and not _is_original(projection)
        ):
            pass_.about(projection)
            await home.project.write.delete(projection)

    def _of_projection(self, project: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
        """From a projection to its hub Instance, so that an edited, deleted or left-over projection is repaired.

        Both sides of a change count: the label that marks a projection may have been removed.
        """
        sides = [projection for projection in (change.before, change.after) if projection is not None]
        yield from dict.fromkeys(request for projection in sides for request in self._original(project, projection))

    def _of_project_namespace(self, project: Plane, change: Change[Namespace]) -> Iterable[Request]:
        """A namespace that is new to this process may have Instances on the hub already.

        A recreated one may appear, in a list, as a change of its predecessor.
        """
        is_new = change.before is None or change.before.metadata.uid != change.object.metadata.uid
        if is_new and self._fleet.has(self._hub):
            home = hub_namespace(change.object.metadata.uid)
            for instance in self._fleet.plane(self._hub).informer(INSTANCE).all(home):
                yield Request(self._hub, home, instance.name)

    def _of_owner(self, project: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request]:
        """The Instances of a new deployment, which may have waited for it."""
        namespace = project.informer(NAMESPACE).get("", change.object.namespace)
        if namespace is not None and self._fleet.has(self._hub):
            home = hub_namespace(namespace.metadata.uid)
            for instance in self._fleet.plane(self._hub).informer(INSTANCE).all(home):
                if instance.metadata.labels.get(DEPLOYMENT_NAME) == change.object.name:
                    yield Request(self._hub, home, instance.name)

    def _original(self, project: Plane, projection: Instance) -> Iterable[Request]:
        namespace = project.informer(NAMESPACE).get("", projection.namespace)
        if namespace is not None and UPSTREAM_CLUSTER in projection.metadata.labels:
            yield Request(self._hub, hub_namespace(namespace.metadata.uid), projection.name)


def _of_hub_namespace(hub: Plane, change: Change[Namespace]) -> Iterable[Request]:
    """The Instances of a relabelled hub namespace, which may not have been projected before."""
    if change.before is None or change.before.metadata.labels != change.object.metadata.labels:
        for instance in hub.informer(INSTANCE).all(change.object.name):
            yield Request(hub.name, instance.namespace, instance.name)


def _is_new(change: Change[WorkloadDeployment]) -> bool:
    return change.before is None or change.before.metadata.uid != change.object.metadata.uid


def _is_withdrawn(hub: Plane, namespace: str, deployment: str) -> bool:
    """Whether the hub does not have the deployment or is deleting it, so that its Instances will be deleted."""
    copy = hub.informer(WORKLOAD_DEPLOYMENT).get(namespace, deployment)
    return copy is None or copy.metadata.deleting


def _emit_events(project: Handle, before: Instance | None, after: Instance) -> None:
    """Repeats the cell's warnings, because users see no other plane, and reports progress."""
    for type_ in (QUOTA_GRANTED, READY):
        was, now = (_condition(instance, type_) for instance in (before, after))
        if now is None or (was is not None and was.reason == now.reason):
            continue
        if now.reason in reasons.WARNINGS:
            project.events.warning(after, now.reason, now.message)
        elif now.reason == reasons.QUOTA_EXCEEDED or (was is not None and was.reason == reasons.QUOTA_EXCEEDED):
            # An immediate grant is not worth an event, and every event is a write.
            project.events.normal(after, now.reason, now.message)
        elif type_ == READY and now.status == "True":
            project.events.normal(after, reasons.STARTED, now.message)


def _condition(instance: Instance | None, type_: str) -> Condition | None:
    return conditions.find(conditions.of(instance), type_) if instance is not None else None


def _is_shown(home: _Home, original: Instance) -> bool:
    projection = home.project.informer(INSTANCE).get(home.namespace, original.name)
    return projection is not None and same_json(projection.spec_json, original.spec_json)


def _is_original(instance: Instance) -> bool:
    """Whether it is a cell's own Instance, which is possible where both planes are one API server."""
    return INSTANCE_FINALIZER in instance.metadata.finalizers or CLAIM_FINALIZER in instance.metadata.finalizers


def _new(home: _Home, original: Instance, labels: dict[str, str], owner: WorkloadDeployment) -> Json:
    body = INSTANCE.body(
        original.name,
        home.namespace,
        labels=labels,
        annotations=tracing.carried(original),
        ownerReferences=[owner_reference(owner)],
    )
    return body | {"spec": original.spec_json}
