"""What a workload reports about its deployments. Entry point: `workload_status`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WorkloadDeployment, WorkloadDeploymentStatus
from datum_compute.api.instance import AVAILABLE
from datum_compute.api.workload import PlacementStatus, Workload
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition, Json, plain

_COUNTERS = {
    "replicas": "replicas",
    "currentReplicas": "current_replicas",
    "updatedReplicas": "updated_replicas",
    "desiredReplicas": "desired_replicas",
    "readyReplicas": "ready_replicas",
}
_ANSWERS_FOR_THE_TEMPLATE = ("currentReplicas", "updatedReplicas")


class Unoffered(Struct, frozen=True):
    """A city that the spec asks for and no location offers (any more)."""

    name: str  # of the deployment it has or would have
    placement: str
    message: str


class _Blocker(Struct, frozen=True):
    name: str
    reason: str
    message: str


def workload_status(
    workload: Workload,
    deployments: Collection[WorkloadDeployment],
    unoffered: Collection[Unoffered],
    now: datetime,
) -> Json:
    """The whole status: sums over the deployments that exist, and Available with the best-ranked blocker."""
    generation = workload.metadata.generation
    before = workload.status
    earlier = {status.name: status for status in before.placements} if before else {}
    names = sorted({d.spec.placement_name for d in deployments} | {missing.placement for missing in unoffered})
    entries: list[Json] = []
    blockers: list[_Blocker] = []
    available = False
    for name in names:
        members = sorted((d for d in deployments if d.spec.placement_name == name), key=lambda d: d.name)
        missing = [entry for entry in unoffered if entry.placement == name]
        decided = _placement_available(members, missing, generation, now)
        available = available or decided.status == "True"
        blockers += sorted([*_blockers(members), *_missing(missing)], key=lambda blocker: blocker.name)
        kept = conditions.updated(_conditions(earlier.get(name)), [decided])
        entries.append({"name": name} | _sums(members) | {"conditions": conditions.to_json(kept)})
    decided = _workload_available(available, blockers, generation, now)
    kept = conditions.updated(before.conditions if before else (), [decided])
    return plain(workload.status_json) | {
        "deployments": len(deployments),
        "observedGeneration": generation,
        **_sums(deployments),
        "conditions": conditions.to_json(kept),
        "placements": entries,
    }


def _sums(deployments: Iterable[WorkloadDeployment]) -> dict[str, int]:
    totals = dict.fromkeys(_COUNTERS, 0)
    for deployment in deployments:
        for counter, value in _counters(deployment).items():
            totals[counter] += value
    return totals


def _counters(deployment: WorkloadDeployment) -> Mapping[str, int]:
    """A status that answers an older generation says nothing about the newest template (R24)."""
    status = deployment.status
    if status is None:
        return {}
    counters: dict[str, int] = {wire: getattr(status, name) for wire, name in _COUNTERS.items()}
    if status.observed_generation < deployment.metadata.generation:
        counters |= dict.fromkeys(_ANSWERS_FOR_THE_TEMPLATE, 0)
    return counters


def _placement_available(
    members: Sequence[WorkloadDeployment], missing: Sequence[Unoffered], generation: int, now: datetime
) -> Condition:
    if any(conditions.is_true(_conditions(member.status), AVAILABLE) for member in members):
        reason, message = reasons.AVAILABLE_DEPLOYMENT_FOUND, "At least one available deployment was found"
        return conditions.condition(AVAILABLE, True, reason, message, generation=generation, now=now)
    reason, message = reasons.NO_AVAILABLE_DEPLOYMENTS, "No available deployments were found for the placement"
    if missing:
        reason, message = reasons.NO_MATCHING_LOCATION, missing[0].message
    return conditions.condition(AVAILABLE, False, reason, message, generation=generation, now=now)


def _workload_available(available: bool, blockers: Sequence[_Blocker], generation: int, now: datetime) -> Condition:
    reason, message = reasons.AVAILABLE_PLACEMENT_FOUND, "At least one available placement was found"
    if not available:
        reason, message = reasons.NO_AVAILABLE_PLACEMENTS, "No available placements were found for the workload"
        best = 0
        for blocker in blockers:
            # Only a higher rank replaces the first one found, so that equal blockers never take turns.
            if (rank := reasons.workload_rank(blocker.reason)) > best:
                best, reason, message = rank, blocker.reason, blocker.message
    return conditions.condition(AVAILABLE, available, reason, message, generation=generation, now=now)


def _blockers(members: Iterable[WorkloadDeployment]) -> Iterable[_Blocker]:
    for member in members:
        condition = conditions.find(_conditions(member.status), AVAILABLE)
        if condition is not None and condition.status != "True":
            yield _Blocker(member.name, condition.reason, condition.message)


def _missing(entries: Iterable[Unoffered]) -> Iterable[_Blocker]:
    return (_Blocker(entry.name, reasons.NO_MATCHING_LOCATION, entry.message) for entry in entries)


def _conditions(status: WorkloadDeploymentStatus | PlacementStatus | None) -> tuple[Condition, ...]:
    return status.conditions if status else ()
