"""Writing on a plane: counted, compared before, and folded into the cache. Entry points: `Writer`, `Writes`."""

from collections import Counter, deque
from contextlib import suppress
from typing import TypeVar, cast

from msgspec import Struct

from datum_compute.kube.client import Client
from datum_compute.kube.errors import Conflict, Invalid, NotFound
from datum_compute.kube.kinds import Kind, PartialObject
from datum_compute.kube.meta import Json, KubeObject, encode, same_json
from datum_compute.runtime.informer import Informer, cache_name, partial_name

T = TypeVar("T", bound=KubeObject)


class Write(Struct, frozen=True):
    plane: str
    controller: str
    verb: str
    kind: str


class Writes:
    """Every write of the process by plane, controller, verb and kind: the budget's ledger."""

    def __init__(self) -> None:
        self.counts: Counter[Write] = Counter()
        self.last: deque[str] = deque(maxlen=50)  # for the report of a failed simulation

    def count(self, write: Write, place: str) -> None:
        self.counts[write] += 1
        self.last.append(f"{write.controller}: {write.verb} {write.kind} {place} on {write.plane}")

    def total(self, controller: str = "") -> int:
        return sum(n for write, n in self.counts.items() if not controller or write.controller == controller)


class Writer:
    """The writes of one controller on one plane.

    The answer of each goes into the informer of its kind, where there is one, so that the next read sees it.
    """

    def __init__(
        self, client: Client, informers: dict[str, Informer[KubeObject]], controller: str, writes: Writes
    ) -> None:
        self._client = client
        self._informers = informers
        self._controller = controller
        self._writes = writes

    async def create(self, kind: Kind[T], body: Json) -> T:
        metadata = body["metadata"]
        self._count("create", kind, str(metadata.get("namespace", "")), str(metadata["name"]))
        return self._folded(kind, await self._client.create(kind, body))

    async def patch(self, kind: Kind[T], seen: T, patch: Json) -> T:
        """A merge patch of what is not a list, or of a list that nobody else writes.

        It names the object by its uid: on a later one of the same name it is a `Conflict`.
        """
        self._count("patch", kind, seen.namespace, seen.name)
        patch = patch | {"metadata": {**patch.get("metadata", {}), "uid": seen.metadata.uid}}
        try:
            return self._folded(kind, await self._client.merge_patch(kind, seen.name, seen.namespace, patch))
        except Invalid as error:
            # This is how servers answer a patch with another uid than the object's.
            if any(cause.field == "metadata.uid" for cause in error.causes):
                raise Conflict(f"{kind.name} {seen.name} is another object now", plane=error.plane) from None
            raise

    async def patch_seen(self, kind: Kind[T], seen: T, patch: Json) -> T:
        """A merge patch that replaces lists: only if the object is still as it was seen, else `Conflict`."""
        metadata = {**patch.get("metadata", {}), "resourceVersion": seen.metadata.resource_version}
        return await self.patch(kind, seen, patch | {"metadata": metadata})

    async def status(self, kind: Kind[T], seen: T, status: Json) -> T:
        """Replaces the status when it differs from what was seen; no call when nothing changed."""
        if same_json(seen.status_json, encode(status)):
            return seen
        self._count("status", kind, seen.namespace, seen.name)
        return self._folded(kind, await self._client.replace_status(kind, seen, status))

    async def add_finalizer(self, kind: Kind[T], seen: T, finalizer: str) -> T:
        if finalizer in seen.metadata.finalizers:
            return seen
        return await self.patch_seen(kind, seen, {"metadata": {"finalizers": [*seen.metadata.finalizers, finalizer]}})

    async def remove_finalizers(self, kind: Kind[T], seen: T, *finalizers: str) -> None:
        """Lets go of an object; it may be gone afterwards."""
        left = [finalizer for finalizer in seen.metadata.finalizers if finalizer not in finalizers]
        if len(left) == len(seen.metadata.finalizers):
            return
        try:
            after = await self.patch_seen(kind, seen, {"metadata": {"finalizers": left}})
        except NotFound:
            return
        # With time left to stop in, what is to be deleted stays until whoever runs it says that it has.
        held = after.metadata.finalizers or after.metadata.deletion_grace_period_seconds
        if after.metadata.deleting and not held:
            self._forget(kind, after)

    async def delete(self, kind: Kind[T], seen: T) -> None:
        """Deletes exactly the object that was seen, not a later one of its name; one that is gone is fine."""
        await self._delete(kind, seen, "")

    async def delete_seen(self, kind: Kind[T], seen: T) -> None:
        """Deletes an object for what it said: only if it is still as it was seen, else `Conflict`."""
        await self._delete(kind, seen, seen.metadata.resource_version)

    async def _delete(self, kind: Kind[T], seen: T, resource_version: str) -> None:
        self._count("delete", kind, seen.namespace, seen.name)
        try:
            waiting = await self._client.delete(
                kind, seen.name, seen.namespace, uid=seen.metadata.uid, resource_version=resource_version
            )
        except NotFound:
            waiting = None
        if waiting is None:
            self._forget(kind, seen)
        else:
            self._folded(kind, waiting)

    async def delete_named(self, kind: Kind[T], name: str, namespace: str) -> None:
        """Deletes whatever has the name, seen or not: for leftovers that a cache may not know of yet."""
        informer = self._informers.get(cache_name(kind))
        seen = cast(T | None, informer.get(namespace, name)) if informer is not None else None
        if seen is not None:
            await self.delete(kind, seen)
            return
        self._count("delete", kind, namespace, name)
        with suppress(NotFound):
            await self._client.delete(kind, name, namespace)

    def _count(self, verb: str, kind: Kind[T], namespace: str, name: str) -> None:
        self._writes.count(Write(self._client.plane, self._controller, verb, kind.name), f"{namespace}/{name}")

    def _folded(self, kind: Kind[T], answer: T) -> T:
        whole = self._informers.get(cache_name(kind))
        if whole is not None:
            whole.fold(answer)
        partial = self._informers.get(partial_name(kind))
        if partial is not None and partial is not whole:
            partial.fold(PartialObject(answer.metadata))
        return answer

    def _forget(self, kind: Kind[T], object_: T) -> None:
        for name in (kind.resource, partial_name(kind)):
            if (informer := self._informers.get(name)) is not None:
                informer.fold_delete(object_)
