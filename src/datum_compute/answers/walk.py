"""How far a request has come in one city, and what it means. Entry points: `walk`, `City`, `Verdict`."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import Enum

from msgspec import Struct

from datum_compute.answers import delivery, requests, running
from datum_compute.answers.hops import ON_THE_WAY, WALK, Finding, Hop, Outcome, State, Step, View
from datum_compute.answers.leaving import deletion
from datum_compute.answers.places import Place, observed
from datum_compute.answers.seen import Gap
from datum_compute.api import reasons
from datum_compute.api.reasons import Acts, explain, normal_time
from datum_compute.kube import conditions

_CHECKS: Mapping[Hop, Callable[[View], Outcome]] = {**requests.CHECKS, **delivery.CHECKS, **running.CHECKS}
_BELOW_DEPLOYMENT = WALK[WALK.index(Hop.DEPLOYMENT) + 1 :]
_FROM_INSTANCES = WALK[WALK.index(Hop.INSTANCES) :]


class Verdict(Enum):
    """In the order of how bad it is, except for `DEGRADED`, which only a workload can be."""

    FINE = "fine"
    WAITING = "waiting"
    DELETING = "deleting"
    UNKNOWN = "unknown"  # where knowledge ended
    STALLED = "stalled"
    BLOCKED = "blocked"
    DEGRADED = "degraded"


class City(Struct, frozen=True):
    """The answer for one place."""

    place: Place
    verdict: Verdict
    path: tuple[Step, ...]
    desired: int
    ready: int | None  # None while the site has not answered the newest request
    finding: Finding | None = None
    acts: Acts = Acts.NOBODY
    normal: timedelta | None = None

    @property
    def missing(self) -> int:
        return max(self.desired - (self.ready or 0), 0)

    @property
    def unread(self) -> list[Hop]:
        return [step.hop for step in self.path if step.state is State.UNREAD]


def walk(view: View) -> City:
    """The first hop that is not passed is the answer of the city."""
    workload, deployment = view.seen.workload, view.deployment
    is_leaving = workload.metadata.deleting or (deployment is not None and deployment.metadata.deleting)
    if is_leaving or not view.wanted:
        return _leaving(view)
    path: list[Step] = []
    found: Finding | None = None
    arrived = delivery.has_arrived(view)
    for hop in _FROM_INSTANCES if view.only else WALK:
        if found is not None:
            path.append(Step(hop, State.NEXT))
            continue
        outcome = _outcome(view, hop, arrived=arrived)
        if isinstance(outcome, Finding):
            found = outcome
            path.append(Step(hop, State.BLOCKED, found.object, found.since))
        else:
            path.append(Step(hop, outcome))
        is_open = hop is Hop.CELL and found is None and not arrived and deployment is not None
        if is_open and any(step.state is State.UNREAD for step in path if step.hop in ON_THE_WAY):
            found = delivery.way(view)
    if found is None and not view.is_complete and not view.only:
        found = _unexplained(view)
    return _judged(view, found, path)


def _outcome(view: View, hop: Hop, *, arrived: bool) -> Outcome:
    if view.is_complete and hop is not Hop.PROJECTION:
        return State.PASSED
    if view.deployment is None and hop in _BELOW_DEPLOYMENT:
        return State.UNREAD
    if arrived and hop in ON_THE_WAY:
        return State.PASSED
    return _CHECKS[hop](view)


def _leaving(view: View) -> City:
    found = deletion(view)
    state = State.PASSED if found is None else State.BLOCKED
    step = Step(Hop.DELETION, state, found.object if found else "", found.since if found else None)
    return _judged(view, found, [step])


def _unexplained(view: View) -> Finding:
    """Nothing that could be read explains why the place is not complete."""
    seen = view.seen
    for part, kind, hop in (
        (seen.deployments, "workload deployments", Hop.DEPLOYMENT),
        (seen.instances, "instances", Hop.INSTANCES),
    ):
        if part is Gap.DENIED:
            return Finding(hop, reasons.NOT_READABLE, f"you may not list {kind} in {seen.project}")
        if part is Gap.AWAY:
            message = f"the {kind} of {seen.project} could not be read"
            return Finding(hop, reasons.NOT_READABLE, message, Acts.UNKNOWN)
    available = conditions.find(conditions.of(view.deployment), "Available") if view.deployment else None
    since = view.plausible(available.last_transition_time) if available else None
    message = "instances are being set up"
    return Finding(Hop.INSTANCES, reasons.INSTANCES_PROVISIONING, message, since=since, base=since)


def _judged(view: View, found: Finding | None, path: list[Step]) -> City:
    desired = view.numbers.desired if view.wanted else 0
    is_known = view.is_answered and observed(view.seen.workload)
    ready = view.numbers.ready if is_known else None
    if found is None:
        return City(view.place, Verdict.FINE, tuple(path), desired, ready)
    verdict, acts, normal = _judgement(view, found)
    return City(view.place, verdict, tuple(path), desired, ready, found, acts, normal)


def _judgement(view: View, found: Finding) -> tuple[Verdict, Acts, timedelta | None]:
    age = view.now - found.since if found.since is not None else None
    acts, normal = found.acts or explain(found.reason).acts, normal_time(found.reason)
    if found.reason == reasons.NOT_READABLE:
        return Verdict.UNKNOWN, acts, None
    if found.grace and (age is None or age < found.grace):
        return _or_deleting(found, Verdict.WAITING), Acts.WAIT, found.grace
    match acts:
        case Acts.YOU | Acts.ADMIN | Acts.PLATFORM | Acts.UNKNOWN:
            return _or_deleting(found, Verdict.BLOCKED), acts, None
        case _ if normal is not None and age is not None and age >= normal and not _progresses(view, normal):
            return _or_deleting(found, Verdict.STALLED), Acts.STALLED, normal
    return _or_deleting(found, Verdict.WAITING), Acts.WAIT, normal


def _or_deleting(found: Finding, verdict: Verdict) -> Verdict:
    return Verdict.DELETING if found.hop is Hop.DELETION else verdict


def _progresses(view: View, normal: timedelta) -> bool:
    """Whether an instance changed within the time that is normal."""
    times = [condition.last_transition_time for instance in view.instances for condition in conditions.of(instance)]
    newest: datetime | None = max(filter(None, map(view.plausible, times)), default=None)
    return newest is not None and view.now - newest < normal
