"""Removes leftovers of projects from the hub. Entry point: `HubSweeper`.

It looks for deployments that their project does not have, as after the hub was restored to a moment before their
deletion, and for empty namespaces whose project namespace is gone. A project that was restored itself looks the same,
so both are removed only with a positive sign: an entry in the project's journal, a note on the hub namespace, or an
operator's release. Everything else is held and reported.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY, RESOURCE_BINDING
from datum_compute.api.labels import RELEASE, TOPOLOGY_CITY, UPSTREAM_UID
from datum_compute.api.names import hub_namespace
from datum_compute.federation.identity import Identity
from datum_compute.federation.removal import GRACE_SECONDS, Brake, Held, Missing, Sign, is_released, verdict
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.federation.withdrawals import Note, notes_of
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind, Namespace
from datum_compute.kube.meta import KubeObject
from datum_compute.management.metrics import ManagementMetrics
from datum_compute.management.withdrawal_journal import WithdrawalJournal
from datum_compute.management.withdrawal_notes import WithdrawalNotes, release_policy
from datum_compute.runtime import Change, Fleet, Pass, Plane, Problems, Request, Source

NAMESPACE_GRACES = 10  # an empty namespace is in nobody's way
HELD_SECONDS = 600.0  # until a held object is checked again without an event

_log = structlog.get_logger(__name__)


class _Home(Struct, frozen=True):
    """A hub namespace and the project namespace that it belongs to."""

    namespace: Namespace
    project: Plane
    upstream: str

    @property
    def name(self) -> str:
        return self.namespace.name

    def is_gone(self) -> bool:
        """Whether the cache no longer has the project namespace that this was created for."""
        namespace = self.project.informer(NAMESPACE).get("", self.upstream)
        return namespace is None or hub_namespace(namespace.metadata.uid) != self.name

    def lacks(self, copy: WorkloadDeployment) -> bool:
        """Whether the cache of the project does not have the deployment."""
        return self.is_gone() or self.project.informer(WORKLOAD_DEPLOYMENT).get(self.upstream, copy.name) is None


class _Leftover(Struct, frozen=True):
    """Something on the hub that its project does not have."""

    hub: str
    project: str
    namespace: str  # on the hub
    name: str = ""  # of the deployment; empty for the namespace itself


class HubSweeper:
    """Checks one hub namespace per pass. `enabled=False` holds everything that no operator has released."""

    name = "hub-sweeper"
    sweep_role = HUB
    sweep_seconds = 600.0

    def __init__(
        self,
        fleet: Fleet,
        *,
        metrics: ManagementMetrics | None = None,
        enabled: bool = True,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics or ManagementMetrics()
        self._enabled = enabled
        self._grace = grace
        self._namespace_grace = NAMESPACE_GRACES * grace
        self._notes = WithdrawalNotes()
        self._journal = WithdrawalJournal()
        self._ghosts: Missing[_Leftover] = Missing()
        self._ghost_brake = Brake()
        self._empty: Missing[_Leftover] = Missing()
        self._namespace_brake = Brake()

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(HUB, NAMESPACE, self._of_hub, when=_is_relevant),
            Source(HUB, WORKLOAD_DEPLOYMENT, self._of_hub, when=_is_relevant),
            Source(HUB, INSTANCE),
            Source(HUB, PROPAGATION_POLICY),
            Source(PROJECT, NAMESPACE, self._of_project_namespace),
            Source(PROJECT, WORKLOAD_DEPLOYMENT, self._of_project_deployment, when=_is_deletion),
        )

    def sweep(self, plane: Plane) -> Iterable[Request]:
        for namespace in plane.informer(NAMESPACE).all():
            yield from self._suspicious(plane, namespace.name)

    def disengaged(self, plane: Plane) -> None:
        """Nothing is held for a project that cannot be read, or counted on a hub that was removed."""
        self._journal.forget(plane.name)
        for missing in (self._ghosts, self._empty):
            missing.keep(lambda leftover: plane.name not in (leftover.hub, leftover.project))
        self._metrics.held(self._ghosts.held(), self._empty.held())

    def _of_hub(self, hub: Plane, change: Change[Any]) -> Iterable[Request]:
        return self._suspicious(hub, change.object.namespace or change.object.name)

    def _of_project_namespace(self, _project: Plane, change: Change[Namespace]) -> Iterable[Request]:
        """Namespaces of a project that was just engaged, and deleted ones."""
        if change.before is None or change.after is None:
            for hub in self._fleet.of_role(HUB):
                yield from self._suspicious(hub, hub_namespace(change.object.metadata.uid))

    def _of_project_deployment(self, project: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request]:
        namespace = project.informer(NAMESPACE).get("", change.object.namespace)
        if namespace is not None:
            for hub in self._fleet.of_role(HUB):
                yield from self._suspicious(hub, hub_namespace(namespace.metadata.uid))

    def _suspicious(self, hub: Plane, name: str) -> Iterable[Request]:
        """The namespace, if something in it may have to be removed; most never get further than this."""
        home = self._home(hub, name)
        if home is None:
            return
        copies = hub.informer(WORKLOAD_DEPLOYMENT).all(name)
        if any(home.lacks(copy) for copy in copies) or (not copies and home.is_gone()):
            yield Request(hub.name, "", name)

    def _home(self, hub: Plane, name: str) -> _Home | None:
        """None for namespaces that are not ours, and for projects that are not engaged."""
        namespace = hub.informer(NAMESPACE).get("", name)
        identity = Identity.of(namespace.metadata.labels) if namespace is not None else None
        if namespace is None or identity is None or not name.startswith(hub_namespace("")):
            return None
        if namespace.metadata.deleting or not self._fleet.has(identity.project):
            return None
        return _Home(namespace, self._fleet.plane(identity.project), identity.namespace)

    async def reconcile(self, pass_: Pass) -> None:
        name = pass_.request.name
        home = self._home(pass_.plane, name)
        copies = pass_.informer(WORKLOAD_DEPLOYMENT).all(name) if home is not None else []
        ghosts = [copy for copy in copies if home is not None and not copy.metadata.deleting and home.lacks(copy)]
        is_empty = home is not None and not copies and home.is_gone()
        names = {copy.name for copy in ghosts}
        self._ghosts.keep(lambda leftover: leftover.namespace != name or leftover.name in names)
        self._empty.keep(lambda leftover: leftover.namespace != name or is_empty)
        if home is None:
            self._metrics.held(self._ghosts.held(), self._empty.held())
            return
        problems = Problems()
        for ghost in ghosts:
            with problems.collect(f"Deployment {ghost.name}"):
                await self._sweep_deployment(pass_, home, ghost)
        if is_empty:
            with problems.collect(f"Namespace {home.name}"):
                await self._sweep_namespace(pass_, home)
        self._metrics.held(self._ghosts.held(), self._empty.held())
        problems.raise_worst()

    # Deployments

    async def _sweep_deployment(self, pass_: Pass, home: _Home, ghost: WorkloadDeployment) -> None:
        key = _Leftover(pass_.name, home.project.name, home.name, ghost.name)
        if not _is_over(self._ghosts, key, self._grace, pass_) and not is_released(ghost):
            return
        pass_.no_later_than(HELD_SECONDS)
        if await _is_requested(home, ghost):
            return  # our cache of the project is behind
        uid = ghost.metadata.annotations.get(UPSTREAM_UID, "")
        sign = Sign.RELEASED if is_released(ghost) else Sign.NONE
        if sign is Sign.NONE and await self._journal.has(home.project, uid):
            sign = Sign.WITHDRAWN
        now = asyncio.get_running_loop().time()
        missing = self._ghosts.count(before=now - self._grace / 2)
        braked = self._ghost_brake.holds(missing, len(pass_.informer(WORKLOAD_DEPLOYMENT)), now)
        if (held := verdict(sign, enabled=self._enabled, braked=braked)) is not None:
            self._hold(pass_, ghost, self._ghosts, key, held)
            return
        await self._notes.add(pass_, ghost.namespace, Note(ghost.name, ghost.metadata.uid, uid))
        await pass_.write.delete(ghost)
        self._ghost_brake.removed(now)
        self._metrics.removed_deployment()
        self._ghosts.forget(key)
        _log.info("deployment removed that its project no longer has", deployment=f"{ghost.namespace}/{ghost.name}")
        if city := ghost.metadata.labels.get(TOPOLOGY_CITY, ""):
            await release_policy(pass_, ghost.namespace, city, leaving=ghost.name)

    # Namespaces

    async def _sweep_namespace(self, pass_: Pass, home: _Home) -> None:
        key = _Leftover(pass_.name, home.project.name, home.name)
        if not _is_over(self._empty, key, self._namespace_grace, pass_) and not is_released(home.namespace):
            return
        pass_.no_later_than(HELD_SECONDS)
        # A list, because a plane that serves nothing answers 404 for any single namespace.
        upstream = (await home.project.client.list(NAMESPACE)).items
        if any(hub_namespace(namespace.metadata.uid) == home.name for namespace in upstream):
            return
        # Read before its contents, because whoever puts something into it changes its notes or labels first.
        namespace = await pass_.client.get(NAMESPACE, home.name)
        if not await _is_empty(pass_.client, home.name):
            return
        sign = Sign.WITHDRAWN if notes_of(namespace.metadata.annotations) else Sign.NONE
        if is_released(namespace):
            sign = Sign.RELEASED
        now = asyncio.get_running_loop().time()
        missing = self._empty.count(before=now - self._namespace_grace / 2)
        ours = sum(Identity.of(other.metadata.labels) is not None for other in pass_.informer(NAMESPACE).all())
        braked = self._namespace_brake.holds(missing, ours, now)
        if (held := verdict(sign, enabled=self._enabled, braked=braked)) is not None:
            self._hold(pass_, namespace, self._empty, key, held)
            return
        await pass_.write.delete_if_unchanged(namespace)
        self._namespace_brake.removed(now)
        self._metrics.removed_namespace()
        self._empty.forget(key)
        _log.info("hub namespace removed whose project namespace is gone", namespace=home.name)

    def _hold(self, pass_: Pass, object_: KubeObject, missing: Missing[_Leftover], key: _Leftover, held: Held) -> None:
        """Reports once that an object is held, not on every pass."""
        if not missing.hold(key, held):
            return
        kind, name = object_.kind.name, f"{object_.namespace}/{object_.name}".removeprefix("/")
        _log.warning("kept although its project does not have it", kind=kind, object=name, reason=held.value)
        noun = kind.lower()
        namespace = f" -n {object_.namespace}" if object_.namespace else ""
        message = (
            f"The project does not have this {noun}, {_BECAUSE[held]}; it is kept. Remove it with: "
            f"kubectl annotate {noun} {object_.name}{namespace} {RELEASE}=true"
        )
        pass_.events.warning(object_, reasons.HELD, message)


_BECAUSE = {
    Held.UNPROVEN: "but nothing shows that it was withdrawn",
    Held.SWITCHED_OFF: "but removal is switched off",
    Held.BRAKED: "but too many are missing at once to remove any",
}


def _is_over(missing: Missing[_Leftover], key: _Leftover, grace: float, pass_: Pass) -> bool:
    """Whether the grace period of a leftover is over; schedules the next pass for its end if not."""
    now = asyncio.get_running_loop().time()
    left = missing.since(key, now) + grace - now
    if left > 0:
        pass_.no_later_than(left)
    return left <= 0


async def _is_requested(home: _Home, copy: WorkloadDeployment) -> bool:
    """Asks the project's server. A recreated namespace may have another deployment of this name."""
    try:
        await home.project.client.get(WORKLOAD_DEPLOYMENT, copy.name, home.upstream)
        namespace = await home.project.client.get(NAMESPACE, home.upstream)
    except NotFound:
        return False
    return hub_namespace(namespace.metadata.uid) == home.name


async def _is_empty(hub: Client, namespace: str) -> bool:
    """Asks the hub's server. Where bindings are not served there are none."""
    kinds: tuple[Kind[Any], ...] = (WORKLOAD_DEPLOYMENT, INSTANCE, PROPAGATION_POLICY)
    for kind in kinds:
        if (await hub.list(kind, namespace)).items:
            return False
    try:
        return not (await hub.list(RESOURCE_BINDING, namespace)).items
    except NotFound:
        return True


def _is_relevant(change: Change[Any]) -> bool:
    """Whether an object was created, deleted or released."""
    if change.before is None or change.after is None:
        return True
    return is_released(change.after) and not is_released(change.before)


def _is_deletion(change: Change[Any]) -> bool:
    return change.after is None
