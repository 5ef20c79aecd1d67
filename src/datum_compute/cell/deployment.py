"""Creates, rolls and removes the Instances of a deployment. Entry point: `DeploymentController`."""

from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api import reasons
from datum_compute.api.deployment import REPLICAS_READY, WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import (
    AVAILABLE,
    INSTANCE,
    NETWORK_GATE,
    PROGRAMMED,
    QUOTA_GATE,
    QUOTA_GRANTED,
    Instance,
)
from datum_compute.api.labels import (
    DEPLOYMENT_UID,
    RELEASE,
    ROLLOUT_PAUSED,
    UPSTREAM_GENERATION,
    UPSTREAM_UID,
    WORKLOAD_FINALIZER,
)
from datum_compute.api.names import instance_name
from datum_compute.api.template_hash import template_hash
from datum_compute.cell.gates import gates, without_gate
from datum_compute.cell.instance_shape import (
    instance_ordinal,
    instance_shape,
    ordinal_label,
    shared_labels,
    template_hash_of,
)
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.network import BY_CITY, Networking, by_city
from datum_compute.cell.ordering import Create, Delete, Member, steps
from datum_compute.cell.rollup import Network, deployment_status, is_paused, is_ready, stopping_status
from datum_compute.cell.stale_specs import StaleSpecs, acceptance, has_successor
from datum_compute.cell.write_delay import WriteDelay
from datum_compute.federation.obstacles import Blocked, Obstacle, Obstacles, warn_of_obstacle
from datum_compute.federation.removal import GRACE_SECONDS
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.federation.sites import is_served_elsewhere
from datum_compute.karmada.leftovers import Leftovers
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.kube.patches import changes
from datum_compute.runtime import (
    Change,
    Drop,
    Fleet,
    Pass,
    Plane,
    Problems,
    Request,
    Source,
    Writer,
    controller_of,
    itself,
)

BY_DEPLOYMENT = "by-deployment"
BY_UID = "by-uid"
STOPPING_SECONDS = 1.0  # most Instances stop in a moment; only longer waits are reported
_REQUEST_ANNOTATIONS = (UPSTREAM_UID, UPSTREAM_GENERATION, ROLLOUT_PAUSED, RELEASE)


class DeploymentController:
    """Owns the Instances of a cell's deployment, with one action per pass, and the deployment's status there."""

    name = "workloaddeployment"
    component = "deployment-controller"
    sweep_role = CELL
    sweep_seconds = 600.0

    def __init__(
        self,
        fleet: Fleet,
        *,
        networking: bool = False,
        metrics: Metrics | None = None,
        remove_leftovers: bool = True,
        leftover_grace: float = GRACE_SECONDS,
    ) -> None:
        metrics = metrics or Metrics()
        self._networking = Networking() if networking else None
        self._obstacles = Obstacles()
        self._delay = WriteDelay(STOPPING_SECONDS)
        self._leftovers = Leftovers(
            fleet,
            report_held=metrics.held,
            report_removed=metrics.removed,
            enabled=remove_leftovers,
            grace=leftover_grace,
        )
        self._stale_specs = StaleSpecs(fleet, metrics=metrics)

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(
                CELL,
                WORKLOAD_DEPLOYMENT,
                itself,
                {BY_UID: _uid, BY_CITY: by_city},
                when=_is_request,
                scope=CELL_NAMESPACES,
            ),
            Source(CELL, INSTANCE, _of_instance, {BY_DEPLOYMENT: _deployment_uid}, when=_is_settled),
            *self._leftovers.sources(),
            self._stale_specs.source(),
            *(self._networking.sources() if self._networking else ()),
        )

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Copies whose original is not on the hub."""
        return self._leftovers.candidates(plane)

    def disengaged(self, plane: Plane) -> None:
        self._obstacles.forget_plane(plane.name)
        self._leftovers.disengaged(plane)
        self._stale_specs.disengaged(plane)

    async def reconcile(self, pass_: Pass) -> None:
        request, write = pass_.request, pass_.write
        deployment = pass_.get(WORKLOAD_DEPLOYMENT)
        if deployment is None or deployment.metadata.deleting:
            self._leftovers.forget(request)
            self._obstacles.forget(request)
            self._stale_specs.forget(request)
        if deployment is None or not deployment.metadata.deleting:
            self._delay.forget(request)
        if deployment is None:
            return
        if deployment.metadata.deleting:
            await self._finalize(pass_, deployment)
            return
        is_elsewhere = is_served_elsewhere(deployment)
        if not is_elsewhere:
            deployment = await _accepted(write, deployment)
        if await self._leftovers.released(pass_, deployment):
            pass_.events.normal(deployment, reasons.WITHDRAWN, "The deployment was withdrawn from the hub")
            await write.delete(deployment)
            return
        if is_elsewhere:
            # Existing Instances keep running; a status would be added to that of the cell that serves.
            await write.clear_status(deployment)
            return
        if obstacle := self._stale_specs.obstacle(pass_, deployment, _instances(pass_, deployment)):
            await self._hold(pass_, deployment, obstacle)
            return
        await self._act(pass_, deployment)
        # Last, because the status says which generation was acted on, and that must not be read as one of another uid.
        if annotations := acceptance(deployment):
            await write.patch(deployment, {"metadata": {"annotations": annotations}})

    async def _hold(self, pass_: Pass, deployment: WorkloadDeployment, obstacle: Obstacle) -> None:
        """Reports on the running Instances without acting on a spec that is held."""
        instances = _instances(pass_, deployment)
        hash_ = next(filter(None, map(template_hash_of, instances)), "")
        before = deployment.status
        in_effect = {"observedGeneration": before.observed_generation if before else 0}
        desired = before.desired_replicas if before else len(instances)
        status = deployment_status(deployment, instances, hash_, desired, pass_.now(), obstacle=obstacle)
        await pass_.write.status(deployment, status | in_effect)

    async def _act(self, pass_: Pass, deployment: WorkloadDeployment) -> None:
        hash_ = template_hash(deployment.template_json)
        desired = deployment.spec.scale_settings.min_replicas
        location = self._location(pass_.plane, deployment)
        network = Network.READY if self._has_network(pass_.plane, deployment) else Network.PROVISIONING
        problems = Problems()
        await self._repair_labels(pass_, deployment, problems)
        await self._step(pass_, deployment, hash_, desired, location, network, problems)
        # Instances are created while their network is prepared: their gate holds them, not the order.
        if self._networking is not None and network is not Network.READY:
            with problems.collect("The network"):
                network = await self._networking.prepare(pass_, deployment)
        if network is Network.READY:
            await self._open_network_gates(pass_, deployment, problems)
        # The status is written even if something failed, and counts what this pass just did.
        instances = _instances(pass_, deployment)
        obstacles = self._obstacles.update(pass_.request, deployment.metadata.generation, problems)
        obstacle = next(iter(obstacles.values()), None)
        status = deployment_status(deployment, instances, hash_, desired, pass_.now(), network, obstacle)
        with problems.collect(f"Deployment {deployment.name}"):
            after = await pass_.write.status(deployment, status | location)
            warn_of_obstacle(pass_, REPLICAS_READY, deployment, after)
        problems.raise_worst()

    def _has_network(self, plane: Plane, deployment: WorkloadDeployment) -> bool:
        return self._networking is None or self._networking.is_ready(plane, deployment)

    def _location(self, plane: Plane, deployment: WorkloadDeployment) -> Json:
        """The `location` field of the status and of new Instances; empty while it is not known."""
        location = self._networking.location(plane, deployment) if self._networking else None
        if location is not None:
            return {"location": {"name": location.name, "namespace": ""}}
        known = deployment.status.location if deployment.status else None
        return {"location": {"name": known.name, "namespace": known.namespace}} if known else {}

    async def _step(
        self,
        pass_: Pass,
        deployment: WorkloadDeployment,
        hash_: str,
        desired: int,
        location: Json,
        network: Network,
        problems: Problems,
    ) -> None:
        instances = _instances(pass_, deployment)
        members = [_member(instance, hash_) for instance in instances]
        match next(steps(deployment.name, members, desired, paused=is_paused(deployment)), None):
            case Create() if _is_terminating(pass_.plane, deployment.namespace):
                pass  # the deployment will be deleted as well
            case Create(ordinal):
                # A network that is ready holds nothing up: its gate would be opened in this very pass.
                gates_ = [QUOTA_GATE] if network is Network.READY else [NETWORK_GATE, QUOTA_GATE]
                name = instance_name(deployment.name, ordinal)
                with problems.collect(_subject(name)):
                    try:
                        await pass_.write.create(INSTANCE, instance_shape(deployment, ordinal, hash_, location, gates_))
                    except AlreadyExists:
                        await self._check_name(pass_, deployment, name)
            case Delete(name):
                instance = next(instance for instance in instances if instance.name == name)
                with problems.collect(_subject(name)):
                    await pass_.write.delete(instance)
                    if instance_ordinal(instance) is None:
                        message = (
                            f"Neither label nor name says which instance of {deployment.name} it is; it is removed"
                        )
                        pass_.events.warning(instance, reasons.STRAY_INSTANCE, message)

    async def _check_name(self, pass_: Pass, deployment: WorkloadDeployment, name: str) -> None:
        """Raises `Blocked` unless the existing Instance is ours, created by a pass that our cache has not seen yet."""
        instance = await pass_.client.find(INSTANCE, name, deployment.namespace)
        if instance is not None and deployment.metadata.uid not in _deployment_uid(instance):
            message = f"An instance {name} that belongs to something else is in the way; it has to be removed by hand"
            raise Blocked(reasons.INSTANCE_NAME_TAKEN, message)

    async def _repair_labels(self, pass_: Pass, deployment: WorkloadDeployment, problems: Problems) -> None:
        shared = shared_labels(deployment)
        for instance in _instances(pass_, deployment):
            ordinal = instance_ordinal(instance)
            if instance.metadata.deleting or ordinal is None:
                continue
            if patch := changes(instance, labels=shared | ordinal_label(ordinal)):
                with problems.collect(_subject(instance.name)):
                    await pass_.write.patch(instance, patch)

    async def _open_network_gates(self, pass_: Pass, deployment: WorkloadDeployment, problems: Problems) -> None:
        """Opens all at once, even with networking off, when nobody else would."""
        for instance in _instances(pass_, deployment):
            if not instance.metadata.deleting and NETWORK_GATE in gates(instance):
                with problems.collect(_subject(instance.name)):
                    await pass_.write.patch_if_unchanged(instance, without_gate(instance, NETWORK_GATE))

    async def _finalize(self, pass_: Pass, deployment: WorkloadDeployment) -> None:
        """Deletes all Instances at once; waiting for them is no failure."""
        problems = Problems()
        for instance in _instances(pass_, deployment):
            if not instance.metadata.deleting:
                with problems.collect(_subject(instance.name)):
                    await pass_.write.delete(instance)
        problems.raise_worst()
        left = len(_instances(pass_, deployment))
        if not left:
            await pass_.write.remove_finalizers(deployment, WORKLOAD_FINALIZER)
            return
        delay = self._delay.remaining(pass_.request, None if has_successor(deployment) else reasons.STOPPING)
        if delay > 0:
            pass_.no_later_than(delay)
        else:
            await pass_.write.status(deployment, stopping_status(deployment, left, pass_.now()))


def _instances(pass_: Pass, deployment: WorkloadDeployment) -> list[Instance]:
    return pass_.informer(INSTANCE).by(BY_DEPLOYMENT, deployment.metadata.uid)


def _subject(instance: str) -> str:
    return f"Instance {instance}"


def _member(instance: Instance, hash_: str) -> Member:
    return Member(
        instance.name,
        instance_ordinal(instance),
        is_ready(instance),
        instance.metadata.deleting,
        current=template_hash_of(instance) == hash_,
        starving=_is_starving(instance),
    )


def _is_starving(instance: Instance) -> bool:
    quota = conditions.find(conditions.of(instance), QUOTA_GRANTED)
    return quota is not None and quota.status == "False" and quota.reason == reasons.QUOTA_EXCEEDED


def _is_terminating(plane: Plane, name: str) -> bool:
    namespace = plane.informer(NAMESPACE).get("", name)
    return namespace is not None and namespace.metadata.deleting


async def _accepted(write: Writer, deployment: WorkloadDeployment) -> WorkloadDeployment:
    """Adds our finalizer, and records whose spec we are about to act on."""
    if WORKLOAD_FINALIZER in deployment.metadata.finalizers:
        return deployment
    metadata: Json = {"finalizers": [*deployment.metadata.finalizers, WORKLOAD_FINALIZER]}
    if annotations := acceptance(deployment):
        metadata["annotations"] = annotations
    return await write.patch_if_unchanged(deployment, {"metadata": metadata})


def _is_request(change: Change[WorkloadDeployment]) -> bool:
    """Whether a change requests something new, unlike this controller's own status writes."""
    before, after = change.before, change.after
    return after is not None and (before is None or _requested(before) != _requested(after))


def _requested(deployment: WorkloadDeployment) -> tuple[object, ...]:
    metadata = deployment.metadata
    annotations = [metadata.annotations.get(key) for key in _REQUEST_ANNOTATIONS]
    return metadata.uid, metadata.generation, metadata.deleting, is_served_elsewhere(deployment), *annotations


def _is_settled(change: Change[Instance]) -> bool:
    """Whether Ready already follows from the other conditions; a pass before that would be premature."""
    return change.before is None or change.after is None or not _is_about_to_be_ready(change.after)


def _is_about_to_be_ready(instance: Instance) -> bool:
    if instance.status is None or instance.metadata.deleting or gates(instance) or is_ready(instance):
        return False
    return all(
        conditions.is_true(instance.status.conditions, type_) for type_ in (QUOTA_GRANTED, PROGRAMMED, AVAILABLE)
    )


def _deployment_uid(instance: Instance) -> Iterable[str]:
    """The owner's; the label's only without an owner, so that an edited label can be repaired."""
    owner = instance.metadata.controller
    return (owner.uid if owner else instance.metadata.labels.get(DEPLOYMENT_UID, ""),)


def _of_instance(plane: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
    yield from controller_of(WORKLOAD_DEPLOYMENT)(plane, change)
    if change.object.metadata.controller is None:  # created by hand: only its label says where it belongs
        label = change.object.metadata.labels.get(DEPLOYMENT_UID, "")
        for deployment in plane.informer(WORKLOAD_DEPLOYMENT).by(BY_UID, label):
            yield Request(plane.name, deployment.namespace, deployment.name)


def _uid(deployment: WorkloadDeployment) -> Iterable[str]:
    return (deployment.metadata.uid,)
