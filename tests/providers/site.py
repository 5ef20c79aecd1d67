"""A cell whose plane serves Pods, as clusters do and the embedded engine does not. Entry point: `with_pods`."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from datum_compute.embedded import engine
from datum_compute.embedded.kinds import served_by
from datum_compute.embedded.served import Served

_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_PODS = Served(
    "",
    "v1",
    {"kind": "Pod", "plural": "pods"},
    namespaced=True,
    schema=_OPEN | {"properties": {"spec": _OPEN, "status": _OPEN}},
    status=True,
    builtin=True,
)


@contextmanager
def with_pods() -> Iterator[None]:
    """Planes that are opened meanwhile serve Pods too; nobody runs them."""
    with patch.object(engine, "served_by", lambda role: (*served_by(role), _PODS)):
        yield
