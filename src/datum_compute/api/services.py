"""Milo's kinds for projects and services, as far as used here. Entry points: `PROJECT`, `SERVICE_ENTITLEMENT`."""

from datetime import datetime
from typing import Annotated

from msgspec import Struct

from datum_compute.api import GROUP
from datum_compute.api.initial import initial
from datum_compute.api.labels import SERVICE_LABEL as SERVICE_LABEL
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Condition, Json, KubeObject, optional_part, part, schema

RESOURCE_MANAGER_GROUP = "resourcemanager.miloapis.com"
INFRASTRUCTURE_GROUP = "infrastructure.miloapis.com"
SERVICES_GROUP = "services.miloapis.com"

# Extras by which Milo names what a caller's request is for.
PARENT_NAME = "iam.miloapis.com/parent-name"
PARENT_TYPE = "iam.miloapis.com/parent-type"
PARENT_API_GROUP = "iam.miloapis.com/parent-api-group"

SERVICE_NAME = GROUP  # the canonical name
SERVICE_OBJECT = "compute"  # of the Service and, by convention, of its entitlement

READY = "Ready"
CONTROL_PLANE_READY = "ControlPlaneReady"

_Conditions = Annotated[tuple[Condition, ...], schema(list_type="map", list_map_keys=["type"])]


class ProjectStatus(Struct, frozen=True, rename="camel"):
    conditions: _Conditions = ()


class Project(KubeObject, frozen=True):
    """Project is a tenant. Its plane can be used once it is Ready."""

    status = optional_part("status_json", ProjectStatus)


INITIAL_PROJECT_STATUS: Json = {
    "conditions": [initial(READY, "Unknown", "Unknown", "Waiting for control plane to be created")]
}


class ProjectControlPlaneStatus(Struct, frozen=True, rename="camel"):
    conditions: _Conditions = ()


class ProjectControlPlane(KubeObject, frozen=True):
    """ProjectControlPlane is the plane of the project of the same name, as the infrastructure sees it."""

    status = optional_part("status_json", ProjectControlPlaneStatus)


INITIAL_CONTROL_PLANE_STATUS: Json = {
    "conditions": [initial(CONTROL_PLANE_READY, "False", "Creating", "Waiting for control plane to be created")]
}


class ServiceRef(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema(minLength=1, maxLength=253)]


class ServiceEntitlementSpec(Struct, frozen=True, rename="camel"):
    service_ref: ServiceRef
    request_message: Annotated[str, schema(maxLength=1024)] = ""


class ServiceEntitlementStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""  # PendingApproval, Active, Rejected
    origin: str = ""
    service_name: str = ""
    entitled_at: datetime | None = None
    observed_generation: Annotated[int, schema(format="int64")] = 0
    conditions: _Conditions = ()


class ServiceEntitlement(KubeObject, frozen=True):
    """ServiceEntitlement is a project's right to use a service."""

    spec = part("spec_json", ServiceEntitlementSpec)
    status = optional_part("status_json", ServiceEntitlementStatus)


PROJECT = Kind(RESOURCE_MANAGER_GROUP, "v1alpha1", "Project", "projects", Project, namespaced=False)
PROJECT_CONTROL_PLANE = Kind(
    INFRASTRUCTURE_GROUP,
    "v1alpha1",
    "ProjectControlPlane",
    "projectcontrolplanes",
    ProjectControlPlane,
    namespaced=False,
)
SERVICE_ENTITLEMENT = Kind(
    SERVICES_GROUP, "v1alpha1", "ServiceEntitlement", "serviceentitlements", ServiceEntitlement, namespaced=False
)
