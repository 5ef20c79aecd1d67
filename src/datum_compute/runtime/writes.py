"""Writes on a plane: compared, damped, counted, and folded into the cache. Entry points: `Writer`, `Writes`."""

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

import structlog
from msgspec import Struct

from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from datum_compute.kube.kinds import Kind, PartialObject
from datum_compute.kube.meta import Json, KubeObject, ObjectMeta, encode, same_json
from datum_compute.runtime.caches.informer import Informer, cache_name
from datum_compute.runtime.clock import Clock, SystemClock
from datum_compute.runtime.damping import Damped, Damper, author
from datum_compute.runtime.telemetry.tracing import count_write

T = TypeVar("T", bound=KubeObject)

Warn = Callable[[KubeObject, str, str], None]  # records a warning event: object, reason, message

WRITES_DAMPED = "WritesDamped"
_DAMPED = (
    "The same {verb} was made again and again within a minute, and somebody undoes it; it is made once per minute "
    "until it stays. Find out who else writes this object."
)
_TRANSITION_TIME = re.compile(rb'"lastTransitionTime":"[^"]*"')  # differs each time a status is written
_OPPOSITES = {"create": "delete", "delete": "create"}

_log = structlog.get_logger(__name__)


class Write(Struct, frozen=True):
    plane: str
    controller: str
    verb: str
    kind: str


class Ledger(Protocol):
    """Counts writes before they are sent, or held back."""

    @property
    def damper(self) -> Damper: ...

    def count(self, write: Write, target: str) -> None: ...

    def count_damped(self, write: Write) -> None: ...


class Writes:
    """Counts all writes of the process by plane, controller, verb and kind.

    Of planes that left only the totals remain.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.counts: Counter[Write] = Counter()
        self.damped: Counter[Write] = Counter()  # not made, because somebody undoes them
        self.damper = Damper()
        self.clock = clock or SystemClock()
        self._left: Counter[str] = Counter()  # by controller, on planes that left
        self.last: deque[str] = deque(maxlen=50)  # for the report of a failed simulation

    def count(self, write: Write, target: str) -> None:
        self.counts[write] += 1
        self.last.append(f"{write.controller}: {write.verb} {write.kind} {target} on {write.plane}")

    def count_damped(self, write: Write) -> None:
        self.damped[write] += 1

    def count_left(self, write: Write) -> None:
        """Counts a write on a plane that left."""
        self._left[write.controller] += 1

    def forget(self, plane: str) -> None:
        """Folds the counts of a plane that left into the totals."""
        for write in [write for write in self.counts if write.plane == plane]:
            self._left[write.controller] += self.counts.pop(write)
        for write in [write for write in self.damped if write.plane == plane]:
            del self.damped[write]

    def total(self, controller: str = "") -> int:
        here = sum(n for write, n in self.counts.items() if not controller or write.controller == controller)
        return here + (self._left[controller] if controller else self._left.total())


class PlaneWrites:
    """The writes of one plane. After it leaves, a pass that is still under way must not bring its name back."""

    def __init__(self, plane: str, writes: Writes) -> None:
        self.damper = writes.damper
        self.clock = writes.clock
        self._plane = plane
        self._writes = writes
        self._left = False

    def count(self, write: Write, target: str) -> None:
        if self._left:
            self._writes.count_left(write)
        else:
            self._writes.count(write, target)

    def count_damped(self, write: Write) -> None:
        if not self._left:
            self._writes.count_damped(write)

    def leave(self) -> None:
        self._left = True
        self._writes.forget(self._plane)


class Writer:
    """The writes of one controller on one plane.

    Each answer is folded into the informer of its kind, if there is one, so that the next read sees it. A write that
    somebody keeps undoing raises `Damped` until it may be tried again.
    """

    def __init__(
        self,
        client: Client,
        informers: dict[str, Informer[KubeObject]],
        controller: str,
        writes: Ledger,
        warn: Warn | None = None,
    ) -> None:
        self._client = client
        self._informers = informers
        self._controller = controller
        self._writes = writes
        self._warn = warn

    async def create(self, kind: Kind[T], body: Json) -> T:
        metadata = body["metadata"]
        wanted = ObjectMeta(name=str(metadata["name"]), namespace=str(metadata.get("namespace", "")))
        attempt = self._begin("create", kind, wanted, encode(body))
        return self._done(attempt, await self._client.create(kind, body))

    async def ensure(self, kind: Kind[T], body: Json) -> T:
        """Creates an object, or reads the one of its name that already exists, whatever it looks like."""
        try:
            return await self.create(kind, body)
        except AlreadyExists:
            metadata = body["metadata"]
            return await self._client.get(kind, str(metadata["name"]), str(metadata.get("namespace", "")))

    async def patch(self, object_: T, patch: Json) -> T:
        """A merge patch, for fields that are not lists and for lists that nobody else writes.

        It fails with `Conflict` for a later object of the same name.
        """
        return await self._patch(object_, patch, {})

    async def patch_if_unchanged(self, object_: T, patch: Json) -> T:
        """A merge patch that may replace lists: `Conflict` if the object has changed since it was read."""
        return await self._patch(object_, patch, {"resourceVersion": object_.metadata.resource_version})

    async def _patch(self, object_: T, patch: Json, precondition: Json) -> T:
        attempt = self._begin("patch", object_.kind, object_.metadata, encode(patch))
        metadata = {**patch.get("metadata", {}), **precondition, "uid": object_.metadata.uid}
        sent = patch | {"metadata": metadata}
        try:
            answer = await self._client.merge_patch(object_.kind, object_.name, object_.namespace, sent)
        except Invalid as error:
            # This is how servers refuse a patch with the uid of another object.
            if any(cause.field == "metadata.uid" for cause in error.causes):
                raise Conflict(f"{object_.kind.name} {object_.name} is another object now", plane=error.plane) from None
            raise
        return self._done(attempt, answer)

    async def status(self, object_: T, status: Json) -> T:
        """Replaces the status; no call when nothing changed, `Conflict` if the object has changed since it was read."""
        content = encode(status)
        if same_json(object_.status_json, content):
            return object_
        attempt = self._begin("status", object_.kind, object_.metadata, content)
        return self._done(attempt, await self._client.replace_status(object_.kind, object_, status))

    async def clear_status(self, object_: T) -> T:
        """Removes the status; no call when there is none."""
        if not bytes(object_.status_json):
            return object_
        attempt = self._begin("status", object_.kind, object_.metadata, b"")
        return self._done(attempt, await self._client.clear_status(object_.kind, object_))

    async def add_finalizer(self, object_: T, finalizer: str) -> T:
        if finalizer in object_.metadata.finalizers:
            return object_
        return await self.patch_if_unchanged(
            object_, {"metadata": {"finalizers": [*object_.metadata.finalizers, finalizer]}}
        )

    async def remove_finalizers(self, object_: T, *finalizers: str) -> None:
        """Removes finalizers; the object may be gone afterwards."""
        left = [finalizer for finalizer in object_.metadata.finalizers if finalizer not in finalizers]
        if len(left) == len(object_.metadata.finalizers):
            return
        try:
            after = await self.patch_if_unchanged(object_, {"metadata": {"finalizers": left}})
        except NotFound:
            return
        # With a grace period, the object stays until whatever runs it has stopped.
        is_held = after.metadata.finalizers or after.metadata.deletion_grace_period_seconds
        if after.metadata.deleting and not is_held:
            self._forget(after)

    async def delete(self, object_: T) -> None:
        """Deletes exactly this object, not a later one of its name; it may already be gone."""
        await self._delete(object_, "")

    async def delete_if_unchanged(self, object_: T) -> None:
        """Deletes this version of an object: `Conflict` if it has changed since it was read."""
        await self._delete(object_, object_.metadata.resource_version)

    async def _delete(self, object_: T, resource_version: str) -> None:
        attempt = self._begin("delete", object_.kind, object_.metadata, _identity(object_))
        try:
            waiting = await self._client.delete(
                object_.kind,
                object_.name,
                object_.namespace,
                uid=object_.metadata.uid,
                resource_version=resource_version,
            )
        except NotFound:
            waiting = None
        if waiting is None:
            self._record(attempt)
            self._forget(object_)
        else:
            self._done(attempt, waiting)

    async def delete_named(self, kind: Kind[T], name: str, namespace: str) -> None:
        """Deletes whatever has the name, cached or not: for leftovers that a cache may not have yet."""
        informer = self._informers.get(cache_name(kind))
        cached = cast(T | None, informer.get(namespace, name)) if informer is not None else None
        if cached is not None:
            await self.delete(cached)
            return
        attempt = self._begin("delete", kind, ObjectMeta(name=name, namespace=namespace), b"")
        with suppress(NotFound):
            await self._client.delete(kind, name, namespace)
            self._record(attempt)

    def _begin(self, verb: str, kind: Kind[Any], metadata: ObjectMeta, content: bytes) -> "_Attempt":
        """Counts a write that is about to be made; raises `Damped` when it would only be undone."""
        write = Write(self._client.plane, self._controller, verb, kind.name)
        writer = author.get()
        object_ = (write.plane, kind.resource, metadata.namespace, metadata.name)
        target = hash((self._controller, writer.request if writer else None, object_))
        opposite = _OPPOSITES.get(verb)
        damper = self._writes.damper
        key: int | None = None
        if opposite or not damper.is_as_left(target, metadata.resource_version):
            if b"lastTransitionTime" in content:
                content = _TRANSITION_TIME.sub(b"", content)
            desired = writer.desired if writer else None
            # An object that is changed again keeps its uid. One that is created or deleted again has another; that is a
            # repetition unless this controller did the opposite in between.
            same = damper.times(hash((self._controller, opposite, object_))) if opposite else metadata.uid
            key = hash((self._controller, desired, verb, object_, same, content))
            self._damp(write, key, kind, metadata)
        self._writes.count(write, f"{metadata.namespace}/{metadata.name}")
        count_write(write.plane)
        return _Attempt(key, target, hash((self._controller, verb, object_)) if opposite else None)

    def _damp(self, write: Write, key: int, kind: Kind[Any], metadata: ObjectMeta) -> None:
        damper = self._writes.damper
        was_damped = damper.is_damped(key)
        pause = damper.pause(key, asyncio.get_running_loop().time())
        if not pause:
            return
        self._writes.count_damped(write)
        subject = f"{kind.name} {metadata.namespace}/{metadata.name}"
        if not was_damped:
            _log.warning(
                "writes damped", plane=write.plane, controller=write.controller, verb=write.verb, object=subject
            )
            if self._warn is not None:
                self._warn(kind.mark(KubeObject(metadata)), WRITES_DAMPED, _DAMPED.format(verb=write.verb))
        raise Damped(f"{write.verb} of {subject} is undone by somebody else", plane=write.plane, retry_after=pause)

    def _done(self, attempt: "_Attempt", answer: T) -> T:
        self._record(attempt)
        now = asyncio.get_running_loop().time()
        self._writes.damper.record_version(attempt.target, answer.metadata.resource_version, now)
        return self._folded(answer)

    def _record(self, attempt: "_Attempt") -> None:
        now = asyncio.get_running_loop().time()
        if attempt.key is not None:
            self._writes.damper.record(attempt.key, now)
        if attempt.action is not None:
            self._writes.damper.count(attempt.action, now)

    def _folded(self, answer: T) -> T:
        for informer in self._caches(answer.kind):
            if informer.kind.type is PartialObject:
                informer.fold(informer.kind.mark(PartialObject(answer.metadata)))
            elif not isinstance(answer, PartialObject):
                informer.fold(answer)
        return answer

    def _forget(self, object_: KubeObject) -> None:
        for informer in self._caches(object_.kind):
            informer.fold_delete(object_)

    def _caches(self, kind: Kind[Any]) -> list[Informer[KubeObject]]:
        """All caches of the kind, whatever they select or keep of its objects."""
        return [informer for informer in self._informers.values() if informer.kind.resource == kind.resource]


class _Attempt(Struct, frozen=True):
    """A write that is under way."""

    key: int | None  # equal for repetitions; None: it cannot be part of a fight
    target: int  # who writes where
    action: int | None  # for creations and deletions, what their opposite looks up


def _identity(object_: KubeObject) -> bytes:
    """What two objects of the same name have in common if one was created again in place of the other."""
    metadata = object_.metadata
    return encode([metadata.labels, metadata.owner_references]) + bytes(object_.spec_json)
