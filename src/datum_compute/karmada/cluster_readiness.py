"""Whether the hub reaches its cells, told on their Clusters as Karmada tells it. Entry point: `ClusterReadiness`."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from datum_compute.api.karmada import CLUSTER, Cluster
from datum_compute.federation.roles import HUB
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition, Json, as_dict
from datum_compute.runtime import Fleet, NotEngaged, Pass, Source, itself

READY = "Ready"
CLUSTER_READY = "ClusterReady"
NOT_REACHABLE = "ClusterNotReachable"
TAINT: Json = {"key": "cluster.karmada.io/not-ready", "effect": "NoSchedule"}

_LOOK_SECONDS = 10.0
_PATIENCE = timedelta(seconds=30)  # a short silence says nothing


class ClusterReadiness:
    """Owns the status and the taints of every Cluster. Nothing that runs is moved for it."""

    name = "cluster-readiness"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._silent_since: dict[str, datetime] = {}

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(HUB, CLUSTER, itself),)

    async def reconcile(self, pass_: Pass) -> None:
        name, cluster = pass_.request.name, pass_.get(CLUSTER)
        if cluster is None or cluster.metadata.deleting:
            self._silent_since.pop(name, None)
            return
        pass_.no_later_than(_LOOK_SECONDS)
        now = pass_.now()
        reached = self._reaches(name)
        if reached:
            self._silent_since.pop(name, None)
        elif now - self._silent_since.setdefault(name, now) < _PATIENCE:
            return

        before = cluster.status.conditions if cluster.status else ()
        after = conditions.updated(before, [_ready(name, reached, now)])
        if after != tuple(before):
            cluster = await pass_.write.status(cluster, {"conditions": conditions.to_json(after)})
        if (changed := _taints(cluster, reached)) is not None:
            await pass_.write.patch(cluster, {"spec": {"taints": changed}})

    def _reaches(self, name: str) -> bool:
        try:
            return self._fleet.plane(name).answers
        except NotEngaged:
            return False


def _ready(name: str, reached: bool, now: datetime) -> Condition:
    if reached:
        return conditions.condition(READY, True, CLUSTER_READY, f"{name} answers", generation=0, now=now)
    return conditions.condition(READY, False, NOT_REACHABLE, f"{name} does not answer", generation=0, now=now)


def _taints(cluster: Cluster, reached: bool) -> list[Json] | None:
    """All taints as they should be, those of others included; None when they are."""
    before: list[Json] = as_dict(cluster.spec_json).get("taints") or []
    after = [taint for taint in before if taint.get("key") != TAINT["key"]] + ([] if reached else [TAINT])
    return after if after != before else None
