"""Reports Clusters that cannot serve their city because another one does. Entry point: `StandbyClusters`."""

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
    """Emits an event on each Cluster when it starts to stand by; its cell learns that from the federator."""

    name = "sites"

    def __init__(self) -> None:
        self._serving: dict[Request, str] = {}  # by standby cluster, the one that serves instead

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(HUB, CLUSTER, _clusters_of_its_cities, when=concerns_cities),)

    async def reconcile(self, pass_: Pass) -> None:
        request, cluster = pass_.request, pass_.get(CLUSTER)
        city = city_of(cluster) if cluster is not None else ""
        serving = serving_cluster(pass_.informer(CLUSTER).all(), city)
        if cluster is None or serving in ("", cluster.name):
            self._serving.pop(request, None)
            return
        if self._serving.get(request) == serving:
            return
        self._serving[request] = serving
        message = (
            f'Cluster {serving} serves city "{city}" already, so {cluster.name} runs nothing there; '
            "give one of the two another city, or remove one"
        )
        _log.warning("cluster stands by", cluster=cluster.name, city=city, serving=serving)
        pass_.events.warning(cluster, reasons.CITY_SERVED_ELSEWHERE, message)


def _clusters_of_its_cities(hub: Plane, change: Change[Cluster]) -> Iterable[Request]:
    """The Cluster itself, and every Cluster of the cities that it has or had."""
    cities = {city_of(cluster) for cluster in (change.before, change.after) if cluster is not None}
    yield Request(hub.name, "", change.object.name)
    for cluster in hub.informer(CLUSTER).all():
        if cluster.name != change.object.name and city_of(cluster) in cities:
            yield Request(hub.name, "", cluster.name)
