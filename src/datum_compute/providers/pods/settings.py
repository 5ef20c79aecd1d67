"""Settings of the Pods in a cell, which its operator chooses. Entry point: `PodSettings`."""

from msgspec import Struct

from datum_compute.kube.meta import Json


class PodSettings(Struct, frozen=True):
    """Lists are in the format of the Kubernetes API."""

    runtime_class: str = ""  # of every Pod; that of the Instance if empty
    node_selector: dict[str, str] = {}
    tolerations: tuple[Json, ...] = ()
    ingress: tuple[Json, ...] | None = None  # for Instances without a policy; None allows all
    egress: tuple[Json, ...] | None = None  # of every Pod; None allows all
