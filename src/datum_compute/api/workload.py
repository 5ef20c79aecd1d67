"""What the user asks for: instances of one template, in cities. Entry points: `Workload`, `WORKLOAD`.

Template and scale settings travel on to other planes exactly as received (`..._json`), so that fields this program does
not know survive; the typed views are for reading.
"""

from typing import Annotated

from msgspec import Raw, Struct, field

from datum_compute.api import GROUP, VERSION
from datum_compute.api.template import InstanceTemplate, Quantity, as_received
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Condition, KubeObject, optional_part, part, schema

PLACED = "Placed"  # a condition of a Workload, there only while a city does not get what is asked for


class MetricTarget(Struct, frozen=True, rename="camel"):
    value: Annotated[Quantity | None, schema("The value itself.")] = None
    average_value: Annotated[Quantity | None, schema("The average over all instances.")] = None
    average_utilization: Annotated[int | None, schema("The average in percent of what was requested.")] = None


class ResourceMetric(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("The resource, such as cpu.")]
    target: Annotated[MetricTarget, schema("The value to aim at; exactly one kind of value.")]


class Metric(Struct, frozen=True, rename="camel"):
    resource: Annotated[ResourceMetric | None, schema("A resource that instances use.")] = None


class ScaleSettings(Struct, frozen=True, rename="camel"):
    min_replicas: Annotated[int, schema("Instances to run in each city.")]
    max_replicas: Annotated[int | None, schema("Accepted; nothing scales by it yet.")] = None
    instance_management_policy: Annotated[
        str,
        schema("How instances are created, replaced and removed.", default="OrderedReady", required=True),
    ] = "OrderedReady"
    metrics: Annotated[tuple[Metric, ...], schema("Accepted; nothing scales by them yet.")] = ()


class Placement(Struct, frozen=True, rename="camel", dict=True):
    name: Annotated[str, schema("Name of the placement, unique in the workload.")]
    city_codes: Annotated[
        tuple[Annotated[str, schema(minLength=1)], ...], schema("Cities to run in; compute cities lists them.")
    ]
    scale_settings_json: Annotated[Raw, as_received("How many instances to run in each city.", ScaleSettings)] = field(
        name="scaleSettings"
    )

    scale_settings = part("scale_settings_json", ScaleSettings)


class WorkloadSpec(Struct, frozen=True, rename="camel", dict=True):
    """What is asked for."""

    template_json: Annotated[Raw, as_received("What each instance is made from.", InstanceTemplate)] = field(
        name="template"
    )
    placements: Annotated[tuple[Placement, ...], schema("Where instances run, and how many.", minItems=1)]

    template = part("template_json", InstanceTemplate)


class PlacementStatus(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the placement.")]
    replicas: Annotated[int, schema("Instances that exist.")]
    current_replicas: Annotated[int, schema("Instances set up from the newest template.")]
    updated_replicas: Annotated[int, schema("Instances on the newest template, ready or not.")]
    desired_replicas: Annotated[int, schema("Instances asked for.")]
    ready_replicas: Annotated[int, schema("Instances that are ready.")]
    conditions: Annotated[tuple[Condition, ...], schema("Available says whether a deployment is.")] = ()


class WorkloadStatus(Struct, frozen=True, rename="camel"):
    """What there is, summed over all cities."""

    deployments: Annotated[int, schema("WorkloadDeployments that exist, those being removed included.")]
    replicas: Annotated[int, schema("Instances that exist.")]
    current_replicas: Annotated[int, schema("Instances set up from the newest template.")]
    updated_replicas: Annotated[int, schema("Instances on the newest template, ready or not.")]
    desired_replicas: Annotated[int, schema("Instances asked for.")]
    ready_replicas: Annotated[int, schema("Instances that are ready.")]
    observed_generation: Annotated[int, schema("Generation that this status answers.", format="int64")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        schema("Available: whether a placement is, or why none is. Placed: which cities do not get what is asked for."),
    ] = ()
    placements: Annotated[tuple[PlacementStatus, ...], schema("The same for each placement, by name.")] = ()
    gateway: Annotated[Raw, schema("Reserved for a gateway; never written.")] = field(default_factory=Raw)


class Workload(KubeObject, frozen=True):
    """A workload: instances of one template, kept running in the cities that its placements name."""

    spec = part("spec_json", WorkloadSpec)
    status = optional_part("status_json", WorkloadStatus)

    @property
    def template_json(self) -> Raw:
        return self.spec.template_json


WORKLOAD = Kind(GROUP, VERSION, "Workload", "workloads", Workload)
