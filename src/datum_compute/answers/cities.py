"""The places of a workload, how many instances are ready there, and why not all. Entry point: `cities`."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.answers.health import State, block, instance_health
from datum_compute.answers.owners import deployment_of
from datum_compute.answers.places import Counts, Place, counts, desired_replicas, numbers, observed
from datum_compute.answers.rollout import is_behind
from datum_compute.api.deployment import AVAILABLE, WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.workload import Workload


class Trouble(Struct, frozen=True):
    """Why a city has fewer ready instances than it should."""

    reason: str = ""
    message: str = ""
    cause: str = ""  # the reason in plain words
    waiting: bool = False  # nothing has failed yet
    quota: bool = False


class City(Struct, frozen=True):
    """A place with its numbers. `requested`: the spec names it; `known`: its numbers were reported, not assumed."""

    place: Place
    numbers: Counts
    requested: bool
    trouble: Trouble | None = None
    known: bool = True

    @property
    def degraded(self) -> bool:
        return self.numbers.missing > 0


def affordable_replicas(places: Iterable[City]) -> int:
    """How many replicas per city the quota allows: those ready where it ran out; 0 if it did not run out."""
    short = [city.numbers.ready for city in places if city.degraded and city.trouble and city.trouble.quota]
    return max(min(short), 1) if short else 0


def cities(workload: Workload, deployments: Iterable[WorkloadDeployment], instances: Iterable[Instance]) -> list[City]:
    """Every place that the spec names or that still has a deployment, with placements in the order of the spec."""
    by_place = {Place.of(deployment): deployment for deployment in deployments}
    wanted = desired_replicas(workload)
    order = {placement.name: index for index, placement in enumerate(workload.spec.placements)}
    by_deployment: dict[str, list[Instance]] = {}
    for instance in sorted(instances, key=lambda instance: instance.name):
        by_deployment.setdefault(deployment_of(instance), []).append(instance)

    places = []
    for place in sorted({*by_place, *wanted}, key=lambda place: (order.get(place.placement, len(order)), place)):
        deployment = by_place.get(place)
        counted = numbers(workload, wanted[place], deployment) if place in wanted else _leaving(by_place[place])
        if deployment is not None and observed(workload) and is_behind(workload, deployment):
            counted = replace(counted, updated=0)
        if deployment is None:
            trouble = Trouble(cause="not set up yet", waiting=True)
        else:
            trouble = _trouble(deployment, by_deployment.get(deployment.name, ()))
        is_reported = deployment is not None and deployment.status is not None
        places.append(City(place, counted, place in wanted, trouble if counted.missing else None, is_reported))
    return places


def _leaving(deployment: WorkloadDeployment) -> Counts:
    """The numbers of a place that is no longer requested: nothing is desired there, whatever was reported before."""
    return replace(counts(deployment), desired=0)


def _trouble(deployment: WorkloadDeployment, instances: Sequence[Instance]) -> Trouble:
    """The trouble of the first instance that is not ready, else that of the deployment."""
    for instance in instances:
        health = instance_health(instance)
        if health.state is not State.AVAILABLE:
            reason = health.condition.reason if health.condition else ""
            waiting = not health.line.startswith("Not available")
            return Trouble(reason, health.message, health.cause, waiting, health.state is State.QUOTA_EXCEEDED)
    blocked = block(deployment.status.conditions, AVAILABLE) if deployment.status else None
    if blocked is None:
        return Trouble(cause="not reported yet", waiting=True)
    return Trouble(blocked.reason, blocked.message, blocked.reason, waiting=True)
