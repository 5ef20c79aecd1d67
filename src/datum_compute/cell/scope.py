"""Which objects of a plane are a cell's to care for. Entry point: `is_foreign`."""

from datum_compute.api.labels import UPSTREAM_CLUSTER
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime.plane import Plane


def is_foreign(plane: Plane, namespace: str) -> bool:
    """Where one API server is both a cell and a project, only what came through the hub is the cell's."""
    if PROJECT not in plane.roles:
        return False
    found = plane.informer(NAMESPACE).get("", namespace)
    return found is None or not found.metadata.labels.get(UPSTREAM_CLUSTER)
