"""Gates an Instance, says whether it is ready, and copies it to the hub. Entry point: `InstanceController`."""

from collections.abc import Sequence
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, QUOTA_GATE, QUOTA_GRANTED, Instance
from datum_compute.api.labels import CLAIM_FINALIZER, INSTANCE_FINALIZER
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.cell.deployment import gates, without_gate
from datum_compute.cell.quota import Claims, Quota, Verdict, tier
from datum_compute.cell.readiness import Decided, readiness
from datum_compute.cell.writeback import WriteBack
from datum_compute.federation.roles import CELL, CLAIMS, HUB
from datum_compute.kube import conditions
from datum_compute.kube.errors import ApiError, Timeout, Unavailable
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, plain
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source, itself
from datum_compute.runtime.fleet import Fleet, NotEngaged
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Pass, Request, Unfinished
from datum_compute.runtime.writes import Writer

NAME = "instance"
PATIENCE_SECONDS = 0.2


class InstanceController:
    """Owns Ready and QuotaGranted of an Instance, its quota gate, its claim, and its copy on the hub."""

    name = NAME

    def __init__(self, fleet: Fleet, clock: Clock, quota: Quota, write_back: WriteBack | None) -> None:
        self._fleet = fleet
        self._clock = clock
        self._quota = quota
        self._write_back = write_back

    def sources(self) -> Sequence[Source[Any]]:
        found: list[Source[Any]] = [Source(CELL, INSTANCE, itself), Source(CELL, NAMESPACE)]
        if isinstance(self._quota, Claims):
            found.append(Source(CLAIMS, RESOURCE_CLAIM, self._quota.to_instance))
        if self._write_back is not None:
            found.append(Source(HUB, NAMESPACE))
            found.append(Source(HUB, WORKLOAD_DEPLOYMENT, self._write_back.of_owner))
            found.append(Source(HUB, INSTANCE, self._write_back.of_copy))
        return found

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        cell = self._fleet.plane(request.plane)
        instance = cell.informer(INSTANCE).get(request.namespace, request.name)
        if instance is None:
            if self._write_back is not None:  # left behind when the hub was out of reach
                await self._write_back.remove(cell, request.namespace, request.name)
            return
        write = cell.writer(self.name)
        if instance.metadata.deleting:
            await self._finalize(cell, write, instance)
            return
        instance = await self._hold(write, instance)
        verdict = _without_harm(instance, await self._quota.evaluate(cell, instance))
        now = self._clock.now()
        pass_.no_later_than(tier(verdict, now - (instance.metadata.creation_timestamp or now)))
        if verdict.fresh:
            # Mostly the answer comes in a moment. Only who really waits is written about, three times on three planes.
            pass_.no_later_than(PATIENCE_SECONDS)
            return

        instance = await write.status(INSTANCE, instance, self._status(instance, verdict))
        # In the same pass: a grant whose gate waits for another event may wait for ever. Before the hub is written:
        # one that is away must not keep an Instance from starting.
        if verdict.granted and QUOTA_GATE in gates(instance):
            await write.patch_seen(INSTANCE, instance, without_gate(instance, QUOTA_GATE))
            return  # the event of this patch brings us back at once, with one copy to write instead of two
        if self._write_back is not None:
            await self._write_back.write(cell, instance)
        if verdict.failed:
            raise Unfinished(verdict.message)

    async def _hold(self, write: Writer, instance: Instance) -> Instance:
        """Our own creator sets both finalizers; this is for Instances made by others."""
        missing = [name for name in (INSTANCE_FINALIZER, CLAIM_FINALIZER) if name not in instance.metadata.finalizers]
        if not missing:
            return instance
        finalizers = [*instance.metadata.finalizers, *missing]
        return await write.patch_seen(INSTANCE, instance, {"metadata": {"finalizers": finalizers}})

    async def _finalize(self, cell: Plane, write: Writer, instance: Instance) -> None:
        """Hub copy and claim do not wait for each other; what is done is let go of, what failed is tried again."""
        done: list[str] = []
        failures: list[ApiError] = []
        if INSTANCE_FINALIZER in instance.metadata.finalizers:
            try:
                await self._remove_copy(cell, instance)
                done.append(INSTANCE_FINALIZER)
            except ApiError as error:
                failures.append(error)
        if CLAIM_FINALIZER in instance.metadata.finalizers:
            try:
                await self._quota.release(cell, instance)
                done.append(CLAIM_FINALIZER)
            except ApiError as error:
                failures.append(error)
        await write.remove_finalizers(INSTANCE, instance, *done)
        for failure in failures:
            raise failure

    async def _remove_copy(self, cell: Plane, instance: Instance) -> None:
        """A hub that does not answer never stops a site (R22): the copy is swept when it returns."""
        if self._write_back is None:
            return
        try:
            await self._write_back.remove(cell, instance.namespace, instance.name)
        except (Unavailable, Timeout, NotEngaged):
            return

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


def _without_harm(instance: Instance, verdict: Verdict) -> Verdict:
    """An admitted Instance stays so while the quota system cannot be asked; only a real verdict changes it (R18)."""
    granted = conditions.find(instance.status.conditions if instance.status else (), QUOTA_GRANTED)
    if verdict.failed and QUOTA_GATE not in gates(instance) and granted is not None and granted.status == "True":
        return Verdict("True", granted.reason, granted.message, failed=True)
    return verdict
