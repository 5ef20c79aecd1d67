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
from datum_compute.cell.claims import Claims
from datum_compute.cell.events import COMPONENT, new_warnings
from datum_compute.cell.gates import gates, without_gate
from datum_compute.cell.instance import has_other_identity, instances_of_namespace
from datum_compute.cell.instance_ages import InstanceAges
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.quota import Quota
from datum_compute.cell.serving import is_instance_served_elsewhere, serving_changes
from datum_compute.cell.stopping import is_stopping
from datum_compute.cell.verdict import Verdict, reported_verdict, tier
from datum_compute.cell.write_delay import WriteDelay
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import CELL, CLAIMS
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube import conditions
from datum_compute.kube.errors import ApiError
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime import Change, Clock, Drop, Fleet, Pass, Plane, Request, Source, Unfinished, itself

NAME = "quota-gate"
FAILURE_SECONDS = 1.0  # a shorter failure is not worth a warning
RELEASE_SECONDS = 60.0  # until the deletion of a claim is tried again

_log = structlog.get_logger(__name__)


class _Failure(Struct):
    """A failure that no condition shows, with its last reported reason."""

    since: float
    reported: str = ""

    def must_report(self, reason: str, now: float) -> bool:
        """Whether the failure lasts and this reason was not reported yet; from now on it was."""
        if reason == self.reported or now - self.since < FAILURE_SECONDS:
            return False
        self.reported = reason
        return True


class QuotaGate:
    """Owns QuotaGranted of an Instance, its quota gate, and what it holds in its project's quota system.

    Its passes wait for the project's plane and are grouped by it, so that one project's slow quota system holds up
    nobody else.
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
        self._failures: dict[Request, _Failure] = {}

    def sources(self) -> Sequence[Source[Any]]:
        sources: list[Source[Any]] = [
            Source(CELL, INSTANCE, self._itself, when=_is_relevant_to_quota, scope=CELL_NAMESPACES),
            Source(CELL, NAMESPACE, instances_of_namespace, when=has_other_identity),
            serving_changes(),
        ]
        if isinstance(self._quota, Claims):
            sources.append(Source(CLAIMS, RESOURCE_CLAIM, self._quota.to_instance, best_effort=True))
        return sources

    def _itself(self, plane: Plane, change: Change[Instance]) -> Iterable[Request | Drop]:
        self._ages.note(change)
        return itself(plane, change)

    def sweep(self, plane: Plane) -> Iterable[Request]:
        """Instances that no longer exist while a claim of theirs does."""
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
            self._failures.pop(request, None)
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
            return  # a claim must not exist before its finalizer, whose addition starts the next pass
        if is_instance_served_elsewhere(cell, instance):
            return
        age = self._ages.of(instance)
        answer = await self._quota.evaluate(cell, instance, age)
        # The answer may have taken long; the verdict is written to the newest Instance.
        instance = _newest(cell, instance)
        if instance.metadata.deleting:
            return  # the event of its deletion starts the next pass
        verdict = reported_verdict(instance, answer)
        self._schedule(answer if answer.waits else verdict, age, pass_)
        if verdict.fresh:
            self._delay.forget(request)
        # Most claims are decided in a moment; only longer waits are written.
        is_pending = verdict.status == "Unknown" and not _reports(instance, verdict)
        if (delay := self._delay.remaining(request, QUOTA_GRANTED if is_pending else None)) > 0:
            pass_.no_later_than(delay)
            return
        instance = await self._report(pass_, instance, verdict, answer)
        # In the same pass: a granted Instance might wait for ever for another event.
        if verdict.granted and QUOTA_GATE in gates(instance):
            await pass_.write.patch_if_unchanged(instance, without_gate(instance, QUOTA_GATE))
        if answer.error is not None:
            raise answer.error
        if answer.failed and not answer.waits:
            raise Unfinished(answer.message)

    async def _release(self, pass_: Pass, instance: Instance) -> None:
        cell = pass_.plane
        # Quota counts what runs, so the claim is deleted last; the end of the stop starts the next pass.
        if CLAIM_FINALIZER not in instance.metadata.finalizers or is_stopping(instance):
            return
        left_behind = await self._quota.release(cell, instance)
        # Others may have removed their finalizers meanwhile, and the list is written as a whole.
        await pass_.write.remove_finalizers(_newest(cell, instance), CLAIM_FINALIZER)
        if left_behind is not None:  # reported last, because a conflict repeats the pass
            key = f"{instance.namespace}/{instance.name}"
            _log.error("quota claim left behind", cell=cell.name, instance=key, reason=left_behind.reason)
            self._metrics.left_behind(left_behind.reason)
            pass_.events.warning(instance, left_behind.reason, left_behind.message)

    def _schedule(self, verdict: Verdict, age: timedelta, pass_: Pass) -> None:
        """Declares the floor. Every requeue is logged, so that a dropped one shows as a missing line."""
        seconds = tier(verdict, age)
        if seconds is not None:
            age_seconds = age.total_seconds()
            request, reason = str(pass_.request), verdict.reason
            _log.debug("quota requeue", request=request, reason=reason, tier=seconds, age=age_seconds)
            pass_.no_later_than(seconds)

    async def _report(self, pass_: Pass, instance: Instance, verdict: Verdict, answer: Verdict) -> Instance:
        """Writes the condition, and emits events for what is new in it or cannot be shown by it."""
        after = await self._write(pass_, instance, verdict)
        warnings = new_warnings(instance, after)
        if answer.failed and answer.denied and answer.reason != verdict.reason:
            now = asyncio.get_running_loop().time()
            if self._failures.setdefault(pass_.request, _Failure(now)).must_report(answer.reason, now):
                warnings.append((answer.reason, answer.message))
        else:
            self._failures.pop(pass_.request, None)
        for reason, message in warnings:
            pass_.events.warning(after, reason, message)
        return after

    async def _write(self, pass_: Pass, instance: Instance, verdict: Verdict) -> Instance:
        if _reports(instance, verdict):
            return instance  # a later generation is recorded together with Ready
        generation, now = instance.metadata.generation, pass_.now()
        wanted = conditions.condition(
            QUOTA_GRANTED, verdict.status, verdict.reason, verdict.message, generation=generation, now=now
        )
        return await pass_.write.status(instance, conditions.status_with(instance, [wanted]))


def _newest(cell: Plane, instance: Instance) -> Instance:
    """The Instance as the cache has it now; unchanged if the cache no longer has it."""
    newest = cell.informer(INSTANCE).get(instance.namespace, instance.name)
    return newest if newest is not None and newest.metadata.uid == instance.metadata.uid else instance


def _reports(instance: Instance, verdict: Verdict) -> bool:
    return _granted(instance) == (verdict.status, verdict.reason, verdict.message)


def _granted(instance: Instance) -> tuple[str, str, str] | None:
    quota = conditions.find(conditions.of(instance), QUOTA_GRANTED)
    return (quota.status, quota.reason, quota.message) if quota is not None else None


def _is_relevant_to_quota(change: Change[Instance]) -> bool:
    """Whether more changed than what the provider reports, for which the claim need not be read."""
    if change.before is None or change.after is None:
        return True
    return _relevant_fields(change.before) != _relevant_fields(change.after)


def _relevant_fields(instance: Instance) -> tuple[object, ...]:
    metadata = instance.metadata
    has_finalizer = CLAIM_FINALIZER in metadata.finalizers
    return metadata.uid, metadata.deleting, is_stopping(instance), has_finalizer, gates(instance), _granted(instance)
