"""Holds specs that are older than the one in effect. Entry points: `relation`, `StaleSpecs`.

A hub or project that was restored from a backup sends old specs again. Acting on one would remove what runs: instances
that the newer spec added, or a template that replaced the older. Generations of the project's deployment only grow, so
a smaller one is held, and so is another deployment of the same name unless the hub notes the withdrawal of the previous
one. After a restore of the hub this resolves itself, because management sends what the project requests.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

import structlog

from datum_compute.api import reasons
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.labels import ACCEPTED_UID, RELEASE, UPSTREAM_GENERATION, UPSTREAM_UID, WITHDRAWN
from datum_compute.cell.metrics import Metrics
from datum_compute.federation.obstacles import Obstacle
from datum_compute.federation.removal import is_released
from datum_compute.federation.roles import CELL, HUB
from datum_compute.federation.withdrawals import notes_changed, notes_of
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json
from datum_compute.runtime import Change, Fleet, Pass, Plane, Request, Source

_log = structlog.get_logger(__name__)


class Relation(Enum):
    """How an incoming spec relates to the one in effect."""

    FOLLOWS = "follows"
    OLDER = "older"  # an earlier generation of the same deployment
    UNRELATED = "unrelated"  # another deployment, and nothing shows that the previous one was withdrawn


def relation(
    accepted_uid: str, accepted_generation: int, uid: str, generation: int | None, *, is_withdrawn: bool
) -> Relation:
    """How a spec relates to the accepted one; `is_withdrawn` is about the accepted deployment.

    Everything is accepted for a copy without a generation, or one on which these rules have not been applied yet.
    """
    if not accepted_uid or generation is None:
        return Relation.FOLLOWS
    if uid not in ("", accepted_uid):
        return Relation.FOLLOWS if is_withdrawn else Relation.UNRELATED
    return Relation.OLDER if generation < accepted_generation else Relation.FOLLOWS


class StaleSpecs:
    """Decides which specs of a cell's copies are held, and reports them."""

    def __init__(self, fleet: Fleet, *, metrics: Metrics | None = None) -> None:
        self._fleet = fleet
        self._metrics = metrics or Metrics()
        self._held: dict[Request, Relation] = {}

    def source(self) -> Source[Namespace]:
        """The held copies of a hub namespace whose notes change: a withdrawal may release them."""
        return Source(HUB, NAMESPACE, self._of_notes, when=notes_changed)

    def _of_notes(self, _hub: Plane, change: Change[Namespace]) -> Iterable[Request]:
        cells = {cell.name for cell in self._fleet.of_role(CELL)}
        return [request for request in self._held if request.plane in cells and request.namespace == change.object.name]

    def forget(self, request: Request) -> None:
        if self._held.pop(request, None) is not None:
            self._metrics.specs_held.set(len(self._held))

    def disengaged(self, plane: Plane) -> None:
        self._held = {request: relation for request, relation in self._held.items() if request.plane != plane.name}
        self._metrics.specs_held.set(len(self._held))

    def obstacle(self, pass_: Pass, copy: WorkloadDeployment, instances: Sequence[Instance]) -> Obstacle | None:
        """Why the spec is held; None when it is not. Where nothing runs there is nothing to protect."""
        request = pass_.request
        relation = self._relation(copy) if instances and not is_released(copy) else Relation.FOLLOWS
        if relation is Relation.FOLLOWS:
            self.forget(request)
            return None
        message = _MESSAGES[relation]
        if self._held.get(request) is not relation:
            self._held[request] = relation
            self._metrics.specs_held.set(len(self._held))
            _log.warning("spec held", copy=f"{copy.namespace}/{copy.name}", reason=relation.value)
            event = (
                f"{message}. To act on it: "
                f"kubectl annotate workloaddeployment {copy.name} -n {copy.namespace} {RELEASE}=true"
            )
            pass_.events.warning(copy, reasons.HELD, event)
        return Obstacle(reasons.HELD, message)

    def _relation(self, copy: WorkloadDeployment) -> Relation:
        annotations = copy.metadata.annotations
        accepted = annotations.get(ACCEPTED_UID, "")
        stamped = annotations.get(UPSTREAM_GENERATION, "")
        return relation(
            accepted,
            copy.status.observed_generation if copy.status else 0,
            annotations.get(UPSTREAM_UID, ""),
            int(stamped) if stamped.isdecimal() else None,
            is_withdrawn=self._is_withdrawn(copy, accepted),
        )

    def _is_withdrawn(self, copy: WorkloadDeployment, uid: str) -> bool:
        for hub in self._fleet.of_role(HUB):
            home = hub.informer(NAMESPACE).get("", copy.namespace)
            if home is not None and uid in home.metadata.annotations.get(WITHDRAWN, ""):
                notes = notes_of(home.metadata.annotations)
                return any(note.name == copy.name and note.upstream == uid for note in notes)
        return False


_MESSAGES = {
    Relation.OLDER: "A spec older than the one in effect arrived, as after a restore; what runs is kept as it is",
    Relation.UNRELATED: (
        "Another deployment of this name arrived without a sign that the one in effect was withdrawn, "
        "as after a restore; what runs is kept as it is"
    ),
}


def has_successor(copy: WorkloadDeployment) -> bool:
    """Whether a copy carries the uid of another deployment than the accepted one."""
    annotations = copy.metadata.annotations
    return annotations.get(ACCEPTED_UID, "") not in ("", annotations.get(UPSTREAM_UID, ""))


def acceptance(copy: WorkloadDeployment) -> Json:
    """The annotations to patch once a spec is in effect: its uid, and no release, because that has been used."""
    annotations = copy.metadata.annotations
    uid, changes = annotations.get(UPSTREAM_UID, ""), Json()
    if uid and annotations.get(ACCEPTED_UID) != uid:
        changes[ACCEPTED_UID] = uid
    if is_released(copy):
        changes[RELEASE] = None
    return changes
