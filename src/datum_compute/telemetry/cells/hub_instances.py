"""The Instances of projects as the hub knows them, and how their cells are called. Entry points: `HubInstances`,
`HubSites`.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import islice
from typing import Any

from msgspec.structs import replace

from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER
from datum_compute.api.names import hub_namespace
from datum_compute.federation.identity import Identity
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.errors import ApiError
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.transport import Call, Link
from datum_compute.runtime import Change, Fleet, Plane
from datum_compute.telemetry.cells.sites import Door
from datum_compute.telemetry.cells.targets import Target, targets
from datum_compute.telemetry.sources import Reader, SourceAway

_REVIEWED = 64  # namespaces of a project without Instances
_PROXY = f"{CLUSTER.path()}/{{cell}}/proxy"


class HubInstances:
    """A member of the fleet, to have the caches that it reads."""

    def __init__(self, fleet: Fleet, hub: str) -> None:
        self._fleet = fleet
        self._hub = hub
        fleet.join(self)

    def targets(self, reader: Reader) -> Sequence[Target]:
        project, hub = self._plane(reader.project), self._plane(self._hub)
        if PROJECT not in project.roles:
            raise SourceAway("the project is not connected to compute; try again in a moment")
        namespaces = [
            namespace
            for namespace in project.informer(NAMESPACE).all()
            if reader.namespaces is None or namespace.name in reader.namespaces
        ]
        on_hub, copies = hub.informer(NAMESPACE), hub.informer(INSTANCE)
        return list(targets(reader.project, namespaces, lambda name: on_hub.get("", name), copies.all))

    def namespaces(self, project: str) -> Collection[str]:
        """Those that the hub has as well, because they have or had Instances; any of them in a project without.

        Raises `SourceAway` while they are not known.
        """
        on_hub = self._plane(self._hub).informer(NAMESPACE)
        every = self._plane(project).informer(NAMESPACE).all()
        found = [item.name for item in every if on_hub.get("", hub_namespace(item.metadata.uid)) is not None]
        return found or [namespace.name for namespace in islice(_default_first(every), _REVIEWED)]

    def subscribe(self, project: str, changed: Callable[[], None]) -> Callable[[], None]:
        def of_project(change: Change[Any]) -> None:
            sides = [object_ for object_ in (change.before, change.after) if object_ is not None]
            identities = [Identity.of(object_.metadata.labels) for object_ in sides]
            if any(identity is not None and identity.project == project for identity in identities):
                changed()

        hub = self._plane(self._hub)
        ends = [
            hub.informer(INSTANCE).subscribe(of_project),
            hub.informer(NAMESPACE).subscribe(of_project),
            hub.informer(CLUSTER).subscribe(lambda change: changed()),
            self._plane(project).informer(NAMESPACE).subscribe(lambda change: changed()),
        ]

        def unsubscribe() -> None:
            for end in ends:
                end()

        return unsubscribe

    def _plane(self, name: str) -> Plane:
        try:
            return self._fleet.plane(name)
        except ApiError:
            raise SourceAway("it is not known yet where the instances run; try again in a moment") from None

    # As a member of the fleet

    def prepare(self, plane: Plane) -> None:
        if HUB in plane.roles:
            plane.declare(INSTANCE)
            plane.declare(NAMESPACE)
            plane.declare(CLUSTER)
        if PROJECT in plane.roles:
            plane.declare(NAMESPACE)

    def engaged(self, plane: Plane) -> None: ...

    def disengaged(self, plane: Plane) -> None: ...


class HubSites:
    """Cells by kubeconfig where there is one, otherwise through the hub, for those that are its Clusters."""

    def __init__(
        self, fleet: Fleet, hub: str, hub_door: Callable[[], Door], own_door: Callable[[str], Door | None]
    ) -> None:
        self._fleet = fleet
        self._hub = hub
        self._hub_door = hub_door
        self._own_door = own_door

    def door(self, cell: str) -> Door | None:
        if (own := self._own_door(cell)) is not None:
            return own
        return _Proxied(self._hub_door(), cell) if self._has_cluster(cell) else None

    def ready(self, cell: str) -> bool:
        if self._own_door(cell) is not None:
            return True
        if not self._fleet.has(self._hub):
            return False
        cluster = self._fleet.plane(self._hub).informer(CLUSTER).get("", cell)
        return cluster is not None and not conditions.is_false(conditions.of(cluster), "Ready")

    def _has_cluster(self, cell: str) -> bool:
        return self._fleet.has(self._hub) and bool(self._fleet.plane(self._hub).informer(CLUSTER).get("", cell))


class _Proxied:
    """A cell that Karmada calls, under the name of this process."""

    def __init__(self, hub: Door, cell: str) -> None:
        self._hub = hub
        self._prefix = _PROXY.format(cell=cell)

    def pieces(self, call: Call, silence: float | None = None) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._hub.pieces(replace(call, path=f"{self._prefix}{call.path}"), silence)

    async def websocket(self, path: str, query: str, subprotocol: str) -> Link:
        return await self._hub.websocket(f"{self._prefix}{path}", query, subprotocol)


def _default_first(namespaces: Sequence[Namespace]) -> Iterator[Namespace]:
    yield from sorted(namespaces, key=lambda namespace: (namespace.name != "default", namespace.name))
