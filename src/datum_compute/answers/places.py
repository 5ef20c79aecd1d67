"""Where a workload runs, and with how many instances. Entry points: `Place`, `desired_replicas`, `numbers`, `tally`."""

from collections.abc import Iterable

from msgspec import Struct

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.workload import Workload


class Place(Struct, frozen=True, order=True):
    """One placement in one city."""

    placement: str
    city: str

    @classmethod
    def of(cls, deployment: WorkloadDeployment) -> "Place":
        return cls(deployment.spec.placement_name, deployment.spec.city_code)


class Counts(Struct, frozen=True):
    """Numbers of instances, of one deployment or of several together."""

    desired: int = 0
    updated: int = 0
    ready: int = 0
    replicas: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.desired + other.desired,
            self.updated + other.updated,
            self.ready + other.ready,
            self.replicas + other.replicas,
        )

    @property
    def missing(self) -> int:
        return max(self.desired - self.ready, 0)

    @property
    def surplus(self) -> int:
        return max(self.replicas - self.desired, 0)


def desired_replicas(workload: Workload) -> dict[Place, int]:
    """Every place that the spec names, with the number of instances it requests there."""
    return {
        Place(placement.name, city): placement.scale_settings.min_replicas
        for placement in workload.spec.placements
        for city in placement.city_codes
    }


def observed(object_: Workload | WorkloadDeployment) -> bool:
    """Whether the status reflects the newest spec."""
    return object_.status is not None and object_.status.observed_generation >= object_.metadata.generation


def counts(deployment: WorkloadDeployment) -> Counts:
    """The numbers that the deployment reports; until it does, those of its spec count as desired."""
    status = deployment.status
    wanted = deployment.spec.scale_settings.min_replicas
    if status is None:
        return Counts(desired=wanted)
    return Counts(
        status.desired_replicas or (0 if deployment.metadata.deleting else wanted),
        status.updated_replicas or status.current_replicas,
        status.ready_replicas,
        status.replicas,
    )


def numbers(workload: Workload, wanted: int, deployment: WorkloadDeployment | None) -> Counts:
    """The numbers of a place for which the spec requests `wanted` instances.

    The desired number that the site reports counts only if it reflects the newest spec.
    """
    if deployment is None:
        return Counts(desired=wanted)
    reported = counts(deployment)
    if observed(workload) and observed(deployment):
        return reported
    return Counts(wanted, reported.updated, reported.ready, reported.replicas)


def tally(workload: Workload, deployments: Iterable[WorkloadDeployment]) -> dict[Place, Counts]:
    """The numbers of every place that the spec names; instances elsewhere do not count."""
    by_place = {Place.of(deployment): deployment for deployment in deployments}
    return {
        place: numbers(workload, wanted, by_place.get(place)) for place, wanted in desired_replicas(workload).items()
    }


def total(counted: Iterable[Counts]) -> Counts:
    return sum(counted, Counts())
