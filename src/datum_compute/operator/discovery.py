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
from datum_compute.kube.access.kubeconfig import KubeconfigError
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.runtime import Change, Fleet, Pass, Plane, Request, Source, Unfinished, itself

_HOLDS = "discovery/namespace"

PlaneOf = Callable[[str], Plane]
"""The plane of a project by its name; raises `KubeconfigError` when it cannot be reached as configured."""


class Announcement(Struct, frozen=True):
    """The kind and condition that report a project's plane as usable."""

    kind: Kind[Any]
    condition: str

    def is_ready(self, project: Any) -> bool:
        return conditions.is_true(conditions.of(project), self.condition)


PROJECTS = Announcement(PROJECT, READY)
CONTROL_PLANES = Announcement(PROJECT_CONTROL_PLANE, CONTROL_PLANE_READY)


class ProjectDiscovery:
    """With Milo: a Project is engaged under its bare name while it is Ready, and left when it is not or was deleted."""

    name = "project-discovery"

    def __init__(self, fleet: Fleet, plane_of: PlaneOf, *, internal: bool = False) -> None:
        self._fleet = fleet
        self._plane_of = plane_of
        self._announced = CONTROL_PLANES if internal else PROJECTS
        self._attempted: set[str] = set()  # of the projects that are Ready

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(ROOT, self._announced.kind, itself),)

    async def reconcile(self, pass_: Pass) -> None:
        name, project = pass_.request.name, pass_.get(self._announced.kind)
        ready = project is not None and self._announced.is_ready(project)
        (self._attempted.add if ready else self._attempted.discard)(name)
        if ready and not self._fleet.knows(name):
            engage(self._fleet, self._plane_of, name)
        elif not ready and self._fleet.knows(name):
            self._fleet.remove(name)

    async def is_gone(self, project: str) -> bool:
        """Whether the server reports that the project no longer exists."""
        for root in self._fleet.of_role(ROOT):
            try:
                await root.client.get(self._announced.kind, project)
            except NotFound:
                return True
        return False

    def synced(self) -> bool:
        """Whether the list of projects is known."""
        return bool(self._fleet.of_role(ROOT))

    def untried(self) -> list[str]:
        """The Ready projects whose first attempt to be engaged has neither succeeded nor failed yet."""
        return [
            project.name
            for root in self._fleet.of_role(ROOT)
            for project in root.informer(self._announced.kind).all()
            if self._announced.is_ready(project)
            and (project.name not in self._attempted or not self._fleet.tried(project.name))
        ]


class ClaimDiscovery:
    """For a cell: it claims quota, and watches for grants, in the projects whose deployments or Instances it has.

    `also` returns further projects, and is called regularly.
    """

    name = "claim-discovery"
    sweep_role = CELL
    sweep_seconds = 600.0

    def __init__(self, fleet: Fleet, plane_of: PlaneOf, also: Callable[[], Iterable[str]] = tuple) -> None:
        self._fleet = fleet
        self._plane_of = plane_of
        self._also = also

    def sources(self) -> Sequence[Source[Any]]:
        indexes: dict[str, Callable[[Any], Iterable[str]]] = {_HOLDS: lambda object_: [object_.namespace]}
        # The deployment arrives before its Instances: by the time they claim quota, the project is engaged.
        return (
            Source(CELL, NAMESPACE, whole_cell),
            Source(CELL, WORKLOAD_DEPLOYMENT, _created_or_deleted, indexes),
            Source(CELL, INSTANCE, _created_or_deleted, indexes),
        )

    def sweep(self, plane: Plane) -> Iterable[Request]:
        yield Request(plane.name, "", plane.name)

    async def reconcile(self, pass_: Pass) -> None:
        wanted = {project for cell in self._fleet.of_role(CELL) for project in _projects_in(cell)} | {*self._also()}
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
    """One request for the whole cell, so that a burst of changes is a single pass."""
    yield Request(plane.name, "", plane.name)


def _created_or_deleted(plane: Plane, change: Change[Any]) -> Iterable[Request]:
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
    """Raises `Unfinished` when the project cannot be reached as configured."""
    try:
        plane = plane_of(project)
    except (KubeconfigError, ValueError) as error:
        raise Unfinished(f"project {project} cannot be engaged: {error}") from None
    fleet.add(plane)
