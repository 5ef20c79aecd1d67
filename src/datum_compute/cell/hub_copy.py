"""What the hub's copy of an Instance looks like. Entry points: `copy_body`, `copy_changes`."""

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import (
    COMPUTE_LABELS,
    SOURCE_CLUSTER,
    UPSTREAM_CLUSTER,
    UPSTREAM_GENERATION,
    UPSTREAM_NAMESPACE,
    UPSTREAM_UID,
)
from datum_compute.kube import tracing
from datum_compute.kube.kinds import Namespace
from datum_compute.kube.meta import Json, controller_reference
from datum_compute.kube.patches import changes
from datum_compute.runtime import Unfinished


def copy_labels(instance: Instance, namespace: Namespace, cell_name: str) -> dict[str, str]:
    """Raises `Unfinished` if the hub namespace, the only source of identity, does not name the project."""
    identity = {key: namespace.metadata.labels.get(key, "") for key in (UPSTREAM_CLUSTER, UPSTREAM_NAMESPACE)}
    if missing := [key for key, value in identity.items() if not value]:
        raise Unfinished(f"hub namespace {instance.namespace} has no label {', '.join(missing)}")
    own = {key: instance.metadata.labels[key] for key in COMPUTE_LABELS}
    return own | identity | {SOURCE_CLUSTER: cell_name}


def copy_body(instance: Instance, labels: dict[str, str], owner: WorkloadDeployment) -> Json:
    body = INSTANCE.body(
        instance.name,
        instance.namespace,
        labels=labels,
        annotations=_annotations(instance) | tracing.carried(instance),
        ownerReferences=[controller_reference(owner)],
    )
    return body | {"spec": instance.spec_json}


def copy_changes(copy: Instance, instance: Instance, labels: dict[str, str], owner: WorkloadDeployment) -> Json:
    """The patch that makes the copy like the Instance; empty when it is."""
    owners = () if is_owned(copy, owner) else [controller_reference(owner)]
    annotations = _annotations(instance)
    patch = changes(copy, labels=labels, annotations=annotations, owners=owners, spec=instance.spec_json)
    return tracing.with_spec(patch, copy, instance)


def _annotations(instance: Instance) -> dict[str, str]:
    """The cell's generation is stamped, because the copy counts its own generations differently."""
    return {UPSTREAM_GENERATION: str(instance.metadata.generation), UPSTREAM_UID: instance.metadata.uid}


def is_copy_of(copy: Instance, instance: Instance) -> bool:
    """Whether it is a copy of this very Instance, and not of an earlier one with the same name."""
    return copy.metadata.annotations.get(UPSTREAM_UID, instance.metadata.uid) == instance.metadata.uid


def is_owned(copy: Instance, owner: WorkloadDeployment) -> bool:
    controller = copy.metadata.controller
    return controller is not None and controller.uid == owner.metadata.uid


def may_own(copy: Instance, owner: WorkloadDeployment) -> bool:
    """A copy without a controller is adopted; one with a different controller is left alone."""
    controller = copy.metadata.controller
    return controller is None or (controller.name == owner.name and controller.kind == WORKLOAD_DEPLOYMENT.name)
