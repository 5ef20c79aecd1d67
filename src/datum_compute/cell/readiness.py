"""What Ready says about an Instance, and why. Entry point: `readiness`."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import AVAILABLE, PROGRAMMED, QUOTA_GRANTED, READY
from datum_compute.api.reasons import instance_rank
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition

_OWN = (PROGRAMMED, READY, QUOTA_GRANTED)
_UNINFORMATIVE = (reasons.PENDING, reasons.PENDING_PROGRAMMING)
_FORMER_NAME_OF_AVAILABLE = "Running"


class Decided(Struct, frozen=True):
    """A condition to be, without its times."""

    type: str
    status: str
    reason: str
    message: str


class _Claim(Struct, frozen=True):
    """A candidate for what Ready says."""

    status: str
    reason: str
    message: str


def readiness(gates: Sequence[str], current: Iterable[Condition], network_failure: str | None = None) -> list[Decided]:
    """What follows from the rest: Ready always, and the provider's two conditions while they are not yet its own."""
    seen = [condition for condition in current if condition.type != _FORMER_NAME_OF_AVAILABLE]
    denial = _denial(seen)
    if gates:
        return _gated(gates, seen, denial, network_failure)
    if denial is not None:
        return [_ready(denial)]
    return [*_restored(seen), _ready(_claim_of(_with_restored(seen)))]


def _denial(seen: Sequence[Condition]) -> _Claim | None:
    quota = conditions.find(seen, QUOTA_GRANTED)
    if quota is None or quota.status != "False":
        return None
    return _Claim("False", reasons.PENDING_QUOTA, quota.message)


def _gated(
    gates: Sequence[str], seen: Sequence[Condition], denial: _Claim | None, network_failure: str | None
) -> list[Decided]:
    claims = [
        _Claim("False", reasons.SCHEDULING_GATES_PRESENT, f"Scheduling gates present: {', '.join(gates)}"),
        *([denial] if denial is not None else ()),
        *([_Claim("False", reasons.NETWORK_FAILED_TO_CREATE, network_failure)] if network_failure else ()),
    ]
    ready = _ready(_best(claims))
    if denial is not None:
        because = (denial.status, denial.reason, denial.message)
        return [Decided(PROGRAMMED, *because), Decided(AVAILABLE, *because), ready]
    return [*_restored(seen), ready]


def _restored(seen: Sequence[Condition]) -> list[Decided]:
    """What a denial had written on the provider's behalf is taken back once it is lifted."""
    return [
        Decided(condition.type, "Unknown", reasons.PENDING, "Waiting for controller")
        for condition in seen
        if condition.type in (PROGRAMMED, AVAILABLE) and condition.reason == reasons.PENDING_QUOTA
    ]


def _with_restored(seen: Sequence[Condition]) -> list[Condition]:
    taken_back = {decided.type for decided in _restored(seen)}
    return [condition for condition in seen if condition.type not in taken_back]


def _claim_of(seen: Sequence[Condition]) -> _Claim:
    programmed = conditions.find(seen, PROGRAMMED)
    if programmed is None or programmed.status != "True":
        return _unprogrammed(seen, programmed)
    available = conditions.find(seen, AVAILABLE)
    if available is not None and available.status == "True":
        return _Claim("True", reasons.AVAILABLE, "Instance is ready")
    if available is not None and available.reason != reasons.PENDING:
        return _Claim(available.status, available.reason, available.message)
    return _Claim("False", reasons.PENDING, "Instance is not available")


def _unprogrammed(seen: Sequence[Condition], programmed: Condition | None) -> _Claim:
    base = _Claim("False", reasons.PENDING_PROGRAMMING, "Instance has not been programmed")
    if programmed is not None and programmed.reason not in _UNINFORMATIVE:
        base = _Claim(programmed.status, programmed.reason, programmed.message)
    others = [condition for condition in seen if condition.type not in _OWN and condition.status != "True"]
    competing = [*others, *([programmed] if programmed is not None else ())]
    claims = [
        _Claim(condition.status, condition.reason, condition.message)
        for condition in competing
        if condition.reason != reasons.PENDING
    ]
    return _best([base, *claims])


def _best(claims: Sequence[_Claim]) -> _Claim:
    """The first of the highest rank: only a strictly higher one replaces what stands before it."""
    return max(claims, key=lambda claim: instance_rank(claim.reason))


def _ready(claim: _Claim) -> Decided:
    return Decided(READY, claim.status, claim.reason, claim.message)
