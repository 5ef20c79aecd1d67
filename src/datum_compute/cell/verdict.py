"""What is known about an Instance's quota, and how soon to ask again.

Entry points: `Verdict`, `claim_verdict`, `refusal_verdict`, `reported_verdict`, `tier`.
"""

import math
from datetime import timedelta

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import QUOTA_GATE, QUOTA_GRANTED, Instance
from datum_compute.api.quota import GRANTED, ResourceClaim
from datum_compute.cell.gates import gates
from datum_compute.kube import conditions
from datum_compute.kube.errors import ApiError, Forbidden, Invalid

YOUNG = timedelta(seconds=60)  # until then an undecided claim is normal
SLOW = 60.0  # from this tier on, a denied claim is recreated
_TIERS = ((60, 1.0), (300, 15.0), (600, 60.0))
_LAST_TIER = 300.0
_WAITING = "Waiting for quota evaluation"


class Verdict(Struct, frozen=True):
    """What is known now. `status` is that of the condition: True opens the gate, False keeps it shut.

    `failed` means that nothing could be learned, which never affects what already runs; `error` is the cause where a
    server did not answer. `waits` means that asking again before the tier is over, or `within` seconds if that is less,
    will not help. `fresh` means that the claim was only just created.
    """

    status: str
    reason: str
    message: str
    failed: bool = False
    fresh: bool = False
    waits: bool = False
    within: float = math.inf
    error: ApiError | None = None

    @property
    def granted(self) -> bool:
        return self.status == "True"

    @property
    def denied(self) -> bool:
        return self.status == "False"


def pending(*, fresh: bool = False) -> Verdict:
    """The claim exists and is not decided yet."""
    return Verdict("Unknown", reasons.PENDING_EVALUATION, _WAITING, fresh=fresh)


def waiting(error: ApiError | None = None, *, within: float = math.inf) -> Verdict:
    """Nothing is wrong, and nothing can be learned yet."""
    return Verdict("Unknown", reasons.PENDING_EVALUATION, _WAITING, failed=True, waits=True, within=within, error=error)


def failed(reason: str, message: str, error: ApiError | None = None) -> Verdict:
    return Verdict("False", reason, message, failed=True, error=error)


def claim_verdict(claim: ResourceClaim, age: timedelta) -> Verdict:
    """What a claim says about its Instance, which is this old."""
    granted = conditions.find(conditions.of(claim), GRANTED)
    if claim.metadata.deleting or granted is None:
        return pending()
    match granted.status, granted.reason:
        case "True", _:
            return Verdict("True", reasons.QUOTA_AVAILABLE, granted.message)
        case _, reasons.PENDING_EVALUATION if age < YOUNG:
            return pending()
        case _, reasons.PENDING_EVALUATION:
            message = "ResourceClaim is pending: no AllowanceBucket configured for this project"
            return Verdict("Unknown", reasons.QUOTA_NO_BUDGET, message)
        case _, reasons.VALIDATION_FAILED:
            return Verdict("False", reasons.VALIDATION_FAILED, granted.message)
    return Verdict("False", reasons.QUOTA_EXCEEDED, granted.message)


def refusal_verdict(project: str, error: Forbidden | Invalid) -> Verdict:
    """The verdict when the project's server refuses to create a claim."""
    if error.caused_by(reasons.PROJECT_SUSPENDED):
        message = f"Project {project} is suspended; the instance waits until it is active again"
        return Verdict("False", reasons.PROJECT_SUSPENDED, message, failed=True, waits=True)
    return failed(reasons.QUOTA_MISCONFIGURED, f"The quota system refused the claim: {error}")


def reported_verdict(instance: Instance, verdict: Verdict) -> Verdict:
    """The verdict for the condition, which stays as it is where `verdict` is no better answer.

    What runs stays as it is while the quota system is unreachable, even if its claim was not decided yet. A denial
    stays while the recreated claim is undecided. Only a real verdict changes either.
    """
    condition = conditions.find(conditions.of(instance), QUOTA_GRANTED)
    if condition is None:
        return verdict
    if verdict.failed and condition.status != "False" and QUOTA_GATE not in gates(instance):
        return Verdict(condition.status, condition.reason, condition.message, failed=True)
    if verdict.status == "Unknown" and (condition.status, condition.reason) == ("False", reasons.QUOTA_EXCEEDED):
        return Verdict("False", condition.reason, condition.message)
    return verdict


def tier(verdict: Verdict, age: timedelta) -> float | None:
    """Seconds until the next question while there is no grant, by the age of the Instance; None with a grant.

    Never by the condition's transition time, which stays 1970 until the first verdict.
    """
    return None if verdict.granted else min(tier_at(age), verdict.within)


def tier_at(age: timedelta) -> float:
    return next((seconds for below, seconds in _TIERS if age.total_seconds() < below), _LAST_TIER)
