"""What still runs of a workload that is being deleted, by the quota claims of its instances. Entry point: `Remains`.

Projects do not wait for their sites, and show nothing more of what these are still stopping. The claim of an instance
goes only when it has stopped.
"""

from collections.abc import Iterable, Sequence

from datum_compute.answers.owners import deployment_of
from datum_compute.api import names
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.labels import CITY_CODE
from datum_compute.api.quota import ResourceClaim


class Remains:
    """Told of everything that belongs to the workload before it goes, and of the claims at every look since then."""

    def __init__(self, deployments: Iterable[WorkloadDeployment], instances: Iterable[Instance]) -> None:
        cities = {deployment.name: deployment.spec.city_code for deployment in deployments}
        for instance in instances:
            cities.setdefault(deployment_of(instance), instance.metadata.labels.get(CITY_CODE, ""))
        self._cities = cities
        self._uncounted = {instance.name for instance in instances}
        self._noted: dict[str, str] = {}  # uids of claims, with the city of each

    def note(self, claims: Iterable[ResourceClaim]) -> None:
        """What there is while no other workload can have the name."""
        for claim in claims:
            instance = names.claimed_instance(claim.name)
            deployment = names.deployment_of(instance)
            if deployment in self._cities:
                self._uncounted.discard(instance)
                city = claim.metadata.labels.get(CITY_CODE) or self._cities[deployment]
                self._noted[claim.metadata.uid] = city

    def left(self, claims: Iterable[ResourceClaim]) -> Sequence[str]:
        """The city of each instance that has not stopped."""
        return sorted(self._noted[claim.metadata.uid] for claim in claims if claim.metadata.uid in self._noted)

    @property
    def are_known(self) -> bool:
        """Whether every instance that was seen had a claim; without one nobody can tell when it has stopped."""
        return not self._uncounted and (bool(self._noted) or not self._cities)
