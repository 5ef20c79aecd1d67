"""Creates, rolls and removes the Instances of a deployment. Entry point: `DeploymentController`."""

from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
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
    UPSTREAM_GENERATION,
    WORKLOAD_FINALIZER,
    WORKLOAD_NAME,
    WORKLOAD_UID,
)
from datum_compute.api.names import instance_name, ordinal_of
from datum_compute.api.template_hash import template_hash
from datum_compute.cell.ordering import Create, Delete, Member, Step, steps
from datum_compute.cell.replicas import deployment_status, is_ready
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists, ApiError
from datum_compute.kube.meta import Json, missing_or_different, owner_reference, plain
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, controller_of
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Pass, Request
from datum_compute.runtime.writes import Writer

BY_DEPLOYMENT = "by-deployment"
BY_UID = "by-uid"


class DeploymentController:
    """Owns the Instances of a cell's deployment, one action a pass, and the deployment's status there."""

    name = "workloaddeployment"

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, WORKLOAD_DEPLOYMENT, _when_asked, {BY_UID: _uid}),
            Source(CELL, INSTANCE, _when_settled, {BY_DEPLOYMENT: _deployment_uid}),
        )

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        plane = self._fleet.plane(request.plane)
        deployment = plane.informer(WORKLOAD_DEPLOYMENT).get(request.namespace, request.name)
        if deployment is None:
            return
        write = plane.writer(self.name)
        if deployment.metadata.deleting:
            await self._finalize(plane, write, deployment)
            return
        deployment = await write.add_finalizer(WORKLOAD_DEPLOYMENT, deployment, WORKLOAD_FINALIZER)
        hash_ = template_hash(deployment.template_json)
        desired = deployment.spec.scale_settings.min_replicas
        failure = None
        try:
            await self._act(plane, write, deployment, hash_, desired)
        except ApiError as error:
            failure = error
        # The truth is told also when the action failed, and counts what this pass just did (R15).
        status = deployment_status(deployment, self._instances(plane, deployment), hash_, desired, self._clock.now())
        await write.status(WORKLOAD_DEPLOYMENT, deployment, status)
        if failure is not None:
            raise failure

    async def _act(self, plane: Plane, write: Writer, deployment: WorkloadDeployment, hash_: str, desired: int) -> None:
        instances = self._instances(plane, deployment)
        await self._repair(write, deployment, instances)
        members = [_member(instance, hash_) for instance in instances]
        for step in steps(deployment.name, members, desired)[:1]:
            await self._do(write, deployment, instances, hash_, step)

    async def _do(
        self, write: Writer, deployment: WorkloadDeployment, instances: Sequence[Instance], hash_: str, step: Step
    ) -> None:
        match step:
            case Create(ordinal):
                try:
                    await write.create(INSTANCE, _new_instance(deployment, ordinal, hash_))
                except AlreadyExists:
                    # Made by an earlier pass that our cache has not heard of; its event brings us back.
                    return
            case Delete(name):
                await write.delete(INSTANCE, next(found for found in instances if found.name == name))

    async def _repair(self, write: Writer, deployment: WorkloadDeployment, instances: Iterable[Instance]) -> None:
        """Outside the order: labels that drifted, and a network gate that nobody would open (networking is off)."""
        for instance in instances:
            ordinal = _ordinal(instance)
            if instance.metadata.deleting or ordinal is None:
                continue
            if changed := missing_or_different(_labels(deployment, ordinal), instance.metadata.labels):
                await write.patch(INSTANCE, instance, {"metadata": {"labels": changed}})
            elif NETWORK_GATE in gates(instance):
                await write.patch_seen(INSTANCE, instance, without_gate(instance, NETWORK_GATE))

    async def _finalize(self, plane: Plane, write: Writer, deployment: WorkloadDeployment) -> None:
        """Deletes all Instances at once; waiting for them is no failure."""
        for instance in self._instances(plane, deployment):
            if not instance.metadata.deleting:
                await write.delete(INSTANCE, instance)
        if not self._instances(plane, deployment):
            await write.remove_finalizers(WORKLOAD_DEPLOYMENT, deployment, WORKLOAD_FINALIZER)

    def _instances(self, plane: Plane, deployment: WorkloadDeployment) -> list[Instance]:
        return plane.informer(INSTANCE).by(BY_DEPLOYMENT, deployment.metadata.uid)


def gates(instance: Instance) -> list[str]:
    """An Instance without a controller block is legal and has no gates."""
    return [gate.name for gate in instance.spec.controller.scheduling_gates] if instance.spec.controller else []


def without_gate(instance: Instance, name: str) -> Json:
    """A patch for `patch_seen`: the list is replaced whole, so it must be the one that was seen (R16)."""
    left = [{"name": gate} for gate in gates(instance) if gate != name]
    return {"spec": {"controller": {"schedulingGates": left}}}


def _when_asked(plane: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request]:
    """Only what a new request looks like wakes this controller; its own status writes do not."""
    before, after = change.before, change.after
    if after is not None and (before is None or _asked(before) != _asked(after)):
        yield Request(plane.name, after.namespace, after.name)


def _about_to_be_ready(instance: Instance) -> bool:
    if instance.status is None or instance.metadata.deleting or gates(instance) or is_ready(instance):
        return False
    return all(conditions.is_true(instance.status.conditions, part) for part in (QUOTA_GRANTED, PROGRAMMED, AVAILABLE))


def _asked(deployment: WorkloadDeployment) -> tuple[object, ...]:
    metadata = deployment.metadata
    return metadata.uid, metadata.generation, metadata.deleting, metadata.annotations.get(UPSTREAM_GENERATION)


def _deployment_uid(instance: Instance) -> Iterable[str]:
    """Its owner's; its label's only where it has none, because a label that was edited can then be mended."""
    owner = instance.metadata.controller
    return (owner.uid if owner else instance.metadata.labels.get(DEPLOYMENT_UID, ""),)


def _when_settled(plane: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
    """The Instance's deployment; not for a state that lasts only until Ready has followed its parts."""
    if change.before is not None and change.after is not None and _about_to_be_ready(change.after):
        return
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


def _labels(deployment: WorkloadDeployment, ordinal: int) -> dict[str, str]:
    spec = deployment.spec
    return {
        WORKLOAD_UID: spec.workload_ref.uid,
        DEPLOYMENT_UID: deployment.metadata.uid,
        DEPLOYMENT_NAME: deployment.name,
        WORKLOAD_NAME: spec.workload_ref.name,
        PLACEMENT_NAME: spec.placement_name,
        CITY_CODE: spec.city_code,
        INSTANCE_INDEX: str(ordinal),
    }


def _new_instance(deployment: WorkloadDeployment, ordinal: int, hash_: str) -> Json:
    template = plain(deployment.template_json)
    said = template.get("metadata") or {}
    owner = owner_reference(
        WORKLOAD_DEPLOYMENT.api_version, WORKLOAD_DEPLOYMENT.name, deployment.metadata, controller=True
    )
    body = INSTANCE.body(
        instance_name(deployment.name, ordinal),
        deployment.namespace,
        labels=(said.get("labels") or {}) | _labels(deployment, ordinal),
        annotations=said.get("annotations"),
        # Set here, so that neither a hub copy nor a claim can exist before its finalizer does.
        finalizers=[INSTANCE_FINALIZER, CLAIM_FINALIZER],
        ownerReferences=[owner],
    )
    controller = {"templateHash": hash_, "schedulingGates": [{"name": QUOTA_GATE}]}
    location = deployment.status.location if deployment.status else None
    place = {"location": {"name": location.name, "namespace": location.namespace}} if location else {}
    return body | {"spec": template["spec"] | place | {"controller": controller}}
