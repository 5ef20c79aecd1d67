"""Which namespaces are a cell's to care for. Entry points: `came_from_hub`, `is_foreign`, `waking`.

Where one API server is a project and a cell at once, its namespaces tell the two apart: without that, a deployment that
was delivered to the cell would be federated once more, and what a project is shown of its Instances would be run.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from datum_compute.api.labels import UPSTREAM_CLUSTER
from datum_compute.federation.roles import CELL, PROJECT
from datum_compute.kube.kinds import NAMESPACE, Kind, Namespace
from datum_compute.runtime import Change, Plane, Request, Source


def came_from_hub(namespace: Namespace) -> bool:
    return bool(namespace.metadata.labels.get(UPSTREAM_CLUSTER))


def is_foreign(plane: Plane, namespace: str) -> bool:
    """Whether what is in a namespace is none of a cell's; who asks has the source `waking` of what it passes over."""
    if PROJECT not in plane.roles:
        return False
    found = plane.informer(NAMESPACE).get("", namespace)
    return found is None or not came_from_hub(found)


def waking(kind: Kind[Any], called: Callable[[Any], str] = attrgetter("name")) -> Source[Namespace]:
    """Objects of `kind`, as requests `called` so, when their namespace begins to say that it came from the hub."""

    def in_it(plane: Plane, change: Change[Namespace]) -> Iterable[Request]:
        if PROJECT in plane.roles:
            for object_ in plane.informer(kind).all(change.object.name):
                yield Request(plane.name, object_.namespace, called(object_))

    return Source(CELL, NAMESPACE, in_it, when=_is_labelled)


def _is_labelled(change: Change[Namespace]) -> bool:
    before = change.before is not None and came_from_hub(change.before)
    return not change.initial and change.after is not None and not before and came_from_hub(change.after)
