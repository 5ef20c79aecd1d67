"""Creates, rolls and removes the Instances of a deployment. Entry point: `DeploymentController`."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from datum_compute.api import reasons
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
    ROLLOUT_PAUSED,
    UPSTREAM_GENERATION,
    WORKLOAD_FINALIZER,
    WORKLOAD_NAME,
    WORKLOAD_UID,
)
from datum_compute.api.names import instance_name, ordinal_of
from datum_compute.api.template_hash import template_hash
from datum_compute.cell.gates import gates, without_gate
from datum_compute.cell.leftovers import Leftovers
from datum_compute.cell.network import BY_CITY, Networking, by_city
from datum_compute.cell.ordering import Create, Delete, Member, steps
from datum_compute.cell.replicas import Network, deployment_status, is_paused, is_ready
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import is_foreign, waking
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists, ApiError, NotFound
from datum_compute.kube.meta import Json, missing_or_different, owner_reference, plain
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, controller_of, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished
from datum_compute.runtime.writes import Writer

BY_DEPLOYMENT = "by-deployment"
BY_UID = "by-uid"
COMPONENT = "deployment-controller"


class DeploymentController:
    """Owns the Instances of a cell's deployment, one action a pass, and the deployment's status there."""

    name = "workloaddeployment"
    sweep_role = CELL
    sweep_seconds = 600.0

    def __init__(self, fleet: Fleet, clock: Clock, *, networking: bool = False) -> None:
        self._fleet = fleet
        self._clock = clock
        self._networking = Networking() if networking else None
        self._leftovers = Leftovers(fleet, self.name)

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, WORKLOAD_DEPLOYMENT, itself, {BY_UID: _uid, BY_CITY: by_city}, when=_is_asked),
            Source(CELL, INSTANCE, _owner, {BY_DEPLOYMENT: _deployment_uid}, when=_is_settled),
            waking(WORKLOAD_DEPLOYMENT),
            self._leftovers.source(),
            *(self._networking.sources() if self._networking else ()),
        )

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Copies whose original is not on the hub: Karmada can lose sight of one in an outage."""
        return self._leftovers.candidates(plane)

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        plane = self._fleet.plane(request.plane)
        deployment = plane.informer(WORKLOAD_DEPLOYMENT).get(request.namespace, request.name)
        if deployment is None or deployment.metadata.deleting:
            self._leftovers.forget(request)
        if deployment is None or is_foreign(plane, request.namespace):
            return
        write = plane.writer(self.name)
        if deployment.metadata.deleting:
            await self._finalize(plane, write, deployment)
            return
        deployment = await write.add_finalizer(WORKLOAD_DEPLOYMENT, deployment, WORKLOAD_FINALIZER)
        if await self._leftovers.released(request, deployment, pass_):
            sentence = "The hub no longer has this deployment"
            plane.events.normal(
                COMPONENT, WORKLOAD_DEPLOYMENT, deployment, reasons.WITHDRAWN, sentence, now=self._clock.now()
            )
            await write.delete(WORKLOAD_DEPLOYMENT, deployment)
            return
        await self._work(plane, write, deployment)

    async def _work(self, plane: Plane, write: Writer, deployment: WorkloadDeployment) -> None:
        hash_ = template_hash(deployment.template_json)
        desired = deployment.spec.scale_settings.min_replicas
        place = self._place(plane, deployment)
        network = Network.READY if self._has_network(plane, deployment) else Network.PROVISIONING
        failures: list[ApiError | Unfinished] = []
        try:
            await self._act(plane, write, deployment, hash_, desired, place, network)
        except (ApiError, Unfinished) as error:
            failures.append(error)
        # Instances are made while their network is: the gate holds them, not the order.
        try:
            if self._networking is not None and network is not Network.READY:
                network = await self._networking.prepare(plane, write, deployment)
            if network is Network.READY:
                await self._open(write, self._instances(plane, deployment))
        except ApiError as error:
            failures.append(error)
        # The truth is told also when the action failed, and counts what this pass just did (R15).
        instances = self._instances(plane, deployment)
        obstacle = next((str(failure) for failure in failures if isinstance(failure, Unfinished)), "")
        status = deployment_status(deployment, instances, hash_, desired, self._clock.now(), network, obstacle)
        await write.status(WORKLOAD_DEPLOYMENT, deployment, status | place)
        for failure in failures:
            raise failure

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
        plane: Plane,
        write: Writer,
        deployment: WorkloadDeployment,
        hash_: str,
        desired: int,
        place: Json,
        network: Network,
    ) -> None:
        instances = self._instances(plane, deployment)
        await self._mend(write, deployment, instances)
        members = [_member(instance, hash_) for instance in instances]
        match next(steps(deployment.name, members, desired, paused=is_paused(deployment)), None):
            case Create(ordinal):
                # A network that is ready holds nothing up: its gate would be opened in this very pass.
                held_by = [QUOTA_GATE] if network is Network.READY else [NETWORK_GATE, QUOTA_GATE]
                try:
                    await write.create(INSTANCE, _new_instance(deployment, ordinal, hash_, place, held_by))
                except AlreadyExists:
                    await self._check_taken(plane, deployment, instance_name(deployment.name, ordinal))
            case Delete(name):
                instance = next(found for found in instances if found.name == name)
                await write.delete(INSTANCE, instance)
                if _ordinal(instance) is None:
                    sentence = f"Neither label nor name says which instance of {deployment.name} it is; it is removed"
                    plane.events.warning(
                        COMPONENT, INSTANCE, instance, reasons.STRAY_INSTANCE, sentence, now=self._clock.now()
                    )

    async def _check_taken(self, plane: Plane, deployment: WorkloadDeployment, name: str) -> None:
        """One of ours was made by a pass that our cache has not heard of; its event brings us back."""
        with suppress(NotFound):
            found = await plane.client.get(INSTANCE, name, deployment.namespace)
            if deployment.metadata.uid not in _deployment_uid(found):
                raise Unfinished(f"Instance {name} of somebody else is in the way; it has to be removed by hand")

    async def _mend(self, write: Writer, deployment: WorkloadDeployment, instances: Iterable[Instance]) -> None:
        """Outside the order: labels that drifted."""
        shared = _labels(deployment)
        for instance in instances:
            ordinal = _ordinal(instance)
            if instance.metadata.deleting or ordinal is None:
                continue
            wanted = shared | {INSTANCE_INDEX: str(ordinal)}
            if changed := missing_or_different(wanted, instance.metadata.labels):
                await write.patch(INSTANCE, instance, {"metadata": {"labels": changed}})

    async def _open(self, write: Writer, instances: Iterable[Instance]) -> None:
        """The network gate of all at once, also where networking is off and nobody else would."""
        for instance in instances:
            if not instance.metadata.deleting and NETWORK_GATE in gates(instance):
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


def _is_asked(change: Change[WorkloadDeployment]) -> bool:
    """Only what a new request looks like wakes this controller; its own status writes do not."""
    before, after = change.before, change.after
    return after is not None and (before is None or _asked(before) != _asked(after))


def _asked(deployment: WorkloadDeployment) -> tuple[object, ...]:
    metadata = deployment.metadata
    said = [metadata.annotations.get(key) for key in (UPSTREAM_GENERATION, ROLLOUT_PAUSED)]
    return metadata.uid, metadata.generation, metadata.deleting, *said


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
    template = plain(deployment.template_json)
    said = template.get("metadata") or {}
    owner = owner_reference(
        WORKLOAD_DEPLOYMENT.api_version, WORKLOAD_DEPLOYMENT.name, deployment.metadata, controller=True
    )
    body = INSTANCE.body(
        instance_name(deployment.name, ordinal),
        deployment.namespace,
        labels=(said.get("labels") or {}) | _labels(deployment) | {INSTANCE_INDEX: str(ordinal)},
        annotations=said.get("annotations"),
        # Set here, so that neither a hub copy nor a claim can exist before its finalizer does.
        finalizers=[INSTANCE_FINALIZER, CLAIM_FINALIZER],
        ownerReferences=[owner],
    )
    controller = {"templateHash": hash_, "schedulingGates": [{"name": gate} for gate in held_by]}
    return body | {"spec": template["spec"] | place | {"controller": controller}}
