"""The part of a workload that runs in one city. Entry points: `WorkloadDeployment`, `WORKLOAD_DEPLOYMENT`."""

from typing import Annotated

from msgspec import Raw, Struct, field

from datum_compute.api import GROUP, VERSION
from datum_compute.api.template import InstanceTemplate, LocationReference, as_received
from datum_compute.api.workload import (
    CurrentReplicas,
    DesiredReplicas,
    ExistingReplicas,
    ReadyReplicas,
    ScaleSettings,
    UpdatedReplicas,
)
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Condition, KubeObject, optional_part, part, schema

AVAILABLE = "Available"
REPLICAS_READY = "ReplicasReady"
FEDERATED = "Federated"  # in a project, and only while the deployment cannot be sent to the hub
PROJECTED = "Projected"  # in a project, and only while it refuses to show an Instance


class WorkloadReference(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the Workload.")]
    uid: Annotated[str, schema("UID of the Workload in its project.")]


class WorkloadDeploymentSpec(Struct, frozen=True, rename="camel", dict=True):
    """Desired state of the deployment, derived from its Workload."""

    workload_ref: Annotated[WorkloadReference, schema("Workload that this deployment belongs to.")]
    placement_name: Annotated[str, schema("Name of the placement that this deployment belongs to.")]
    city_code: Annotated[str, schema("Code of the city to run in, spelled as in the Workload.", minLength=1)]
    template_json: Annotated[Raw, as_received("Template from which instances are created.", InstanceTemplate)] = field(
        name="template"
    )
    scale_settings_json: Annotated[
        Raw, as_received("Number of instances, and how they are managed.", ScaleSettings)
    ] = field(name="scaleSettings")

    template = part("template_json", InstanceTemplate)
    scale_settings = part("scale_settings_json", ScaleSettings)


class WorkloadDeploymentStatus(Struct, frozen=True, rename="camel"):
    """Observed state of the deployment in its city."""

    replicas: ExistingReplicas
    current_replicas: CurrentReplicas
    updated_replicas: UpdatedReplicas
    desired_replicas: DesiredReplicas
    ready_replicas: ReadyReplicas
    observed_generation: Annotated[
        int, schema("Latest generation of the deployment, in its project, that this status reflects.", format="int64")
    ] = 0
    location: Annotated[LocationReference | None, schema("Location that the site selected for the instances.")] = None
    conditions: Annotated[
        tuple[Condition, ...],
        schema(
            "Available is True while at least one instance is ready. ReplicasReady is False while something, such as "
            "quota, keeps instances from running. Federated is present only while the deployment cannot be sent to its "
            "site, Projected only while an instance cannot be shown in the project, and Progressing only while the "
            "rollout is paused."
        ),
    ] = ()


class WorkloadDeployment(KubeObject, frozen=True):
    """WorkloadDeployment runs the instances of a Workload in one city. It is managed by the Workload."""

    spec = part("spec_json", WorkloadDeploymentSpec)
    status = optional_part("status_json", WorkloadDeploymentStatus)

    @property
    def template_json(self) -> Raw:
        return self.spec.template_json


WORKLOAD_DEPLOYMENT = Kind(GROUP, VERSION, "WorkloadDeployment", "workloaddeployments", WorkloadDeployment)
