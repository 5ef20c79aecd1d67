"""Which workload, placement and city an instance belongs to. Entry point: `Owners`.

Decided by labels; where one is missing by the deployment, which is found by a label or else by the instance's name.
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.labels import CITY_CODE, DEPLOYMENT_NAME, PLACEMENT_NAME, WORKLOAD_NAME

ORPHANED = "orphaned"
UNKNOWN = "unknown"

_ORDINAL = re.compile(r"-\d+$")


class Owner(Struct, frozen=True):
    workload: str
    placement: str
    city: str


def deployment_of(instance: Instance) -> str:
    """The name of the deployment that an instance belongs to."""
    return instance.metadata.labels.get(DEPLOYMENT_NAME) or _ORDINAL.sub("", instance.name)


def has_owner_labels(instance: Instance) -> bool:
    """Whether labels suffice, so that no deployment has to be looked up."""
    return all(instance.metadata.labels.get(label) for label in (WORKLOAD_NAME, PLACEMENT_NAME, CITY_CODE))


class Owners:
    def __init__(self, deployments: Iterable[WorkloadDeployment] = ()) -> None:
        self._by_name = {deployment.name: deployment for deployment in deployments}

    def of(self, instance: Instance) -> Owner:
        labels = instance.metadata.labels
        deployment = self._by_name.get(deployment_of(instance))
        spec = deployment.spec if deployment else None
        return Owner(
            labels.get(WORKLOAD_NAME) or (spec.workload_ref.name if spec else ORPHANED),
            labels.get(PLACEMENT_NAME) or (spec.placement_name if spec else UNKNOWN),
            labels.get(CITY_CODE) or (spec.city_code if spec else UNKNOWN),
        )
