"""What a controller watches, and how changes become requests. Entry points: `Source`, `itself`, `controller_of`."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from datum_compute.kube.kinds import Kind, Namespace
from datum_compute.kube.meta import KubeObject
from datum_compute.runtime.caches.informer import Change
from datum_compute.runtime.caches.selection import EVERYTHING, Selection
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop, Request

T = TypeVar("T", bound=KubeObject)


class Scope(Protocol):
    """The namespaces that a controller works in, on planes where it must leave others alone."""

    async def includes(self, plane: Plane, namespace: str) -> bool:
        """Asked before each pass; requests for other namespaces are ignored. `namespace` may be empty."""
        ...

    def admits(self, plane: Plane, change: Change[Namespace]) -> bool:
        """Whether this change brought a namespace into scope; all objects in it are then mapped as new ones."""
        ...


class Source(Struct, Generic[T], frozen=True):
    """A kind to watch on every plane of a role. Without a map it is only cached, for passes to read.

    An `optional` kind is watched only on planes that serve it, which is checked every few minutes. A `best_effort` kind
    also only where this process may list it: an object that is missing from its cache may still exist. Changes for
    which `when` is false are ignored. With a `selection` only those objects are listed and watched, in a cache that
    passes read with `plane.informer(kind, selection)`. A `scope` restricts the controller to some namespaces of the
    role's planes.
    """

    role: str
    kind: Kind[T]
    map: Callable[[Plane, Change[T]], Iterable[Request | Drop]] | None = None
    indexes: dict[str, Callable[[T], Iterable[str]]] = {}
    optional: bool = False
    best_effort: bool = False
    when: Callable[[Change[T]], bool] | None = None
    selection: Selection = EVERYTHING
    scope: Scope | None = None


def itself(plane: Plane, change: Change[Any]) -> Iterable[Request | Drop]:
    """The usual map: a request for the object that changed."""
    yield Request(plane.name, change.object.namespace, change.object.name)


def controller_of(kind: Kind[Any]) -> Callable[[Plane, Change[Any]], Iterable[Request | Drop]]:
    """Maps an object to the object of `kind` that controls it, or did before the change."""

    def owners(plane: Plane, change: Change[Any]) -> Iterable[Request | Drop]:
        for object_ in (change.before, change.after):
            if object_ is None:
                continue
            owner = object_.metadata.controller
            if owner is not None and owner.kind == kind.name and owner.api_version == kind.api_version:
                yield Request(plane.name, object_.namespace, owner.name)

    return owners
