"""Which claims fit into what was granted. Entry point: `decide`."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from datum_compute.api.quota import MEMORY, VCPUS, ClaimRequest, ResourceClaim

_UNITS = {VCPUS: ("vCPU", 1000), MEMORY: ("MiB", 1)}


class Decision(Struct, frozen=True):
    """Of one claim. All its requests are decided together: all granted, or all denied with one sentence why."""

    claim: ResourceClaim
    granted: bool
    message: str


def decide(claims: Iterable[ResourceClaim], limits: Mapping[str, int]) -> tuple[list[Decision], dict[str, int]]:
    """One decision a claim, and what is allocated afterwards by resource type.

    What was granted stays granted, also when a limit was lowered since. The others are looked at from the oldest on,
    those denied before included: capacity that appears goes to who has waited longest.
    """
    ordered = sorted(claims, key=lambda claim: (claim.metadata.creation_timestamp, claim.metadata.revision, claim.name))
    allocated: dict[str, int] = dict.fromkeys(limits, 0)
    decisions: list[Decision] = []
    waiting: list[ResourceClaim] = []
    for claim in ordered:
        if is_granted(claim):
            _take(allocated, claim.spec.requests)
            decisions.append(Decision(claim, True, "All requested resources are available"))
        else:
            waiting.append(claim)
    for claim in waiting:
        shortage = next(filter(None, (_shortage(request, limits, allocated) for request in claim.spec.requests)), None)
        if shortage is None:
            _take(allocated, claim.spec.requests)
            decisions.append(Decision(claim, True, "All requested resources are available"))
        else:
            decisions.append(Decision(claim, False, shortage))
    return decisions, allocated


def is_granted(claim: ResourceClaim) -> bool:
    allocations = claim.status.allocations if claim.status else ()
    granted = {allocation.resource_type for allocation in allocations if allocation.status == "Granted"}
    return all(request.resource_type in granted for request in claim.spec.requests)


def _take(allocated: dict[str, int], requests: Sequence[ClaimRequest]) -> None:
    for request in requests:
        allocated[request.resource_type] = allocated.get(request.resource_type, 0) + request.amount


def _shortage(request: ClaimRequest, limits: Mapping[str, int], allocated: Mapping[str, int]) -> str | None:
    available = max(0, limits.get(request.resource_type, 0) - allocated.get(request.resource_type, 0))
    if request.amount <= available:
        return None
    plain = request.resource_type.rpartition("/")[2]
    unit, factor = _UNITS.get(request.resource_type, (plain.removesuffix("s") if request.amount == 1 else plain, 1))
    return f"Requested {request.amount / factor:g} {unit}, {available / factor:g} available."
