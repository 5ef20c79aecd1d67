"""Deployments that the hub no longer has and Karmada forgot to take away. Entry point: `Leftovers`.

One that is deleted on the hub while Karmada does not see the cell, or has not caught up with the hub itself, can stay
in the cell for ever. It goes only when the hub itself says, live and for longer than a moment, that it is not there:
what cannot be read is never gone. What Karmada keeps of it on the hub, its Work, goes first: of that it would be made
again.
"""

import asyncio
from collections.abc import Iterable

import structlog

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.karmada import BINDING_NAMESPACE, MANAGED, WORK, WORK_NAME, WORK_NAMESPACE, Work
from datum_compute.federation.roles import CELL, HUB
from datum_compute.kube.errors import ApiError, Conflict, NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime.controller import Source
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Pass, Request

GRACE_SECONDS = 60.0  # for a copy whose original our view of the hub has not heard of yet, and for Karmada to act

_log = structlog.get_logger(__name__)


class Leftovers:
    """Since when an original is missing is kept in memory only: after a restart the grace begins anew."""

    def __init__(self, fleet: Fleet, controller: str) -> None:
        self._fleet = fleet
        self._controller = controller
        self._missing: dict[Request, float] = {}  # loop time

    def source(self) -> Source[WorkloadDeployment]:
        """The originals; when one goes, its copies are looked at, though nothing happened to them."""
        return Source(HUB, WORKLOAD_DEPLOYMENT, self._copies, when=_is_gone)

    def _copies(self, _hub: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request]:
        original = change.object
        for cell in self._fleet.of_role(CELL):
            if cell.informer(WORKLOAD_DEPLOYMENT).get(original.namespace, original.name) is not None:
                yield Request(cell.name, original.namespace, original.name)

    def candidates(self, cell: Plane) -> Iterable[Request]:
        for copy in cell.informer(WORKLOAD_DEPLOYMENT).all():
            if self._seems_gone(copy):
                yield Request(cell.name, copy.namespace, copy.name)

    def forget(self, request: Request) -> None:
        """The copy goes, or is gone."""
        self._missing.pop(request, None)

    async def released(self, request: Request, copy: WorkloadDeployment, pass_: Pass) -> bool:
        """Whether the original is gone for good and nothing would bring the copy back: it can be deleted.

        A pass that cannot say yet comes back when it can.
        """
        if not self._seems_gone(copy):
            self.forget(request)
            return False
        now = asyncio.get_running_loop().time()
        left = self._missing.setdefault(request, now) + GRACE_SECONDS - now
        if left > 0:
            pass_.no_later_than(left)
            return False
        pass_.no_later_than(GRACE_SECONDS)
        try:
            return await self._release(self._fleet.only(HUB), copy)
        except ApiError as error:
            _log.warning("leftover cannot be removed yet", copy=f"{copy.namespace}/{copy.name}", error=str(error))
            return False

    def _seems_gone(self, copy: WorkloadDeployment) -> bool:
        """By what is known without asking; of a hub that is yet to be heard, nothing is."""
        if copy.metadata.labels.get(MANAGED) != "true" or copy.metadata.deleting:
            return False
        if not (hubs := self._fleet.of_role(HUB)):
            return len(self._fleet.known(HUB)) == 1
        return len(hubs) == 1 and hubs[0].informer(WORKLOAD_DEPLOYMENT).get(copy.namespace, copy.name) is None

    async def _release(self, hub: Plane, copy: WorkloadDeployment) -> bool:
        # Read before the originals are: a Work that serves a new original has changed since, and is not deleted.
        work = await _work(hub, copy)
        if not await _is_unknown(hub, copy):
            return False
        if work is not None and not work.metadata.deleting:
            try:
                await hub.writer(self._controller).delete_seen(WORK, work)
            except Conflict:
                return False
            _log.info("work of a leftover removed", copy=f"{copy.namespace}/{copy.name}", work=work.name)
        return True


def _is_gone(change: Change[WorkloadDeployment]) -> bool:
    return change.after is None


async def _work(hub: Plane, copy: WorkloadDeployment) -> Work | None:
    """What Karmada makes the copy from, if it still does."""
    noted = copy.metadata.annotations
    namespace, name = noted.get(WORK_NAMESPACE, ""), noted.get(WORK_NAME, "")
    if not (namespace and name):
        return None
    try:
        work = await hub.client.get(WORK, name, namespace)
    except NotFound:
        return None
    # A copy is what a cell was told, and this is what Karmada was told: only together do they prove anything.
    return work if work.metadata.annotations.get(BINDING_NAMESPACE) == copy.namespace else None


async def _is_unknown(hub: Plane, copy: WorkloadDeployment) -> bool:
    """By a list that the hub gives now, of a namespace that it has: a hub that lost everything proves nothing."""
    await hub.client.get(NAMESPACE, copy.namespace)
    originals = await hub.client.list(WORKLOAD_DEPLOYMENT, copy.namespace)
    return all(original.name != copy.name for original in originals.items)
