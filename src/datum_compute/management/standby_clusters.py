"""Says which Clusters cannot serve their city because another one does. Entry point: `StandbyClusters`."""

from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from datum_compute.api import reasons
from datum_compute.api.karmada import CLUSTER, Cluster
from datum_compute.federation.roles import HUB
from datum_compute.federation.sites import city_of, concerns_cities, serving_cluster
from datum_compute.runtime import Change, Pass, Plane, Request, Source

_log = structlog.get_logger(__name__)


class StandbyClusters:
    """An event on each Cluster that has to stand by, when that begins; the federator tells the cells themselves."""

    name = "sites"

    def __init__(self) -> None:
        self._standing_by: dict[Request, str] = {}  # the cluster that serves instead

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(HUB, CLUSTER, _of_its_cities, when=concerns_cities),)

    async def reconcile(self, pass_: Pass) -> None:
        request, cluster = pass_.request, pass_.get(CLUSTER)
        city = city_of(cluster) if cluster is not None else ""
        serving = serving_cluster(pass_.informer(CLUSTER).all(), city)
        if cluster is None or serving in ("", cluster.name):
            self._standing_by.pop(request, None)
            return
        if self._standing_by.get(request) == serving:
            return
        self._standing_by[request] = serving
        sentence = (
            f'Cluster {serving} serves city "{city}" already, so {cluster.name} runs nothing there; '
            "give one of the two another city, or remove one"
        )
        _log.warning("cluster stands by", cluster=cluster.name, city=city, serving=serving)
        pass_.events.warning(cluster, reasons.CITY_SERVED_ELSEWHERE, sentence)


def _of_its_cities(hub: Plane, change: Change[Cluster]) -> Iterable[Request]:
    """Every Cluster of the cities that it has or had, and itself."""
    cities = {city_of(cluster) for cluster in (change.before, change.after) if cluster is not None}
    yield Request(hub.name, "", change.object.name)
    for cluster in hub.informer(CLUSTER).all():
        if cluster.name != change.object.name and city_of(cluster) in cities:
            yield Request(hub.name, "", cluster.name)
