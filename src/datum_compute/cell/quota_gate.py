"""Keeps an Instance from starting until its project's quota allows it. Entry point: `QuotaGate`."""

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.api.instance import INSTANCE, QUOTA_GATE, QUOTA_GRANTED, Instance
from datum_compute.api.labels import CLAIM_FINALIZER
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.cell.events import COMPONENT, new_warnings
from datum_compute.cell.gates import gates, without_gate
from datum_compute.cell.instance import in_namespace, is_identified
from datum_compute.cell.instance_ages import InstanceAges
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.quota import Claims, Quota
from datum_compute.cell.serving import is_instance_served_elsewhere, serving_changes
from datum_compute.cell.stopping import is_stopping
from datum_compute.cell.verdict import Verdict, kept, tier
from datum_compute.cell.write_delay import WriteDelay
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import CELL, CLAIMS
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.kube.errors import ApiError
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime import Change, Clock, Drop, Fleet, Pass, Plane, Request, Source, Unfinished, itself

NAME = "quota-gate"
TROUBLE_SECONDS = 1.0
RELEASE_SECONDS = 60.0  # until a claim that could not be removed is tried again

_log = structlog.get_logger(__name__)


class _Trouble(Struct):
    """A failure that lasts, and what was told of it; a plane that is only about to be engaged is none."""

    since: float
    told: str = ""

    def is_news(self, reason: str, now: float) -> bool:
        if reason == self.told or now - self.since < TROUBLE_SECONDS:
            return False
        self.told = reason
        return True


class QuotaGate:
    """Owns QuotaGranted of an Instance, its quota gate, and what it holds in its project's quota system.

    Its passes wait for the project's plane, so that is what they are grouped by: one project's slow quota system holds
    up nobody else.
    """

    name = NAME
    component = COMPONENT
    sweep_role = CLAIMS
    sweep_seconds = 600.0

    def __init__(self, fleet: Fleet, clock: Clock, quota: Quota, *, metrics: Metrics | None = None) -> None:
        self._fleet = fleet
        self._quota = quota
        self._metrics = metrics or Metrics()
        self._delay = WriteDelay()
        self._ages = InstanceAges(clock)
        self._troubles: dict[Request, _Trouble] = {}  # failures that no condition shows

    def sources(self) -> Sequence[Source[Any]]:
        sources: list[Source[Any]] = [
            Source(CELL, INSTANCE, self._itself, when=_concerns_quota, scope=CELL_NAMESPACES),
            Source(CELL, NAMESPACE, in_namespace, when=is_identified),
            serving_changes(),
        ]
        if isinstance(self._quota, Claims):
            sources.append(Source(CLAIMS, RESOURCE_CLAIM, self._quota.to_instance, best_effort=True))
        return sources

    def _itself(self, plane: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
        self._ages.note(change)
        return itself(plane, change)

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Instances that are gone while a claim of theirs is left."""
        return self._quota.left_behind(plane) if isinstance(self._quota, Claims) else ()

    def group(self, request: Request) -> Hashable:
        if not self._fleet.has(request.plane):
            return request.plane
        namespace = self._fleet.plane(request.plane).informer(NAMESPACE).get("", request.namespace)
        identity = Identity.of(namespace.metadata.labels) if namespace is not None else None
        return (request.plane, identity.project) if identity is not None else request.plane

    async def reconcile(self, pass_: Pass) -> None:
        request, cell = pass_.request, pass_.plane
        instance = pass_.get(INSTANCE)
        if instance is None:
            self._delay.forget(request)
            self._troubles.pop(request, None)
            self._quota.forget(request)
            await self._quota.sweep(cell, request)
            return
        if instance.metadata.deleting:
            try:
                await self._release(pass_, instance)
            except (ApiError, Unfinished):
                pass_.no_later_than(RELEASE_SECONDS)
                raise
            return
        if CLAIM_FINALIZER not in instance.metadata.finalizers:
            return  # a claim must not exist before it; the event of its addition brings us back
        if is_instance_served_elsewhere(cell, instance):
            return
        age = self._ages.of(instance)
        asked = await self._quota.evaluate(cell, instance, age)
        # Asking may have taken long. What is decided is written to the Instance as it is by now.
        instance = _newest(cell, instance)
        if instance.metadata.deleting:
            return  # the event of that brings us back
        verdict = kept(instance, asked)
        self._come_back(asked if asked.waits else verdict, age, pass_)
        if verdict.fresh:
            self._delay.forget(request)
        # Mostly a claim is decided in a moment; only who really waits is written about.
        is_unanswered = verdict.status == "Unknown" and not _says(instance, verdict)
        if (left := self._delay.left(request, QUOTA_GRANTED if is_unanswered else None)) > 0:
            pass_.no_later_than(left)
            return
        instance = await self._tell(pass_, instance, verdict, asked)
        # In the same pass: a grant whose gate waits for another event may wait for ever.
        if verdict.granted and QUOTA_GATE in gates(instance):
            await pass_.write.patch_if_unchanged(instance, without_gate(instance, QUOTA_GATE))
        if asked.error is not None:
            raise asked.error
        if asked.failed and not asked.waits:
            raise Unfinished(asked.message)

    async def _release(self, pass_: Pass, instance: Instance) -> None:
        cell = pass_.plane
        # Quota counts what runs, so the claim goes last; the event of its stop brings us back.
        if CLAIM_FINALIZER not in instance.metadata.finalizers or is_stopping(instance):
            return
        left_behind = await self._quota.release(cell, instance)
        # Others let go of it meanwhile; the list of finalizers is written as it is by now.
        await pass_.write.remove_finalizers(_newest(cell, instance), CLAIM_FINALIZER)
        if left_behind is not None:  # told only now, because a conflict brings us here again
            subject = f"{instance.namespace}/{instance.name}"
            _log.error("quota claim left behind", cell=cell.name, instance=subject, reason=left_behind.reason)
            self._metrics.left_behind(left_behind.reason)
            pass_.events.warning(instance, left_behind.reason, left_behind.message)

    def _come_back(self, verdict: Verdict, age: timedelta, pass_: Pass) -> None:
        """Declares the floor; a missing line in the log proves that a requeue was dropped."""
        again = tier(verdict, age)
        if again is not None:
            seconds = age.total_seconds()
            _log.debug("quota requeue", request=str(pass_.request), reason=verdict.reason, tier=again, age=seconds)
            pass_.no_later_than(again)

    async def _tell(self, pass_: Pass, instance: Instance, verdict: Verdict, asked: Verdict) -> Instance:
        """Writes the condition where it changed, and what is new in it as an event."""
        after = await self._write(pass_, instance, verdict)
        warnings = new_warnings(instance, after)
        if asked.failed and asked.denied and asked.reason != verdict.reason:
            trouble = self._troubles.setdefault(pass_.request, _Trouble(asyncio.get_running_loop().time()))
            if trouble.is_news(asked.reason, asyncio.get_running_loop().time()):
                warnings.append((asked.reason, asked.message))
        else:
            self._troubles.pop(pass_.request, None)
        for reason, message in warnings:
            pass_.events.warning(after, reason, message)
        return after

    async def _write(self, pass_: Pass, instance: Instance, verdict: Verdict) -> Instance:
        if _says(instance, verdict):
            return instance  # a later generation that it also holds for is noted by who writes Ready
        generation, now = instance.metadata.generation, pass_.now()
        wanted = conditions.condition(
            QUOTA_GRANTED, verdict.status, verdict.reason, verdict.message, generation=generation, now=now
        )
        return await pass_.write.status(instance, conditions.status_with(instance, [wanted]))


def _newest(cell: Plane, seen: Instance) -> Instance:
    """The Instance as the cache has it by now; as it was seen when it is gone."""
    newest = cell.informer(INSTANCE).get(seen.namespace, seen.name)
    return newest if newest is not None and newest.metadata.uid == seen.metadata.uid else seen


def _says(instance: Instance, verdict: Verdict) -> bool:
    return _granted(instance) == (verdict.status, verdict.reason, verdict.message)


def _granted(instance: Instance) -> tuple[str, str, str] | None:
    quota = conditions.find(conditions.of(instance), QUOTA_GRANTED)
    return (quota.status, quota.reason, quota.message) if quota is not None else None


def _concerns_quota(change: Change[Instance]) -> bool:
    """Not what the provider reports: the claim need not be read for that."""
    if change.before is None or change.after is None:
        return True
    return _seen(change.before) != _seen(change.after)


def _seen(instance: Instance) -> tuple[object, ...]:
    metadata = instance.metadata
    is_held = CLAIM_FINALIZER in metadata.finalizers
    return metadata.uid, metadata.deleting, is_stopping(instance), is_held, gates(instance), _granted(instance)
