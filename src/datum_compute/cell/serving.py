"""Instances of deployments that another cell serves. Entry points: `is_instance_served_elsewhere`, `serving_changes`.

A cell that no longer serves a city may still have Instances of it. They keep running, but this cell neither claims
quota for them nor copies them to the hub: the other cell does that.
"""

from collections.abc import Iterable

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import DEPLOYMENT_NAME
from datum_compute.federation.roles import CELL
from datum_compute.federation.sites import is_served_elsewhere
from datum_compute.runtime import Change, Plane, Request, Source


def is_instance_served_elsewhere(cell: Plane, instance: Instance) -> bool:
    """Callers need the source `serving_changes`."""
    name = instance.metadata.labels.get(DEPLOYMENT_NAME, "")
    deployment = cell.informer(WORKLOAD_DEPLOYMENT).get(instance.namespace, name)
    return deployment is not None and is_served_elsewhere(deployment)


def serving_changes() -> Source[WorkloadDeployment]:
    """The Instances of a deployment that this cell starts or stops serving."""
    return Source(CELL, WORKLOAD_DEPLOYMENT, _instances, when=_is_serving_change)


def _is_serving_change(change: Change[WorkloadDeployment]) -> bool:
    before, after = change.before, change.after
    return before is not None and after is not None and is_served_elsewhere(before) != is_served_elsewhere(after)


def _instances(cell: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request]:
    for instance in cell.informer(INSTANCE).all(change.object.namespace):
        if instance.metadata.labels.get(DEPLOYMENT_NAME) == change.object.name:
            yield Request(cell.name, instance.namespace, instance.name)
