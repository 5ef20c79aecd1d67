"""Holds an Instance at its gates and says whether it is ready. Entry point: `InstanceController`."""

from collections.abc import Sequence
from typing import Any

from datum_compute.api.instance import INSTANCE, QUOTA_GATE, QUOTA_GRANTED, Instance
from datum_compute.api.labels import CLAIM_FINALIZER, INSTANCE_FINALIZER
from datum_compute.cell.deployment import gates, without_gate
from datum_compute.cell.quota import Quota, Verdict
from datum_compute.cell.readiness import Decided, readiness
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.meta import Json, plain
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Pass, Request
from datum_compute.runtime.writes import Writer


class InstanceController:
    """Owns Ready and QuotaGranted of an Instance, its quota gate, and its two finalizers."""

    name = "instance"

    def __init__(self, fleet: Fleet, clock: Clock, quota: Quota) -> None:
        self._fleet = fleet
        self._clock = clock
        self._quota = quota

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(CELL, INSTANCE, itself),)

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        plane = self._fleet.plane(request.plane)
        instance = plane.informer(INSTANCE).get(request.namespace, request.name)
        if instance is None:
            return
        write = plane.writer(self.name)
        if instance.metadata.deleting:
            await self._finalize(write, instance)
            return
        instance = await self._hold(write, instance)
        verdict = await self._quota.evaluate(instance)
        instance = await write.status(INSTANCE, instance, self._status(instance, verdict))
        # In the same pass: a grant whose gate waits for another event may wait for ever.
        if verdict.granted and QUOTA_GATE in gates(instance):
            await write.patch_seen(INSTANCE, instance, without_gate(instance, QUOTA_GATE))

    async def _hold(self, write: Writer, instance: Instance) -> Instance:
        """Our own creator sets both finalizers; this is for Instances made by others."""
        missing = [name for name in (INSTANCE_FINALIZER, CLAIM_FINALIZER) if name not in instance.metadata.finalizers]
        if not missing:
            return instance
        finalizers = [*instance.metadata.finalizers, *missing]
        return await write.patch_seen(INSTANCE, instance, {"metadata": {"finalizers": finalizers}})

    async def _finalize(self, write: Writer, instance: Instance) -> None:
        if CLAIM_FINALIZER in instance.metadata.finalizers:
            await self._quota.release(instance)
        await write.remove_finalizers(INSTANCE, instance, INSTANCE_FINALIZER, CLAIM_FINALIZER)

    def _status(self, instance: Instance, verdict: Verdict) -> Json:
        before = instance.status.conditions if instance.status else ()
        quota = Decided(QUOTA_GRANTED, verdict.status, verdict.reason, verdict.message)
        decided = [quota, *readiness(gates(instance), before, verdict)]
        generation, now = instance.metadata.generation, self._clock.now()
        wanted = [
            conditions.condition(one.type, one.status, one.reason, one.message, generation=generation, now=now)
            for one in decided
        ]
        after = conditions.updated(before, wanted)
        return plain(instance.status_json) | {"conditions": conditions.to_json(after)}
