"""Creates, rolls and removes the Instances of a deployment. Entry point: `DeploymentController`."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
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
    CITY_CODE,
    CLAIM_FINALIZER,
    DEPLOYMENT_NAME,
    DEPLOYMENT_UID,
    INSTANCE_FINALIZER,
    INSTANCE_INDEX,
    PLACEMENT_NAME,
    RELEASE,
    ROLLOUT_PAUSED,
    UPSTREAM_GENERATION,
    UPSTREAM_UID,
    WORKLOAD_FINALIZER,
    WORKLOAD_NAME,
    WORKLOAD_UID,
    inherited_annotations,
    inherited_labels,
)
from datum_compute.api.names import instance_name, ordinal_of
from datum_compute.api.template_hash import template_hash
from datum_compute.cell.gates import gates, without_gate
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.network import BY_CITY, Networking, by_city
from datum_compute.cell.ordering import Create, Delete, Member, steps
from datum_compute.cell.rollup import Network, deployment_status, is_paused, is_ready, making_way
from datum_compute.cell.stale_specs import StaleSpecs, accepted, has_successor
from datum_compute.cell.write_delay import WriteDelay
from datum_compute.federation.obstacles import Blocked, Obstacle, StableMessages, obstacles
from datum_compute.federation.removal import GRACE_SECONDS
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.federation.sites import is_served_elsewhere
from datum_compute.karmada.leftovers import Leftovers
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists, NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict, controller_reference
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
STOPPING_SECONDS = 1.0  # mostly everything stops in a moment; only what takes longer is reported
_ASKED_BY = (UPSTREAM_UID, UPSTREAM_GENERATION, ROLLOUT_PAUSED, RELEASE)  # annotations


class DeploymentController:
    """Owns the Instances of a cell's deployment, one action a pass, and the deployment's status there."""

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
        self._wordings = StableMessages()
        self._delay = WriteDelay(STOPPING_SECONDS)
        self._leftovers = Leftovers(fleet, report_held=metrics.held, enabled=remove_leftovers, grace=leftover_grace)
        self._successions = StaleSpecs(fleet, metrics=metrics)

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(
                CELL,
                WORKLOAD_DEPLOYMENT,
                itself,
                {BY_UID: _uid, BY_CITY: by_city},
                when=_is_asked,
                scope=CELL_NAMESPACES,
            ),
            Source(CELL, INSTANCE, _owner, {BY_DEPLOYMENT: _deployment_uid}, when=_is_settled),
            *self._leftovers.sources(),
            self._successions.source(),
            *(self._networking.sources() if self._networking else ()),
        )

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Copies whose original is not on the hub."""
        return self._leftovers.candidates(plane)

    def disengaged(self, plane: Plane) -> None:
        self._wordings.forget_plane(plane.name)
        self._leftovers.disengaged(plane)
        self._successions.disengaged(plane)

    async def reconcile(self, pass_: Pass) -> None:
        request, write = pass_.request, pass_.write
        deployment = pass_.get(WORKLOAD_DEPLOYMENT)
        if deployment is None or deployment.metadata.deleting:
            self._leftovers.forget(request)
            self._wordings.forget(request)
            self._successions.forget(request)
        if deployment is None or not deployment.metadata.deleting:
            self._delay.forget(request)
        if deployment is None:
            return
        if deployment.metadata.deleting:
            await self._finalize(pass_, deployment)
            return
        is_elsewhere = is_served_elsewhere(deployment)
        if not is_elsewhere:
            deployment = await _taken_in(write, deployment)
        if await self._leftovers.released(pass_, deployment):
            pass_.events.normal(deployment, reasons.WITHDRAWN, "The deployment was withdrawn from the hub")
            await write.delete(deployment)
            return
        if is_elsewhere:
            # What runs here from before goes on; a status would be counted together with that of the other cell.
            await write.clear_status(deployment)
            return
        if obstacle := self._successions.obstacle(pass_, deployment, _instances(pass_, deployment)):
            await self._wait(pass_, deployment, obstacle)
            return
        await self._work(pass_, deployment)
        # Only now: the status says which generation was acted on, and it must not be taken for one of another uid.
        if annotations := accepted(deployment):
            await write.patch(deployment, {"metadata": {"annotations": annotations}})

    async def _wait(self, pass_: Pass, deployment: WorkloadDeployment, obstacle: Obstacle) -> None:
        """Nothing is made or removed by a spec that is held; how those fare that run is reported all the same."""
        instances = _instances(pass_, deployment)
        hash_ = next((one.spec.controller.template_hash for one in instances if one.spec.controller), "")
        before = deployment.status
        in_effect = {"observedGeneration": before.observed_generation if before else 0}
        desired = before.desired_replicas if before else len(instances)
        status = deployment_status(deployment, instances, hash_, desired, pass_.now(), obstacle=obstacle)
        await pass_.write.status(deployment, status | in_effect)

    async def _work(self, pass_: Pass, deployment: WorkloadDeployment) -> None:
        plane = pass_.plane
        hash_ = template_hash(deployment.template_json)
        desired = deployment.spec.scale_settings.min_replicas
        place = self._place(plane, deployment)
        network = Network.READY if self._has_network(plane, deployment) else Network.PROVISIONING
        problems = Problems()
        await self._act(pass_, deployment, hash_, desired, place, network, problems)
        # Instances are made while their network is: the gate holds them, not the order.
        if self._networking is not None and network is not Network.READY:
            with problems.collect("The network"):
                network = await self._networking.prepare(pass_, deployment)
        if network is Network.READY:
            await self._open(pass_, _instances(pass_, deployment), problems)
        # The truth is told also when the action failed, and counts what this pass just did (R15).
        instances = _instances(pass_, deployment)
        refused = self._wordings.settled(pass_.request, deployment.metadata.generation, obstacles(problems))
        obstacle = next(iter(refused.values()), None)
        status = deployment_status(deployment, instances, hash_, desired, pass_.now(), network, obstacle)
        with problems.collect(f"Deployment {deployment.name}"):
            after = await pass_.write.status(deployment, status | place)
            self._tell(pass_, deployment, after)
        problems.raise_worst()

    def _tell(self, pass_: Pass, before: WorkloadDeployment, after: WorkloadDeployment) -> None:
        """An event when an Instance cannot be made, or for another reason than before."""
        was, now = (conditions.find(conditions.of(seen), REPLICAS_READY) for seen in (before, after))
        if now is not None and now.reason in reasons.OBSTACLES and (was is None or was.message != now.message):
            pass_.events.warning(after, now.reason, now.message)

    def _has_network(self, plane: Plane, deployment: WorkloadDeployment) -> bool:
        return self._networking is None or self._networking.is_ready(plane, deployment)

    def _place(self, plane: Plane, deployment: WorkloadDeployment) -> Json:
        """`location`, as status and new Instances name it; empty while it is not known."""
        found = self._networking.location(plane, deployment) if self._networking else None
        if found is not None:
            return {"location": {"name": found.name, "namespace": ""}}
        known = deployment.status.location if deployment.status else None
        return {"location": {"name": known.name, "namespace": known.namespace}} if known else {}

    async def _act(
        self,
        pass_: Pass,
        deployment: WorkloadDeployment,
        hash_: str,
        desired: int,
        place: Json,
        network: Network,
        problems: Problems,
    ) -> None:
        instances = _instances(pass_, deployment)
        await self._mend(pass_, deployment, instances, problems)
        members = [_member(instance, hash_) for instance in instances]
        match next(steps(deployment.name, members, desired, paused=is_paused(deployment)), None):
            case Create() if _terminates(pass_.plane, deployment.namespace):
                pass  # so does the deployment, as soon as its turn comes
            case Create(ordinal):
                # A network that is ready holds nothing up: its gate would be opened in this very pass.
                held_by = [QUOTA_GATE] if network is Network.READY else [NETWORK_GATE, QUOTA_GATE]
                name = instance_name(deployment.name, ordinal)
                with problems.collect(_subject(name)):
                    try:
                        await pass_.write.create(INSTANCE, _new_instance(deployment, ordinal, hash_, place, held_by))
                    except AlreadyExists:
                        await self._check_taken(pass_, deployment, name)
            case Delete(name):
                instance = next(found for found in instances if found.name == name)
                with problems.collect(_subject(name)):
                    await pass_.write.delete(instance)
                    if _ordinal(instance) is None:
                        sentence = (
                            f"Neither label nor name says which instance of {deployment.name} it is; it is removed"
                        )
                        pass_.events.warning(instance, reasons.STRAY_INSTANCE, sentence)

    async def _check_taken(self, pass_: Pass, deployment: WorkloadDeployment, name: str) -> None:
        """One of ours was made by a pass that our cache has not heard of; its event brings us back."""
        with suppress(NotFound):
            found = await pass_.client.get(INSTANCE, name, deployment.namespace)
            if deployment.metadata.uid not in _deployment_uid(found):
                sentence = f"Instance {name} of somebody else is in the way; it has to be removed by hand"
                raise Blocked(reasons.INSTANCE_NAME_TAKEN, sentence)

    async def _mend(
        self, pass_: Pass, deployment: WorkloadDeployment, instances: Iterable[Instance], problems: Problems
    ) -> None:
        """Outside the order: labels that drifted."""
        shared = _labels(deployment)
        for instance in instances:
            ordinal = _ordinal(instance)
            if instance.metadata.deleting or ordinal is None:
                continue
            wanted = shared | {INSTANCE_INDEX: str(ordinal)}
            if patch := changes(instance, labels=wanted):
                with problems.collect(_subject(instance.name)):
                    await pass_.write.patch(instance, patch)

    async def _open(self, pass_: Pass, instances: Iterable[Instance], problems: Problems) -> None:
        """The network gate of all at once, also where networking is off and nobody else would."""
        for instance in instances:
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
        if left := len(_instances(pass_, deployment)):
            patience = self._delay.left(pass_.request, None if has_successor(deployment) else reasons.STOPPING)
            if patience > 0:
                pass_.no_later_than(patience)
            else:
                await pass_.write.status(deployment, making_way(deployment, left, pass_.now()))
        else:
            await pass_.write.remove_finalizers(deployment, WORKLOAD_FINALIZER)


def _instances(pass_: Pass, deployment: WorkloadDeployment) -> list[Instance]:
    return pass_.informer(INSTANCE).by(BY_DEPLOYMENT, deployment.metadata.uid)


def _subject(instance: str) -> str:
    return f"Instance {instance}"


def _terminates(plane: Plane, namespace: str) -> bool:
    found = plane.informer(NAMESPACE).get("", namespace)
    return found is not None and found.metadata.deleting


async def _taken_in(write: Writer, deployment: WorkloadDeployment) -> WorkloadDeployment:
    """With our finalizer, and with the note of whose spec we are about to act on."""
    if WORKLOAD_FINALIZER in deployment.metadata.finalizers:
        return deployment
    metadata: Json = {"finalizers": [*deployment.metadata.finalizers, WORKLOAD_FINALIZER]}
    if annotations := accepted(deployment):
        metadata["annotations"] = annotations
    return await write.patch_if_unchanged(deployment, {"metadata": metadata})


def _is_asked(change: Change[WorkloadDeployment]) -> bool:
    """Only what a new request looks like wakes this controller; its own status writes do not."""
    before, after = change.before, change.after
    return after is not None and (before is None or _asked(before) != _asked(after))


def _asked(deployment: WorkloadDeployment) -> tuple[object, ...]:
    metadata = deployment.metadata
    annotations = [metadata.annotations.get(key) for key in _ASKED_BY]
    is_elsewhere = is_served_elsewhere(deployment)
    return metadata.uid, metadata.generation, metadata.deleting, is_elsewhere, *annotations


def _is_settled(change: Change[Instance]) -> bool:
    """Not a state that lasts only until Ready has followed its parts."""
    return change.before is None or change.after is None or not _about_to_be_ready(change.after)


def _about_to_be_ready(instance: Instance) -> bool:
    if instance.status is None or instance.metadata.deleting or gates(instance) or is_ready(instance):
        return False
    return all(conditions.is_true(instance.status.conditions, part) for part in (QUOTA_GRANTED, PROGRAMMED, AVAILABLE))


def _deployment_uid(instance: Instance) -> Iterable[str]:
    """Its owner's; its label's only where it has none, because a label that was edited can then be mended."""
    owner = instance.metadata.controller
    return (owner.uid if owner else instance.metadata.labels.get(DEPLOYMENT_UID, ""),)


def _owner(plane: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
    yield from controller_of(WORKLOAD_DEPLOYMENT)(plane, change)
    if change.object.metadata.controller is None:  # made by hand: nothing but its label says where it belongs
        label = change.object.metadata.labels.get(DEPLOYMENT_UID, "")
        for deployment in plane.informer(WORKLOAD_DEPLOYMENT).by(BY_UID, label):
            yield Request(plane.name, deployment.namespace, deployment.name)


def _uid(deployment: WorkloadDeployment) -> Iterable[str]:
    return (deployment.metadata.uid,)


def _ordinal(instance: Instance) -> int | None:
    label = instance.metadata.labels.get(INSTANCE_INDEX)
    if label is None:
        return ordinal_of(instance.name)
    return int(label) if label.isdecimal() else None


def _member(instance: Instance, hash_: str) -> Member:
    made_from = instance.spec.controller.template_hash if instance.spec.controller else ""
    return Member(
        instance.name, _ordinal(instance), is_ready(instance), instance.metadata.deleting, current=made_from == hash_
    )


def _labels(deployment: WorkloadDeployment) -> dict[str, str]:
    """Those that all its Instances have."""
    spec = deployment.spec
    return {
        WORKLOAD_UID: spec.workload_ref.uid,
        DEPLOYMENT_UID: deployment.metadata.uid,
        DEPLOYMENT_NAME: deployment.name,
        WORKLOAD_NAME: spec.workload_ref.name,
        PLACEMENT_NAME: spec.placement_name,
        CITY_CODE: spec.city_code,
    }


def _new_instance(
    deployment: WorkloadDeployment, ordinal: int, hash_: str, place: Json, held_by: Sequence[str]
) -> Json:
    template = as_dict(deployment.template_json)
    said = template.get("metadata") or {}
    owner = controller_reference(deployment)
    body = INSTANCE.body(
        instance_name(deployment.name, ordinal),
        deployment.namespace,
        labels=inherited_labels(said.get("labels") or {}) | _labels(deployment) | {INSTANCE_INDEX: str(ordinal)},
        annotations=inherited_annotations(said.get("annotations") or {}),
        # Set here, so that neither a hub copy nor a claim can exist before its finalizer does.
        finalizers=[INSTANCE_FINALIZER, CLAIM_FINALIZER],
        ownerReferences=[owner],
    )
    controller = {"templateHash": hash_, "schedulingGates": [{"name": gate} for gate in held_by]}
    return body | {"spec": template["spec"] | place | {"controller": controller}}
