"""Where a workload shall run, and how many instances are there. Entry points: `Place`, `asked`, `numbers`, `tally`."""

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
    """Instances of one deployment, or of several together."""

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


def asked(workload: Workload) -> dict[Place, int]:
    """Every place that the spec names, with the instances it asks for there."""
    return {
        Place(placement.name, city): placement.scale_settings.min_replicas
        for placement in workload.spec.placements
        for city in placement.city_codes
    }


def observed(found: Workload | WorkloadDeployment) -> bool:
    """Whether the status answers the newest spec."""
    return found.status is not None and found.status.observed_generation >= found.metadata.generation


def counts(deployment: WorkloadDeployment) -> Counts:
    """As the deployment reports; what it asks for counts as desired until it does."""
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
    """The instances of a place that the spec asks `wanted` of.

    What the site reports as desired counts only when it answers the newest spec: after a change it tells of the time
    before.
    """
    if deployment is None:
        return Counts(desired=wanted)
    found = counts(deployment)
    if observed(workload) and observed(deployment):
        return found
    return Counts(wanted, found.updated, found.ready, found.replicas)


def tally(workload: Workload, deployments: Iterable[WorkloadDeployment]) -> dict[Place, Counts]:
    """The instances of every place that the spec names; what is left elsewhere counts for nothing."""
    found = {Place.of(deployment): deployment for deployment in deployments}
    return {place: numbers(workload, wanted, found.get(place)) for place, wanted in asked(workload).items()}


def total(counted: Iterable[Counts]) -> Counts:
    return sum(counted, Counts())
