"""The status of a deployment, from its Instances. Entry points: `deployment_status`, `stopping_status`."""

from collections.abc import Collection
from datetime import datetime
from enum import Enum

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import REPLICAS_READY, WorkloadDeployment
from datum_compute.api.instance import AVAILABLE, PROGRAMMED, QUOTA_GRANTED, READY, Instance
from datum_compute.api.labels import ROLLOUT_PAUSED, UPSTREAM_GENERATION
from datum_compute.api.reasons import deployment_rank
from datum_compute.federation.obstacles import Obstacle
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition, Json, as_dict

PROGRESSING = "Progressing"  # present only while a rollout is paused

_SPECIFIC = 5  # from this rank on, an Instance's own reason says more than any summary


class Network(Enum):
    """The state of a deployment's network."""

    READY = "ready"
    PROVISIONING = "provisioning"
    NO_LOCATION = "no location"


class Counts(Struct, frozen=True):
    replicas: int
    current: int
    updated: int
    ready: int
    quota_blocked: int


def deployment_status(
    deployment: WorkloadDeployment,
    instances: Collection[Instance],
    template_hash: str,
    desired: int,
    now: datetime,
    network: Network = Network.READY,
    obstacle: Obstacle | None = None,
) -> Json:
    """The whole status. `obstacle` is what keeps an Instance from being created or changed."""
    counts = _counts(instances, template_hash)
    generation = observed_generation(deployment)

    def condition(type_: str, status: bool | str, reason: str, message: str) -> Condition:
        return conditions.condition(type_, status, reason, message, generation=generation, now=now)

    if obstacle is not None:
        replicas_ready = condition(REPLICAS_READY, False, obstacle.reason, obstacle.message)
    elif counts.quota_blocked:
        pending = f"{counts.quota_blocked} of {desired} desired replicas are pending quota"
        replicas_ready = condition(REPLICAS_READY, False, reasons.QUOTA_EXCEEDED, pending)
    else:
        share = f"{counts.ready}/{desired} replicas available"
        replicas_ready = condition(REPLICAS_READY, True, reasons.REPLICAS_AVAILABLE, share)
    if counts.ready:
        share = f"{counts.ready}/{counts.replicas} instances are ready"
        available = condition(AVAILABLE, True, reasons.STABLE_INSTANCE_FOUND, share)
    else:
        blocker = _best_blocker(deployment.spec.city_code, instances, counts, desired, network, obstacle)
        available = condition(AVAILABLE, False, blocker.reason, blocker.message)
    wanted = [available, replicas_ready]
    before = conditions.of(deployment)
    if is_paused(deployment):
        message = "The rollout is paused: no instance is replaced until it is resumed"
        wanted.append(condition(PROGRESSING, "Unknown", reasons.ROLLOUT_PAUSED, message))
    else:
        paused = (PROGRESSING, reasons.ROLLOUT_PAUSED)
        before = tuple(earlier for earlier in before if (earlier.type, earlier.reason) != paused)
    return as_dict(deployment.status_json) | {
        "replicas": counts.replicas,
        "currentReplicas": counts.current,
        "updatedReplicas": counts.updated,
        "desiredReplicas": desired,
        "readyReplicas": counts.ready,
        "observedGeneration": generation,
        "conditions": conditions.to_json(conditions.updated(before, wanted)),
    }


def stopping_status(deployment: WorkloadDeployment, left: int, now: datetime) -> Json:
    """The status of a deployment that is being deleted, read by a later deployment of the same name that has to wait.

    Its observed generation is 0, so that it never passes for an answer to the later deployment's spec.
    """
    message = f"Waiting for an earlier deployment of this name: {still_stopping(left)}"
    wanted = conditions.condition(AVAILABLE, False, reasons.STOPPING, message, generation=0, now=now)
    before = [condition for condition in conditions.of(deployment) if condition.type == AVAILABLE]
    return {
        "replicas": left,
        "currentReplicas": 0,
        "updatedReplicas": 0,
        "desiredReplicas": 0,
        "readyReplicas": 0,
        "observedGeneration": 0,
        "conditions": conditions.to_json(conditions.updated(before, [wanted])),
    }


def observed_generation(deployment: WorkloadDeployment) -> int:
    """The project's generation of the spec, from its annotation; without one, the generation here."""
    stamped = deployment.metadata.annotations.get(UPSTREAM_GENERATION, "")
    return int(stamped) if stamped.isdecimal() else deployment.metadata.generation


def is_paused(deployment: WorkloadDeployment) -> bool:
    return deployment.metadata.annotations.get(ROLLOUT_PAUSED) == "true"


def is_ready(instance: Instance) -> bool:
    return conditions.is_true(conditions.of(instance), READY)


def _counts(instances: Collection[Instance], template_hash: str) -> Counts:
    live = [instance for instance in instances if not instance.metadata.deleting]
    updated = [instance for instance in live if _runs(instance, template_hash)]
    return Counts(
        replicas=len(instances),
        current=sum(_has(instance, PROGRAMMED, "True") for instance in updated),
        updated=len(updated),
        ready=sum(is_ready(instance) for instance in live),
        quota_blocked=sum(_has(instance, QUOTA_GRANTED, "False") for instance in instances),
    )


def _runs(instance: Instance, template_hash: str) -> bool:
    """Whether the provider reports this template. A missing report is legal and means no."""
    report = instance.status.controller if instance.status else None
    return report is not None and report.observed_template_hash == template_hash


def _has(instance: Instance, type_: str, status: str) -> bool:
    condition = conditions.find(instance.status.conditions, type_) if instance.status else None
    return condition is not None and condition.status == status


def _best_blocker(
    city: str,
    instances: Collection[Instance],
    counts: Counts,
    desired: int,
    network: Network,
    obstacle: Obstacle | None,
) -> Obstacle:
    if not desired and obstacle is None:
        return Obstacle(reasons.SCALED_TO_ZERO, _at_zero(counts.replicas))
    blockers = [_progress(instances)]
    match network:
        case Network.NO_LOCATION:
            blockers.append(Obstacle(reasons.NO_MATCHING_LOCATION, f'No Location matches city code "{city}"'))
        case Network.PROVISIONING:
            blockers.append(Obstacle(reasons.NETWORK_PROVISIONING, "Network is being provisioned"))
    if counts.quota_blocked:
        pending = f"{counts.quota_blocked} of {desired} desired instances pending quota"
        blockers.append(Obstacle(reasons.QUOTA_NOT_GRANTED, pending))
    if obstacle is not None:
        blockers.append(obstacle)
    for instance in instances:
        if instance.metadata.deleting:
            continue  # its problem is deleted with it
        ready = conditions.find(instance.status.conditions, READY) if instance.status else None
        if ready is not None and deployment_rank(ready.reason) >= _SPECIFIC:
            blockers.append(Obstacle(ready.reason, ready.message))
    return max(blockers, key=lambda blocker: deployment_rank(blocker.reason))


def _progress(instances: Collection[Instance]) -> Obstacle:
    """What happens while nothing is wrong: an Instance is replaced only once it has stopped."""
    if not instances:
        return Obstacle(reasons.INSTANCES_PROVISIONING, "No instances available yet")
    if all(instance.metadata.deleting for instance in instances):
        return Obstacle(reasons.STOPPING, f"{still_stopping(len(instances))}; the next one is created after that")
    return Obstacle(reasons.INSTANCES_PROVISIONING, "Instances are being provisioned")


def still_stopping(count: int) -> str:
    return f"{count} {'instance is' if count == 1 else 'instances are'} still stopping"


def _at_zero(replicas: int) -> str:
    if not replicas:
        return "No instances are requested"
    return f"No instances are requested; {replicas} {'is' if replicas == 1 else 'are'} still stopping"
