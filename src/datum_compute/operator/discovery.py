"""Which projects this process works on. Entry points: `ProjectDiscovery`, `ClaimDiscovery`."""

from collections.abc import Callable, Sequence
from typing import Any

from datum_compute.api.services import PROJECT, READY
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import CELL, CLAIMS, ROOT
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime.controller import Source, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Pass, Request


class ProjectDiscovery:
    """Milo's way: a Project that is Ready is engaged under its bare name, one that is not, or is gone, is left."""

    name = "project-discovery"

    def __init__(self, fleet: Fleet, plane_of: Callable[[str], Plane]) -> None:
        self._fleet = fleet
        self._plane_of = plane_of

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(ROOT, PROJECT, itself),)

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        project = self._fleet.plane(request.plane).informer(PROJECT).get("", request.name)
        ready = (
            project is not None and project.status is not None and conditions.is_true(project.status.conditions, READY)
        )
        if ready and not self._fleet.knows(request.name):
            self._fleet.add(self._plane_of(request.name))
        elif not ready and self._fleet.knows(request.name):
            self._fleet.remove(request.name)


class ClaimDiscovery:
    """For a cell: the projects whose namespaces it holds are the ones it asks for quota, and listens to for grants."""

    name = "claim-discovery"

    def __init__(self, fleet: Fleet, plane_of: Callable[[str], Plane]) -> None:
        self._fleet = fleet
        self._plane_of = plane_of

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(CELL, NAMESPACE, itself),)

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        namespaces = [one for cell in self._fleet.of_role(CELL) for one in cell.informer(NAMESPACE).all()]
        named = {found.project for one in namespaces if (found := Identity.of(one.metadata.labels))}
        for project in sorted(named):
            if not self._fleet.knows(project):
                self._fleet.add(self._plane_of(project))
        for plane in self._fleet.of_role(CLAIMS):
            if plane.name not in named:
                self._fleet.remove(plane.name)
