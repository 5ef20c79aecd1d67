"""What the user requests: instances of one template, in cities. Entry points: `Workload`, `WORKLOAD`.

Template and scale settings are passed on to other planes exactly as received (`..._json`), so that unknown fields
survive; the typed views are for reading.
"""

from typing import Annotated

from msgspec import Raw, Struct, field

from datum_compute.api import GROUP, VERSION
from datum_compute.api.template import InstanceTemplate, Quantity, as_received
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Condition, KubeObject, optional_part, part, schema

PLACED = "Placed"  # present only while a city does not get the instances requested for it


class MetricTarget(Struct, frozen=True, rename="camel"):
    value: Annotated[Quantity | None, schema("Target total, as a quantity.")] = None
    average_value: Annotated[Quantity | None, schema("Target average over all instances, as a quantity.")] = None
    average_utilization: Annotated[
        int | None, schema("Target average over all instances, as a percentage of the resource requested.")
    ] = None


class ResourceMetric(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the resource, such as cpu.")]
    target: Annotated[MetricTarget, schema("Target value; exactly one of its fields must be set.")]


class Metric(Struct, frozen=True, rename="camel"):
    resource: Annotated[ResourceMetric | None, schema("Resource whose usage is measured.")] = None


class ScaleSettings(Struct, frozen=True, rename="camel"):
    min_replicas: Annotated[int, schema("Number of instances to run in each city.")]
    max_replicas: Annotated[int | None, schema("Upper limit for autoscaling. Accepted, but not acted on yet.")] = None
    instance_management_policy: Annotated[
        str,
        schema(
            "How instances are created, replaced and deleted. OrderedReady, the only policy, does so one at a time.",
            default="OrderedReady",
            required=True,
        ),
    ] = "OrderedReady"
    metrics: Annotated[tuple[Metric, ...], schema("Metrics for autoscaling. Accepted, but not acted on yet.")] = ()


class Placement(Struct, frozen=True, rename="camel", dict=True):
    name: Annotated[str, schema("Name of the placement, a DNS label that is unique within the workload.")]
    city_codes: Annotated[
        tuple[Annotated[str, schema(minLength=1)], ...],
        schema('Codes of the cities to run in, such as DFW. Run "compute cities" to list those on offer.'),
    ]
    scale_settings_json: Annotated[
        Raw, as_received("Number of instances in each city, and how they are managed.", ScaleSettings)
    ] = field(name="scaleSettings")

    scale_settings = part("scale_settings_json", ScaleSettings)


class WorkloadSpec(Struct, frozen=True, rename="camel", dict=True):
    """Desired state of the workload."""

    template_json: Annotated[Raw, as_received("Template from which instances are created.", InstanceTemplate)] = field(
        name="template"
    )
    placements: Annotated[
        tuple[Placement, ...], schema("Cities to run in, and the number of instances in each.", minItems=1)
    ]

    template = part("template_json", InstanceTemplate)


ExistingReplicas = Annotated[int, schema("Number of instances that exist, including those being deleted.")]
CurrentReplicas = Annotated[int, schema("Number of instances that run the latest template and are programmed.")]
UpdatedReplicas = Annotated[
    int, schema("Number of instances that run the latest template, whether or not they are ready.")
]
DesiredReplicas = Annotated[int, schema("Number of instances requested.")]
ReadyReplicas = Annotated[int, schema("Number of instances whose Ready condition is True.")]


class PlacementStatus(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the placement.")]
    replicas: ExistingReplicas
    current_replicas: CurrentReplicas
    updated_replicas: UpdatedReplicas
    desired_replicas: DesiredReplicas
    ready_replicas: ReadyReplicas
    conditions: Annotated[
        tuple[Condition, ...], schema("Available is True while at least one deployment of the placement is available.")
    ] = ()


class WorkloadStatus(Struct, frozen=True, rename="camel"):
    """Observed state of the workload, summed over all cities."""

    deployments: Annotated[int, schema("Number of WorkloadDeployments that exist, including those being deleted.")]
    replicas: ExistingReplicas
    current_replicas: CurrentReplicas
    updated_replicas: UpdatedReplicas
    desired_replicas: DesiredReplicas
    ready_replicas: ReadyReplicas
    observed_generation: Annotated[
        int, schema("Latest generation of the workload that this status reflects.", format="int64")
    ] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        schema(
            "Available is True while at least one placement is available. Placed is present only while a city does not "
            "get the instances requested for it, and Progressing only while the rollout is paused."
        ),
    ] = ()
    placements: Annotated[tuple[PlacementStatus, ...], schema("Status of each placement, sorted by name.")] = ()
    gateway: Annotated[Raw, schema("Reserved for a gateway; never set.")] = field(default_factory=Raw)


class Workload(KubeObject, frozen=True):
    """Workload runs instances of one template in the cities that its placements name."""

    spec = part("spec_json", WorkloadSpec)
    status = optional_part("status_json", WorkloadStatus)

    @property
    def template_json(self) -> Raw:
        return self.spec.template_json


WORKLOAD = Kind(GROUP, VERSION, "Workload", "workloads", Workload)
