"""Where the Instance of a project runs, for commands that its users run in it. Entry points: `Places`, `Place`."""

import asyncio
import itertools
from collections.abc import Callable, Sequence

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import AVAILABLE, INSTANCE, READY, Instance
from datum_compute.api.labels import SOURCE_CLUSTER, UPSTREAM_UID
from datum_compute.api.names import hub_namespace
from datum_compute.federation.identity import Identity
from datum_compute.federation.sessions import Unstartable
from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, BadRequest, NotFound, Subject
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import KubeObject
from datum_compute.runtime import Clock
from datum_compute.runtime.events import record
from datum_compute.telemetry.cells.targets import is_run

COMPONENT = "exec"
_REASON = "Exec"
_WATCH_SECONDS = 600
_RETRY_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class Place(Struct, frozen=True):
    """An Instance as its project sees it, and its copy on the hub, which says where it is and how it is."""

    project: str
    instance: Instance
    copy: Instance

    @property
    def cell(self) -> str:
        return self.copy.metadata.labels.get(SOURCE_CLUSTER, "")

    @property
    def namespace(self) -> str:
        return self.copy.namespace

    @property
    def uid(self) -> str:
        """Of the Instance in its cell."""
        return self.copy.metadata.annotations.get(UPSTREAM_UID, "")


class Places:
    """`project` gives the client of a project's plane, `hub` that of the hub; both may raise an `ApiError`."""

    def __init__(self, project: Callable[[str], Client], hub: Callable[[], Client], clock: Clock) -> None:
        self._project = project
        self._hub = hub
        self._clock = clock
        self._numbers = itertools.count()

    async def find(self, project: str, namespace: str, name: str) -> Place:
        """Raises `NotFound` for an Instance that the project does not have, and `Unstartable` for one that does not
        run."""
        client = self._project(project)
        instance = await client.get(INSTANCE, name, namespace)
        home = await client.get(NAMESPACE, namespace)
        hub, there = self._hub(), hub_namespace(home.metadata.uid)
        copy, its_home = await hub.find(INSTANCE, name, there), await hub.find(NAMESPACE, there)
        # The uid is only the word of the project's plane; the labels are the platform's.
        owner = Identity(project, namespace)
        if copy is None or its_home is None or not _is_of(copy, owner) or not _is_of(its_home, owner):
            raise Unstartable(f'instance "{name}" is not running yet; nothing is known about it')
        place = Place(project, instance, copy)
        if reason := obstacle(copy):
            raise Unstartable(f'instance "{name}" is not running: {reason}')
        return place

    async def record(self, place: Place, message: str) -> None:
        """Records on the Instance of the project what is about to be done; raises an `ApiError` if that fails."""
        client, number = self._project(place.project), next(self._numbers)
        await record(client, COMPONENT, place.instance, _REASON, message, now=self._clock.now(), number=number)

    async def until_over(self, place: Place) -> None:
        """Returns when the Instance is stopping, gone or replaced."""
        while True:
            try:
                listed = await self._hub().list(INSTANCE, place.namespace, fields=_named(place.copy.name))
                if is_over(next(iter(listed.items), None), place.copy):
                    return
                if await self._watch(place, listed.resource_version):
                    return
            except ApiError as error:
                _log.debug("instance not watched", plane=error.plane, error=error.message)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _watch(self, place: Place, version: str) -> bool:
        async with self._hub().watch(
            INSTANCE,
            version,
            timeout_seconds=_WATCH_SECONDS,
            namespace=place.namespace,
            fields=_named(place.copy.name),
        ) as events:
            async for event in events:
                if event.type == "DELETED":
                    return True
                if event.type in ("ADDED", "MODIFIED") and is_over(event.object, place.copy):
                    return True
        return False


def _is_of(object_: KubeObject, owner: Identity) -> bool:
    return Identity.of(object_.metadata.labels) == owner


def _named(name: str) -> str:
    return f"metadata.name={name}"


def obstacle(instance: Instance) -> str:
    """Why nothing can be run in an Instance now; empty where its provider runs it."""
    found = conditions.of(instance)
    available = conditions.find(found, AVAILABLE)
    is_stopping = available is not None and available.reason == reasons.STOPPING
    if is_run(instance) and not is_stopping and instance.metadata.deletion_timestamp is None:
        return ""
    ready = conditions.find(found, READY)
    cause = ready if ready is not None and ready.status != "True" and ready.message else available
    text = cause.message if cause is not None and cause.message else "nothing is known about it yet"
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def is_over(copy: Instance | None, before: Instance) -> bool:
    """Whether what was running `before` is stopping, gone or replaced."""
    if copy is None or copy.metadata.uid != before.metadata.uid or copy.metadata.deletion_timestamp is not None:
        return True
    if copy.metadata.annotations.get(UPSTREAM_UID, "") != before.metadata.annotations.get(UPSTREAM_UID, ""):
        return True
    available = conditions.find(conditions.of(copy), AVAILABLE)
    return available is not None and available.reason == reasons.STOPPING


def container_of(instance: Instance, name: str) -> str:
    """The container that is meant. Raises an error that names those that there are."""
    sandbox = instance.spec.runtime.sandbox
    if sandbox is None:
        raise Unstartable(f'instance "{instance.name}" is a virtual machine; commands run only in containers', 501)
    names = [container.name for container in sandbox.containers]
    if name and name not in names:
        text = f'instance "{instance.name}" has no container "{name}"; it has {_listed(names)}'
        raise NotFound(text, about=Subject(name, "", "containers"))
    if not name and len(names) != 1:
        raise BadRequest(f'instance "{instance.name}" has several containers; name one of {_listed(names)}')
    return name or names[0]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
