"""The share of a workload that runs in one city. Entry points: `WorkloadDeployment`, `WORKLOAD_DEPLOYMENT`."""

from typing import Annotated

from msgspec import Raw, Struct, field

from datum_compute.api import GROUP, VERSION
from datum_compute.api.template import InstanceTemplate, LocationReference, as_received
from datum_compute.api.workload import ScaleSettings
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Condition, KubeObject, optional_part, part, schema

AVAILABLE = "Available"
REPLICAS_READY = "ReplicasReady"
FEDERATED = "Federated"  # on a project's deployment, only while it cannot be handed on to the hub


class WorkloadReference(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the Workload.")]
    uid: Annotated[str, schema("Its uid in the project.")]


class WorkloadDeploymentSpec(Struct, frozen=True, rename="camel", dict=True):
    """What is asked for, derived from the workload."""

    workload_ref: Annotated[WorkloadReference, schema("The workload that asks for this deployment.")]
    placement_name: Annotated[str, schema("The placement of the workload that asks for it.")]
    city_code: Annotated[str, schema("The city to run in, in the user's case.", minLength=1)]
    template_json: Annotated[Raw, as_received("What each instance is made from.", InstanceTemplate)] = field(
        name="template"
    )
    scale_settings_json: Annotated[Raw, as_received("How many instances to run.", ScaleSettings)] = field(
        name="scaleSettings"
    )

    template = part("template_json", InstanceTemplate)
    scale_settings = part("scale_settings_json", ScaleSettings)


class WorkloadDeploymentStatus(Struct, frozen=True, rename="camel"):
    """What there is in the city."""

    replicas: Annotated[int, schema("Instances that exist, those being removed included.")]
    current_replicas: Annotated[int, schema("Instances set up from the newest template.")]
    updated_replicas: Annotated[int, schema("Instances on the newest template, ready or not.")]
    desired_replicas: Annotated[int, schema("Instances asked for.")]
    ready_replicas: Annotated[int, schema("Instances that are ready.")]
    observed_generation: Annotated[int, schema("Project generation that this status answers.", format="int64")] = 0
    location: Annotated[LocationReference | None, schema("The Location that the site chose.")] = None
    conditions: Annotated[
        tuple[Condition, ...], schema("Available, ReplicasReady, and Federated while it cannot be handed on.")
    ] = ()


class WorkloadDeployment(KubeObject, frozen=True):
    """The instances of a workload in one city, routed to the site that serves it."""

    spec = part("spec_json", WorkloadDeploymentSpec)
    status = optional_part("status_json", WorkloadDeploymentStatus)

    @property
    def template_json(self) -> Raw:
        return self.spec.template_json


WORKLOAD_DEPLOYMENT = Kind(GROUP, VERSION, "WorkloadDeployment", "workloaddeployments", WorkloadDeployment)
