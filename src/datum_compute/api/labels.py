"""Every label, annotation and finalizer of compute, and who sets it. Entry points: the constants and three tables.

Labels serve to find objects; they never decide which project an object belongs to.
"""

from collections.abc import Mapping

from msgspec import Struct

from datum_compute.api import GROUP
from datum_compute.kube.tracing import ANNOTATION as TRACEPARENT

WORKLOAD_UID = f"{GROUP}/workload-uid"
DEPLOYMENT_UID = f"{GROUP}/workload-deployment-uid"
DEPLOYMENT_NAME = f"{GROUP}/workload-deployment-name"
WORKLOAD_NAME = f"{GROUP}/workload-name"
PLACEMENT_NAME = f"{GROUP}/placement-name"
CITY_CODE = f"{GROUP}/city-code"
INSTANCE_INDEX = f"{GROUP}/instance-index"

COMPUTE_LABELS = (
    WORKLOAD_UID,
    DEPLOYMENT_UID,
    DEPLOYMENT_NAME,
    WORKLOAD_NAME,
    PLACEMENT_NAME,
    CITY_CODE,
    INSTANCE_INDEX,
)
"""Labels that every Instance has, on every plane."""

TOPOLOGY_CITY = "topology.datum.net/city-code"
UPSTREAM_CLUSTER = "meta.datumapis.com/upstream-cluster-name"
UPSTREAM_NAMESPACE = "meta.datumapis.com/upstream-namespace"
SOURCE_CLUSTER = f"{GROUP}/source-cluster"
INSTANCE_NAMESPACE = f"{GROUP}/instance-namespace"
SERVICE_LABEL = "services.miloapis.com/service-name"
CONSUMER_KIND = "quota.miloapis.com/consumer-kind"
CONSUMER_NAME = "quota.miloapis.com/consumer-name"

LOCAL = f"{GROUP}/local"
LOCAL_DIRECTORY = f"{GROUP}/local-directory"
CONTAINER_PROJECT = f"{GROUP}/project"
CONTAINER_NAMESPACE = f"{GROUP}/namespace"
CONTAINER_CITY = f"{GROUP}/city"
CONTAINER_INSTANCE = f"{GROUP}/instance"
CONTAINER_INSTANCE_UID = f"{GROUP}/instance-uid"
CONTAINER_NAME = f"{GROUP}/container"
CONTAINER_TEMPLATE_HASH = f"{GROUP}/template-hash"

FEDERATION_NAMESPACE = f"{GROUP}/federation-namespace"
UPSTREAM_GENERATION = f"{GROUP}/upstream-generation"
UPSTREAM_UID = f"{GROUP}/upstream-uid"
SERVING_CLUSTER = f"{GROUP}/serving-cluster"
ACCEPTED_UID = f"{GROUP}/accepted-uid"
WITHDRAWN = f"{GROUP}/withdrawn"
RELEASE = f"{GROUP}/release"
WITHDRAWN_UIDS = f"{GROUP}/withdrawn-uids"
RESTARTED_AT = f"{GROUP}/restartedAt"
CITY_RESTARTS = f"{GROUP}/city-restarts"
ROLLOUT_PAUSED = f"{GROUP}/rollout-paused"
SSH_KEYS = f"{GROUP}/ssh-keys"
CURRENT_REVISION = f"{GROUP}/current-revision"
NETWORK_ADDRESSES = f"{GROUP}/network-addresses"
SIMULATE = f"{GROUP}/simulate"
PARENT_CONTEXTS = "discovery.miloapis.com/parent-contexts"

WORKLOAD_FINALIZER = f"{GROUP}/workload-controller"
FEDERATOR_FINALIZER = f"{GROUP}/federator"
INSTANCE_FINALIZER = f"{GROUP}/instance-controller"
CLAIM_FINALIZER = f"quota.{GROUP}/claim-cleanup"
SIMULATED_FINALIZER = f"{GROUP}/simulated-provider"
PODS_FINALIZER = f"{GROUP}/pods-provider"
CONTAINERS_FINALIZER = f"{GROUP}/containers-provider"
NETWORK_FINALIZER = "networking.datumapis.com/network-controller"
UNIKRAFT_FINALIZER = "unikraft.datumapis.com/finalizer"


_USER_ANNOTATIONS = frozenset((RESTARTED_AT, SSH_KEYS, SIMULATE))  # in a template


def is_reserved(key: str, *, annotation: bool = False) -> bool:
    """Whether a label (or annotation) of an instance template could be mistaken for one that compute sets."""
    prefix, slash, _ = key.partition("/")
    ours = bool(slash) and (prefix == GROUP or prefix.endswith(f".{GROUP}"))
    return ours and not (annotation and key in _USER_ANNOTATIONS)


def inherited_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of a template that its Instances get."""
    return {key: value for key, value in labels.items() if not is_reserved(key)}


def inherited_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations of a template that its Instances get."""
    return {key: value for key, value in annotations.items() if not is_reserved(key, annotation=True)}


class Mark(Struct, frozen=True):
    """A row of the tables below."""

    key: str
    on: str
    by: str  # who sets it
    meaning: str  # its value; for a finalizer, what it waits for


_CELL_DEPLOYMENT = "deployment controller (cell)"
_CELL_INSTANCE = "instance controller (cell)"
_CONTAINER = "container of an engine"
_CONTAINERS = "containers provider"

LABELS = (
    Mark(WORKLOAD_UID, "project WorkloadDeployment", "workload controller", "uid of the Workload"),
    Mark(WORKLOAD_UID, "Instance", _CELL_DEPLOYMENT, "uid of the Workload"),
    Mark(DEPLOYMENT_UID, "Instance in cell and hub", _CELL_DEPLOYMENT, "uid of the deployment in the cell"),
    Mark(DEPLOYMENT_UID, "projection", "projector", "uid of the deployment in the project"),
    Mark(DEPLOYMENT_NAME, "Instance", _CELL_DEPLOYMENT, "name of the deployment, the same on every plane"),
    Mark(WORKLOAD_NAME, "Instance", _CELL_DEPLOYMENT, "name of the Workload"),
    Mark(PLACEMENT_NAME, "Instance", _CELL_DEPLOYMENT, "name of the placement"),
    Mark(CITY_CODE, "Instance", _CELL_DEPLOYMENT, "the city code, spelled as in the Workload"),
    Mark(INSTANCE_INDEX, "Instance", _CELL_DEPLOYMENT, "the ordinal"),
    Mark(TOPOLOGY_CITY, "hub WorkloadDeployment", "federator", "the city code, spelled as in the Workload"),
    Mark(TOPOLOGY_CITY, "Cluster; key in the topology of a Location", "the platform", "the city code that it serves"),
    Mark(UPSTREAM_CLUSTER, "hub Namespace", "federator", "cluster-<project path>, with / replaced by _"),
    Mark(UPSTREAM_CLUSTER, "hub Instance, projection", _CELL_INSTANCE, "the value on the hub Namespace"),
    Mark(UPSTREAM_NAMESPACE, "hub Namespace, hub WorkloadDeployment", "federator", "the project's namespace"),
    Mark(UPSTREAM_NAMESPACE, "hub Instance, projection", _CELL_INSTANCE, "the value on the hub Namespace"),
    Mark(SOURCE_CLUSTER, "ResourceClaim, hub Instance", _CELL_INSTANCE, "name of the cell"),
    Mark(SOURCE_CLUSTER, "the same, if their cell is gone", "handover", "name of the cell that serves the city now"),
    Mark(CITY_CODE, "ResourceClaim", _CELL_INSTANCE, "the city of its Instance"),
    Mark(WORKLOAD_UID, "ResourceClaim", _CELL_INSTANCE, "uid of the Workload when the claim was created"),
    Mark(INSTANCE_NAMESPACE, "ResourceClaim", _CELL_INSTANCE, "namespace of the Instance in the cell"),
    Mark(SERVICE_LABEL, "LocationBinding", "service catalog, or its built-in", GROUP),
    Mark(CONSUMER_KIND, "AllowanceBucket", "Milo's quota, or its built-in", "Project"),
    Mark(CONSUMER_NAME, "AllowanceBucket", "Milo's quota, or its built-in", "name of the project"),
    Mark(
        LOCAL,
        "container or network of an engine",
        _CONTAINERS,
        "id of the local federation; nothing without it is ever changed or removed",
    ),
    Mark(LOCAL_DIRECTORY, _CONTAINER, _CONTAINERS, "directory of the local federation, for people"),
    Mark(CONTAINER_PROJECT, _CONTAINER, _CONTAINERS, "name of the project"),
    Mark(CONTAINER_NAMESPACE, _CONTAINER, _CONTAINERS, "the project's namespace"),
    Mark(CONTAINER_CITY, _CONTAINER, _CONTAINERS, "the city code"),
    Mark(WORKLOAD_NAME, _CONTAINER, _CONTAINERS, "name of the Workload"),
    Mark(PLACEMENT_NAME, _CONTAINER, _CONTAINERS, "name of the placement"),
    Mark(CONTAINER_INSTANCE, _CONTAINER, _CONTAINERS, "name of the Instance"),
    Mark(CONTAINER_INSTANCE_UID, _CONTAINER, _CONTAINERS, "uid of the Instance in the cell"),
    Mark(CONTAINER_NAME, _CONTAINER, _CONTAINERS, "name of the container in the spec"),
    Mark(CONTAINER_TEMPLATE_HASH, _CONTAINER, _CONTAINERS, "digest of the template that it was created from"),
)

ANNOTATIONS = (
    Mark(FEDERATION_NAMESPACE, "project WorkloadDeployment", "federator", "the hub namespace that it is copied to"),
    Mark(UPSTREAM_GENERATION, "hub WorkloadDeployment", "federator", "the generation of the spec in the project"),
    Mark(UPSTREAM_GENERATION, "hub Instance", _CELL_INSTANCE, "the generation of the spec in the cell"),
    Mark(UPSTREAM_UID, "hub WorkloadDeployment", "federator", "uid of the deployment in the project"),
    Mark(UPSTREAM_UID, "hub Instance", _CELL_INSTANCE, "uid of the Instance in the cell"),
    Mark(
        SERVING_CLUSTER,
        "hub WorkloadDeployment",
        "federator",
        "the Cluster that serves its city; others are on standby",
    ),
    Mark(ACCEPTED_UID, "cell WorkloadDeployment", _CELL_DEPLOYMENT, "the upstream uid of the spec that it follows"),
    Mark(WITHDRAWN, "hub Namespace", "federator", "the latest withdrawn deployments, a JSON list of names and uids"),
    Mark(
        WITHDRAWN_UIDS,
        "default Namespace of a project",
        "federator",
        "the latest withdrawn deployments, a JSON list of uids",
    ),
    Mark(RELEASE, "objects that are held", "an operator", '"true" to delete it, or to accept its older spec'),
    Mark(RESTARTED_AT, "instance template", "the user", "time of the last restart; a new value starts a rollout"),
    Mark(
        CITY_RESTARTS, "Workload", "the user", "times of the last restarts of single cities, a JSON object by city code"
    ),
    Mark(ROLLOUT_PAUSED, "Workload", "the user", '"true" while the rollout is paused'),
    Mark(
        ROLLOUT_PAUSED,
        "WorkloadDeployment, on every plane",
        "workload controller, federator",
        "the value on the Workload",
    ),
    Mark(SSH_KEYS, "instance template of a virtual machine", "the user", "lines of user:public key"),
    Mark(CURRENT_REVISION, "ConfigMap with a workload's revisions", "the compute command", "the current revision"),
    Mark(
        NETWORK_ADDRESSES,
        "cell Instance",
        "network built-in",
        "its addresses, a JSON list with one entry per interface",
    ),
    Mark(
        SIMULATE,
        "instance template",
        "the user",
        "how the simulated provider should fail, such as crashing or slow-stop",
    ),
    Mark(
        TRACEPARENT,
        "Workload",
        "the compute command, where tracing is on",
        "the trace of the last change, as in W3C Trace Context; anything else is ignored",
    ),
    Mark(
        TRACEPARENT,
        "WorkloadDeployment and Instance, on every plane",
        "whoever writes the object",
        "the value on the Workload, written only together with a spec",
    ),
    Mark(PARENT_CONTEXTS, "CustomResourceDefinition", "make generate", "Project"),
)

FINALIZERS = (
    Mark(WORKLOAD_FINALIZER, "Workload", "workload controller", "its deployments are deleted"),
    Mark(WORKLOAD_FINALIZER, "cell WorkloadDeployment", _CELL_DEPLOYMENT, "its Instances are deleted"),
    Mark(
        FEDERATOR_FINALIZER,
        "project WorkloadDeployment",
        "workload controller",
        "its hub copy is deleted, and its policy unless others use it",
    ),
    Mark(
        INSTANCE_FINALIZER,
        "cell Instance",
        _CELL_DEPLOYMENT,
        "it has stopped; in a cell without a name, also until its hub copy is deleted",
    ),
    Mark(
        CLAIM_FINALIZER,
        "cell Instance",
        _CELL_DEPLOYMENT,
        "it has stopped, and its claim is deleted or cannot be located",
    ),
    Mark(SIMULATED_FINALIZER, "cell Instance", "simulated provider", "the simulated instance has stopped"),
    Mark(PODS_FINALIZER, "cell Instance", "pods provider", "its Pod is deleted"),
    Mark(CONTAINERS_FINALIZER, "cell Instance", "containers provider", "its containers are removed"),
    Mark(NETWORK_FINALIZER, "cell Network", "network built-in", "its network contexts are deleted"),
    Mark(UNIKRAFT_FINALIZER, "cell Instance", "Unikraft provider", "the runtime is torn down"),
)
