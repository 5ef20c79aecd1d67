"""Keeps the two sides apart where one API server is both a project and a cell. Entry point: `apart`."""

from collections.abc import Sequence
from typing import Any

from datum_compute.federation.identity import Identity
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime.controller import Reconciler, Source, Sweeper
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Pass, Request


def apart(reconcilers: Sequence[Reconciler], fleet: Fleet, plane: str, *, in_copies: bool) -> list[Reconciler]:
    """Each with eyes for its side of `plane` only: cells for namespaces that came from the hub, others for the rest.

    Without it a deployment delivered to the cell would be federated once more, and a projection would claim quota.
    """
    return [
        _ApartSweeper(one, one, fleet, plane, in_copies)
        if isinstance(one, Sweeper)
        else _Apart(one, fleet, plane, in_copies)
        for one in reconcilers
    ]


class _Apart:
    def __init__(self, reconciler: Reconciler, fleet: Fleet, plane: str, in_copies: bool) -> None:
        self.name = reconciler.name
        self._reconciler = reconciler
        self._fleet = fleet
        self._plane = plane
        self._in_copies = in_copies

    def sources(self) -> Sequence[Source[Any]]:
        return self._reconciler.sources()

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        if request.plane != self._plane or not request.namespace or await self._is_mine(request.namespace):
            await self._reconciler.reconcile(request, pass_)

    async def _is_mine(self, namespace: str) -> bool:
        plane = self._fleet.plane(self._plane)
        found = plane.informer(NAMESPACE).get("", namespace)
        if found is None:
            try:
                found = await plane.client.get(NAMESPACE, namespace)
            except NotFound:
                return True  # nothing is in it any more; whoever cleans up after it may
        return (Identity.of(found.metadata.labels) is not None) == self._in_copies


class _ApartSweeper(_Apart):
    def __init__(self, reconciler: Reconciler, sweeper: Sweeper, fleet: Fleet, plane: str, in_copies: bool) -> None:
        super().__init__(reconciler, fleet, plane, in_copies)
        self.sweep_role = sweeper.sweep_role
        self.sweep_seconds = sweeper.sweep_seconds
        self.sweep = sweeper.sweep
