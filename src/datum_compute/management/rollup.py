"""The status of a workload, from its deployments.

Entry points: `workload_status`, `without_networks`, `is_rolled_out`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import FEDERATED, REPLICAS_READY, WorkloadDeployment, WorkloadDeploymentStatus
from datum_compute.api.instance import AVAILABLE
from datum_compute.api.workload import PLACED, PlacementStatus, Workload
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition, Json, as_dict
from datum_compute.management.placement import is_paused

_COUNTERS = {
    "replicas": "replicas",
    "currentReplicas": "current_replicas",
    "updatedReplicas": "updated_replicas",
    "desiredReplicas": "desired_replicas",
    "readyReplicas": "ready_replicas",
}
_TEMPLATE_COUNTERS = ("currentReplicas", "updatedReplicas")
PROGRESSING = "Progressing"  # present only while a rollout is paused
_LONGEST_MESSAGE = 32_000  # characters of a condition's message; the schema takes 32,768


class Blocker(Struct, frozen=True):
    """Why a deployment is not available, or cannot even be created."""

    name: str  # of the deployment that exists or would exist
    placement: str
    reason: str
    message: str


def workload_status(
    workload: Workload,
    deployments: Collection[WorkloadDeployment],
    unmet: Collection[Blocker],
    now: datetime,
    held: Collection[str] = (),
) -> Json:
    """The whole status: sums over the deployments that exist, and Available with the best-ranked blocker.

    `unmet` is what the spec requests and cannot have; `held` names the deployments whose template waits for a resume.
    """
    generation = workload.metadata.generation
    before = workload.status
    earlier = {status.name: status for status in before.placements} if before else {}
    names = sorted({d.spec.placement_name for d in deployments} | {blocker.placement for blocker in unmet})
    entries: list[Json] = []
    blockers: list[Blocker] = []
    unplaced: list[Blocker] = []
    available = False
    for name in names:
        members = sorted((d for d in deployments if d.spec.placement_name == name), key=lambda d: d.name)
        own = [blocker for blocker in unmet if blocker.placement == name]
        condition = _placement_available(members, own, generation, now)
        available = available or condition.status == "True"
        blockers += sorted([*_blockers(members), *own], key=lambda blocker: blocker.name)
        unplaced += sorted([*_refusals(members), *own], key=lambda blocker: blocker.name)
        merged = conditions.updated(_conditions(earlier.get(name)), [condition])
        entries.append({"name": name} | _sums(members, held) | {"conditions": conditions.to_json(merged)})
    wanted = [_workload_available(available, blockers, generation, now), *_placed(unplaced, generation, now)]
    others = [condition for condition in conditions.of(workload) if condition.type != PLACED or unplaced]
    return as_dict(workload.status_json) | {
        "deployments": len(deployments),
        "observedGeneration": generation,
        **_sums(deployments, held),
        "conditions": _workload_conditions(workload, others, wanted, now),
        "placements": entries,
    }


def is_rolled_out(workload: Workload) -> bool:
    """Whether all requested instances run the newest template, and no other instance is left."""
    status = workload.status
    requested = sum(
        placement.scale_settings.min_replicas * len(set(placement.city_codes)) for placement in workload.spec.placements
    )
    return (
        status is not None
        and status.observed_generation == workload.metadata.generation
        and 0 < requested == status.updated_replicas == status.replicas
    )


def without_networks(workload: Workload, missing: Sequence[str], now: datetime) -> Json:
    """The status while networks are missing. Nothing else is evaluated, so the counters stay as they were."""
    generation = workload.metadata.generation
    message = f"Unable to find networks: {', '.join(sorted(missing))}"
    wanted = conditions.condition(AVAILABLE, False, reasons.NETWORK_NOT_FOUND, message, generation=generation, now=now)
    initial = {"deployments": 0} | dict.fromkeys(_COUNTERS, 0)
    merged = _workload_conditions(workload, conditions.of(workload), [wanted], now)
    return initial | as_dict(workload.status_json) | {"conditions": merged}


def _workload_conditions(
    workload: Workload, before: Iterable[Condition], wanted: Sequence[Condition], now: datetime
) -> list[Json]:
    if is_paused(workload):
        message = "The rollout is paused: no instance is replaced until it is resumed"
        generation = workload.metadata.generation
        paused = conditions.condition(
            PROGRESSING, "Unknown", reasons.ROLLOUT_PAUSED, message, generation=generation, now=now
        )
        wanted = [*wanted, paused]
    else:
        paused_type = (PROGRESSING, reasons.ROLLOUT_PAUSED)
        before = [condition for condition in before if (condition.type, condition.reason) != paused_type]
    return conditions.to_json(conditions.updated([*before], wanted))


def _sums(deployments: Iterable[WorkloadDeployment], held: Collection[str]) -> dict[str, int]:
    totals = dict.fromkeys(_COUNTERS, 0)
    for deployment in deployments:
        for counter, value in _counters(deployment, deployment.name in held).items():
            totals[counter] += value
    return totals


def _counters(deployment: WorkloadDeployment, held: bool) -> Mapping[str, int]:
    """A status for an older generation or template says nothing about the newest template, which then counts zero."""
    status = deployment.status
    if status is None:
        return {}
    counters: dict[str, int] = {wire: getattr(status, name) for wire, name in _COUNTERS.items()}
    if held or status.observed_generation < deployment.metadata.generation:
        counters |= dict.fromkeys(_TEMPLATE_COUNTERS, 0)
    return counters


def _placement_available(
    members: Sequence[WorkloadDeployment], unmet: Sequence[Blocker], generation: int, now: datetime
) -> Condition:
    if any(conditions.is_true(_conditions(member.status), AVAILABLE) for member in members):
        reason, message = reasons.AVAILABLE_DEPLOYMENT_FOUND, "At least one available deployment was found"
        return conditions.condition(AVAILABLE, True, reason, message, generation=generation, now=now)
    reason, message = reasons.NO_AVAILABLE_DEPLOYMENTS, "No available deployments were found for the placement"
    own = [*_blockers(members)]
    if own and len(own) == len(members) and all(blocker.reason == reasons.SCALED_TO_ZERO for blocker in own):
        reason, message = own[0].reason, own[0].message
    if unmet:
        worst = max(unmet, key=lambda blocker: reasons.workload_rank(blocker.reason))
        reason, message = worst.reason, worst.message
    return conditions.condition(AVAILABLE, False, reason, message, generation=generation, now=now)


def _workload_available(available: bool, blockers: Sequence[Blocker], generation: int, now: datetime) -> Condition:
    reason, message = reasons.AVAILABLE_PLACEMENT_FOUND, "At least one available placement was found"
    if not available:
        reason, message = reasons.NO_AVAILABLE_PLACEMENTS, "No available placements were found for the workload"
        best = 0
        # Any other blocker says more than a placement that was scaled to zero.
        for blocker in [blocker for blocker in blockers if blocker.reason != reasons.SCALED_TO_ZERO] or blockers:
            # Only a strictly higher rank replaces an earlier blocker, so that equal ones never alternate.
            if (rank := reasons.workload_rank(blocker.reason)) > best:
                best, reason, message = rank, blocker.reason, blocker.message
    return conditions.condition(AVAILABLE, available, reason, message, generation=generation, now=now)


def _placed(unplaced: Sequence[Blocker], generation: int, now: datetime) -> list[Condition]:
    """One condition with every message, under the highest-ranked reason; none when everything is placed."""
    if not unplaced:
        return []
    reason = max(unplaced, key=lambda blocker: reasons.workload_rank(blocker.reason)).reason
    message = "; ".join(dict.fromkeys(blocker.message for blocker in unplaced))[:_LONGEST_MESSAGE]
    return [conditions.condition(PLACED, False, reason, message, generation=generation, now=now)]


def _refusals(members: Iterable[WorkloadDeployment]) -> Iterable[Blocker]:
    """What the hub or the site refused, even where an earlier state keeps serving."""
    for member in members:
        for type_ in (FEDERATED, REPLICAS_READY):
            condition = conditions.find(_conditions(member.status), type_)
            if condition is not None and condition.status == "False" and condition.reason in reasons.OBSTACLES:
                yield Blocker(member.name, member.spec.placement_name, condition.reason, condition.message)


def _blockers(members: Iterable[WorkloadDeployment]) -> Iterable[Blocker]:
    for member in members:
        condition = conditions.find(_conditions(member.status), AVAILABLE)
        if condition is not None and condition.status != "True":
            yield Blocker(member.name, member.spec.placement_name, condition.reason, condition.message)


def _conditions(status: WorkloadDeploymentStatus | PlacementStatus | None) -> tuple[Condition, ...]:
    return status.conditions if status else ()
