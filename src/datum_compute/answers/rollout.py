"""The progress of a rollout, derived from what the server reports. Entry points: `rollout_progress`, `Tracker`.

Time is passed in as an argument. A row is one placement in one city.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.answers.health import Block, State, block, held_back, instance_health
from datum_compute.answers.owners import deployment_of
from datum_compute.answers.places import Counts, Place, desired_replicas, numbers, observed
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


class RowState(Struct, frozen=True):
    """A row as reported. `answered`: the server has seen the change, so that the numbers reflect it."""

    place: Place
    numbers: Counts
    answered: bool
    deployment: str = ""  # empty while there is none
    cause: Block | None = None
    certain: bool = False  # whether the cause blocks the newest version, and somebody has to act
    old: int | None = None  # instances of an earlier version; None while the newest is not known to the site
    held: bool = False  # a pause keeps instances of an earlier version
    sentence: str = ""  # why the place is held up; set once that matters
    advice: str = ""  # what can be done about it, or that nothing has to be

    @property
    def is_explained(self) -> bool:
        """Whether the cause is about the newest spec.

        The report of a site that has not answered is about an earlier spec, unless it is about what has to stop first.
        Without a deployment, the cause is that of the workload itself.
        """
        is_first_to_stop = self.cause is not None and self.cause.reason == reasons.STOPPING
        return self.cause is not None and (self.answered or not self.deployment or is_first_to_stop)


class Progress(Struct, frozen=True):
    """All rows that the spec requests, and the deployments it no longer requests.

    `held` describes what waits because the rollout is paused; empty if nothing does.
    """

    rows: tuple[RowState, ...]
    leftover: tuple[str, ...] = ()
    held: str = ""


def rollout_progress(
    workload: Workload, deployments: Iterable[WorkloadDeployment], instances: Iterable[Instance], target: int
) -> Progress:
    """The rows of the rollout of generation `target`."""
    by_place = {Place.of(deployment): deployment for deployment in deployments}
    members: dict[str, list[Instance]] = {}
    for instance in sorted(instances, key=lambda instance: instance.name):
        members.setdefault(deployment_of(instance), []).append(instance)
    answered = workload.status is not None and workload.status.observed_generation >= target
    above = block(workload.status.conditions, AVAILABLE) if workload.status and answered else None
    held = held_back(workload) if answered else ""
    wanted = desired_replicas(workload)
    rows = []
    for place in sorted(wanted):
        deployment = by_place.get(place)
        counted = numbers(workload, wanted[place], deployment)
        if deployment is None:
            rows.append(RowState(place, counted, answered=False, cause=above, certain=_needs_action(above)))
        else:
            behind = answered and is_behind(workload, deployment)
            # Without a pause, a deployment that is behind is yet to get the newest template, as after a resume.
            is_current = answered and observed(deployment) and (bool(held) or not behind)
            if behind:
                counted = replace(counted, updated=0)  # the site counts by the earlier template
            state = _row(
                place, counted, deployment, members.get(deployment.name, ()), answered=is_current, behind=behind
            )
            rows.append(replace(state, held=bool(held) and counted.updated < counted.desired))
    leftover = tuple(deployment.name for place, deployment in sorted(by_place.items()) if place not in wanted)
    return Progress(tuple(rows), leftover, held)


def _row(
    place: Place,
    counted: Counts,
    deployment: WorkloadDeployment,
    instances: Sequence[Instance],
    *,
    answered: bool,
    behind: bool,
) -> RowState:
    """`behind`: a pause keeps the deployment itself on an earlier template than the workload's."""
    hash_ = template_hash(deployment.template_json)
    current = [instance for instance in instances if _template_hash_of(instance) == hash_]
    cause, certain = _cause(deployment, instances, current)
    old = len(instances) if behind else len(instances) - len(current)
    return RowState(place, counted, answered, deployment.name, cause, certain and answered, old if answered else None)


def is_behind(workload: Workload, deployment: WorkloadDeployment) -> bool:
    """Whether the deployment has an earlier template than the workload, by which its site counts what is up to date."""
    if workload.status is None or workload.status.updated_replicas >= sum(desired_replicas(workload).values()):
        return False
    of_city = city_restarts(workload.metadata.annotations).get(deployment.spec.city_code)
    restart, wanted = _restart_and_version(workload)
    last_restart, current = _restart_and_version(deployment)
    return newest(last_restart, restart, of_city) != newest(last_restart) or wanted != current


def version(object_: Workload | WorkloadDeployment) -> str:
    """A digest of what runs: the template, whenever it was restarted."""
    return _restart_and_version(object_)[1]


def _restart_and_version(object_: Workload | WorkloadDeployment) -> tuple[str | None, str]:
    template = as_dict(object_.template_json)
    restart = ((template.get("metadata") or {}).get("annotations") or {}).pop(RESTARTED_AT, None)
    return restart, template_hash(encode(template))


def _cause(
    deployment: WorkloadDeployment, instances: Sequence[Instance], current: Sequence[Instance]
) -> tuple[Block | None, bool]:
    """What keeps a deployment from its newest version, and whether somebody certainly has to act.

    Trouble of an instance of an earlier version blocks nothing, because the instance is about to be replaced.
    """
    own = block(deployment.status.conditions, AVAILABLE) if deployment.status else None
    below = next(filter(None, map(_instance_cause, current)), None)
    if _needs_action(below):
        return below, True
    stopping = next((instance for instance in instances if instance_health(instance).state.going), None)
    if below is None and stopping is not None:
        below = Block(reasons.STOPPING, f"{stopping.name} is stopping")
    if own is None or (explain(own.reason).is_pointer and below is not None):
        return below, False
    return own, not instances and _needs_action(own)


def _instance_cause(instance: Instance) -> Block | None:
    """Why an instance is not ready."""
    health = instance_health(instance)
    if health.state is State.AVAILABLE or health.state.going or health.condition is None:
        return None
    return Block(health.condition.reason, health.condition.message)


def _needs_action(cause: Block | None) -> bool:
    return cause is not None and explain(cause.reason).acts in (Acts.YOU, Acts.PLATFORM)


def _template_hash_of(instance: Instance) -> str:
    return instance.spec.controller.template_hash if instance.spec.controller else ""


def phase(state: RowState, *, stalled: bool) -> Phase:
    """`stalled`: nothing has changed for too long, and the cause is known."""
    now, stuck = state.numbers, stalled or state.certain
    if not state.answered:
        return Phase.BLOCKED if stuck and state.is_explained else Phase.PENDING
    if now.desired == 0:
        return Phase.DONE
    if now.ready >= now.desired and now.updated >= now.desired and now.replicas <= now.updated:
        return Phase.DONE
    if state.held and now.ready >= now.desired and now.replicas <= now.desired:
        return Phase.PAUSED
    if stuck:
        return Phase.BLOCKED
    return Phase.PENDING if now.updated == 0 else Phase.UPDATING


class Row(Struct, frozen=True):
    """A row to show; `blocked` is set the first time that this cause blocks anything."""

    state: RowState
    phase: Phase
    changed: bool
    blocked: Block | None = None


class _Unchanged(Struct, frozen=True):
    """Since when a row has not changed."""

    numbers: Counts
    answered: bool
    since: float


class Tracker:
    """Remembers which rows were shown, and since when they have not changed; `tick` returns what is new."""

    def __init__(self) -> None:
        self._still: dict[Place, _Unchanged] = {}
        self._last_entries: dict[Place, tuple[Counts, int | None, Phase]] = {}
        self._explained: set[Block] = set()
        self.settled = False  # every place is done, or held by a pause
        self.complete = False
        self.causes: dict[Place, Block] = {}  # why places are not done, where that is known

    def tick(self, now: float, progress: Progress) -> list[Row]:
        """Decides every row anew, even if no number has changed."""
        rows = []
        phases = []
        self.causes = {}
        for state in progress.rows:
            stalled = self._quiet_for(now, state) > STALL_SECONDS and state.cause is not None
            at = phase(state, stalled=stalled)
            phases.append(at)
            entry = (state.numbers, state.old, at)
            changed = self._last_entries.get(state.place) != entry
            self._last_entries[state.place] = entry
            if at not in (Phase.DONE, Phase.PAUSED) and state.cause is not None and state.is_explained:
                self.causes[state.place] = state.cause
            blocked = self._first_time(state.cause) if at is Phase.BLOCKED else None
            if changed or blocked:
                rows.append(Row(state, at, changed, blocked))
        self.settled = not progress.leftover and all(at in (Phase.DONE, Phase.PAUSED) for at in phases)
        self.complete = self.settled and not progress.held
        return rows

    def _quiet_for(self, now: float, state: RowState) -> float:
        still = self._still.get(state.place)
        if still is None or still.numbers != state.numbers or still.answered != state.answered:
            still = self._still[state.place] = _Unchanged(state.numbers, state.answered, now)
        return now - still.since

    def _first_time(self, cause: Block | None) -> Block | None:
        if cause is None or cause in self._explained:
            return None
        self._explained.add(cause)
        return cause
