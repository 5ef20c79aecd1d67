"""The state of an Instance, derived from that of its Pod. Entry point: `report_of`.

Terms of the runtime are translated here, and never reach users.
"""

from collections.abc import Iterator

from msgspec import Struct, field

from datum_compute.api import reasons
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject, optional_part, part
from datum_compute.providers import report
from datum_compute.providers.report import Report, unavailable

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"


class Waiting(Struct, frozen=True, rename="camel"):
    reason: str = ""


class Terminated(Struct, frozen=True, rename="camel"):
    exit_code: int = 0


class ContainerState(Struct, frozen=True, rename="camel"):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True, rename="camel"):
    name: str = ""
    image: str = ""
    ready: bool = False
    state: ContainerState = ContainerState()


class PodCondition(Struct, frozen=True, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""


class PodIP(Struct, frozen=True, rename="camel"):
    ip: str = ""


class PodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    pod_ip: str = field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = field(default=(), name="podIPs")


class PodContainer(Struct, frozen=True, rename="camel"):
    name: str
    image: str = ""


class PodSpec(Struct, frozen=True, rename="camel"):
    containers: tuple[PodContainer, ...] = ()


class Pod(KubeObject, frozen=True):
    """A core Pod, typed as far as it is used."""

    spec = part("spec_json", PodSpec)
    status = optional_part("status_json", PodStatus)


POD = Kind("", "v1", "Pod", "pods", Pod)

_IMAGE = ("ImagePullBackOff", "ErrImagePull", "ImageInspectError", "InvalidImageName", "RegistryUnavailable")
_CONFIGURATION = ("CreateContainerError", "CreateContainerConfigError")
_CRASH = "CrashLoopBackOff"

STARTING = Report("False", reasons.STARTING, "The instance is starting", reasons.STARTING)
STOPPED = Report("False", reasons.STOPPING, "The instance has stopped", reasons.STOPPING)
ENDED = Report("False", reasons.FAILED, "The instance has failed", reasons.FAILED)
UNKNOWN = Report("Unknown", "Unknown", "The site cannot tell the state of the instance")
NO_ROOM = Report("Unknown", reasons.PROVISIONING, "The instance waits for room at the site")
REPLACED = Report("Unknown", reasons.PROVISIONING, "The instance is being set up again")
CRASHED = Report(
    "False", reasons.INSTANCE_CRASHING, "The instance failed and will be started again", reasons.INSTANCE_CRASHING
)


def report_of(pod: Pod) -> Report:
    """Containers take precedence over the phase, because a running Pod may have a container that keeps crashing."""
    if pod.metadata.deleting:
        return REPLACED
    status = pod.status or PodStatus()
    if status.phase == SUCCEEDED:
        return STOPPED
    if status.phase == FAILED:
        return ENDED
    if trouble := next(_troubles(pod, status), None):
        return trouble
    if status.phase == RUNNING and any(container.state.waiting for container in status.container_statuses):
        return report.PROVISIONING
    if status.phase == RUNNING and not all(container.ready for container in status.container_statuses):
        return STARTING
    if status.phase == RUNNING:
        return UNKNOWN if _is_unreachable(status) else report.RUNNING
    if status.phase in (PENDING, ""):
        return NO_ROOM if _is_unschedulable(status) else report.PROVISIONING
    return UNKNOWN


def _troubles(pod: Pod, status: PodStatus) -> Iterator[Report]:
    """One report per container that cannot start, in the order of the spec."""
    states = {container.name: container.state for container in status.container_statuses}
    for container in pod.spec.containers:
        state = states.get(container.name)
        if state is None:
            continue
        waiting = state.waiting.reason if state.waiting else ""
        if waiting in _IMAGE:
            yield unavailable(container.image)
        elif waiting in _CONFIGURATION:
            yield report.MISCONFIGURED
        elif waiting == _CRASH or (state.terminated is not None and state.terminated.exit_code != 0):
            yield report.CRASHING


def _is_unreachable(status: PodStatus) -> bool:
    """Whether the node is unreachable: the Pod is then marked not ready, and its containers keep their last state."""
    return any(condition.type == "Ready" and condition.status == "False" for condition in status.conditions)


def _is_unschedulable(status: PodStatus) -> bool:
    return any(
        condition.type == "PodScheduled" and condition.reason == "Unschedulable" for condition in status.conditions
    )


def address_of(pod: Pod) -> str:
    """The first address of the Pod; empty while it has none."""
    status = pod.status or PodStatus()
    return next((entry.ip for entry in status.pod_ips if entry.ip), status.pod_ip)
