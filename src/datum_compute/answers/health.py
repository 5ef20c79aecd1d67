"""What conditions mean, in plain words. Entry points: `instance_health`, `workload_health`, `block`.

Each applies a list of rules, of which the first that matches wins.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeGuard

from msgspec import Struct

from datum_compute.answers.places import Place, counts, desired_replicas, observed, tally
from datum_compute.api import instance as instances
from datum_compute.api import reasons
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.workload import PLACED, Workload
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition


class State(Enum):
    """The state of an instance: its text in lists, and its line in the view of one instance."""

    TERMINATING = ("Terminating", "Terminating")
    STOPPING = ("Stopping", "Stopping")
    AVAILABLE = ("Available", "Available")
    QUOTA_EXCEEDED = ("Pending (quota exceeded)", "Not available — quota exceeded")
    QUOTA_INVALID = ("Pending (quota validation failed)", "Not available — quota validation failed")
    QUOTA_EVALUATION = ("Pending (quota evaluation)", "Pending — quota evaluation")
    QUOTA_MISSING = ("Pending (no quota configured)", "Pending — no quota configured")
    IMAGE_UNAVAILABLE = ("Failed (image unavailable)", "Not available — image unavailable")
    CRASHING = ("Failed (crashing)", "Not available — instance crashing")
    CONFIGURATION_ERROR = ("Failed (configuration error)", "Not available — configuration error")
    FAILED = ("Failed", "Not available — failed")
    STARTING = ("Starting", "Starting")
    PROVISIONING = ("Starting", "Pending — Provisioning")
    PENDING = ("Pending", "Pending")
    PENDING_FOR = ("Pending ({reason})", "Pending — {reason}")

    @property
    def failed(self) -> bool:
        return self.value[0].startswith("Failed")

    @property
    def going(self) -> bool:
        return self in (State.TERMINATING, State.STOPPING)


_QUOTA = {
    ("False", reasons.QUOTA_EXCEEDED): State.QUOTA_EXCEEDED,
    ("False", reasons.VALIDATION_FAILED): State.QUOTA_INVALID,
    ("Unknown", reasons.PENDING_EVALUATION): State.QUOTA_EVALUATION,
    ("False", reasons.QUOTA_NO_BUDGET): State.QUOTA_MISSING,
    ("Unknown", reasons.QUOTA_NO_BUDGET): State.QUOTA_MISSING,
}
_FAILURES = {
    reasons.IMAGE_UNAVAILABLE: State.IMAGE_UNAVAILABLE,
    reasons.INSTANCE_CRASHING: State.CRASHING,
    reasons.CONFIGURATION_ERROR: State.CONFIGURATION_ERROR,
}
_UNDER_WAY = (reasons.PENDING_PROGRAMMING, reasons.PROGRAMMING_IN_PROGRESS)
_SILENT = (State.AVAILABLE, State.TERMINATING, State.STOPPING, State.QUOTA_EVALUATION, State.STARTING, State.PENDING)


class InstanceHealth(Struct, frozen=True):
    """The state of an instance, and the condition it was derived from."""

    state: State
    condition: Condition | None = None

    @property
    def status(self) -> str:
        """The text in lists."""
        return self._text(0)

    @property
    def line(self) -> str:
        """The line in the view of one instance."""
        return self._text(1)

    @property
    def message(self) -> str:
        """The sentence under the line; empty if the line says everything."""
        return "" if self.condition is None or self.state in _SILENT else self.condition.message

    @property
    def cause(self) -> str:
        """The part of the line that names the cause."""
        _, dash, cause = self.line.partition(" — ")
        return cause if dash else self.line.lower()

    def _text(self, index: int) -> str:
        return str(self.state.value[index]).format(reason=self.condition.reason if self.condition else "")


def instance_health(instance: Instance) -> InstanceHealth:
    """The state of an instance. A failure on Ready takes precedence over progress on Programmed, which a site that
    cannot start an instance keeps reporting."""
    if instance.metadata.deleting:
        return InstanceHealth(State.TERMINATING)
    reported = conditions.of(instance)
    ready, quota, programmed = (
        conditions.find(reported, type_) for type_ in (instances.READY, instances.QUOTA_GRANTED, instances.PROGRAMMED)
    )
    if ready is not None and ready.status == "True":
        return InstanceHealth(State.AVAILABLE, ready)
    if quota is not None and (state := _QUOTA.get((quota.status, quota.reason))):
        return InstanceHealth(state, quota)
    for condition in (programmed, ready):
        if _is_not_true(condition) and (state := _FAILURES.get(condition.reason)):
            return InstanceHealth(state, condition)
    if _is_not_true(programmed) and programmed.reason in _UNDER_WAY:
        return InstanceHealth(State.STARTING, programmed)
    return _by_ready(ready)


def _by_ready(ready: Condition | None) -> InstanceHealth:
    match ready.reason if ready else "":
        case "" | reasons.PENDING | reasons.STARTING | reasons.STOPPED:
            return InstanceHealth(State.PENDING, ready)
        case reasons.STOPPING:
            return InstanceHealth(State.STOPPING, ready)
        case reasons.FAILED:
            return InstanceHealth(State.FAILED, ready)
        case reasons.PROVISIONING:
            return InstanceHealth(State.PROVISIONING, ready)
    return InstanceHealth(State.PENDING_FOR, ready)


def _is_not_true(condition: Condition | None) -> TypeGuard[Condition]:
    """Whether the condition is present and not True."""
    return condition is not None and condition.status != "True"


class Block(Struct, frozen=True):
    """Why an object is not ready, as the server reports it; unknown reasons are shown as received."""

    reason: str
    message: str

    def __str__(self) -> str:
        return " — ".join(filter(None, (self.reason, self.message)))


def block(reported: Iterable[Condition], type_: str) -> Block | None:
    """Reason and message of a condition that is present and not True; None if nothing is blocked."""
    condition = conditions.find(reported, type_)
    return Block(condition.reason, condition.message) if _is_not_true(condition) else None


class Health(Struct, frozen=True):
    """The state in one word, and a sentence with details."""

    state: str
    detail: str = ""

    def __str__(self) -> str:
        return " — ".join(filter(None, (self.state, self.detail)))


AVAILABLE, DEGRADED, UNAVAILABLE, UNKNOWN = "Available", "Degraded", "Unavailable", "Unknown"
PAUSED, DELETING, IDLE = "Paused", "Deleting", "Idle"
HEALTH_STATES = (AVAILABLE, DEGRADED, UNAVAILABLE, UNKNOWN, PAUSED, DELETING, IDLE)


def is_paused(workload: Workload) -> bool:
    return workload.metadata.annotations.get(ROLLOUT_PAUSED) == "true"


def workload_health(workload: Workload, deployments: Iterable[WorkloadDeployment]) -> Health:
    """The health of a workload. Deletion takes precedence over everything else, and a pause hides no trouble."""
    deployments = list(deployments)
    if workload.metadata.deleting:
        return Health(DELETING, _remains(workload, deployments))
    health = _health(workload, deployments)
    if not is_paused(workload):
        return health
    if health.state in (DEGRADED, UNAVAILABLE):
        return Health(health.state, f"{health.detail}; the rollout is paused")
    detail = _unreported(workload, deployments) or held_back(workload)
    return Health(PAUSED, detail or "no instance is replaced until the rollout is resumed")


def _remains(workload: Workload, deployments: Sequence[WorkloadDeployment]) -> str:
    """What a workload that is being deleted waits for."""
    if cities := sorted({deployment.spec.city_code for deployment in deployments}):
        return f"waiting for {', '.join(cities)}"
    if finalizers := workload.metadata.finalizers:
        return f"waiting for finalizer {', '.join(finalizers)}"
    return ""


def held_back(workload: Workload) -> str:
    """How far the rollout had come when it was paused; empty if it was complete, or if that is not known yet."""
    status = workload.status
    if status is None or not is_paused(workload) or not observed(workload):
        return ""
    desired = sum(desired_replicas(workload).values())
    return _share(status.updated_replicas, desired) if status.updated_replicas < desired else ""


def _share(updated: int, desired: int) -> str:
    return f"{updated} of {desired} instances on the newest version"


def _health(workload: Workload, deployments: Sequence[WorkloadDeployment]) -> Health:
    status = workload.status
    available = conditions.find(status.conditions, "Available") if status else None
    match available.status if available else "Unknown":
        case "False" if available is not None and available.reason == reasons.SCALED_TO_ZERO:
            return Health(IDLE, "scaled to zero")
        case "False":
            assert available is not None
            return Health(UNAVAILABLE, available.reason or "no healthy instances")
        case "True":
            if missing := sum(numbers.missing for numbers in tally(workload, deployments).values()):
                refused = block(status.conditions if status else (), PLACED)
                why = f"; {refused.message}" if refused is not None and refused.message else ""
                return Health(DEGRADED, f"{missing} instances below desired count{why}")
            return Health(AVAILABLE, _progress(workload, deployments))
    return Health(UNKNOWN)


def _unreported(workload: Workload, deployments: Iterable[WorkloadDeployment]) -> str:
    """Who has not reported on the newest change yet; empty if everybody has."""
    if not observed(workload):
        return "the newest change is not reported yet"
    silent = {deployment.spec.city_code for deployment in deployments if not observed(deployment)}
    return f"{', '.join(sorted(silent))} did not report on the newest change yet" if silent else ""


def _progress(workload: Workload, deployments: Sequence[WorkloadDeployment]) -> str:
    """Whether the instances of a workload, all of them ready, are exactly those requested last."""
    wanted = desired_replicas(workload)
    current = [deployment for deployment in deployments if Place.of(deployment) in wanted]
    if unreported := _unreported(workload, current):
        return unreported
    updated, desired = workload.status.updated_replicas if workload.status else 0, sum(wanted.values())
    if updated < desired:
        return _share(updated, desired)
    if surplus := sum(numbers.surplus for numbers in tally(workload, deployments).values()):
        return f"{surplus} instances above desired count"
    return "all placements at desired replicas"


def progressing(deployments: Iterable[WorkloadDeployment]) -> bool:
    return any(
        counts(deployment).updated < counts(deployment).desired or not observed(deployment)
        for deployment in deployments
    )
