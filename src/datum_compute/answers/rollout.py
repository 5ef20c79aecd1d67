"""How far a rollout has come, decided from what the server reports. Entry points: `picture`, `Tracker`.

Pure: the clock's reading is an argument. A row is one placement in one city.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.answers.health import Block, State, block, held_back, judge
from datum_compute.answers.owners import deployment_of
from datum_compute.answers.places import Counts, Place, asked, numbers, observed
from datum_compute.api import reasons
from datum_compute.api.deployment import AVAILABLE, WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.labels import RESTARTED_AT
from datum_compute.api.reasons import Acts, explain
from datum_compute.api.restarts import city_restarts, newest
from datum_compute.api.template_hash import template_hash
from datum_compute.api.workload import Workload
from datum_compute.kube.meta import as_dict, encode

STALL_SECONDS = 30.0


class Phase(Enum):
    PENDING = "Pending"
    UPDATING = "Updating"
    BLOCKED = "Blocked"
    PAUSED = "Paused"
    DONE = "Done"


class Seen(Struct, frozen=True):
    """One row as the server reports it. `answered`: the server has seen what was asked, so that the numbers mean it."""

    place: Place
    numbers: Counts
    answered: bool
    deployment: str = ""  # empty while there is none
    cause: Block | None = None
    certain: bool = False  # whether the cause stands in the way of the newest version, and somebody has to act
    old: int | None = None  # instances of an earlier version; None while the newest is not known to the site
    held: bool = False  # a pause keeps instances of an earlier version

    @property
    def is_explained(self) -> bool:
        """Whether the cause is about what was asked for last.

        A site that has not answered tells of what was before, unless it is what has to stop first. Without a deployment
        it is the workload itself that says why there is none.
        """
        is_first_to_stop = self.cause is not None and self.cause.reason == reasons.STOPPING
        return self.cause is not None and (self.answered or not self.deployment or is_first_to_stop)


class Picture(Struct, frozen=True):
    """All rows that the spec asks for, and the deployments that are left of what it no longer asks for.

    `held` says what waits because the rollout is paused; empty when nothing does.
    """

    rows: tuple[Seen, ...]
    leftover: tuple[str, ...] = ()
    held: str = ""


def picture(
    workload: Workload, deployments: Iterable[WorkloadDeployment], instances: Iterable[Instance], target: int
) -> Picture:
    """`target` is the generation whose rollout is watched."""
    by_place = {Place.of(deployment): deployment for deployment in deployments}
    members: dict[str, list[Instance]] = {}
    for instance in sorted(instances, key=lambda instance: instance.name):
        members.setdefault(deployment_of(instance), []).append(instance)
    answered = workload.status is not None and workload.status.observed_generation >= target
    above = block(workload.status.conditions, AVAILABLE) if workload.status and answered else None
    held = held_back(workload) if answered else ""
    wanted = asked(workload)
    unfinished = workload.status is not None and workload.status.updated_replicas < sum(wanted.values())
    rows = []
    for place in sorted(wanted):
        deployment = by_place.get(place)
        counted = numbers(workload, wanted[place], deployment)
        if deployment is None:
            rows.append(Seen(place, counted, answered=False, cause=above, certain=_needs_somebody(above)))
        else:
            behind = answered and unfinished and _is_behind(workload, deployment)
            # One that is behind without a pause has yet to be given the newest template, as after a resume.
            heard = answered and observed(deployment) and (bool(held) or not behind)
            if behind:
                counted = replace(counted, updated=0)  # the site counts by the template that it was left
            seen = _seen(place, counted, deployment, members.get(deployment.name, ()), heard=heard, behind=behind)
            rows.append(replace(seen, held=bool(held) and counted.updated < counted.desired))
    leftover = tuple(deployment.name for place, deployment in sorted(by_place.items()) if place not in wanted)
    return Picture(tuple(rows), leftover, held)


def _seen(
    place: Place,
    counted: Counts,
    deployment: WorkloadDeployment,
    instances: Sequence[Instance],
    *,
    heard: bool,
    behind: bool,
) -> Seen:
    """`behind`: a pause keeps the deployment itself on an earlier template than the workload's."""
    hash_ = template_hash(deployment.template_json)
    current = [instance for instance in instances if _made_from(instance) == hash_]
    cause, certain = _cause(deployment, instances, current)
    old = len(instances) if behind else len(instances) - len(current)
    return Seen(place, counted, heard, deployment.name, cause, certain and heard, old if heard else None)


def _is_behind(workload: Workload, deployment: WorkloadDeployment) -> bool:
    templates = [as_dict(found.template_json) for found in (workload, deployment)]
    marks = [((one.get("metadata") or {}).get("annotations") or {}).pop(RESTARTED_AT, None) for one in templates]
    of_city = city_restarts(workload.metadata.annotations).get(deployment.spec.city_code)
    is_restarted = newest(marks[1], marks[0], of_city) != newest(marks[1])
    return is_restarted or template_hash(encode(templates[0])) != template_hash(encode(templates[1]))


def _cause(
    deployment: WorkloadDeployment, instances: Sequence[Instance], current: Sequence[Instance]
) -> tuple[Block | None, bool]:
    """What keeps a deployment from its newest version, and whether it is certain that somebody has to act.

    What an instance of an earlier version suffers from is about to be replaced and blocks nothing.
    """
    own = block(deployment.status.conditions, AVAILABLE) if deployment.status else None
    below = next(filter(None, map(_instance_cause, current)), None)
    if _needs_somebody(below):
        return below, True
    stopping = next((instance for instance in instances if judge(instance).state.going), None)
    if below is None and stopping is not None:
        below = Block(reasons.STOPPING, f"{stopping.name} is stopping")
    if own is None or (explain(own.reason).is_pointer and below is not None):
        return below, False
    return own, not instances and _needs_somebody(own)


def _instance_cause(instance: Instance) -> Block | None:
    """Why an instance is not ready."""
    judged = judge(instance)
    if judged.state is State.AVAILABLE or judged.state.going or judged.because is None:
        return None
    return Block(judged.because.reason, judged.because.message)


def _needs_somebody(cause: Block | None) -> bool:
    return cause is not None and explain(cause.reason).acts in (Acts.YOU, Acts.PLATFORM)


def _made_from(instance: Instance) -> str:
    return instance.spec.controller.template_hash if instance.spec.controller else ""


def phase(seen: Seen, *, stalled: bool) -> Phase:
    """`stalled`: nothing moved for too long, and why is known."""
    now, stuck = seen.numbers, stalled or seen.certain
    if not seen.answered:
        return Phase.BLOCKED if stuck and seen.is_explained else Phase.PENDING
    if now.desired == 0:
        return Phase.DONE
    if now.ready >= now.desired and now.updated >= now.desired and now.replicas <= now.updated:
        return Phase.DONE
    if seen.held and now.ready >= now.desired and now.replicas <= now.desired:
        return Phase.PAUSED
    if stuck:
        return Phase.BLOCKED
    return Phase.PENDING if now.updated == 0 else Phase.UPDATING


class Row(Struct, frozen=True):
    """A row to show; `blocked` is there the first time that this cause blocks anything."""

    seen: Seen
    phase: Phase
    changed: bool
    blocked: Block | None = None


class _Still(Struct, frozen=True):
    """Since when a row has shown the same."""

    numbers: Counts
    answered: bool
    since: float


class Tracker:
    """Remembers what was shown and since when nothing moved; `tick` tells what is new to show."""

    def __init__(self) -> None:
        self._still: dict[Place, _Still] = {}
        self._shown: dict[Place, tuple[Counts, int | None, Phase]] = {}
        self._explained: set[Block] = set()
        self.settled = False  # every place is where it should be, as far as the rollout is not paused
        self.complete = False
        self.causes: dict[Place, Block] = {}  # why places are not done, as far as it is known

    def tick(self, now: float, picture: Picture) -> list[Row]:
        """Judged anew every time, also when no number changed."""
        rows = []
        phases = []
        self.causes = {}
        for seen in picture.rows:
            stalled = self._quiet_for(now, seen) > STALL_SECONDS and seen.cause is not None
            at = phase(seen, stalled=stalled)
            phases.append(at)
            shown = (seen.numbers, seen.old, at)
            changed = self._shown.get(seen.place) != shown
            self._shown[seen.place] = shown
            if at not in (Phase.DONE, Phase.PAUSED) and seen.cause is not None and seen.is_explained:
                self.causes[seen.place] = seen.cause
            blocked = self._first_time(seen.cause) if at is Phase.BLOCKED else None
            if changed or blocked:
                rows.append(Row(seen, at, changed, blocked))
        self.settled = not picture.leftover and all(at in (Phase.DONE, Phase.PAUSED) for at in phases)
        self.complete = self.settled and not picture.held
        return rows

    def _quiet_for(self, now: float, seen: Seen) -> float:
        still = self._still.get(seen.place)
        if still is None or still.numbers != seen.numbers or still.answered != seen.answered:
            still = self._still[seen.place] = _Still(seen.numbers, seen.answered, now)
        return now - still.since

    def _first_time(self, cause: Block | None) -> Block | None:
        if cause is None or cause in self._explained:
            return None
        self._explained.add(cause)
        return cause
