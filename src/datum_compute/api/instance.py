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


class Assignments(Struct, frozen=True, rename="camel"):
    network_ip: Annotated[str, schema("Address in the network.")] = field(default="", name="networkIP")
    external_ip: Annotated[str, schema("Address or host name to reach it from outside.")] = field(
        default="", name="externalIP"
    )


class NetworkInterfaceStatus(Struct, frozen=True, rename="camel"):
    assignments: Annotated[Assignments, schema("Addresses of the interface.")] = Assignments()


class InstanceControllerStatus(Struct, frozen=True, rename="camel"):
    observed_template_hash: Annotated[str, schema("Digest of the template that really runs.")]


class InstanceStatus(Struct, frozen=True, rename="camel"):
    """What there is, as the site reports it."""

    conditions: Annotated[tuple[Condition, ...], schema("Programmed, Available, QuotaGranted and Ready.")] = ()
    network_interfaces: Annotated[
        tuple[NetworkInterfaceStatus, ...], schema("One entry for each interface of the spec.")
    ] = ()
    controller: Annotated[InstanceControllerStatus | None, schema("What the provider reports back.")] = None


class Instance(KubeObject, frozen=True):
    """One copy of a workload in one city; in a project, a read-only view of what runs at the site."""

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
"""The schema's default, so that a reader sees a status before any controller ran."""
