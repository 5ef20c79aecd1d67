"""Grants and denies claims where Milo is absent, with Milo's own objects. Entry point: `QuotaBroker`."""

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
    """Quota is decided for a project as a whole, so that two claims never get the same last unit."""
    yield Request(plane.name, QUOTA_NAMESPACE, plane.name)


_KINDS = (RESOURCE_REGISTRATION, RESOURCE_GRANT, RESOURCE_CLAIM, ALLOWANCE_BUCKET)


class QuotaBroker:
    """One request a project: registrations, active grants, decided claims, and buckets that show the sums.

    A strict one decides as Milo does, its hard edges included: a denial is final, types are decided one by one, and
    what a denied claim was granted in part stays reserved. It is there to prove that the other side copes.
    """

    name = "quota-broker"

    def __init__(self, *, strict: bool = False) -> None:
        self._decide = self._as_milo_does if strict else self._kindly

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
            return  # no quota is set up (yet); claims stay pending
        if not all(pass_.serves(kind) for kind in _KINDS):
            pass_.no_later_than(UNSERVED_SECONDS)  # a kind that comes is not told of while it is empty
            return
        registered = {one.spec.resource_type: one for one in await self._register(pass_)}
        grants = [
            await self._activate(pass_, grant, registered.keys()) for grant in pass_.informer(RESOURCE_GRANT).all()
        ]
        await self._decide(pass_, [grant for grant in grants if _counts(grant)], registered)

    async def _kindly(
        self,
        pass_: Pass,
        grants: Sequence[ResourceGrant],
        registered: dict[str, ResourceRegistration],
    ) -> None:
        """The project's own claims: those that break a rule are refused, the others decided whole, again and again."""
        consumer = ConsumerRef(PROJECT_KIND.name, pass_.name, api_group=RESOURCE_MANAGER_GROUP)
        # Those of buckets too: one whose last grant has gone shows that nothing is left of it.
        shown = [one.spec for one in pass_.informer(ALLOWANCE_BUCKET).all()]
        types = {one.resource_type for one in shown if _same_consumer(one.consumer_ref, consumer)}
        types |= _types(grants, consumer)
        pools = [Pool(consumer, type_, _limit(grants, consumer, type_)) for type_ in sorted(types)]
        sound: list[ResourceClaim] = []
        for claim in pass_.informer(RESOURCE_CLAIM).all():
            if _same_consumer(claim.spec.consumer_ref, consumer):
                if broken := violation(claim, registered):
                    await self._refuse(pass_, claim, broken)
                else:
                    sound.append(claim)
        decisions, allocated = decide(sound, {pool.resource_type: pool.limit for pool in pools})
        for decision in decisions:
            await self._tell(pass_, decision)
        for pool in pools:
            await self._show(pass_, pool, allocated.get(pool.resource_type, 0), decisions, grants)

    async def _as_milo_does(
        self,
        pass_: Pass,
        grants: Sequence[ResourceGrant],
        registered: dict[str, ResourceRegistration],
    ) -> None:
        """Every claim on the plane. What is broken was refused before it came here, by Milo's admission."""
        claims = pass_.informer(RESOURCE_CLAIM).all()
        pools = _pools(pass_.informer(ALLOWANCE_BUCKET).all(), grants, claims)
        decisions, allocated = decide_as_milo_does(claims, pools)
        for pool in pools:  # before any claim is told: what is not shown as taken must not be given
            await self._show(pass_, pool, allocated[pool.name], decisions, grants)
        for decision in decisions:
            if any(outcome.state is not State.PENDING for outcome in decision.outcomes):
                await self._tell(pass_, decision)

    async def _register(self, pass_: Pass) -> list[ResourceRegistration]:
        for limit in LIMITS:
            if pass_.informer(RESOURCE_REGISTRATION).get("", limit.name) is None:
                await pass_.write.create(RESOURCE_REGISTRATION, registration(limit))
        found = pass_.informer(RESOURCE_REGISTRATION).all()
        for one in found:
            status = self._active(pass_, one.metadata.generation, True, "RegistrationActive", "The type can be granted")
            await pass_.write.status(one, _with(one, status))
        return found

    async def _activate(self, pass_: Pass, grant: ResourceGrant, registered: Iterable[str]) -> ResourceGrant:
        unknown = sorted({allowance.resource_type for allowance in grant.spec.allowances} - set(registered))
        sentence = f"No registration for {', '.join(unknown)}" if unknown else "The grant counts"
        reason = reasons.VALIDATION_FAILED if unknown else "GrantActive"
        condition = self._active(pass_, grant.metadata.generation, not unknown, reason, sentence)
        return await pass_.write.status(grant, _with(grant, condition))

    async def _refuse(self, pass_: Pass, claim: ResourceClaim, why: str) -> None:
        condition = conditions.condition(
            GRANTED,
            False,
            reasons.VALIDATION_FAILED,
            why,
            generation=claim.metadata.generation,
            now=pass_.now(),
        )
        await pass_.write.status(claim, _with(claim, condition))

    async def _tell(self, pass_: Pass, decision: Decision) -> None:
        claim, now = decision.claim, pass_.now()
        if _says(claim, decision):
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

    async def _show(
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
        if not _shows(bucket, status):
            status["lastReconciliation"] = timestamp(pass_.now())
            await pass_.write.status(bucket, status)

    def _active(self, pass_: Pass, generation: int, status: bool, reason: str, message: str) -> Condition:
        return conditions.condition(ACTIVE, status, reason, message, generation=generation, now=pass_.now())


def _says(claim: ResourceClaim, decision: Decision) -> bool:
    """Whether the claim tells of all this already, which most do each time that one more is decided."""
    status = claim.status
    if status is None or status.observed_generation != claim.metadata.generation:
        return False
    found = conditions.find(status.conditions, GRANTED)
    return (
        found is not None
        and (found.reason, found.message, found.observed_generation)
        == (_REASONS[decision.state], decision.message, claim.metadata.generation)
        and len(status.allocations) == len(decision.outcomes)
        and all(
            (one.resource_type, one.status, one.message)
            == (outcome.request.resource_type, outcome.state.value, outcome.message)
            and (outcome.state is not State.GRANTED or one.allocated_amount == outcome.amount)
            for one, outcome in zip(status.allocations, decision.outcomes, strict=True)
        )
    )


def _allocations(decision: Decision, now: datetime) -> list[Json]:
    claim = decision.claim
    earlier = {entry.resource_type: entry for entry in (claim.status.allocations if claim.status else ())}
    entries: list[Json] = []
    for outcome in decision.outcomes:
        request, state = outcome.request, outcome.state
        known = earlier.get(request.resource_type)
        moved = known.last_transition_time if known is not None and known.status == state.value else now
        entry: Json = {
            "resourceType": request.resource_type,
            "status": state.value,
            "reason": _REASONS[state],
            "message": outcome.message,
            "lastTransitionTime": timestamp(moved),
        }
        if state is State.GRANTED:
            entry["allocatedAmount"] = outcome.amount
            entry["allocatingBucket"] = bucket_name(request.resource_type, claim.spec.consumer_ref)
        entries.append(entry)
    return entries


def _with(object_: ResourceRegistration | ResourceGrant | ResourceClaim, condition: Condition) -> Json:
    return conditions.status_with(object_, [condition], observedGeneration=condition.observed_generation)


def _holds(decision: Decision, pool: Pool) -> bool:
    """Whether the claim has something of the pool."""
    return decision.claim.spec.consumer_ref == pool.consumer and any(
        outcome.state is State.GRANTED and outcome.request.resource_type == pool.resource_type
        for outcome in decision.outcomes
    )


def _counts(grant: ResourceGrant) -> bool:
    return conditions.is_true(conditions.of(grant), ACTIVE)


def _same_consumer(one: ConsumerRef, other: ConsumerRef) -> bool:
    """As far as grants are compared: kind and name, nothing else."""
    return (one.kind, one.name) == (other.kind, other.name)


def _amounts(grant: ResourceGrant, consumer: ConsumerRef, resource_type: str) -> list[int]:
    if not _same_consumer(grant.spec.consumer_ref, consumer):
        return []
    allowances = [one for one in grant.spec.allowances if one.resource_type == resource_type]
    return [entry.amount for allowance in allowances for entry in allowance.buckets]


def _limit(grants: Iterable[ResourceGrant], consumer: ConsumerRef, resource_type: str) -> int:
    return sum(amount for grant in grants for amount in _amounts(grant, consumer, resource_type))


def _types(grants: Iterable[ResourceGrant], consumer: ConsumerRef) -> set[str]:
    own = [grant for grant in grants if _same_consumer(grant.spec.consumer_ref, consumer)]
    return {allowance.resource_type for grant in own for allowance in grant.spec.allowances}


def _pools(
    buckets: Iterable[AllowanceBucket], grants: Sequence[ResourceGrant], claims: Iterable[ResourceClaim]
) -> list[Pool]:
    """One a bucket: those that exist keep the consumer they were made for, then grants bring theirs, then claims."""
    asked = [
        *((bucket.spec.consumer_ref, bucket.spec.resource_type) for bucket in buckets),
        *(
            (grant.spec.consumer_ref, allowance.resource_type)
            for grant in grants
            for allowance in grant.spec.allowances
        ),
        *((claim.spec.consumer_ref, request.resource_type) for claim in claims for request in claim.spec.requests),
    ]
    first: dict[str, Pool] = {}
    for consumer, resource_type in asked:
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


def _shows(bucket: AllowanceBucket, status: Json) -> bool:
    """Whether the bucket says this already; when it was last looked at is no reason to write."""
    return {key: value for key, value in as_dict(bucket.status_json).items() if key != "lastReconciliation"} == status
