"""Which project an object on the hub or in a cell belongs to. Entry points: `Identity`, `hub_labels`.

The labels of the hub namespace are the only source; a missing label is never replaced by a guess.
"""

from collections.abc import Mapping

from msgspec import Struct

from datum_compute.api.labels import UPSTREAM_CLUSTER, UPSTREAM_NAMESPACE

_PREFIX = "cluster-"


def encode(cluster: str) -> str:
    """A project path as a label value."""
    return _PREFIX + cluster.replace("/", "_")


def decode(label: str) -> str:
    """The project path of a label value; lossless, because project names contain no underscore."""
    return label.removeprefix(_PREFIX).replace("_", "/")


def bare_project(label: str) -> str:
    """The bare name of the project, which is the name of its plane; empty when the label has none."""
    return decode(label).rpartition("/")[2]


class Identity(Struct, frozen=True):
    project: str
    namespace: str

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> "Identity | None":
        """The project namespace that a hub or cell namespace belongs to, by its labels; None when they do not say."""
        project = bare_project(labels.get(UPSTREAM_CLUSTER, ""))
        namespace = labels.get(UPSTREAM_NAMESPACE, "")
        return cls(project, namespace) if project and namespace else None


def hub_labels(project: str, namespace: str) -> dict[str, str]:
    """The labels of the hub namespace for a namespace of a project."""
    return {UPSTREAM_CLUSTER: encode(project), UPSTREAM_NAMESPACE: namespace}
