"""Says whether an Instance is ready, and lets go of it when it is deleted. Entry point: `InstanceController`.

Everything it needs is in the cell, so that neither a project's quota system nor the hub can hold it up.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api import reasons
from datum_compute.api.instance import INSTANCE, NETWORK_GATE, PROGRAMMED, QUOTA_GATE, QUOTA_GRANTED, READY, Instance
from datum_compute.api.labels import CLAIM_FINALIZER, DEPLOYMENT_NAME, INSTANCE_FINALIZER
from datum_compute.api.networking import NETWORK_BINDING, NetworkBinding
from datum_compute.cell.events import COMPONENT, new_warnings
from datum_compute.cell.gates import gates
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

_STOPS = Decided(READY, "False", reasons.STOPPING, "The instance is stopping")


class InstanceController:
    """Owns Ready of an Instance, the provider's conditions until they are its own, and the finalizers.

    `waits_for_hub` leaves the finalizer that stands for the hub copy to whoever removes the copy.
    """

    name = "instance"
    component = COMPONENT

    def __init__(self, *, networking: bool = False, waits_for_hub: bool = False) -> None:
        self._networking = networking
        self._waits_for_hub = waits_for_hub
        self._delay = WriteDelay()

    def sources(self) -> Sequence[Source[Any]]:
        sources: list[Source[Any]] = [
            Source(CELL, INSTANCE, itself, when=concerns_us, scope=CELL_NAMESPACES),
            Source(CELL, NAMESPACE, in_namespace, when=is_identified),
        ]
        if self._networking:
            sources.append(Source(CELL, NETWORK_BINDING, _of_binding, optional=True))
        return sources

    async def reconcile(self, pass_: Pass) -> None:
        request, write = pass_.request, pass_.write
        instance = pass_.get(INSTANCE)
        if instance is None:
            self._delay.forget(request)
            return
        if instance.metadata.deleting and not is_stopping(instance):
            self._delay.forget(request)
            if not self._waits_for_hub:
                await write.remove_finalizers(instance, INSTANCE_FINALIZER)
            return
        if not instance.metadata.deleting:
            instance = await self._hold(write, instance)
        status = self._status(pass_, instance)
        if same_json(instance.status_json, encode(status)):
            self._delay.forget(request)
            return
        # Mostly quota and provider answer and stop in a moment; only who really waits is written about, on 3 planes.
        if (left := self._delay.left(request, _unanswered(instance))) > 0:
            pass_.no_later_than(left)
            return
        after = await write.status(instance, status)
        for reason, message in new_warnings(instance, after):
            pass_.events.warning(after, reason, message)

    def is_current(self, cell: Handle, instance: Instance) -> bool:
        """Whether Ready says what follows from the rest of the Instance, and the gates do what the verdict says."""
        if QUOTA_GATE in gates(instance) and conditions.is_true(conditions.of(instance), QUOTA_GRANTED):
            return False  # it is being opened
        return same_json(instance.status_json, encode(self._status(cell, instance)))

    async def _hold(self, write: Writer, instance: Instance) -> Instance:
        """Our own creator sets both finalizers; this is for Instances made by others."""
        missing = [name for name in (INSTANCE_FINALIZER, CLAIM_FINALIZER) if name not in instance.metadata.finalizers]
        if not missing:
            return instance
        finalizers = [*instance.metadata.finalizers, *missing]
        return await write.patch_if_unchanged(instance, {"metadata": {"finalizers": finalizers}})

    def _status(self, cell: Handle, instance: Instance) -> Json:
        before = conditions.of(instance)
        failure = failure_of(cell.plane, instance) if self._networking and gates(instance) else None
        decided = [_STOPS] if is_stopping(instance) else readiness(gates(instance), before, failure)
        if (quota := conditions.find(before, QUOTA_GRANTED)) is not None:
            # A claim is never changed, so that its verdict holds for every generation of the Instance. Saying so here
            # saves a write of its own after each gate that is removed.
            decided.append(Decided(QUOTA_GRANTED, quota.status, quota.reason, quota.message))
        generation, now = instance.metadata.generation, cell.now()
        wanted = [
            conditions.condition(one.type, one.status, one.reason, one.message, generation=generation, now=now)
            for one in decided
        ]
        return conditions.status_with(instance, wanted)


def _unanswered(instance: Instance) -> object:
    """What an Instance waits for that mostly comes in a moment; None when it waits for nothing of the kind."""
    seen = conditions.of(instance)
    if is_stopping(instance):
        return reasons.STOPPING
    quota = conditions.find(seen, QUOTA_GRANTED)
    if quota is None or quota.status == "Unknown":
        return QUOTA_GRANTED
    programmed = conditions.find(seen, PROGRAMMED)
    is_silent = programmed is None or programmed.reason == reasons.PENDING
    left = set(gates(instance))
    if quota.status != "True" or not is_silent or not left <= {NETWORK_GATE, QUOTA_GATE}:
        return None
    return QUOTA_GATE if QUOTA_GATE in left else PROGRAMMED


def is_identified(change: Change[Namespace]) -> bool:
    """A namespace that says something else about whose it is; who waits for that need not wait for the next tier."""
    if change.before is None or change.after is None:
        return False
    return Identity.of(change.before.metadata.labels) != Identity.of(change.after.metadata.labels)


def concerns_us(change: Change[Instance]) -> bool:
    """Not so: annotations, and finalizers that others set or lift, unless it was the last that kept an Instance from
    going. A pass for these would come before its time."""
    if change.before is None or change.after is None:
        return True
    return _seen(change.before) != _seen(change.after)


def _seen(instance: Instance) -> tuple[object, ...]:
    metadata = instance.metadata
    held = [name for name in (INSTANCE_FINALIZER, CLAIM_FINALIZER) if name in metadata.finalizers]
    return (
        *(metadata.uid, metadata.generation, metadata.deleting, metadata.labels, metadata.owner_references),
        *(is_stopping(instance), held, bytes(instance.status_json)),
    )


def in_namespace(plane: Plane, change: Change[Namespace]) -> Iterable[Request | Drop]:
    for instance in plane.informer(INSTANCE).all(change.object.name):
        yield Request(plane.name, instance.namespace, instance.name)


def _of_binding(plane: Plane, change: Change[NetworkBinding]) -> Iterable[Request | Drop]:
    """The Instances of the deployment that a binding is for, while they wait."""
    owner = change.object.metadata.controller
    for instance in plane.informer(INSTANCE).all(change.object.namespace) if owner is not None else ():
        if owner is not None and instance.metadata.labels.get(DEPLOYMENT_NAME) == owner.name and gates(instance):
            yield Request(plane.name, instance.namespace, instance.name)
