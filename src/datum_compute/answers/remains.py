"""What still runs of a workload that is being deleted, by the quota claims of its instances. Entry point: `Remains`.

Projects do not wait for their sites, and do not show instances that a site is still stopping. The claim of an instance
is deleted only when it has stopped.
"""

from collections.abc import Collection, Iterable, Sequence

from datum_compute.answers.owners import deployment_of
from datum_compute.api import names
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.labels import CITY_CODE, WORKLOAD_UID
from datum_compute.api.quota import ResourceClaim


class Remains:
    """Created from everything the project shows of a workload; `note` and `left` take the claims at a later time."""

    def __init__(self, uid: str, deployments: Iterable[WorkloadDeployment], instances: Collection[Instance]) -> None:
        cities = {deployment.name: deployment.spec.city_code for deployment in deployments}
        for instance in instances:
            cities.setdefault(deployment_of(instance), instance.metadata.labels.get(CITY_CODE, ""))
        self._uid = uid
        self._cities = cities
        self._instances = frozenset(instance.name for instance in instances)
        self._counted: set[str] = set()
        self._noted: dict[str, str] = {}  # uids of claims, with the city of each

    def note(self, claims: Iterable[ResourceClaim]) -> None:
        """Remember the claims of the workload, while no other workload can have its name."""
        for claim in claims:
            instance = names.claimed_instance(claim.name)
            if self._is_ours(claim, instance):
                self._counted.add(instance)
                city = claim.metadata.labels.get(CITY_CODE) or self._cities.get(names.deployment_of(instance), "")
                self._noted[claim.metadata.uid] = city

    def _is_ours(self, claim: ResourceClaim, instance: str) -> bool:
        """By the claim's label, because a city that was removed from the spec may still be stopping its instances.

        A claim is never changed: the label of one whose workload was restored from a backup names an earlier uid, and
        older cells wrote none.
        """
        uid = claim.metadata.labels.get(WORKLOAD_UID)
        if uid == self._uid or instance in self._instances:
            return True
        return uid is None and names.deployment_of(instance) in self._cities

    def left(self, claims: Iterable[ResourceClaim]) -> Sequence[str]:
        """The city of each instance that has not stopped."""
        return sorted(self._noted[claim.metadata.uid] for claim in claims if claim.metadata.uid in self._noted)

    @property
    def are_known(self) -> bool:
        """Whether every instance that was seen had a claim; without one nobody can tell when it has stopped."""
        return self._instances <= self._counted and (bool(self._noted) or not self._cities)
