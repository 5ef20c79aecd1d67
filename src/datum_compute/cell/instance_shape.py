"""What the Instances of a deployment look like. Entry points: `instance_shape`, `shared_labels`, `ordinal_label`.

Also reads back from an Instance what was written into it: `instance_ordinal` and `template_hash_of`.
"""

from collections.abc import Sequence

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import (
    CITY_CODE,
    CLAIM_FINALIZER,
    DEPLOYMENT_NAME,
    DEPLOYMENT_UID,
    INSTANCE_FINALIZER,
    INSTANCE_INDEX,
    PLACEMENT_NAME,
    WORKLOAD_NAME,
    WORKLOAD_UID,
    inherited_annotations,
    inherited_labels,
)
from datum_compute.api.names import instance_name, ordinal_of
from datum_compute.kube import tracing
from datum_compute.kube.meta import Json, as_dict, controller_reference


def instance_shape(
    deployment: WorkloadDeployment, ordinal: int, template_hash: str, location: Json, gates: Sequence[str]
) -> Json:
    """A new Instance of this ordinal, at `location` and held by `gates`."""
    template = as_dict(deployment.template_json)
    metadata = template.get("metadata") or {}
    labels = shared_labels(deployment) | ordinal_label(ordinal)
    body = INSTANCE.body(
        instance_name(deployment.name, ordinal),
        deployment.namespace,
        labels=inherited_labels(metadata.get("labels") or {}) | labels,
        annotations=inherited_annotations(metadata.get("annotations") or {}) | tracing.carried(deployment),
        # Set at creation, so that neither a hub copy nor a claim can exist before its finalizer does.
        finalizers=[INSTANCE_FINALIZER, CLAIM_FINALIZER],
        ownerReferences=[controller_reference(deployment)],
    )
    controller = {"templateHash": template_hash, "schedulingGates": [{"name": gate} for gate in gates]}
    return body | {"spec": template["spec"] | location | {"controller": controller}}


def shared_labels(deployment: WorkloadDeployment) -> dict[str, str]:
    """Labels that all Instances of a deployment have."""
    spec = deployment.spec
    return {
        WORKLOAD_UID: spec.workload_ref.uid,
        DEPLOYMENT_UID: deployment.metadata.uid,
        DEPLOYMENT_NAME: deployment.name,
        WORKLOAD_NAME: spec.workload_ref.name,
        PLACEMENT_NAME: spec.placement_name,
        CITY_CODE: spec.city_code,
    }


def ordinal_label(ordinal: int) -> dict[str, str]:
    return {INSTANCE_INDEX: str(ordinal)}


def instance_ordinal(instance: Instance) -> int | None:
    """From the label or, without one, from the name; None when neither says it."""
    label = instance.metadata.labels.get(INSTANCE_INDEX)
    if label is None:
        return ordinal_of(instance.name)
    return int(label) if label.isdecimal() else None


def template_hash_of(instance: Instance) -> str:
    """The hash of the template that the Instance was created from; empty when it does not say."""
    return instance.spec.controller.template_hash if instance.spec.controller else ""
