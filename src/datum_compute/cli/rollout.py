"""How far a rollout has come, decided from what the server tells. Entry points: `picture`, `Tracker`.

Pure: the clock's reading is an argument. A row is one placement in one city.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct

from datum_compute.api.deployment import AVAILABLE, WorkloadDeployment
from datum_compute.api.workload import Workload
from datum_compute.cli.health import Block, Counts, block, counts, observed

STALL_SECONDS = 30.0


class Phase(Enum):
    PENDING = "Pending"
    UPDATING = "Updating"
    BLOCKED = "Blocked"
    DONE = "Done"


class Place(Struct, frozen=True, order=True):
    placement: str
    city: str


class Seen(Struct, frozen=True):
    """One row as the server tells it. `answered`: the server has seen what was asked, so that the numbers mean it."""

    place: Place
    numbers: Counts
    answered: bool
    deployment: str = ""  # empty while there is none
    cause: Block | None = None

    @property
    def old(self) -> int:
        return max(self.numbers.replicas - self.numbers.updated, 0)


class Picture(Struct, frozen=True):
    """All rows that the spec asks for, and the deployments that are left of what it no longer asks for."""

    rows: tuple[Seen, ...]
    leftover: tuple[str, ...] = ()


def picture(workload: Workload, deployments: Iterable[WorkloadDeployment], target: int) -> Picture:
    """`target` is the generation whose rollout is watched."""
    by_place = {Place(one.spec.placement_name, one.spec.city_code): one for one in deployments}
    answered = workload.status is not None and workload.status.observed_generation >= target
    above = block(workload.status.conditions, AVAILABLE) if workload.status and answered else None
    asked = {
        Place(placement.name, city): placement.scale_settings.min_replicas
        for placement in workload.spec.placements
        for city in placement.city_codes
    }
    rows = []
    for place in sorted(asked):
        deployment = by_place.get(place)
        if deployment is None:
            rows.append(Seen(place, Counts(desired=asked[place]), answered=False, cause=above))
        else:
            cause = block(deployment.status.conditions, AVAILABLE) if deployment.status else None
            heard = answered and observed(deployment)
            rows.append(Seen(place, counts(deployment), heard, deployment.name, cause))
    return Picture(tuple(rows), tuple(one.name for place, one in sorted(by_place.items()) if place not in asked))


def phase(seen: Seen, *, stalled: bool) -> Phase:
    """`stalled`: nothing moved for too long, and why is known."""
    now = seen.numbers
    if not seen.answered:
        # Without a deployment the workload itself may say why there is none.
        return Phase.BLOCKED if stalled and not seen.deployment else Phase.PENDING
    if now.desired == 0:
        return Phase.DONE
    if now.ready >= now.desired and now.updated >= now.desired and now.replicas <= now.updated:
        return Phase.DONE
    if stalled:
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
        self._shown: dict[Place, tuple[Counts, Phase]] = {}
        self._told: set[Block] = set()
        self.complete = False

    def tick(self, now: float, picture: Picture, instance_causes: Mapping[str, Block]) -> list[Row]:
        """Judged anew every time, also when no number changed. `instance_causes` are by deployment."""
        rows = []
        phases = []
        for seen in picture.rows:
            cause = seen.cause or instance_causes.get(seen.deployment)
            stalled = self._quiet_for(now, seen) > STALL_SECONDS and cause is not None
            at = phase(seen, stalled=stalled)
            phases.append(at)
            changed = self._shown.get(seen.place) != (seen.numbers, at)
            self._shown[seen.place] = (seen.numbers, at)
            blocked = self._first_time(cause) if at is Phase.BLOCKED else None
            if changed or blocked:
                rows.append(Row(seen, at, changed, blocked))
        self.complete = not picture.leftover and all(at is Phase.DONE for at in phases)
        return rows

    def unexplained(self, now: float, picture: Picture) -> bool:
        """Whether something stands still and no deployment says why, so that its instances are worth a look."""
        return any(
            seen.cause is None and seen.answered and self._quiet_for(now, seen) > STALL_SECONDS
            for seen in picture.rows
            if phase(seen, stalled=False) is not Phase.DONE
        )

    def _quiet_for(self, now: float, seen: Seen) -> float:
        still = self._still.get(seen.place)
        if still is None or still.numbers != seen.numbers or still.answered != seen.answered:
            still = self._still[seen.place] = _Still(seen.numbers, seen.answered, now)
        return now - still.since

    def _first_time(self, cause: Block | None) -> Block | None:
        if cause is None or cause in self._told:
            return None
        self._told.add(cause)
        return cause
