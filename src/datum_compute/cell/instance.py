"""Reports whether an Instance is ready, and releases it when it is deleted. Entry point: `InstanceController`.

It uses only the cell's plane, so that neither a project's quota system nor the hub can hold it up.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from datum_compute.api import reasons
from datum_compute.api.instance import INSTANCE, NETWORK_GATE, PROGRAMMED, QUOTA_GATE, QUOTA_GRANTED, READY, Instance
from datum_compute.api.labels import CLAIM_FINALIZER, DEPLOYMENT_NAME, INSTANCE_FINALIZER
from datum_compute.api.networking import NETWORK_BINDING, NetworkBinding
from datum_compute.cell.events import COMPONENT, new_warnings
from datum_compute.cell.gates import closed_gates, gates
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.network import failure_of
from datum_compute.cell.readiness import Decided, readiness
from datum_compute.cell.stopping import is_stopping
from datum_compute.cell.write_delay import WriteDelay
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json, encode, same_json
from datum_compute.runtime import Change, Drop, Handle, Pass, Plane, Request, Source, Writer, itself

_STOPPING = Decided(READY, "False", reasons.STOPPING, "The instance is stopping")


class InstanceController:
    """Owns Ready of an Instance, the provider's conditions until the provider sets them, and the finalizers.

    With `waits_for_hub`, the finalizer for the hub copy is left to the controller that deletes the copy.
    """

    name = "instance"
    component = COMPONENT

    def __init__(
        self, *, networking: bool = False, waits_for_hub: bool = False, metrics: Metrics | None = None
    ) -> None:
        self._metrics = metrics or Metrics()
        self._networking = networking
        self._waits_for_hub = waits_for_hub
        self._delay = WriteDelay()

    def sources(self) -> Sequence[Source[Any]]:
        sources: list[Source[Any]] = [
            Source(CELL, INSTANCE, itself, when=is_relevant, scope=CELL_NAMESPACES),
            Source(CELL, NAMESPACE, instances_of_namespace, when=has_other_identity),
        ]
        if self._networking:
            sources.append(Source(CELL, NETWORK_BINDING, _of_binding, optional=True))
        return sources

    async def reconcile(self, pass_: Pass) -> None:
        request, write = pass_.request, pass_.write
        instance = pass_.get(INSTANCE)
        if instance is None or instance.metadata.deleting:
            self._metrics.gated(request, ())
        if instance is None:
            self._delay.forget(request)
            return
        if instance.metadata.deleting and not is_stopping(instance):
            self._delay.forget(request)
            if not self._waits_for_hub:
                await write.remove_finalizers(instance, INSTANCE_FINALIZER)
            return
        if not instance.metadata.deleting:
            instance = await _with_finalizers(write, instance)
        status = self._status(pass_, instance)
        if not instance.metadata.deleting:
            self._metrics.gated(request, closed_gates(gates(instance), status))
        if same_json(instance.status_json, encode(status)):
            self._delay.forget(request)
            return
        # Quota and provider mostly answer in a moment; only longer waits are worth writes on three planes.
        if (delay := self._delay.remaining(request, _awaited(instance))) > 0:
            pass_.no_later_than(delay)
            return
        after = await write.status(instance, status)
        for reason, message in new_warnings(instance, after):
            pass_.events.warning(after, reason, message)

    def disengaged(self, plane: Plane) -> None:
        self._metrics.forget(lambda request: request.plane == plane.name)

    def is_current(self, cell: Handle, instance: Instance) -> bool:
        """Whether Ready follows from the rest of the Instance, and the gates from the verdict."""
        if QUOTA_GATE in gates(instance) and conditions.is_true(conditions.of(instance), QUOTA_GRANTED):
            return False  # the gate is being opened
        return same_json(instance.status_json, encode(self._status(cell, instance)))

    def _status(self, cell: Handle, instance: Instance) -> Json:
        before = conditions.of(instance)
        failure = failure_of(cell.plane, instance) if self._networking and gates(instance) else None
        decided = [_STOPPING] if is_stopping(instance) else readiness(gates(instance), before, failure)
        if (quota := conditions.find(before, QUOTA_GRANTED)) is not None:
            # A claim is never changed, so its verdict holds for every generation of the Instance. Updating the
            # generation here saves a separate write after each gate that is opened.
            decided.append(Decided(QUOTA_GRANTED, quota.status, quota.reason, quota.message))
        generation, now = instance.metadata.generation, cell.now()
        wanted = [
            conditions.condition(*msgspec.structs.astuple(condition), generation=generation, now=now)
            for condition in decided
        ]
        return conditions.status_with(instance, wanted)


async def _with_finalizers(write: Writer, instance: Instance) -> Instance:
    """Our own Instances are created with both finalizers; this is for Instances created by others."""
    missing = [name for name in (INSTANCE_FINALIZER, CLAIM_FINALIZER) if name not in instance.metadata.finalizers]
    if not missing:
        return instance
    finalizers = [*instance.metadata.finalizers, *missing]
    return await write.patch_if_unchanged(instance, {"metadata": {"finalizers": finalizers}})


def _awaited(instance: Instance) -> object:
    """The answer that an Instance waits for and that mostly comes in a moment; None when there is none."""
    current = conditions.of(instance)
    if is_stopping(instance):
        return reasons.STOPPING
    quota = conditions.find(current, QUOTA_GRANTED)
    if quota is None or quota.status == "Unknown":
        return QUOTA_GRANTED
    programmed = conditions.find(current, PROGRAMMED)
    is_silent = programmed is None or programmed.reason == reasons.PENDING
    left = set(gates(instance))
    if quota.status != "True" or not is_silent or not left <= {NETWORK_GATE, QUOTA_GATE}:
        return None
    return QUOTA_GATE if QUOTA_GATE in left else PROGRAMMED


def has_other_identity(change: Change[Namespace]) -> bool:
    """Whether a namespace names another project, so that its Instances need not wait for the next tier."""
    if change.before is None or change.after is None:
        return False
    return Identity.of(change.before.metadata.labels) != Identity.of(change.after.metadata.labels)


def is_relevant(change: Change[Instance]) -> bool:
    """Whether more changed than annotations and others' finalizers. Their last finalizer counts, because the Instance
    has stopped without it; a pass for any other would be premature."""
    if change.before is None or change.after is None:
        return True
    return _relevant_fields(change.before) != _relevant_fields(change.after)


def _relevant_fields(instance: Instance) -> tuple[object, ...]:
    metadata = instance.metadata
    finalizers = [name for name in (INSTANCE_FINALIZER, CLAIM_FINALIZER) if name in metadata.finalizers]
    return (
        *(metadata.uid, metadata.generation, metadata.deleting, metadata.labels, metadata.owner_references),
        *(is_stopping(instance), finalizers, bytes(instance.status_json)),
    )


def instances_of_namespace(plane: Plane, change: Change[Namespace]) -> Iterable[Request | Drop]:
    for instance in plane.informer(INSTANCE).all(change.object.name):
        yield Request(plane.name, instance.namespace, instance.name)


def _of_binding(plane: Plane, change: Change[NetworkBinding]) -> Iterable[Request | Drop]:
    """The waiting Instances of the deployment that owns a binding."""
    owner = change.object.metadata.controller
    for instance in plane.informer(INSTANCE).all(change.object.namespace) if owner is not None else ():
        if owner is not None and instance.metadata.labels.get(DEPLOYMENT_NAME) == owner.name and gates(instance):
            yield Request(plane.name, instance.namespace, instance.name)
