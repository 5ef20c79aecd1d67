"""The calls of the Kubernetes API and how their answers are read, without I/O. Entry points: the verbs, `Pages`.

The asynchronous client and the blocking one of commands are both built on it.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject, ObjectMeta, decode, encode
from datum_compute.kube.patches import MERGE
from datum_compute.kube.transport import Call

T = TypeVar("T", bound=KubeObject)
R = TypeVar("R")


def get(kind: Kind[Any], name: str, namespace: str = "") -> Call:
    return Call("GET", kind.path(namespace, name), accept=kind.accept())


def watch(
    kind: Kind[Any],
    resource_version: str,
    *,
    timeout_seconds: int,
    namespace: str = "",
    selector: str = "",
    fields: str = "",
) -> Call:
    query = {
        "watch": "true",
        "resourceVersion": resource_version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(timeout_seconds),
    }
    selectors = _non_empty(labelSelector=selector, fieldSelector=fields)
    return Call("GET", kind.path(namespace), query | selectors, accept=kind.accept())


def create(kind: Kind[Any], namespace: str, body: Json, *, dry_run: bool = False, strict: bool = False) -> Call:
    """`strict` refuses fields that the server does not know, here and in `replace`."""
    return Call("POST", kind.path(namespace), _write_options(dry_run, strict), encode(body))


def replace(
    kind: Kind[Any],
    name: str,
    namespace: str,
    body: Json,
    subresource: str = "",
    *,
    dry_run: bool = False,
    strict: bool = False,
) -> Call:
    path = kind.path(namespace, name, subresource)
    return Call("PUT", path, _write_options(dry_run, strict), encode(body))


def merge_patch(
    kind: Kind[Any], name: str, namespace: str, patch: Json, subresource: str = "", *, dry_run: bool = False
) -> Call:
    path = kind.path(namespace, name, subresource)
    return Call("PATCH", path, _write_options(dry_run), encode(patch), MERGE)


def delete(
    kind: Kind[Any],
    name: str,
    namespace: str = "",
    *,
    uid: str = "",
    resource_version: str = "",
    propagation: str = "",
    dry_run: bool = False,
) -> Call:
    options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
    if preconditions := _non_empty(uid=uid, resourceVersion=resource_version):
        options["preconditions"] = preconditions
    if propagation:
        options["propagationPolicy"] = propagation
    if dry_run:
        options["dryRun"] = ["All"]
    return Call("DELETE", kind.path(namespace, name), body=encode(options))


def after_delete(kind: Kind[T], answer: bytes) -> T | None:
    """The object as it waits for its finalizers; None when it is gone."""
    head = decode(answer, _DeleteAnswer)
    return None if head.kind == "Status" or not head.metadata.deleting else kind.decode(answer)


class _DeleteAnswer(Struct, frozen=True):
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class WatchEvent(Struct, Generic[T], frozen=True):
    """One change as a server reports it. A bookmark carries no object, only how far the watch has come."""

    type: str  # ADDED, MODIFIED, DELETED, BOOKMARK
    resource_version: str
    object: T | None = None


class RawEvent(Struct, frozen=True):
    """One line of a watch. The object of an ERROR is a Status."""

    type: str
    object: Raw

    def read(self, kind: Kind[T]) -> WatchEvent[T]:
        if self.type == "BOOKMARK":
            return WatchEvent(self.type, decode(self.object, _OnlyMetadata).metadata.resource_version)
        object_ = kind.decode(self.object)
        return WatchEvent(self.type, object_.metadata.resource_version, object_)


class _OnlyMetadata(Struct, frozen=True):
    metadata: ObjectMeta


class _ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ListBody(Struct, frozen=True):
    metadata: _ListMeta
    items: list[Raw] = []


class Pages(Generic[R]):
    """A list in pages of `limit` objects, all as of the moment of the first page. `read` makes an item of each object.

    Send `next_call` and `add` its answer, until there is no next call.
    """

    def __init__(
        self,
        kind: Kind[Any],
        read: Callable[[Raw], R],
        namespace: str = "",
        selector: str = "",
        *,
        fields: str = "",
        limit: int = 0,
    ) -> None:
        self.items: list[R] = []
        self.resource_version = ""
        self._kind = kind
        self._read = read
        self._path = kind.path(namespace)
        size = str(limit) if limit else ""
        self._query = _non_empty(limit=size, labelSelector=selector, fieldSelector=fields)
        self.next_call: Call | None = self._page(self._query)

    def add(self, answer: bytes) -> None:
        page = decode(answer, _ListBody)
        self.items += map(self._read, page.items)
        self.resource_version = page.metadata.resource_version
        token = page.metadata.continue_
        self.next_call = self._page(self._query | {"continue": token}) if token else None

    def restart(self) -> bool:
        """To be called when the server answered `Gone`: it no longer knows the moment of the first page.

        It is then asked for everything at once, which cannot come too late. False when that is what failed.
        """
        if self.next_call is None or "continue" not in self.next_call.query:
            return False
        self.items.clear()
        self._query.pop("limit", None)
        self.next_call = self._page(self._query)
        return True

    def _page(self, query: dict[str, str]) -> Call:
        return Call("GET", self._path, dict(query), accept=self._kind.accept(listed=True))


def _non_empty(**values: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


def _write_options(dry_run: bool, strict: bool = False) -> dict[str, str]:
    options = {"fieldValidation": "Strict"} if strict else {}
    return options | {"dryRun": "All"} if dry_run else options
