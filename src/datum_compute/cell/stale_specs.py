"""Whether a spec that arrived succeeds the one that was acted on. Entry points: `relation`, `StaleSpecs`.

A hub that was restored from a backup sends old specs again, and so does a project. To act on one would remove what
runs: instances that the newer spec added, a template that replaced the older. Generations of the project's deployment
only grow, so a smaller one is held, and so is another deployment of the same name unless the withdrawal of the one
before is noted on the hub. After a restore of the hub it resolves itself: management sends what the project asks for.
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
from datum_compute.federation.withdrawals import has_other_notes, notes_of
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json
from datum_compute.runtime import Change, Fleet, Pass, Plane, Request, Source

_log = structlog.get_logger(__name__)


class Relation(Enum):
    FOLLOWS = "follows"
    OLDER = "older"  # an earlier generation of the deployment that was acted on
    UNRELATED = "unrelated"  # another deployment, and nothing shows that the one before was withdrawn


def relation(
    accepted_uid: str, acted_generation: int, asked_uid: str, asked_generation: int | None, *, is_withdrawn: bool
) -> Relation:
    """How what is asked for relates to what was acted on; `is_withdrawn` is of the accepted deployment.

    Of a copy that says nothing, or on which nothing was acted under these rules, everything is taken.
    """
    if not accepted_uid or asked_generation is None:
        return Relation.FOLLOWS
    if asked_uid not in ("", accepted_uid):
        return Relation.FOLLOWS if is_withdrawn else Relation.UNRELATED
    return Relation.OLDER if asked_generation < acted_generation else Relation.FOLLOWS


class StaleSpecs:
    """Judges the specs of a cell's copies, and reports those that are held."""

    def __init__(self, fleet: Fleet, *, metrics: Metrics | None = None) -> None:
        self._fleet = fleet
        self._metrics = metrics or Metrics()
        self._held: dict[Request, Relation] = {}

    def source(self) -> Source[Namespace]:
        """A withdrawal that is noted may settle what is held."""
        return Source(HUB, NAMESPACE, self._of_notes, when=has_other_notes)

    def _of_notes(self, _hub: Plane, change: Change[Namespace]) -> Iterable[Request]:
        cells = {cell.name for cell in self._fleet.of_role(CELL)}
        return [request for request in self._held if request.plane in cells and request.namespace == change.object.name]

    def forget(self, request: Request) -> None:
        if self._held.pop(request, None) is not None:
            self._metrics.specs_held.set(len(self._held))

    def disengaged(self, plane: Plane) -> None:
        self._held = {request: why for request, why in self._held.items() if request.plane != plane.name}
        self._metrics.specs_held.set(len(self._held))

    def obstacle(self, pass_: Pass, copy: WorkloadDeployment, instances: Sequence[Instance]) -> Obstacle | None:
        """Why the spec is not acted on; None when it is. Where nothing runs there is nothing to protect."""
        request = pass_.request
        found = self._judge(copy) if instances and not is_released(copy) else Relation.FOLLOWS
        if found is Relation.FOLLOWS:
            self.forget(request)
            return None
        sentence = _SENTENCES[found]
        if self._held.get(request) is not found:
            self._held[request] = found
            self._metrics.specs_held.set(len(self._held))
            _log.warning("spec is held", copy=f"{copy.namespace}/{copy.name}", reason=found.value)
            event = (
                f"{sentence}. To act on it: "
                f"kubectl annotate workloaddeployment {copy.name} -n {copy.namespace} {RELEASE}=true"
            )
            pass_.events.warning(copy, reasons.HELD, event)
        return Obstacle(reasons.HELD, sentence)

    def _judge(self, copy: WorkloadDeployment) -> Relation:
        annotations = copy.metadata.annotations
        accepted = annotations.get(ACCEPTED_UID, "")
        stamped = annotations.get(UPSTREAM_GENERATION, "")
        acted = copy.status.observed_generation if copy.status else 0
        return relation(
            accepted,
            acted,
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


_SENTENCES = {
    Relation.OLDER: "An older spec arrived than the one in effect, as after a restore; what runs is kept as it is",
    Relation.UNRELATED: (
        "Another deployment of this name arrived without a sign that the one in effect was withdrawn, "
        "as after a restore; what runs is kept as it is"
    ),
}


def has_successor(copy: WorkloadDeployment) -> bool:
    """Whether a copy bears the marks of another deployment than the one that was acted on."""
    annotations = copy.metadata.annotations
    return annotations.get(ACCEPTED_UID, "") not in ("", annotations.get(UPSTREAM_UID, ""))


def accepted(copy: WorkloadDeployment) -> Json:
    """The annotations to patch once a copy was acted on: whose spec that was, and a release that has been used."""
    annotations = copy.metadata.annotations
    asked, changes = annotations.get(UPSTREAM_UID, ""), Json()
    if asked and annotations.get(ACCEPTED_UID) != asked:
        changes[ACCEPTED_UID] = asked
    if is_released(copy):
        changes[RELEASE] = None
    return changes
