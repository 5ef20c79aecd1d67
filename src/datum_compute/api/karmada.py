"""Karmada's kinds, typed as far as they are used here, and the labels and annotations it sets on objects.

Entry points: `PROPAGATION_POLICY`, `CLUSTER`, `RESOURCE_BINDING`, `WORK`, `execution_space`.
"""

from msgspec import Struct

from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Condition, KubeObject, optional_part, part
from datum_compute.kube.selectors import Requirement


class LabelMatch(Struct, frozen=True, rename="camel"):
    """Label selector in an object. An empty one matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()


class ResourceSelector(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    name: str = ""
    label_selector: LabelMatch = LabelMatch()


class ClusterAffinity(Struct, frozen=True, rename="camel"):
    label_selector: LabelMatch = LabelMatch()


class Toleration(Struct, frozen=True, rename="camel"):
    """Toleration of taints. An empty key or effect matches all of them."""

    key: str = ""
    operator: str = ""
    effect: str = ""
    value: str = ""
    toleration_seconds: int | None = None  # forever if None


class PolicyPlacement(Struct, frozen=True, rename="camel"):
    cluster_affinity: ClusterAffinity = ClusterAffinity()
    cluster_tolerations: tuple[Toleration, ...] = ()


class PropagationPolicySpec(Struct, frozen=True, rename="camel"):
    resource_selectors: tuple[ResourceSelector, ...]
    placement: PolicyPlacement = PolicyPlacement()


class PropagationPolicy(KubeObject, frozen=True):
    """PropagationPolicy selects objects of its namespace, and the clusters that Karmada sends them to."""

    spec = part("spec_json", PropagationPolicySpec)


class ClusterStatus(Struct, frozen=True, rename="camel"):
    conditions: tuple[Condition, ...] = ()


class Cluster(KubeObject, frozen=True):
    """Cluster is a member cluster of Karmada: here, a site."""

    status = optional_part("status_json", ClusterStatus)


class ResourceBinding(KubeObject, frozen=True):
    """ResourceBinding lists the clusters that Karmada sends one object to. That object owns it."""


class Work(KubeObject, frozen=True):
    """Work is an object as Karmada sends it to one cluster, in the namespace of that cluster."""


PROPAGATION_POLICY = Kind(
    "policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies", PropagationPolicy
)
CLUSTER = Kind("cluster.karmada.io", "v1alpha1", "Cluster", "clusters", Cluster, namespaced=False)
RESOURCE_BINDING = Kind("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings", ResourceBinding)
WORK = Kind("work.karmada.io", "v1alpha1", "Work", "works", Work)

# On every copy that Karmada creates
MANAGED = "karmada.io/managed"  # a label, `true`
ORIGINAL_UID = "resourcetemplate.karmada.io/uid"
ORIGINAL_ANNOTATIONS = "resourcetemplate.karmada.io/managed-annotations"  # keys, separated by commas
WORK_NAMESPACE = "work.karmada.io/namespace"
WORK_NAME = "work.karmada.io/name"

# On every Work
BINDING_NAMESPACE = "resourcebinding.karmada.io/namespace"  # of the original


def execution_space(cluster: str) -> str:
    """Namespace on the hub that Karmada uses for one cluster."""
    return f"karmada-es-{cluster}"
