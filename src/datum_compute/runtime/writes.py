"""Writing on a plane: counted, compared before, damped in a fight, and folded into the cache. Entry points: `Writer`,
`Writes`.
"""

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

T = TypeVar("T", bound=KubeObject)

Warn = Callable[[KubeObject, str, str], None]  # a warning event about an object: reason and message

WRITES_DAMPED = "WritesDamped"
_DAMPED = (
    "The same {verb} was made again and again within a minute, and somebody undoes it; it is made once per minute "
    "until it stays. Find out who else writes this object."
)
_MOMENT = re.compile(rb'"lastTransitionTime":"[^"]*"')  # the one part of a status that is new each time it is written
_OPPOSITES = {"create": "delete", "delete": "create"}

_log = structlog.get_logger(__name__)


class Write(Struct, frozen=True):
    plane: str
    controller: str
    verb: str
    kind: str


class Ledger(Protocol):
    """Where writes are counted before they are sent, or held back."""

    @property
    def damper(self) -> Damper: ...

    def count(self, write: Write, place: str) -> None: ...

    def count_damped(self, write: Write) -> None: ...


class Writes:
    """Every write of the process by plane, controller, verb and kind: the budget's ledger.

    Of planes that left only the sums are kept.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.counts: Counter[Write] = Counter()
        self.damped: Counter[Write] = Counter()  # those that were not made, because somebody undoes them
        self.damper = Damper()
        self.clock = clock or SystemClock()
        self._left: Counter[str] = Counter()  # on planes that left, by controller
        self.last: deque[str] = deque(maxlen=50)  # for the report of a failed simulation

    def count(self, write: Write, place: str) -> None:
        self.counts[write] += 1
        self.last.append(f"{write.controller}: {write.verb} {write.kind} {place} on {write.plane}")

    def count_damped(self, write: Write) -> None:
        self.damped[write] += 1

    def count_left(self, write: Write) -> None:
        """Counts a write on a plane that is no longer here."""
        self._left[write.controller] += 1

    def forget(self, plane: str) -> None:
        """The plane left."""
        for write in [write for write in self.counts if write.plane == plane]:
            self._left[write.controller] += self.counts.pop(write)
        for write in [write for write in self.damped if write.plane == plane]:
            del self.damped[write]

    def total(self, controller: str = "") -> int:
        here = sum(n for write, n in self.counts.items() if not controller or write.controller == controller)
        return here + (self._left[controller] if controller else self._left.total())


class PlaneWrites:
    """The writes of one plane, until it leaves: a pass that is still under way must not bring its name back."""

    def __init__(self, plane: str, writes: Writes) -> None:
        self.damper = writes.damper
        self.clock = writes.clock
        self._plane = plane
        self._writes = writes
        self._left = False

    def count(self, write: Write, place: str) -> None:
        if self._left:
            self._writes.count_left(write)
        else:
            self._writes.count(write, place)

    def count_damped(self, write: Write) -> None:
        if not self._left:
            self._writes.count_damped(write)

    def leave(self) -> None:
        self._left = True
        self._writes.forget(self._plane)


class Writer:
    """The writes of one controller on one plane.

    The answer of each goes into the informer of its kind, where there is one, so that the next read sees it. A write
    that somebody undoes again and again raises `Damped` until it may be tried again.
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
        deed = self._begin("create", kind, wanted, encode(body))
        return self._done(deed, await self._client.create(kind, body))

    async def ensure(self, kind: Kind[T], body: Json) -> T:
        """Creates an object, or reads the one of its name that somebody made first, whatever that looks like."""
        try:
            return await self.create(kind, body)
        except AlreadyExists:
            metadata = body["metadata"]
            return await self._client.get(kind, str(metadata["name"]), str(metadata.get("namespace", "")))

    async def patch(self, seen: T, patch: Json) -> T:
        """A merge patch of what is not a list, or of a list that nobody else writes.

        It names the object by its uid: on a later one of the same name it is a `Conflict`.
        """
        return await self._patch(seen, patch, {})

    async def patch_if_unchanged(self, seen: T, patch: Json) -> T:
        """A merge patch that replaces lists: only if the object is still as it was seen, else `Conflict`."""
        return await self._patch(seen, patch, {"resourceVersion": seen.metadata.resource_version})

    async def _patch(self, seen: T, patch: Json, precondition: Json) -> T:
        deed = self._begin("patch", seen.kind, seen.metadata, encode(patch))
        metadata = {**patch.get("metadata", {}), **precondition, "uid": seen.metadata.uid}
        sent = patch | {"metadata": metadata}
        try:
            return self._done(deed, await self._client.merge_patch(seen.kind, seen.name, seen.namespace, sent))
        except Invalid as error:
            # This is how servers answer a patch with another uid than the object's.
            if any(cause.field == "metadata.uid" for cause in error.causes):
                raise Conflict(f"{seen.kind.name} {seen.name} is another object now", plane=error.plane) from None
            raise

    async def status(self, seen: T, status: Json) -> T:
        """Replaces the status when it differs from what was seen; no call when nothing changed."""
        content = encode(status)
        if same_json(seen.status_json, content):
            return seen
        deed = self._begin("status", seen.kind, seen.metadata, content)
        return self._done(deed, await self._client.replace_status(seen.kind, seen, status))

    async def clear_status(self, seen: T) -> T:
        """Takes the status away; no call when there is none."""
        if not bytes(seen.status_json):
            return seen
        deed = self._begin("status", seen.kind, seen.metadata, b"")
        return self._done(deed, await self._client.clear_status(seen.kind, seen))

    async def add_finalizer(self, seen: T, finalizer: str) -> T:
        if finalizer in seen.metadata.finalizers:
            return seen
        return await self.patch_if_unchanged(seen, {"metadata": {"finalizers": [*seen.metadata.finalizers, finalizer]}})

    async def remove_finalizers(self, seen: T, *finalizers: str) -> None:
        """Lets go of an object; it may be gone afterwards."""
        left = [finalizer for finalizer in seen.metadata.finalizers if finalizer not in finalizers]
        if len(left) == len(seen.metadata.finalizers):
            return
        try:
            after = await self.patch_if_unchanged(seen, {"metadata": {"finalizers": left}})
        except NotFound:
            return
        # With time left to stop in, what is to be deleted stays until whoever runs it says that it has.
        held = after.metadata.finalizers or after.metadata.deletion_grace_period_seconds
        if after.metadata.deleting and not held:
            self._forget(after)

    async def delete(self, seen: T) -> None:
        """Deletes exactly the object that was seen, not a later one of its name; one that is gone is fine."""
        await self._delete(seen, "")

    async def delete_if_unchanged(self, seen: T) -> None:
        """Deletes an object for what it said: only if it is still as it was seen, else `Conflict`."""
        await self._delete(seen, seen.metadata.resource_version)

    async def _delete(self, seen: T, resource_version: str) -> None:
        deed = self._begin("delete", seen.kind, seen.metadata, _identity(seen))
        try:
            waiting = await self._client.delete(
                seen.kind, seen.name, seen.namespace, uid=seen.metadata.uid, resource_version=resource_version
            )
        except NotFound:
            waiting = None
        if waiting is None:
            self._made(deed)
            self._forget(seen)
        else:
            self._done(deed, waiting)

    async def delete_named(self, kind: Kind[T], name: str, namespace: str) -> None:
        """Deletes whatever has the name, seen or not: for leftovers that a cache may not know of yet."""
        informer = self._informers.get(cache_name(kind))
        seen = cast(T | None, informer.get(namespace, name)) if informer is not None else None
        if seen is not None:
            await self.delete(seen)
            return
        deed = self._begin("delete", kind, ObjectMeta(name=name, namespace=namespace), b"")
        with suppress(NotFound):
            await self._client.delete(kind, name, namespace)
            self._made(deed)

    def _begin(self, verb: str, kind: Kind[Any], metadata: ObjectMeta, content: bytes) -> "_Deed":
        """Counts a write that is about to be made; raises `Damped` when it would only be undone again."""
        write = Write(self._client.plane, self._controller, verb, kind.name)
        writer = author.get()
        target = (write.plane, kind.resource, metadata.namespace, metadata.name)
        place = hash((self._controller, writer.request if writer else None, target))
        opposite = _OPPOSITES.get(verb)
        damper = self._writes.damper
        key: int | None = None
        if opposite or not damper.is_as_left(place, metadata.resource_version):
            if b"lastTransitionTime" in content:
                content = _MOMENT.sub(b"", content)
            asked = writer.asked if writer else None
            # What is changed again has the same uid; what is created or deleted again has another one each time, and is
            # a repetition unless this controller did the opposite in between.
            same = damper.counted(hash((self._controller, opposite, target))) if opposite else metadata.uid
            key = hash((self._controller, asked, verb, target, same, content))
            self._damp(write, key, kind, metadata)
        self._writes.count(write, f"{metadata.namespace}/{metadata.name}")
        return _Deed(key, place, hash((self._controller, verb, target)) if opposite else None)

    def _damp(self, write: Write, key: int, kind: Kind[Any], metadata: ObjectMeta) -> None:
        damper = self._writes.damper
        known = damper.is_damped(key)
        pause = damper.pause(key, asyncio.get_running_loop().time())
        if not pause:
            return
        self._writes.count_damped(write)
        subject = f"{kind.name} {metadata.namespace}/{metadata.name}"
        if not known:
            _log.warning(
                "writes damped", plane=write.plane, controller=write.controller, verb=write.verb, object=subject
            )
            if self._warn is not None:
                self._warn(kind.mark(KubeObject(metadata)), WRITES_DAMPED, _DAMPED.format(verb=write.verb))
        raise Damped(f"{write.verb} of {subject} is undone by somebody else", plane=write.plane, retry_after=pause)

    def _done(self, deed: "_Deed", answer: T) -> T:
        self._made(deed)
        now = asyncio.get_running_loop().time()
        self._writes.damper.leaves(deed.place, answer.metadata.resource_version, now)
        return self._folded(answer)

    def _made(self, deed: "_Deed") -> None:
        now = asyncio.get_running_loop().time()
        if deed.key is not None:
            self._writes.damper.made(deed.key, now)
        if deed.tally is not None:
            self._writes.damper.count(deed.tally, now)

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
        """All that hold objects of the kind, whatever they keep or select of them."""
        return [informer for informer in self._informers.values() if informer.kind.resource == kind.resource]


class _Deed(Struct, frozen=True):
    """A write that is under way."""

    key: int | None  # what makes it the same as another; None: it cannot be part of a fight
    place: int  # who writes where
    tally: int | None  # under which its opposite finds it


def _identity(object_: KubeObject) -> bytes:
    """What makes an object of a name the same again, though it was created anew."""
    metadata = object_.metadata
    return encode([metadata.labels, metadata.owner_references]) + bytes(object_.spec_json)
