"""What a provider reports about an Instance. Entry points: `Report`, `status_with`."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import AVAILABLE, PROGRAMMED, Instance
from datum_compute.kube import conditions
from datum_compute.kube.meta import Json, as_dict


class Report(Struct, frozen=True):
    """Both conditions of a provider: they have the same status and message, but Programmed may have another reason."""

    status: str  # True, False, Unknown
    reason: str  # of Available
    message: str
    programmed: str = reasons.PROGRAMMING_IN_PROGRESS  # the reason of Programmed

    @property
    def running(self) -> bool:
        return self.status == "True"


RUNNING = Report("True", reasons.AVAILABLE, "The instance is available", reasons.PROGRAMMED)
PROVISIONING = Report("Unknown", reasons.PROVISIONING, "The instance is being provisioned")
TAKEN = Report("Unknown", reasons.PROVISIONING, "The site still has something else of the instance's name")
STOPPING = Report("False", reasons.STOPPING, "The instance is stopping", reasons.STOPPING)
CRASHING = Report("Unknown", reasons.INSTANCE_CRASHING, "The instance keeps failing to start")
MISCONFIGURED = Report("Unknown", reasons.CONFIGURATION_ERROR, "The instance was refused because of its configuration")


def unavailable(image: str) -> Report:
    """Names the image, so that users see which of several containers waits."""
    return Report("Unknown", reasons.IMAGE_UNAVAILABLE, f"The image {image} cannot be pulled")


def out_of_memory(mebibytes: int) -> Report:
    """Names the limit, if it is known, so that users see what is too little."""
    limit = f"its {mebibytes}Mi" if mebibytes else "it may have"
    return Report("Unknown", reasons.INSTANCE_CRASHING, f"The instance used more memory than {limit}")


def status_with(
    instance: Instance, report: Report, addresses: Sequence[str], now: datetime, external: str | None = None
) -> Json:
    """The complete status of the Instance, with the parts that a provider owns taken from the report.

    The template hash is set exactly while the Instance runs. `addresses` has one entry per interface, empty if unknown;
    interfaces are omitted until an address is known. `external` is where the first interface can be reached from
    outside, empty if nowhere; None leaves that to others.
    """
    generation = instance.metadata.generation
    wanted = [
        conditions.condition(AVAILABLE, report.status, report.reason, report.message, generation=generation, now=now),
        conditions.condition(
            PROGRAMMED, report.status, report.programmed, report.message, generation=generation, now=now
        ),
    ]
    status = as_dict(instance.status_json)
    status["conditions"] = conditions.to_json(conditions.updated(conditions.of(instance), wanted))
    status.pop("controller", None)
    if report.running and instance.spec.controller is not None:
        status["controller"] = {"observedTemplateHash": instance.spec.controller.template_hash}
    if any(addresses):
        known = status.get("networkInterfaces") or []
        status["networkInterfaces"] = [
            _interface(known[index] if index < len(known) else {}, address) for index, address in enumerate(addresses)
        ]
    if external is not None and (interfaces := status.get("networkInterfaces")):
        status["networkInterfaces"] = [reached_at(interfaces[0], external), *interfaces[1:]]
    return status


def reached_at(interface: Json, external: str) -> Json:
    """The status of an interface with another external address, or none if that is empty."""
    assignments = {key: value for key, value in (interface.get("assignments") or {}).items() if key != "externalIP"}
    return interface | {"assignments": assignments | ({"externalIP": external} if external else {})}


def _interface(known: Json, address: str) -> Json:
    """Keeps what others wrote about the interface, such as an external address."""
    if not address:
        return known
    return known | {"assignments": (known.get("assignments") or {}) | {"networkIP": address}}
