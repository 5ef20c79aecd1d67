"""One running copy of a template. Entry points: `Instance`, `INSTANCE`, `INITIAL_STATUS`."""

from typing import Annotated

from msgspec import Struct, field

from datum_compute.api import GROUP, VERSION, reasons
from datum_compute.api.initial import initial
from datum_compute.api.template import InstanceSpec
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Condition, Json, KubeObject, optional_part, part, schema

PROGRAMMED = "Programmed"
AVAILABLE = "Available"
READY = "Ready"
QUOTA_GRANTED = "QuotaGranted"

NETWORK_GATE = "Network"
QUOTA_GATE = "Quota"
GATES = (NETWORK_GATE, QUOTA_GATE, "ReferencedData")
"""Every scheduling gate that this program knows."""


class Assignments(Struct, frozen=True, rename="camel"):
    network_ip: Annotated[str, schema("Primary address of the interface in its network.")] = field(
        default="", name="networkIP"
    )
    external_ip: Annotated[
        str, schema("Address or host name at which the interface can be reached from outside its network.")
    ] = field(default="", name="externalIP")


class NetworkInterfaceStatus(Struct, frozen=True, rename="camel"):
    assignments: Annotated[Assignments, schema("Addresses assigned to the interface.")] = Assignments()


class InstanceControllerStatus(Struct, frozen=True, rename="camel"):
    observed_template_hash: Annotated[str, schema("Digest of the template that the instance runs.")]


class InstanceStatus(Struct, frozen=True, rename="camel"):
    """Observed state of the instance, as reported by its site."""

    conditions: Annotated[
        tuple[Condition, ...],
        schema(
            "Programmed is True once the site has set the instance up, Available while it is serving, and QuotaGranted "
            "once quota was granted for it. Ready is True while the instance is serving, and otherwise has the cause."
        ),
    ] = ()
    network_interfaces: Annotated[
        tuple[NetworkInterfaceStatus, ...], schema("Status of each network interface, in the order of the spec.")
    ] = ()
    controller: Annotated[InstanceControllerStatus | None, schema("State reported back to controllers.")] = None


class Instance(KubeObject, frozen=True):
    """Instance is one running copy of a Workload's template; in a project, a read-only view of what runs at a site."""

    spec = part("spec_json", InstanceSpec)
    status = optional_part("status_json", InstanceStatus)


INSTANCE = Kind(GROUP, VERSION, "Instance", "instances", Instance)


INITIAL_STATUS: Json = {
    "conditions": [
        initial(PROGRAMMED, "Unknown", reasons.PENDING, "Waiting for controller"),
        initial(AVAILABLE, "Unknown", reasons.PENDING, "Waiting for controller"),
        initial(READY, "Unknown", reasons.PENDING, "Waiting for controller"),
        initial(QUOTA_GRANTED, "Unknown", reasons.PENDING_EVALUATION, "Waiting for quota evaluation"),
    ]
}
"""The schema default, so that readers see a status before any controller has run."""
