"""Keeps what works in projects away from a cell on the same API server. Entry point: `apart`.

What works in cells tells the two sides apart by itself, because there it happens at any time that a namespace begins to
belong to the cell; a namespace of a project never becomes one.
"""

from collections.abc import Sequence
from typing import Any

from datum_compute.federation.scope import came_from_hub
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime import Fleet, Pass, Plane, Reconciler, Source
from datum_compute.runtime.controller import Remembering, Sweeper


def apart(reconcilers: Sequence[Reconciler], fleet: Fleet, plane: str) -> list[Reconciler]:
    """Each without eyes for those namespaces of `plane` that came from the hub."""
    return [
        _ApartSweeper(one, one, fleet, plane) if isinstance(one, Sweeper) else _Apart(one, fleet, plane)
        for one in reconcilers
    ]


class _Apart:
    def __init__(self, reconciler: Reconciler, fleet: Fleet, plane: str) -> None:
        self.name = reconciler.name
        self.component: str = getattr(reconciler, "component", reconciler.name)
        self._reconciler = reconciler
        self._fleet = fleet
        self._plane = plane

    def sources(self) -> Sequence[Source[Any]]:
        return self._reconciler.sources()

    async def reconcile(self, pass_: Pass) -> None:
        request = pass_.request
        if request.plane != self._plane or not request.namespace or await self._is_mine(request.namespace):
            await self._reconciler.reconcile(pass_)

    def disengaged(self, plane: Plane) -> None:
        if isinstance(self._reconciler, Remembering):
            self._reconciler.disengaged(plane)

    async def _is_mine(self, namespace: str) -> bool:
        plane = self._fleet.plane(self._plane)
        found = plane.informer(NAMESPACE).get("", namespace)
        if found is None:
            try:
                found = await plane.client.get(NAMESPACE, namespace)
            except NotFound:
                return True  # nothing is in it any more; whoever cleans up after it may
        return not came_from_hub(found)


class _ApartSweeper(_Apart):
    def __init__(self, reconciler: Reconciler, sweeper: Sweeper, fleet: Fleet, plane: str) -> None:
        super().__init__(reconciler, fleet, plane)
        self.sweep_role = sweeper.sweep_role
        self.sweep_seconds = sweeper.sweep_seconds
        self.sweep = sweeper.sweep
