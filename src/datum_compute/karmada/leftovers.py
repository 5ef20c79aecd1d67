"""Copies of deployments in a cell whose originals are gone from the hub. Entry point: `Leftovers`.

Karmada can leave a copy in a cell for ever when its original is deleted while Karmada cannot reach the cell, or has not
caught up with the hub. A hub that was restored from a backup looks the same from the cell. A copy is therefore deleted
only when the hub has answered for some time that the original does not exist, and the hub namespace has the note of its
withdrawal. Without that note the copy is held: it keeps running, an event and a metric report it, and only an operator
can release it. Its Work on the hub is deleted first, because Karmada would create the copy again from it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.karmada import BINDING_NAMESPACE, MANAGED, WORK, WORK_NAME, WORK_NAMESPACE, Work
from datum_compute.api.labels import RELEASE
from datum_compute.federation.removal import GRACE_SECONDS, Brake, Held, Missing, Sign, is_released, verdict
from datum_compute.federation.roles import CELL, HUB
from datum_compute.federation.withdrawals import Note, notes_changed, notes_of
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Conflict, NotFound
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.runtime import Change, Fleet, Handle, Pass, Plane, Request, Source

HELD_SECONDS = 600.0  # until a held copy is checked again without an event

_log = structlog.get_logger(__name__)


class _Evidence(Struct, frozen=True):
    """What the hub knows about the original of a copy."""

    exists: bool
    notes: tuple[Note, ...]
    work: Work | None  # from which Karmada creates the copy


class Leftovers:
    """Decides about leftovers in the cells of a process; `enabled=False` holds all that no operator released."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        report_held: Callable[[Mapping[Held, int]], None] = lambda counts: None,
        report_removed: Callable[[], None] = lambda: None,
        enabled: bool = True,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self._fleet = fleet
        self._report_held = report_held
        self._report_removed = report_removed
        self._enabled = enabled
        self._grace = grace
        self._missing: Missing[Request] = Missing()
        self._brake = Brake()

    def sources(self) -> Iterable[Source[WorkloadDeployment] | Source[Namespace]]:
        """Sources that can change the verdict on a copy although the copy itself did not change."""
        return (
            Source(HUB, WORKLOAD_DEPLOYMENT, self._of_original),
            Source(HUB, NAMESPACE, self._of_notes, when=notes_changed),
        )

    def _of_original(self, _hub: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request]:
        """The copies of an original that was deleted, or came back."""
        original = change.object
        for cell in self._fleet.of_role(CELL):
            request = Request(cell.name, original.namespace, original.name)
            copy = cell.informer(WORKLOAD_DEPLOYMENT).get(original.namespace, original.name)
            if copy is not None and (change.after is None or request in self._missing):
                yield request

    def _of_notes(self, _hub: Plane, change: Change[Namespace]) -> Iterable[Request]:
        """The copies known to lack an original; in a namespace that is new on the hub, all that lack one."""
        for cell in self._fleet.of_role(CELL):
            for copy in cell.informer(WORKLOAD_DEPLOYMENT).all(change.object.name):
                request = Request(cell.name, copy.namespace, copy.name)
                is_new = change.before is None and _is_copy(copy) and not self._has_original(copy)
                if is_new or request in self._missing:
                    yield request

    def candidates(self, cell: Plane) -> Iterable[Request]:
        for copy in cell.informer(WORKLOAD_DEPLOYMENT).all():
            if _is_copy(copy) and not self._has_original(copy):
                yield Request(cell.name, copy.namespace, copy.name)

    def forget(self, request: Request) -> None:
        """Called when the copy is being deleted or gone, or its original exists."""
        if request in self._missing:
            self._missing.forget(request)
            self._report_held(self._missing.held())

    def disengaged(self, plane: Plane) -> None:
        self._missing.keep(lambda request: request.plane != plane.name)
        self._report_held(self._missing.held())

    async def released(self, pass_: Pass, copy: WorkloadDeployment) -> bool:
        """Whether the copy can be deleted: its original was withdrawn and nothing would create it again.

        When that cannot be decided yet, the pass runs again later.
        """
        request = pass_.request
        if not _is_copy(copy) or self._has_original(copy):
            self.forget(request)
            return False
        if not self._fleet.of_role(HUB):
            if self._fleet.known(HUB):
                pass_.no_later_than(self._grace)  # a hub that never answered proves nothing about any original
            return False
        now = asyncio.get_running_loop().time()
        remaining = self._missing.since(request, now) + self._grace - now
        if remaining > 0 and not is_released(copy):
            pass_.no_later_than(remaining)
            return False
        try:
            hub = pass_.on(HUB)
            evidence = await _evidence(hub.client, copy)
            if not evidence.exists and (why := self._held(copy, evidence)) is not None:
                self._hold(pass_, copy, why)
                return False
            if evidence.exists or not await self._remove_work(hub, copy, evidence.work):
                pass_.no_later_than(self._grace)
                return False
        except ApiError as error:
            _log.warning("leftover cannot be removed yet", copy=f"{copy.namespace}/{copy.name}", error=str(error))
            pass_.no_later_than(self._grace)
            return False
        self._brake.removed(now)
        self._report_removed()
        self.forget(request)
        return True

    def _held(self, copy: WorkloadDeployment, evidence: _Evidence) -> Held | None:
        sign = Sign.NONE
        if any(note.names(copy) for note in evidence.notes):
            sign = Sign.WITHDRAWN
        if is_released(copy):
            sign = Sign.RELEASED
        now = asyncio.get_running_loop().time()
        # Copies that lost their original only just now are probably being deleted by Karmada itself.
        missing = self._missing.count(before=now - self._grace / 2)
        copies = sum(
            _is_copy(other) for cell in self._fleet.of_role(CELL) for other in cell.informer(WORKLOAD_DEPLOYMENT).all()
        )
        return verdict(sign, enabled=self._enabled, braked=self._brake.holds(missing, copies, now))

    def _hold(self, pass_: Pass, copy: WorkloadDeployment, why: Held) -> None:
        """Reports the copy when it starts being held, not on every pass."""
        pass_.no_later_than(HELD_SECONDS)
        if not self._missing.hold(pass_.request, why):
            return
        self._report_held(self._missing.held())
        _log.warning("deployment without an original is held", copy=f"{copy.namespace}/{copy.name}", reason=why.value)
        sentence = (
            f"{_BECAUSE[why]}; it keeps running. Remove it with: "
            f"kubectl annotate workloaddeployment {copy.name} -n {copy.namespace} {RELEASE}=true"
        )
        pass_.events.warning(copy, reasons.HELD, sentence)

    def _has_original(self, copy: WorkloadDeployment) -> bool:
        """Whether the caches of the hub have the original; nothing is known of a hub that never answered."""
        hubs = self._fleet.of_role(HUB)
        return any(hub.informer(WORKLOAD_DEPLOYMENT).get(copy.namespace, copy.name) is not None for hub in hubs)

    async def _remove_work(self, hub: Handle, copy: WorkloadDeployment, work: Work | None) -> bool:
        """Deletes the Work; returns whether nothing is left that would create the copy again."""
        if work is None or work.metadata.deleting:
            return True
        try:
            await hub.write.delete_if_unchanged(work)
        except Conflict:
            return False
        _log.info("work of a leftover removed", copy=f"{copy.namespace}/{copy.name}", work=work.name)
        return True


_BECAUSE = {
    Held.UNPROVEN: "The hub does not have this deployment, but nothing shows that it was withdrawn",
    Held.SWITCHED_OFF: "This deployment was withdrawn, but the removal of leftovers is switched off",
    Held.BRAKED: "This deployment was withdrawn, but too many are missing on the hub at once to remove any",
}


def _is_copy(deployment: WorkloadDeployment) -> bool:
    return deployment.metadata.labels.get(MANAGED) == "true" and not deployment.metadata.deleting


async def _evidence(hub: Client, copy: WorkloadDeployment) -> _Evidence:
    """By what the hub answers now. One that lacks the namespace has no place for a note, and proves nothing."""
    # Read before the originals are: a Work that serves a new original has changed since, and is not deleted.
    work = await _work(hub, copy)
    try:
        namespace = await hub.get(NAMESPACE, copy.namespace)
    except NotFound:
        return _Evidence(exists=False, notes=(), work=work)
    originals = await hub.list(WORKLOAD_DEPLOYMENT, copy.namespace)
    exists = any(original.name == copy.name for original in originals.items)
    return _Evidence(exists, notes_of(namespace.metadata.annotations), work)


async def _work(hub: Client, copy: WorkloadDeployment) -> Work | None:
    """The Work from which Karmada creates the copy, if it exists."""
    annotations = copy.metadata.annotations
    namespace, name = annotations.get(WORK_NAMESPACE, ""), annotations.get(WORK_NAME, "")
    if not (namespace and name):
        return None
    try:
        work = await hub.get(WORK, name, namespace)
    except NotFound:
        return None
    # The copy names the Work, but only a Work that names the namespace of the copy proves that it is its own.
    return work if work.metadata.annotations.get(BINDING_NAMESPACE) == copy.namespace else None
