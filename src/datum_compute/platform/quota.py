"""Grants and denies quota claims in place of Milo, with the same objects. Entry point: `QuotaBroker`."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

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
    ResourceClaim,
    ResourceGrant,
    ResourceRegistration,
    bucket_name,
)
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.services import RESOURCE_MANAGER_GROUP
from datum_compute.federation.roles import PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Condition, Json, as_dict, timestamp
from datum_compute.platform.allocation import Decision, Pool, State, decide, decide_as_milo_does
from datum_compute.platform.claim_rules import violation
from datum_compute.platform.grants import LIMITS, registration
from datum_compute.runtime import Change, Pass, Plane, Request, Source
from datum_compute.runtime.caches.informer import UNSERVED_SECONDS

_REASONS = {
    State.GRANTED: reasons.QUOTA_AVAILABLE,
    State.DENIED: reasons.QUOTA_EXCEEDED,
    State.PENDING: reasons.PENDING_EVALUATION,
}


def _whole_plane(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    """One request per project, so that two claims never get the same last unit."""
    yield Request(plane.name, QUOTA_NAMESPACE, plane.name)


_KINDS = (RESOURCE_REGISTRATION, RESOURCE_GRANT, RESOURCE_CLAIM, ALLOWANCE_BUCKET)


class QuotaBroker:
    """Activates registrations and grants, decides claims, and shows the sums in buckets, for a project at a time.

    In strict mode it decides as Milo does, rough edges included: a denial is final, resource types are decided
    separately, and a partly granted claim keeps its share reserved. That mode proves that cells can cope with Milo.
    """

    name = "quota-broker"

    def __init__(self, *, strict: bool = False) -> None:
        self._decide = self._decide_as_milo_does if strict else self._decide_together

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(PROJECT, NAMESPACE, _whole_plane),
            Source(PROJECT, RESOURCE_REGISTRATION, _whole_plane, optional=True),
            Source(PROJECT, RESOURCE_GRANT, _whole_plane, optional=True),
            Source(PROJECT, RESOURCE_CLAIM, _whole_plane, optional=True),
            Source(PROJECT, ALLOWANCE_BUCKET, _whole_plane, optional=True),
        )

    async def reconcile(self, pass_: Pass) -> None:
        namespace = pass_.informer(NAMESPACE).get("", QUOTA_NAMESPACE)
        if namespace is None or namespace.metadata.deleting:
            return  # quota is not set up (yet), so claims stay pending
        if not all(pass_.serves(kind) for kind in _KINDS):
            pass_.no_later_than(UNSERVED_SECONDS)  # no event reports a kind that appears without objects
            return
        registered = {entry.spec.resource_type: entry for entry in await self._register(pass_)}
        grants = [
            await self._activate(pass_, grant, registered.keys()) for grant in pass_.informer(RESOURCE_GRANT).all()
        ]
        await self._decide(pass_, [grant for grant in grants if _is_active(grant)], registered)

    async def _decide_together(
        self,
        pass_: Pass,
        grants: Sequence[ResourceGrant],
        registered: dict[str, ResourceRegistration],
    ) -> None:
        """Refuses claims of the project that violate a rule, and decides the others as a whole, anew each time."""
        consumer = ConsumerRef(PROJECT_KIND.name, pass_.name, api_group=RESOURCE_MANAGER_GROUP)
        # Including those of buckets, so that a bucket whose last grant was deleted shows a limit of 0.
        buckets = [bucket.spec for bucket in pass_.informer(ALLOWANCE_BUCKET).all()]
        types = {bucket.resource_type for bucket in buckets if _same_consumer(bucket.consumer_ref, consumer)}
        types |= _types(grants, consumer)
        pools = [Pool(consumer, type_, _limit(grants, consumer, type_)) for type_ in sorted(types)]
        valid: list[ResourceClaim] = []
        for claim in pass_.informer(RESOURCE_CLAIM).all():
            if _same_consumer(claim.spec.consumer_ref, consumer):
                if message := violation(claim, registered):
                    await self._refuse(pass_, claim, message)
                else:
                    valid.append(claim)
        decisions, allocated = decide(valid, {pool.resource_type: pool.limit for pool in pools})
        for decision in decisions:
            await self._report(pass_, decision)
        for pool in pools:
            await self._update_bucket(pass_, pool, allocated.get(pool.resource_type, 0), decisions, grants)

    async def _decide_as_milo_does(
        self,
        pass_: Pass,
        grants: Sequence[ResourceGrant],
        registered: dict[str, ResourceRegistration],
    ) -> None:
        """Decides every claim on the plane. Milo's admission refuses invalid claims before they get here."""
        claims = pass_.informer(RESOURCE_CLAIM).all()
        pools = _pools(pass_.informer(ALLOWANCE_BUCKET).all(), grants, claims)
        decisions, allocated = decide_as_milo_does(claims, pools)
        for pool in pools:  # before any claim: nothing may be granted that its bucket does not show as allocated
            await self._update_bucket(pass_, pool, allocated[pool.name], decisions, grants)
        for decision in decisions:
            if any(outcome.state is not State.PENDING for outcome in decision.outcomes):
                await self._report(pass_, decision)

    async def _register(self, pass_: Pass) -> list[ResourceRegistration]:
        for limit in LIMITS:
            if pass_.informer(RESOURCE_REGISTRATION).get("", limit.name) is None:
                await pass_.write.create(RESOURCE_REGISTRATION, registration(limit))
        registrations = pass_.informer(RESOURCE_REGISTRATION).all()
        for entry in registrations:
            generation = entry.metadata.generation
            condition = self._active(pass_, generation, True, "RegistrationActive", "The type can be granted")
            await pass_.write.status(entry, _with(entry, condition))
        return registrations

    async def _activate(self, pass_: Pass, grant: ResourceGrant, registered: Iterable[str]) -> ResourceGrant:
        unknown = sorted({allowance.resource_type for allowance in grant.spec.allowances} - set(registered))
        sentence = f"No registration for {', '.join(unknown)}" if unknown else "The grant counts"
        reason = reasons.VALIDATION_FAILED if unknown else "GrantActive"
        condition = self._active(pass_, grant.metadata.generation, not unknown, reason, sentence)
        return await pass_.write.status(grant, _with(grant, condition))

    async def _refuse(self, pass_: Pass, claim: ResourceClaim, message: str) -> None:
        condition = conditions.condition(
            GRANTED,
            False,
            reasons.VALIDATION_FAILED,
            message,
            generation=claim.metadata.generation,
            now=pass_.now(),
        )
        await pass_.write.status(claim, _with(claim, condition))

    async def _report(self, pass_: Pass, decision: Decision) -> None:
        claim, now = decision.claim, pass_.now()
        if _is_reported(claim, decision):
            return
        condition = conditions.condition(
            GRANTED,
            decision.state is State.GRANTED,
            _REASONS[decision.state],
            decision.message,
            generation=claim.metadata.generation,
            now=now,
        )
        status = {
            "observedGeneration": claim.metadata.generation,
            "allocations": _allocations(decision, now),
            "conditions": conditions.to_json(conditions.updated(conditions.of(claim), [condition])),
        }
        await pass_.write.status(claim, status)

    async def _update_bucket(
        self,
        pass_: Pass,
        pool: Pool,
        allocated: int,
        decisions: Iterable[Decision],
        grants: Iterable[ResourceGrant],
    ) -> None:
        bucket = pass_.informer(ALLOWANCE_BUCKET).get(QUOTA_NAMESPACE, pool.name)
        if bucket is None:
            bucket = await pass_.write.ensure(ALLOWANCE_BUCKET, _bucket(pool))
        contributing = [
            {"name": grant.name, "lastObservedGeneration": grant.metadata.generation, "amount": amount}
            for grant in grants
            for amount in _amounts(grant, pool.consumer, pool.resource_type)
        ]
        status = {
            "limit": pool.limit,
            "allocated": allocated,
            "available": max(0, pool.limit - allocated),
            "claimCount": sum(_holds(decision, pool) for decision in decisions),
            "grantCount": len(contributing),
            "observedGeneration": bucket.metadata.generation,
            "contributingGrantRefs": contributing,
        }
        if not _is_current(bucket, status):
            status["lastReconciliation"] = timestamp(pass_.now())
            await pass_.write.status(bucket, status)

    def _active(self, pass_: Pass, generation: int, status: bool, reason: str, message: str) -> Condition:
        return conditions.condition(ACTIVE, status, reason, message, generation=generation, now=pass_.now())


def _is_reported(claim: ResourceClaim, decision: Decision) -> bool:
    """Whether the claim has the decision already, as most do each time that another one is decided."""
    status = claim.status
    if status is None or status.observed_generation != claim.metadata.generation:
        return False
    condition = conditions.find(status.conditions, GRANTED)
    return (
        condition is not None
        and (condition.reason, condition.message, condition.observed_generation)
        == (_REASONS[decision.state], decision.message, claim.metadata.generation)
        and len(status.allocations) == len(decision.outcomes)
        and all(
            (entry.resource_type, entry.status, entry.message)
            == (outcome.request.resource_type, outcome.state.value, outcome.message)
            and (outcome.state is not State.GRANTED or entry.allocated_amount == outcome.amount)
            for entry, outcome in zip(status.allocations, decision.outcomes, strict=True)
        )
    )


def _allocations(decision: Decision, now: datetime) -> list[Json]:
    claim = decision.claim
    earlier = {entry.resource_type: entry for entry in (claim.status.allocations if claim.status else ())}
    entries: list[Json] = []
    for outcome in decision.outcomes:
        request, state = outcome.request, outcome.state
        known = earlier.get(request.resource_type)
        changed_at = known.last_transition_time if known is not None and known.status == state.value else now
        entry: Json = {
            "resourceType": request.resource_type,
            "status": state.value,
            "reason": _REASONS[state],
            "message": outcome.message,
            "lastTransitionTime": timestamp(changed_at),
        }
        if state is State.GRANTED:
            entry["allocatedAmount"] = outcome.amount
            entry["allocatingBucket"] = bucket_name(request.resource_type, claim.spec.consumer_ref)
        entries.append(entry)
    return entries


def _with(object_: ResourceRegistration | ResourceGrant | ResourceClaim, condition: Condition) -> Json:
    return conditions.status_with(object_, [condition], observedGeneration=condition.observed_generation)


def _holds(decision: Decision, pool: Pool) -> bool:
    """Whether the claim was granted something from the pool."""
    return decision.claim.spec.consumer_ref == pool.consumer and any(
        outcome.state is State.GRANTED and outcome.request.resource_type == pool.resource_type
        for outcome in decision.outcomes
    )


def _is_active(grant: ResourceGrant) -> bool:
    return conditions.is_true(conditions.of(grant), ACTIVE)


def _same_consumer(one: ConsumerRef, other: ConsumerRef) -> bool:
    """Grants are matched by kind and name only."""
    return (one.kind, one.name) == (other.kind, other.name)


def _amounts(grant: ResourceGrant, consumer: ConsumerRef, resource_type: str) -> list[int]:
    if not _same_consumer(grant.spec.consumer_ref, consumer):
        return []
    allowances = [allowance for allowance in grant.spec.allowances if allowance.resource_type == resource_type]
    return [bucket.amount for allowance in allowances for bucket in allowance.buckets]


def _limit(grants: Iterable[ResourceGrant], consumer: ConsumerRef, resource_type: str) -> int:
    return sum(amount for grant in grants for amount in _amounts(grant, consumer, resource_type))


def _types(grants: Iterable[ResourceGrant], consumer: ConsumerRef) -> set[str]:
    own = [grant for grant in grants if _same_consumer(grant.spec.consumer_ref, consumer)]
    return {allowance.resource_type for grant in own for allowance in grant.spec.allowances}


def _pools(
    buckets: Iterable[AllowanceBucket], grants: Sequence[ResourceGrant], claims: Iterable[ResourceClaim]
) -> list[Pool]:
    """One pool per bucket, for the consumer of the existing bucket, else of the first grant, else the first claim."""
    keys = [
        *((bucket.spec.consumer_ref, bucket.spec.resource_type) for bucket in buckets),
        *(
            (grant.spec.consumer_ref, allowance.resource_type)
            for grant in grants
            for allowance in grant.spec.allowances
        ),
        *((claim.spec.consumer_ref, request.resource_type) for claim in claims for request in claim.spec.requests),
    ]
    first: dict[str, Pool] = {}
    for consumer, resource_type in keys:
        pool = Pool(consumer, resource_type, _limit(grants, consumer, resource_type))
        first.setdefault(pool.name, pool)
    return [first[name] for name in sorted(first)]


def _bucket(pool: Pool) -> Json:
    consumer = pool.consumer
    labels = {CONSUMER_KIND: consumer.kind, CONSUMER_NAME: consumer.name}
    reference = {
        "apiGroup": consumer.api_group,
        "kind": consumer.kind,
        "name": consumer.name,
        **({"namespace": consumer.namespace} if consumer.namespace else {}),
    }
    spec = {"consumerRef": reference, "resourceType": pool.resource_type}
    return ALLOWANCE_BUCKET.body(pool.name, QUOTA_NAMESPACE, labels=labels) | {"spec": spec}


def _is_current(bucket: AllowanceBucket, status: Json) -> bool:
    """Whether the bucket has this status already, apart from the time of the last change."""
    return {key: value for key, value in as_dict(bucket.status_json).items() if key != "lastReconciliation"} == status
