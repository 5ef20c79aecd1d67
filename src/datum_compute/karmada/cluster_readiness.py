"""Reports on each Cluster whether the hub reaches it, as Karmada does. Entry point: `ClusterReadiness`."""

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

_PROBE_SECONDS = 10.0
_PATIENCE = timedelta(seconds=30)  # a shorter silence is ignored


class ClusterReadiness:
    """Owns the status and our taint of every Cluster. Running workloads stay where they are."""

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
        pass_.no_later_than(_PROBE_SECONDS)
        now = pass_.now()
        reachable = self._is_reachable(name)
        if reachable:
            self._silent_since.pop(name, None)
        elif now - self._silent_since.setdefault(name, now) < _PATIENCE:
            return

        before = cluster.status.conditions if cluster.status else ()
        after = conditions.updated(before, [_ready(name, reachable, now)])
        if after != tuple(before):
            cluster = await pass_.write.status(cluster, {"conditions": conditions.to_json(after)})
        if (taints := _changed_taints(cluster, reachable)) is not None:
            await pass_.write.patch(cluster, {"spec": {"taints": taints}})

    def _is_reachable(self, name: str) -> bool:
        try:
            return self._fleet.plane(name).answers
        except NotEngaged:
            return False


def _ready(name: str, reachable: bool, now: datetime) -> Condition:
    if reachable:
        return conditions.condition(READY, True, CLUSTER_READY, f"{name} answers", generation=0, now=now)
    return conditions.condition(READY, False, NOT_REACHABLE, f"{name} does not answer", generation=0, now=now)


def _changed_taints(cluster: Cluster, reachable: bool) -> list[Json] | None:
    """The taints that the Cluster should have, those of others included; None when it has them."""
    before: list[Json] = as_dict(cluster.spec_json).get("taints") or []
    after = [taint for taint in before if taint.get("key") != TAINT["key"]] + ([] if reachable else [TAINT])
    return after if after != before else None
