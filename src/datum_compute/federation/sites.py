"""Which of several cells serves a city. Entry points: `serving_cluster`, `is_served_elsewhere`.

A city has one: that of its oldest Cluster. The deployments of the city are sent to all of its clusters, because they
are chosen by the city's label, so each deployment carries the name of the one that serves it.
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
    """The name of the oldest Cluster of a city, of two of one age the first by name; empty when there is none."""
    candidates = [cluster for cluster in clusters if city and city_of(cluster) == city]
    return min(candidates, key=_seniority).name if candidates else ""


def is_served_elsewhere(copy: WorkloadDeployment) -> bool:
    """Whether a copy in a cell names another cluster than the one that Karmada brought it to.

    Where either is not said, as by a management plane that does not know of it, the cell that has it serves it.
    """
    annotations = copy.metadata.annotations
    serving, here = annotations.get(SERVING_CLUSTER), annotations.get(WORK_NAMESPACE)
    return bool(serving and here) and execution_space(serving or "") != here


def concerns_cities(change: Change[Cluster]) -> bool:
    """Whether another cluster may serve a city now."""
    before, after = change.before, change.after
    return before is None or after is None or city_of(before) != city_of(after)


def _seniority(cluster: Cluster) -> tuple[datetime, str]:
    return cluster.metadata.creation_timestamp or _LAST, cluster.name
