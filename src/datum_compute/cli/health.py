"""What conditions mean in plain words. Entry points: `instance_status`, `instance_detail`, `workload_health`, `block`.

The tables of the CLI contract, section 4, as functions: the first rule that fits wins.
"""

from collections.abc import Iterable
from enum import Enum
from typing import TypeGuard

from msgspec import Struct

from datum_compute.api import instance as instances
from datum_compute.api import reasons
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.workload import Workload
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition


class State(Enum):
    """What can be said of an instance: its text in lists, and its line in the view of one instance."""

    TERMINATING = ("Terminating", "Terminating")
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
_SILENT = (State.AVAILABLE, State.TERMINATING, State.QUOTA_EVALUATION, State.STARTING, State.PENDING)


class Judged(Struct, frozen=True):
    """The state of an instance and the condition that tells it."""

    state: State
    because: Condition | None = None

    @property
    def status(self) -> str:
        """As lists show it."""
        return self._text(0)

    @property
    def line(self) -> str:
        """As the view of one instance shows it."""
        return self._text(1)

    @property
    def message(self) -> str:
        """The sentence under the line; empty where the line says it all."""
        return "" if self.because is None or self.state in _SILENT else self.because.message

    @property
    def cause(self) -> str:
        """The part of the line that names the cause."""
        _, dash, cause = self.line.partition(" — ")
        return cause if dash else self.line.lower()

    def _text(self, index: int) -> str:
        return str(self.state.value[index]).format(reason=self.because.reason if self.because else "")


def judge(instance: Instance) -> Judged:
    """Rules in the order of the contract's table, but for one: a provider's failure on Ready counts before "under way"
    on Programmed, because a site that cannot start an instance goes on reporting that it is being programmed."""
    if instance.metadata.deleting:
        return Judged(State.TERMINATING)
    found = instance.status.conditions if instance.status else ()
    ready, quota, programmed = (
        conditions.find(found, type_) for type_ in (instances.READY, instances.QUOTA_GRANTED, instances.PROGRAMMED)
    )
    if ready is not None and ready.status == "True":
        return Judged(State.AVAILABLE, ready)
    if quota is not None and (state := _QUOTA.get((quota.status, quota.reason))):
        return Judged(state, quota)
    for condition in (programmed, ready):
        if _open(condition) and (state := _FAILURES.get(condition.reason)):
            return Judged(state, condition)
    if _open(programmed) and programmed.reason in _UNDER_WAY:
        return Judged(State.STARTING, programmed)
    return _by_ready(ready)


def _by_ready(ready: Condition | None) -> Judged:
    match ready.reason if ready else "":
        case "" | reasons.PENDING | reasons.STARTING | reasons.STOPPING | reasons.STOPPED:
            return Judged(State.PENDING, ready)
        case reasons.FAILED:
            return Judged(State.FAILED, ready)
        case reasons.PROVISIONING:
            return Judged(State.PROVISIONING, ready)
    return Judged(State.PENDING_FOR, ready)


def _open(condition: Condition | None) -> TypeGuard[Condition]:
    """There, and not True."""
    return condition is not None and condition.status != "True"


class Block(Struct, frozen=True):
    """Why an object is not there yet, as the server says it; unknown reasons are shown as they come."""

    reason: str
    message: str

    def __str__(self) -> str:
        return " — ".join(filter(None, (self.reason, self.message)))


def block(found: Iterable[Condition], type_: str) -> Block | None:
    """What a condition that is present and not True says; None when nothing is blocked."""
    condition = conditions.find(found, type_)
    return Block(condition.reason, condition.message) if _open(condition) else None


class Health(Struct, frozen=True):
    state: str  # Available, Degraded, Unavailable, Unknown
    detail: str = ""

    def __str__(self) -> str:
        return " — ".join(filter(None, (self.state, self.detail)))


HEALTH_STATES = ("Available", "Degraded", "Unavailable", "Unknown")


def workload_health(found: Iterable[Condition], *, ready: int, desired: int) -> Health:
    available = conditions.find(found, "Available")
    match available.status if available else "Unknown":
        case "False":
            assert available is not None
            return Health("Unavailable", available.reason or "no healthy instances")
        case "True" if ready >= desired:
            return Health("Available", "all placements at desired replicas")
        case "True":
            return Health("Degraded", f"{desired - ready} instances below desired count")
    return Health("Unknown")


class Counts(Struct, frozen=True):
    """Instances of one deployment, or of several together."""

    desired: int = 0
    updated: int = 0
    ready: int = 0
    replicas: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.desired + other.desired,
            self.updated + other.updated,
            self.ready + other.ready,
            self.replicas + other.replicas,
        )


def counts(deployment: WorkloadDeployment) -> Counts:
    """As the deployment reports; what it asks for counts as desired until it does."""
    status = deployment.status
    asked = deployment.spec.scale_settings.min_replicas
    if status is None:
        return Counts(desired=asked)
    return Counts(
        status.desired_replicas or (0 if deployment.metadata.deleting else asked),
        status.updated_replicas or status.current_replicas,
        status.ready_replicas,
        status.replicas,
    )


def total(deployments: Iterable[WorkloadDeployment]) -> Counts:
    return sum(map(counts, deployments), Counts())


def observed(found: Workload | WorkloadDeployment) -> bool:
    """Whether the status answers the newest spec."""
    return found.status is not None and found.status.observed_generation >= found.metadata.generation


def progressing(deployments: Iterable[WorkloadDeployment]) -> bool:
    return any(counts(one).updated < counts(one).desired or not observed(one) for one in deployments)
