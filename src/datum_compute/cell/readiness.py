"""Whether an Instance is ready, and why not. Entry point: `readiness`."""

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
    """A condition without its generation and times."""

    type: str
    status: str
    reason: str
    message: str


class _Cause(Struct, frozen=True):
    """A candidate for the status, reason and message of Ready."""

    status: str
    reason: str
    message: str


def readiness(gates: Sequence[str], before: Iterable[Condition], network_failure: str | None = None) -> list[Decided]:
    """Ready, and the provider's two conditions for as long as the provider has not set them itself."""
    current = [condition for condition in before if condition.type != _FORMER_NAME_OF_AVAILABLE]
    denial = _denial(current)
    if gates:
        return _gated(gates, current, denial, network_failure)
    if denial is not None:
        return [_ready(denial)]
    return [*_restored(current), _ready(_cause_of(_without_restored(current)))]


def _denial(current: Sequence[Condition]) -> _Cause | None:
    quota = conditions.find(current, QUOTA_GRANTED)
    if quota is None or quota.status != "False":
        return None
    return _Cause("False", reasons.PENDING_QUOTA, quota.message)


def _gated(
    gates: Sequence[str], current: Sequence[Condition], denial: _Cause | None, network_failure: str | None
) -> list[Decided]:
    causes = [
        _Cause("False", reasons.SCHEDULING_GATES_PRESENT, f"Scheduling gates present: {', '.join(gates)}"),
        *([denial] if denial is not None else ()),
        *([_Cause("False", reasons.NETWORK_FAILED_TO_CREATE, network_failure)] if network_failure else ()),
    ]
    ready = _ready(_best(causes))
    if denial is not None:
        cause = (denial.status, denial.reason, denial.message)
        return [Decided(PROGRAMMED, *cause), Decided(AVAILABLE, *cause), ready]
    return [*_restored(current), ready]


def _restored(current: Sequence[Condition]) -> list[Decided]:
    """Resets the provider's conditions that a denial had set, once the denial is lifted."""
    return [
        Decided(condition.type, "Unknown", reasons.PENDING, "Waiting for controller")
        for condition in current
        if condition.type in (PROGRAMMED, AVAILABLE) and condition.reason == reasons.PENDING_QUOTA
    ]


def _without_restored(current: Sequence[Condition]) -> list[Condition]:
    restored = {decided.type for decided in _restored(current)}
    return [condition for condition in current if condition.type not in restored]


def _cause_of(current: Sequence[Condition]) -> _Cause:
    programmed = conditions.find(current, PROGRAMMED)
    if programmed is None or programmed.status != "True":
        return _unprogrammed(current, programmed)
    available = conditions.find(current, AVAILABLE)
    if available is not None and available.status == "True":
        return _Cause("True", reasons.AVAILABLE, "Instance is ready")
    if available is not None and available.reason != reasons.PENDING:
        return _Cause(available.status, available.reason, available.message)
    return _Cause("False", reasons.PENDING, "Instance is not available")


def _unprogrammed(current: Sequence[Condition], programmed: Condition | None) -> _Cause:
    base = _Cause("False", reasons.PENDING_PROGRAMMING, "Instance has not been programmed")
    if programmed is not None and programmed.reason not in _UNINFORMATIVE:
        base = _Cause(programmed.status, programmed.reason, programmed.message)
    others = [condition for condition in current if condition.type not in _OWN and condition.status != "True"]
    competing = [*others, *([programmed] if programmed is not None else ())]
    causes = [
        _Cause(condition.status, condition.reason, condition.message)
        for condition in competing
        if condition.reason != reasons.PENDING
    ]
    return _best([base, *causes])


def _best(causes: Sequence[_Cause]) -> _Cause:
    """The first cause of the highest rank."""
    return max(causes, key=lambda cause: instance_rank(cause.reason))


def _ready(cause: _Cause) -> Decided:
    return Decided(READY, cause.status, cause.reason, cause.message)
