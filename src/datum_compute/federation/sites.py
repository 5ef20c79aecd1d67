"""Which of several cells serves a city. Entry points: `serving_cluster`, `is_served_elsewhere`.

That is the cell of the city's oldest Cluster. Karmada sends a city's deployments to all of its clusters, because it
selects them by the city's label, so each deployment carries the name of the one that serves it.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.karmada import WORK_NAMESPACE, Cluster, execution_space
from datum_compute.api.labels import SERVING_CLUSTER, TOPOLOGY_CITY
from datum_compute.runtime import Change

_LAST = datetime.max.replace(tzinfo=UTC)


def city_of(cluster: Cluster) -> str:
    return cluster.metadata.labels.get(TOPOLOGY_CITY, "")


def serving_cluster(clusters: Iterable[Cluster], city: str) -> str:
    """The name of the oldest Cluster of a city, or the first by name among equals; empty when there is none."""
    candidates = [cluster for cluster in clusters if city and city_of(cluster) == city]
    return min(candidates, key=_seniority).name if candidates else ""


def is_served_elsewhere(copy: WorkloadDeployment) -> bool:
    """Whether a copy in a cell names another cluster than the one that Karmada delivered it to.

    Where either is missing, as with an older management plane, the cell that has the copy serves it.
    """
    annotations = copy.metadata.annotations
    serving, here = annotations.get(SERVING_CLUSTER), annotations.get(WORK_NAMESPACE)
    return bool(serving and here) and execution_space(serving or "") != here


def concerns_cities(change: Change[Cluster]) -> bool:
    """Whether a change of a Cluster may change which cluster serves a city."""
    before, after = change.before, change.after
    return before is None or after is None or city_of(before) != city_of(after)


def _seniority(cluster: Cluster) -> tuple[datetime, str]:
    return cluster.metadata.creation_timestamp or _LAST, cluster.name
