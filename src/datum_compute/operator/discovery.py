"""Which projects this process works on. Entry points: `ProjectDiscovery`, `ClaimDiscovery`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.services import CONTROL_PLANE_READY, PROJECT, PROJECT_CONTROL_PLANE, READY
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import CELL, CLAIMS, ROOT
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.kubeconfig import KubeconfigError
from datum_compute.runtime.controller import Source, itself
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Pass, Request, Unfinished

_HOLDS = "discovery/namespace"

PlaneOf = Callable[[str], Plane]
"""The plane of a project by its name; raises `KubeconfigError` when it cannot be reached as configured."""


class _Announced(Struct, frozen=True):
    """What says that a project's plane can be worked on."""

    kind: Kind[Any]
    condition: str


_PROJECTS = _Announced(PROJECT, READY)
_CONTROL_PLANES = _Announced(PROJECT_CONTROL_PLANE, CONTROL_PLANE_READY)


class ProjectDiscovery:
    """Milo's way: a Project that is Ready is engaged under its bare name, one that is not, or is gone, is left."""

    name = "project-discovery"

    def __init__(self, fleet: Fleet, plane_of: PlaneOf, *, internal: bool = False) -> None:
        self._fleet = fleet
        self._plane_of = plane_of
        self._announced = _CONTROL_PLANES if internal else _PROJECTS

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(ROOT, self._announced.kind, itself),)

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        project = self._fleet.plane(request.plane).informer(self._announced.kind).get("", request.name)
        ready = project is not None and self._is_ready(project)
        if ready and not self._fleet.knows(request.name):
            engage(self._fleet, self._plane_of, request.name)
        elif not ready and self._fleet.knows(request.name):
            self._fleet.remove(request.name)

    async def is_gone(self, project: str) -> bool:
        """By the word of the server: whether there is no such project any more."""
        for root in self._fleet.of_role(ROOT):
            try:
                await root.client.get(self._announced.kind, project)
            except NotFound:
                return True
        return False

    def synced(self) -> bool:
        """Whether it is known which projects there are."""
        return bool(self._fleet.of_role(ROOT))

    def waiting(self) -> list[str]:
        """The projects that are Ready and not engaged yet."""
        return [
            project.name
            for root in self._fleet.of_role(ROOT)
            for project in root.informer(self._announced.kind).all()
            if self._is_ready(project) and not self._fleet.has(project.name)
        ]

    def _is_ready(self, project: Any) -> bool:
        return conditions.is_true(conditions.of(project), self._announced.condition)


class ClaimDiscovery:
    """For a cell: it asks for quota, and listens for grants, in the projects that it holds something of."""

    name = "claim-discovery"

    def __init__(self, fleet: Fleet, plane_of: PlaneOf) -> None:
        self._fleet = fleet
        self._plane_of = plane_of

    def sources(self) -> Sequence[Source[Any]]:
        indexes: dict[str, Callable[[Any], Iterable[str]]] = {_HOLDS: lambda object_: [object_.namespace]}
        # The deployment comes before its Instances: by the time they ask for quota, there is somebody to ask.
        return (
            Source(CELL, NAMESPACE, whole_cell),
            Source(CELL, WORKLOAD_DEPLOYMENT, _come_and_gone, indexes),
            Source(CELL, INSTANCE, _come_and_gone, indexes),
        )

    async def reconcile(self, request: Request, pass_: Pass) -> None:
        wanted = {project for cell in self._fleet.of_role(CELL) for project in _projects_in(cell)}
        for plane in self._fleet.known(CLAIMS):
            if plane.name not in wanted:
                self._fleet.remove(plane.name)
        failures: list[str] = []
        for project in sorted(wanted):
            try:
                if not self._fleet.knows(project):
                    engage(self._fleet, self._plane_of, project)
            except Unfinished as failure:
                failures.append(str(failure))
        if failures:
            raise Unfinished("; ".join(failures))


def whole_cell(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    """What a cell holds is looked at as a whole, so that a burst of changes is one look."""
    yield Request(plane.name, "", plane.name)


def _come_and_gone(plane: Plane, change: Change[Any]) -> Iterable[Request]:
    if change.before is None or change.after is None:
        yield from whole_cell(plane, change)


def _projects_in(cell: Plane) -> Iterable[str]:
    for namespace in cell.informer(NAMESPACE).all():
        identity = Identity.of(namespace.metadata.labels)
        if identity is not None and (
            cell.informer(WORKLOAD_DEPLOYMENT).by(_HOLDS, namespace.name)
            or cell.informer(INSTANCE).by(_HOLDS, namespace.name)
        ):
            yield identity.project


def engage(fleet: Fleet, plane_of: PlaneOf, project: str) -> None:
    """Raises `Unfinished` when there is no way to reach it."""
    try:
        plane = plane_of(project)
    except (KubeconfigError, ValueError) as error:
        raise Unfinished(f"project {project} cannot be engaged: {error}") from None
    fleet.add(plane)
