"""Deployments that the hub no longer has and forgot to take away. Entry point: `Leftovers`.

An object that is deleted on the hub while Karmada does not see the cell can stay in the cell for ever. It goes only
when the hub itself says, live and for longer than a moment, that it is not there: what cannot be read is never gone.
"""

import asyncio
from collections.abc import Iterable

import structlog

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.federation.roles import HUB
from datum_compute.kube.errors import ApiError
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Pass, Request

GRACE_SECONDS = 60.0  # for a copy whose original our view of the hub has not heard of yet
_MANAGED = "karmada.io/managed"

_log = structlog.get_logger(__name__)


class Leftovers:
    """Since when an original is missing is kept in memory only: after a restart the grace begins anew."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._missing: dict[str, float] = {}  # loop time, by the uid of the copy

    def candidates(self, cell: Plane) -> Iterable[Request]:
        for copy in cell.informer(WORKLOAD_DEPLOYMENT).all():
            if self._seems_gone(copy):
                yield Request(cell.name, copy.namespace, copy.name)

    async def confirmed(self, copy: WorkloadDeployment, pass_: Pass) -> bool:
        """Whether the original is gone for good; a pass that cannot say yet comes back when it can."""
        uid = copy.metadata.uid
        if not self._seems_gone(copy):
            self._missing.pop(uid, None)
            return False
        now = asyncio.get_running_loop().time()
        left = self._missing.setdefault(uid, now) + GRACE_SECONDS - now
        if left > 0:
            pass_.no_later_than(left)
            return False
        if not await self._is_gone(copy):
            return False
        del self._missing[uid]
        return True

    def _seems_gone(self, copy: WorkloadDeployment) -> bool:
        """By what is known without asking."""
        if copy.metadata.labels.get(_MANAGED) != "true" or copy.metadata.deleting:
            return False
        hubs = self._fleet.of_role(HUB)
        return len(hubs) == 1 and hubs[0].informer(WORKLOAD_DEPLOYMENT).get(copy.namespace, copy.name) is None

    async def _is_gone(self, copy: WorkloadDeployment) -> bool:
        """By a list that the hub gives now, of a namespace that it has: a hub that lost everything proves nothing."""
        try:
            hub = self._fleet.only(HUB)
            await hub.client.get(NAMESPACE, copy.namespace)
            originals = await hub.client.list(WORKLOAD_DEPLOYMENT, copy.namespace)
        except ApiError as error:
            _log.info("hub cannot say if a deployment is gone", copy=f"{copy.namespace}/{copy.name}", error=str(error))
            return False
        return all(original.name != copy.name for original in originals.items)
