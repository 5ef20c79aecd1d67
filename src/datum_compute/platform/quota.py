"""Grants and denies claims where Milo is absent, with Milo's own objects. Entry point: `QuotaBroker`."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Raw

from datum_compute.api import reasons
from datum_compute.api.quota import (
    ACTIVE,
    ALLOWANCE_BUCKET,
    CONSUMER_KIND,
    CONSUMER_NAME,
    GRANTED,
    QUOTA_NAMESPACE,
    RESOURCE_CLAIM,
    RESOURCE_GRANT,
    RESOURCE_REGISTRATION,
    AllowanceBucket,
    ConsumerRef,
    ResourceGrant,
    bucket_name,
)
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.services import RESOURCE_MANAGER_GROUP
from datum_compute.federation.roles import PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Condition, Json, plain, timestamp
from datum_compute.platform.allocation import Decision, decide
from datum_compute.platform.grants import LIMITS, registration
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Source
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Pass, Request
from datum_compute.runtime.writes import Writer

_CONDITION = {True: reasons.QUOTA_AVAILABLE, False: reasons.QUOTA_EXCEEDED}


def _whole_plane(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    """Quota is decided for a project as a whole, so that two claims never get the same last unit."""
    yield Request(plane.name, QUOTA_NAMESPACE, plane.name)


class QuotaBroker:
    """One request a project: registrations, active grants, decided claims, and buckets that show the sums."""

    name = "quota-broker"

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(PROJECT, NAMESPACE, _whole_plane),
            Source(PROJECT, RESOURCE_REGISTRATION, _whole_plane),
            Source(PROJECT, RESOURCE_GRANT, _whole_plane),
            Source(PROJECT, RESOURCE_CLAIM, _whole_plane),
            Source(PROJECT, ALLOWANCE_BUCKET, _whole_plane),
        )

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        plane = self._fleet.plane(request.plane)
        namespace = plane.informer(NAMESPACE).get("", QUOTA_NAMESPACE)
        if namespace is None or namespace.metadata.deleting:
            return  # no quota is set up (yet); claims stay pending
        write = plane.writer(self.name)
        registered = await self._register(plane, write)
        grants = [await self._activate(write, grant, registered) for grant in plane.informer(RESOURCE_GRANT).all()]
        consumer = ConsumerRef(PROJECT_KIND.name, plane.name, api_group=RESOURCE_MANAGER_GROUP)
        limits = _limits(grants, consumer)
        claims = [claim for claim in plane.informer(RESOURCE_CLAIM).all() if claim.spec.consumer_ref == consumer]
        decisions, allocated = decide(claims, limits)
        for decision in decisions:
            await self._tell(write, decision)
        for resource_type, limit in sorted(limits.items()):
            used = allocated.get(resource_type, 0)
            holders = sum(
                decision.granted and any(r.resource_type == resource_type for r in decision.claim.spec.requests)
                for decision in decisions
            )
            await self._show(plane, write, consumer, resource_type, limit, used, holders, grants)

    async def _register(self, plane: Plane, write: Writer) -> set[str]:
        for limit in LIMITS:
            if plane.informer(RESOURCE_REGISTRATION).get("", limit.name) is None:
                await write.create(RESOURCE_REGISTRATION, registration(limit))
        found = plane.informer(RESOURCE_REGISTRATION).all()
        for one in found:
            status = self._condition(one.metadata.generation, True, "RegistrationActive", "The type can be granted")
            before = one.status.conditions if one.status else ()
            await write.status(RESOURCE_REGISTRATION, one, _with(one.status_json, before, status))
        return {one.spec.resource_type for one in found}

    async def _activate(self, write: Writer, grant: ResourceGrant, registered: set[str]) -> ResourceGrant:
        unknown = sorted({allowance.resource_type for allowance in grant.spec.allowances} - registered)
        sentence = f"No registration for {', '.join(unknown)}" if unknown else "The grant counts"
        reason = reasons.VALIDATION_FAILED if unknown else "GrantActive"
        condition = self._condition(grant.metadata.generation, not unknown, reason, sentence)
        before = grant.status.conditions if grant.status else ()
        return await write.status(RESOURCE_GRANT, grant, _with(grant.status_json, before, condition))

    async def _tell(self, write: Writer, decision: Decision) -> None:
        claim, now = decision.claim, self._clock.now()
        reason = _CONDITION[decision.granted]
        before = claim.status.conditions if claim.status else ()
        condition = conditions.condition(
            GRANTED, decision.granted, reason, decision.message, generation=claim.metadata.generation, now=now
        )
        status = {
            "observedGeneration": claim.metadata.generation,
            "allocations": _allocations(decision, reason, now),
            "conditions": conditions.to_json(conditions.updated(before, [condition])),
        }
        await write.status(RESOURCE_CLAIM, claim, status)

    async def _show(
        self,
        plane: Plane,
        write: Writer,
        consumer: ConsumerRef,
        resource_type: str,
        limit: int,
        allocated: int,
        holders: int,
        grants: Sequence[ResourceGrant],
    ) -> None:
        name = bucket_name(resource_type, consumer)
        bucket = plane.informer(ALLOWANCE_BUCKET).get(QUOTA_NAMESPACE, name)
        if bucket is None:
            try:
                bucket = await write.create(ALLOWANCE_BUCKET, _bucket(name, consumer, resource_type))
            except AlreadyExists:
                bucket = await plane.client.get(ALLOWANCE_BUCKET, name, QUOTA_NAMESPACE)
        contributing = [
            {"name": grant.name, "lastObservedGeneration": grant.metadata.generation, "amount": entry.amount}
            for grant in grants
            if _counts(grant, consumer)
            for allowance in grant.spec.allowances
            if allowance.resource_type == resource_type
            for entry in allowance.buckets
        ]
        status = {
            "limit": limit,
            "allocated": allocated,
            "available": max(0, limit - allocated),
            "claimCount": holders,
            "grantCount": len(contributing),
            "observedGeneration": bucket.metadata.generation,
            "contributingGrantRefs": contributing,
        }
        if not _shows(bucket, status):
            status["lastReconciliation"] = timestamp(self._clock.now())
            await write.status(ALLOWANCE_BUCKET, bucket, status)

    def _condition(self, generation: int, status: bool, reason: str, message: str) -> Condition:
        return conditions.condition(ACTIVE, status, reason, message, generation=generation, now=self._clock.now())


def _allocations(decision: Decision, reason: str, now: datetime) -> list[Json]:
    claim, state = decision.claim, "Granted" if decision.granted else "Denied"
    earlier = {entry.resource_type: entry for entry in (claim.status.allocations if claim.status else ())}
    entries: list[Json] = []
    for request in claim.spec.requests:
        known = earlier.get(request.resource_type)
        moved = known.last_transition_time if known is not None and known.status == state else now
        entry: Json = {
            "resourceType": request.resource_type,
            "status": state,
            "reason": reason,
            "message": decision.message,
            "lastTransitionTime": timestamp(moved),
        }
        if decision.granted:
            entry["allocatedAmount"] = request.amount
            entry["allocatingBucket"] = bucket_name(request.resource_type, claim.spec.consumer_ref)
        entries.append(entry)
    return entries


def _with(status_json: Raw, before: Sequence[Condition], condition: Condition) -> Json:
    after = conditions.to_json(conditions.updated(before, [condition]))
    return plain(status_json) | {"observedGeneration": condition.observed_generation, "conditions": after}


def _counts(grant: ResourceGrant, consumer: ConsumerRef) -> bool:
    active = conditions.is_true(grant.status.conditions if grant.status else (), ACTIVE)
    same = (grant.spec.consumer_ref.kind, grant.spec.consumer_ref.name) == (consumer.kind, consumer.name)
    return active and same


def _limits(grants: Iterable[ResourceGrant], consumer: ConsumerRef) -> dict[str, int]:
    limits: dict[str, int] = {}
    for grant in grants:
        if _counts(grant, consumer):
            for allowance in grant.spec.allowances:
                amount = sum(entry.amount for entry in allowance.buckets)
                limits[allowance.resource_type] = limits.get(allowance.resource_type, 0) + amount
    return limits


def _bucket(name: str, consumer: ConsumerRef, resource_type: str) -> Json:
    labels = {CONSUMER_KIND: consumer.kind, CONSUMER_NAME: consumer.name}
    reference = {"apiGroup": consumer.api_group, "kind": consumer.kind, "name": consumer.name}
    spec = {"consumerRef": reference, "resourceType": resource_type}
    return ALLOWANCE_BUCKET.body(name, QUOTA_NAMESPACE, labels=labels) | {"spec": spec}


def _shows(bucket: AllowanceBucket, status: Json) -> bool:
    """Whether the bucket says this already; when it was last looked at is no reason to write."""
    return {key: value for key, value in plain(bucket.status_json).items() if key != "lastReconciliation"} == status
