"""Opens a plane for each Project, and empties it before the Project is deleted. Entry point: `ProjectController`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.quota import RESOURCE_REGISTRATION
from datum_compute.api.services import PROJECT, READY, RESOURCE_MANAGER_GROUP, SERVICE_ENTITLEMENT, Project
from datum_compute.federation.roles import ROOT
from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, NotFound
from datum_compute.kube.kinds import DEFINITION, NAMESPACE, Kind
from datum_compute.runtime import Pass, Source, itself

FINALIZER = f"{RESOURCE_MANAGER_GROUP}/project-controller"
DEFAULT_NAMESPACE = "default"
_DEFAULT_LABEL = {"miloapis.com/project-default": "true"}
_RECHECK_SECONDS = 0.5
# Deleted in this order: a kind that users defined may only be deleted when no namespace has objects of it.
_EMPTIED: tuple[tuple[Kind[Any], ...], ...] = (
    (NAMESPACE, SERVICE_ENTITLEMENT, LOCATION_BINDING, RESOURCE_REGISTRATION),
    (DEFINITION,),
)


class ProjectController:
    """Reports a Project as Ready once its plane is open and has namespace `default`."""

    name = "project"

    def __init__(
        self, open_plane: Callable[[str], Client], close_plane: Callable[[str], None] = lambda name: None
    ) -> None:
        self._open_plane = open_plane
        self._close_plane = close_plane

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(ROOT, PROJECT, itself),)

    async def reconcile(self, pass_: Pass) -> None:
        project = pass_.get(PROJECT)
        if project is None:
            self._close_plane(pass_.request.name)
            return
        client = self._open_plane(project.name)
        if project.metadata.deleting:
            if await _emptied(client):
                await pass_.write.remove_finalizers(project, FINALIZER)
            else:
                pass_.no_later_than(_RECHECK_SECONDS)
            return
        project = await pass_.write.add_finalizer(project, FINALIZER)
        try:
            await client.get(NAMESPACE, DEFAULT_NAMESPACE)
        except NotFound:
            await _create_namespace(client)
        await self._report_ready(pass_, project)

    async def _report_ready(self, pass_: Pass, project: Project) -> None:
        generation, now = project.metadata.generation, pass_.now()
        ready = conditions.condition(READY, True, "Ready", "Project is ready for use", generation=generation, now=now)
        await pass_.write.status(project, conditions.status_with(project, [ready]))


async def _create_namespace(client: Client) -> None:
    try:
        await client.create(NAMESPACE, NAMESPACE.body(DEFAULT_NAMESPACE, labels=_DEFAULT_LABEL))
    except AlreadyExists:
        return


async def _emptied(client: Client) -> bool:
    """Deletes everything on the plane while it is still served, so that finalizers run; True when nothing is left."""
    for kinds in _EMPTIED:
        remaining = [(kind, object_) for kind in kinds for object_ in (await client.list(kind)).items]
        for kind, object_ in remaining:
            if not object_.metadata.deleting:
                with suppress(NotFound):
                    await client.delete(kind, object_.name)
        if remaining:
            return False
    return True
