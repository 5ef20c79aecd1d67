"""Which namespaces belong to a project and which to a cell. Entry points: `CELL_NAMESPACES`, `PROJECT_NAMESPACES`.

Where one API server is both, its namespaces say which side an object is on. Otherwise a deployment that was delivered
to the cell would be federated again, and the projections of a project would be run.
"""

from datum_compute.api.labels import UPSTREAM_CLUSTER
from datum_compute.federation.roles import CELL, PROJECT
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.runtime import Change, Plane, Scope


def came_from_hub(namespace: Namespace) -> bool:
    return bool(namespace.metadata.labels.get(UPSTREAM_CLUSTER))


def is_in_cell(plane: Plane, namespace: str) -> bool:
    """Whether objects of this namespace of a cell's plane are for the cell, as far as is known now."""
    if PROJECT not in plane.roles:
        return True
    known = plane.informer(NAMESPACE).get("", namespace)
    return known is not None and came_from_hub(known)


class _CellNamespaces:
    """On a plane that is also a project: those that came from the hub, from the moment that their labels say so."""

    async def includes(self, plane: Plane, namespace: str) -> bool:
        return is_in_cell(plane, namespace)

    def admits(self, plane: Plane, change: Change[Namespace]) -> bool:
        before = change.before is not None and came_from_hub(change.before)
        after = change.after is not None and came_from_hub(change.after)
        return PROJECT in plane.roles and after and not before and not change.initial


class _ProjectNamespaces:
    """On a plane that is also a cell: all others. A namespace of a project never becomes one of the cell."""

    async def includes(self, plane: Plane, namespace: str) -> bool:
        if CELL not in plane.roles or not namespace:
            return True
        # The cache may not have it yet, and deployments that were delivered must not be federated.
        known = plane.informer(NAMESPACE).get("", namespace) or await plane.client.find(NAMESPACE, namespace)
        return known is None or not came_from_hub(known)  # after its deletion, controllers may clean up

    def admits(self, plane: Plane, change: Change[Namespace]) -> bool:
        return False


CELL_NAMESPACES: Scope = _CellNamespaces()
PROJECT_NAMESPACES: Scope = _ProjectNamespaces()
