"""The state of an Instance, derived from that of its Pod."""

from typing import Any

import pytest

from datum_compute.api.reasons import REASONS
from datum_compute.kube.meta import Json, decode, encode
from datum_compute.providers.pods.state import POD, Pod, address_of, report_of

IMAGE = "registry.example/hello:1"


def pod(status: Json | None, *, deleting: bool = False, containers: int = 1) -> Pod:
    body: Json = POD.body("web-0", "ns")
    if deleting:
        body["metadata"]["deletionTimestamp"] = "2026-06-01T12:00:00Z"
    body["spec"] = {"containers": [{"name": f"c{number}", "image": IMAGE} for number in range(containers)]}
    return decode(encode(body | ({"status": status} if status is not None else {})), Pod)


def state(phase: str, *states: Json, **also: Any) -> Json:
    """Each container is ready if it is running, unless its state says otherwise."""
    containers = [
        {"name": f"c{number}", "ready": entry.pop("ready", "running" in entry), "state": entry}
        for number, entry in enumerate([dict(entry) for entry in states])
    ]
    return {"phase": phase, "containerStatuses": containers} | also


def waiting(reason: str) -> Json:
    return {"waiting": {"reason": reason, "message": "rpc error: back-off 5m0s restarting failed container"}}


UP: Json = {"running": {"startedAt": "2026-06-01T12:00:00Z"}}
ENDED_BADLY: Json = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
ENDED_WELL: Json = {"terminated": {"exitCode": 0, "reason": "Completed"}}
IN_PROGRESS = ("Unknown", "ProgrammingInProgress")
NO_IMAGE, CRASHES = ("Unknown", "ImageUnavailable"), ("Unknown", "InstanceCrashing")
PULLING = ("ImagePullBackOff", "ErrImagePull", "ImageInspectError", "InvalidImageName", "RegistryUnavailable")
LOOP = "CrashLoopBackOff"
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
NOT_READY: Json = {"type": "Ready", "status": "False"}

TABLE: list[tuple[str, Json | None, tuple[str, str], tuple[str, str]]] = [
    ("running", state("Running", UP), ("True", "Available"), ("True", "Programmed")),
    ("no status yet", None, ("Unknown", "Provisioning"), IN_PROGRESS),
    ("pending", state("Pending"), ("Unknown", "Provisioning"), IN_PROGRESS),
    *(
        (reason, state("Pending", waiting(reason)), NO_IMAGE, IN_PROGRESS)
        for reason in PULLING
    ),
    ("crash loop", state("Pending", waiting(LOOP)), CRASHES, IN_PROGRESS),
    *(
        (reason, state("Pending", waiting(reason)), ("Unknown", "ConfigurationError"), IN_PROGRESS)
        for reason in ("CreateContainerError", "CreateContainerConfigError")
    ),
    *(
        (reason, state("Pending", waiting(reason)), ("Unknown", "Provisioning"), IN_PROGRESS)
        for reason in ("ContainerCreating", "PodInitializing", "SomethingNew")
    ),
    ("succeeded", state("Succeeded", ENDED_WELL), ("False", "Stopping"), ("False", "Stopping")),
    ("failed", state("Failed", ENDED_BADLY), ("False", "Failed"), ("False", "Failed")),
    ("unknown", state("Unknown"), ("Unknown", "Unknown"), IN_PROGRESS),
    # Containers take precedence over the phase
    ("crash loop, running", state("Running", waiting(LOOP)), CRASHES, IN_PROGRESS),
    ("one of two crashes", state("Running", UP, waiting(LOOP)), CRASHES, IN_PROGRESS),
    ("has just crashed", state("Running", ENDED_BADLY), CRASHES, IN_PROGRESS),
    ("image gone after a restart", state("Running", waiting("ErrImagePull")), NO_IMAGE, IN_PROGRESS),
    ("not ready", state("Running", UP | {"ready": False}), ("False", "Starting"), ("False", "Starting")),
    ("has ended well, starts again", state("Running", ENDED_WELL), ("False", "Starting"), ("False", "Starting")),
    ("one is created", state("Running", UP, waiting("ContainerCreating")), ("Unknown", "Provisioning"), IN_PROGRESS),
    ("on a node that is away", state("Running", UP, conditions=[NOT_READY]), ("Unknown", "Unknown"), IN_PROGRESS),
    ("starting, as the node says", state("Running", UP | {"ready": False}, conditions=[NOT_READY]),
     ("False", "Starting"), ("False", "Starting")),
    ("no room", state("Pending", conditions=UNSCHEDULABLE), ("Unknown", "Provisioning"), IN_PROGRESS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "available", "programmed"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_phase_and_container_states_become_reasons(
    status: Json | None, available: tuple[str, str], programmed: tuple[str, str]
) -> None:
    report = report_of(pod(status, containers=2))
    assert (report.status, report.reason) == available
    assert (report.status, report.programmed) == programmed


RAW = ("pod", "container", "back-off", "backoff", "rpc", "oomkill", "node", "crashloop", "kube", "137", "schedul")


@pytest.mark.parametrize("status", [row[1] for row in TABLE], ids=[row[0] for row in TABLE])
def test_terms_of_the_runtime_never_reach_users(status: Json | None) -> None:
    report = report_of(pod(status, containers=2))
    assert not [word for word in RAW if word in f"{report.message} {report.reason} {report.programmed}".lower()]
    assert report.reason in {reason.name for reason in REASONS}
    assert report.programmed in {reason.name for reason in REASONS}


def test_the_message_names_the_image_that_cannot_be_pulled() -> None:
    assert report_of(pod(state("Pending", waiting("ErrImagePull")))).message == f"The image {IMAGE} cannot be pulled"


def test_a_pod_being_deleted_is_reported_as_set_up_again() -> None:
    report = report_of(pod(state("Running", UP), deleting=True))
    assert (report.status, report.reason) == ("Unknown", "Provisioning")


@pytest.mark.parametrize(
    ("status", "address"),
    [
        ({"podIP": "192.0.2.7", "podIPs": [{"ip": "192.0.2.7"}, {"ip": "2001:db8::7"}]}, "192.0.2.7"),
        ({"podIP": "192.0.2.7"}, "192.0.2.7"),
        ({}, ""),
        (None, ""),
    ],
)
def test_the_first_address_of_the_pod_is_the_network_address(status: Json | None, address: str) -> None:
    assert address_of(pod(status)) == address
