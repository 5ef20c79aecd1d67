"""Which claims fit into the granted amounts. Entry points: `decide`, `decide_as_milo_does`."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct

from datum_compute.api.quota import (
    MEMORY,
    VCPUS,
    Allocation,
    ClaimRequest,
    ConsumerRef,
    ResourceClaim,
    bucket_name,
)

_UNITS = {VCPUS: ("vCPU", 1000), MEMORY: ("MiB", 1)}


class State(Enum):
    """State of one request of a claim, as written in its allocation."""

    GRANTED = "Granted"
    DENIED = "Denied"
    PENDING = "Pending"


class Outcome(Struct, frozen=True):
    """`amount` is what was granted once, even if the claim requests another amount now."""

    request: ClaimRequest
    state: State
    message: str
    amount: int = 0


class Decision(Struct, frozen=True):
    """One outcome per request of a claim, and a message for the claim as a whole."""

    claim: ResourceClaim
    outcomes: tuple[Outcome, ...]
    message: str

    @property
    def state(self) -> State:
        return _overall(self.outcomes)


class Pool(Struct, frozen=True):
    """The amount of one resource type that was granted to one consumer: the part of a bucket that decides."""

    consumer: ConsumerRef
    resource_type: str
    limit: int

    @property
    def name(self) -> str:
        return bucket_name(self.resource_type, self.consumer)


def decide(claims: Iterable[ResourceClaim], limits: Mapping[str, int]) -> tuple[list[Decision], dict[str, int]]:
    """One decision per claim of a consumer, and the amounts allocated afterwards by resource type.

    All requests of a claim are decided together: all granted, or all denied with one message. A granted claim stays
    granted, even if a limit is lowered later. The others are decided from the oldest to the newest, including those
    denied before, so that new capacity goes to the claim that has waited longest.
    """
    allocated: dict[str, int] = dict.fromkeys(limits, 0)
    decisions: list[Decision] = []
    waiting: list[ResourceClaim] = []
    for claim in _oldest_first(claims):
        if _is_granted(claim):
            decisions.append(_granted(claim, allocated))
        else:
            waiting.append(claim)
    for claim in waiting:
        shortage = next(filter(None, (_shortage(request, limits, allocated) for request in claim.spec.requests)), None)
        if shortage is None:
            decisions.append(_granted(claim, allocated))
        else:
            denied = tuple(Outcome(request, State.DENIED, shortage) for request in claim.spec.requests)
            decisions.append(Decision(claim, denied, shortage))
    return decisions, allocated


def decide_as_milo_does(
    claims: Iterable[ResourceClaim], pools: Iterable[Pool]
) -> tuple[list[Decision], dict[str, int]]:
    """One decision per claim, and the amounts allocated afterwards by the name of the pool.

    Each resource type is decided separately, and once. What fits is granted and stays reserved while the claim exists,
    even if another type of the same claim is denied; what is denied stays denied, whatever becomes free. A request is
    decided only in the pool of exactly the same consumer; without such a pool it stays pending.
    """
    by_name = {pool.name: pool for pool in pools}
    ordered = _oldest_first(claims)
    allocated = dict.fromkeys(by_name, 0)
    for claim in ordered:
        for request in claim.spec.requests:
            pool = _pool_of(claim, request, by_name)
            known = _allocation(claim, request)
            if pool is not None and known is not None and known.status == State.GRANTED.value:
                allocated[pool.name] += known.allocated_amount
    decisions = [
        Decision(claim, outcomes, _MILO_MESSAGES[_overall(outcomes)])
        for claim in ordered
        for outcomes in [tuple(_outcome(claim, request, by_name, allocated) for request in claim.spec.requests)]
    ]
    return decisions, allocated


_ALL_AVAILABLE = "All requested resources are available"
_MILO_MESSAGES = {
    State.GRANTED: _ALL_AVAILABLE,
    State.DENIED: "One or more of the requested resources exceed the quota",
    State.PENDING: "Waiting for quota evaluation",
}


def _overall(outcomes: Sequence[Outcome]) -> State:
    """Granted only if all requests are; one denial outweighs all pending requests."""
    states = {outcome.state for outcome in outcomes}
    if State.DENIED in states:
        return State.DENIED
    return State.GRANTED if states == {State.GRANTED} else State.PENDING


def _outcome(
    claim: ResourceClaim, request: ClaimRequest, pools: Mapping[str, Pool], allocated: dict[str, int]
) -> Outcome:
    known, pool = _allocation(claim, request), _pool_of(claim, request, pools)
    if known is not None and known.status != State.PENDING.value:
        return Outcome(request, State(known.status), known.message, known.allocated_amount)
    if pool is None:
        return Outcome(request, State.PENDING, _MILO_MESSAGES[State.PENDING])
    shortage = _shortage(request, {request.resource_type: pool.limit}, {request.resource_type: allocated[pool.name]})
    if shortage is not None:
        return Outcome(request, State.DENIED, shortage)
    allocated[pool.name] += request.amount
    return Outcome(request, State.GRANTED, _ALL_AVAILABLE, request.amount)


def _pool_of(claim: ResourceClaim, request: ClaimRequest, pools: Mapping[str, Pool]) -> Pool | None:
    """Bucket names omit the group and namespace of the consumer, so that equal names can mean different consumers."""
    pool = pools.get(bucket_name(request.resource_type, claim.spec.consumer_ref))
    return pool if pool is not None and pool.consumer == claim.spec.consumer_ref else None


def _allocation(claim: ResourceClaim, request: ClaimRequest) -> Allocation | None:
    allocations = claim.status.allocations if claim.status else ()
    return next((entry for entry in allocations if entry.resource_type == request.resource_type), None)


def _oldest_first(claims: Iterable[ResourceClaim]) -> list[ResourceClaim]:
    return sorted(claims, key=lambda claim: (claim.metadata.creation_timestamp, claim.metadata.revision, claim.name))


def _is_granted(claim: ResourceClaim) -> bool:
    allocations = [_allocation(claim, request) for request in claim.spec.requests]
    return all(entry is not None and entry.status == State.GRANTED.value for entry in allocations)


def _granted(claim: ResourceClaim, allocated: dict[str, int]) -> Decision:
    outcomes: list[Outcome] = []
    for request in claim.spec.requests:
        known = _allocation(claim, request)
        is_granted = known is not None and known.status == State.GRANTED.value
        amount = known.allocated_amount if known is not None and is_granted else request.amount
        allocated[request.resource_type] = allocated.get(request.resource_type, 0) + amount
        outcomes.append(Outcome(request, State.GRANTED, _ALL_AVAILABLE, amount))
    return Decision(claim, tuple(outcomes), _ALL_AVAILABLE)


def _shortage(request: ClaimRequest, limits: Mapping[str, int], allocated: Mapping[str, int]) -> str | None:
    available = max(0, limits.get(request.resource_type, 0) - allocated.get(request.resource_type, 0))
    if request.amount <= available:
        return None
    noun = request.resource_type.rpartition("/")[2]
    unit, factor = _UNITS.get(request.resource_type, (noun.removesuffix("s") if request.amount == 1 else noun, 1))
    return f"Requested {request.amount / factor:g} {unit}, {available / factor:g} available."
