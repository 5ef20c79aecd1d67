"""A cell whose plane serves Pods, as clusters do and the embedded engine does not. Entry point: `with_pods`."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from datum_compute.embedded import engine
from datum_compute.embedded.kinds.catalog import plane_kinds
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.kube.meta import Json

_OPEN: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_PODS = ServedKind(
    "",
    "v1",
    {"kind": "Pod", "plural": "pods"},
    namespaced=True,
    schema=_OPEN | {"properties": {"spec": _OPEN, "status": _OPEN}},
    status=True,
    builtin=True,
)
_POLICIES = ServedKind(
    "networking.k8s.io",
    "v1",
    {"kind": "NetworkPolicy", "plural": "networkpolicies"},
    namespaced=True,
    schema=_OPEN | {"properties": {"spec": _OPEN}},
    status=False,
    builtin=True,
)


@contextmanager
def with_pods() -> Iterator[None]:
    """Planes opened within it serve Pods and NetworkPolicies too; nobody runs or enforces them."""
    with patch.object(engine, "plane_kinds", lambda definitions: (*plane_kinds(definitions), _PODS, _POLICIES)):
        yield
