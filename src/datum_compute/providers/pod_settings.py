"""What whoever runs a cell decides about its Pods. Entry point: `PodSettings`."""

from msgspec import Struct

from datum_compute.kube.meta import Json


class PodSettings(Struct, frozen=True):
    """Lists are in the form that Kubernetes takes them."""

    runtime_class: str = ""  # of every Pod; empty: what its Instance asks for
    node_selector: dict[str, str] = {}
    tolerations: tuple[Json, ...] = ()
    ingress: tuple[Json, ...] | None = None  # for Instances without a policy of their own; None lets in everybody
    egress: tuple[Json, ...] | None = None  # of every Pod; None lets out everything
