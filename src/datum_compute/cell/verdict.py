"""What is known of an Instance's quota, and how soon to ask again. Entry points: `Verdict`, `tier`, `kept`."""

from datetime import timedelta

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import QUOTA_GATE, QUOTA_GRANTED, Instance
from datum_compute.cell.gates import gates
from datum_compute.kube import conditions
from datum_compute.kube.errors import ApiError

YOUNG = timedelta(seconds=60)  # until then a claim nobody has decided is no news
SLOW = 60.0  # from this tier on a denied claim is made anew
_TIERS = ((60, 1.0), (300, 15.0), (600, 60.0))
_LAST_TIER = 300.0


class Verdict(Struct, frozen=True):
    """What is known now. `status` is that of the condition: True opens the gate, False keeps it shut.

    `failed` means that nothing could be learned, which is never held against what already runs; `error` is why, where
    somebody did not answer. `waits` means that it will not help to ask again before the tier is over. `fresh` means
    that the question was put only now.
    """

    status: str
    reason: str
    message: str
    failed: bool = False
    fresh: bool = False
    waits: bool = False
    error: ApiError | None = None

    @property
    def granted(self) -> bool:
        return self.status == "True"

    @property
    def denied(self) -> bool:
        return self.status == "False"


def tier(verdict: Verdict, age: timedelta) -> float | None:
    """How soon to ask again while there is no grant, by the age of the Instance; None once there is one.

    Never by the condition's transition time: that stays 1970 until the first verdict.
    """
    return None if verdict.granted else tier_at(age)


def tier_at(age: timedelta) -> float:
    return next((again for below, again in _TIERS if age.total_seconds() < below), _LAST_TIER)


def kept(instance: Instance, verdict: Verdict) -> Verdict:
    """What the condition shall say: what it says already, where `verdict` is no better answer.

    What runs stays as it is while the quota system cannot be asked, also when its claim was not decided yet, and
    a denied one while its claim, made anew, waits to be decided: only a real verdict changes any of them.
    """
    said = conditions.find(conditions.of(instance), QUOTA_GRANTED)
    if said is None:
        return verdict
    if verdict.failed and said.status != "False" and QUOTA_GATE not in gates(instance):
        return Verdict(said.status, said.reason, said.message, failed=True)
    if verdict.status == "Unknown" and (said.status, said.reason) == ("False", reasons.QUOTA_EXCEEDED):
        return Verdict("False", said.reason, said.message)
    return verdict
