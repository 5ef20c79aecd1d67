"""A copy of all objects of one kind on one plane, kept current. Entry point: `Informer`.

A state machine: empty, listing, listed, watching, and unserved for a kind that the plane need not have. A relist swaps
the copy in one step and synthesises the deletes nobody saw. Lost events heal by themselves: every copy is compared with
the server every ten minutes, and at once when its stream falls silent.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Generic, TypeVar

import structlog
from msgspec import Struct

from datum_compute.kube.client import Client, Listing, WatchEvent
from datum_compute.kube.errors import ApiError, Gone, NotFound, Timeout, Unavailable
from datum_compute.kube.kinds import Kind, PartialObject
from datum_compute.kube.meta import KubeObject
from datum_compute.runtime.index import Index, Place

T = TypeVar("T", bound=KubeObject)

RELIST_SECONDS = 600.0
RELIST_RETRY_SECONDS = 30.0  # when a relist fails, the stream goes on meanwhile
UNSERVED_SECONDS = 300.0
STALL_SECONDS = 150.0  # two bookmarks and a half
PAGE = 500
WATCH_SECONDS = (240, 480)
SHORTEST_ROUND = 0.5  # a list and a watch that are over sooner brought nothing
LONGEST_RETRY = 5.0  # short: the first answer of a plane that was away restarts everything that waits for it
_REARM_SECONDS = 1.0  # the stall timer is set anew at most this often, not for each of a thousand events

_log = structlog.get_logger(__name__)


class State(Enum):
    EMPTY = "empty"  # nothing is known, or what is known can no longer be followed
    LISTING = "listing"
    LISTED = "listed"  # the copy is whole and can be followed from where it is
    WATCHING = "watching"
    UNSERVED = "unserved"  # the plane does not have this kind now, which is fine


class Change(Struct, Generic[T], frozen=True):
    """What happened to one object. `before` is None for a new one, `after` for one that is gone."""

    before: T | None
    after: T | None
    initial: bool = False

    @property
    def object(self) -> T:
        object_ = self.after if self.after is not None else self.before
        assert object_ is not None
        return object_


Handler = Callable[[Change[T]], None]


class Informer(Generic[T]):
    """Shared by every controller of the process that looks at this kind on this plane. `run` never returns.

    An `optional` kind may be missing on the plane: it is then an empty copy, asked for again every few minutes.
    A `transform` is applied to each object before it is kept, to keep less of it.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        generator: random.Random,
        *,
        optional: bool = False,
        transform: Callable[[T], T] | None = None,
    ) -> None:
        self.kind = kind
        self.state = State.EMPTY
        self.synced = asyncio.Event()
        self.optional = optional
        self.transform = transform
        self.heard = 0.0  # loop time at which the server last said anything
        self._client = client
        self._generator = generator
        self._namespaces: dict[str, dict[str, T]] = {}
        self._indexes: dict[str, Index[T]] = {}
        self._handlers: list[Handler[T]] = []
        self._gone: dict[str, None] = {}  # uids of own deletes that the stream has not confirmed yet
        self._resource_version = ""
        self._relist_at = 0.0

    # Reading

    @property
    def served(self) -> bool:
        return self.state is not State.UNSERVED

    def __len__(self) -> int:
        return sum(len(objects) for objects in self._namespaces.values())

    def get(self, namespace: str, name: str) -> T | None:
        objects = self._namespaces.get(namespace)
        return objects.get(name) if objects is not None else None

    def all(self, namespace: str = "") -> list[T]:
        chosen = [self._namespaces.get(namespace, {})] if namespace else self._namespaces.values()
        return sorted((object_ for objects in chosen for object_ in objects.values()), key=_place)

    def by(self, index: str, value: str) -> list[T]:
        return [self._namespaces[namespace][name] for namespace, name in self._indexes[index].places(value)]

    def index(self, name: str, values: Callable[[T], Iterable[str]]) -> None:
        """Declares an index; declaring it twice is harmless. Values that are empty are not indexed."""
        if name not in self._indexes:
            self._indexes[name] = index = Index(values)
            for object_ in self.all():
                index.put(_place(object_), None, object_)

    def subscribe(self, handler: Handler[T]) -> Callable[[], None]:
        """Tells of every object there is, then of every change; the returned function ends it."""
        self._handlers.append(handler)
        for object_ in self.all():
            handler(Change(None, object_, initial=True))
        return lambda: self._handlers.remove(handler)

    # Own writes: a pass never acts on the past it just changed

    def fold(self, object_: T) -> None:
        """Takes the answer of an own write as if the stream had brought it already."""
        current = self.get(object_.namespace, object_.name)
        known = current is not None and current.metadata.uid == object_.metadata.uid
        # One that is not here, and that the stream has passed already, may have been deleted since.
        ahead = object_.metadata.revision > int(self._resource_version or 0)
        if self.synced.is_set() and (known or ahead) and object_.metadata.uid not in self._gone:
            self._put(object_)

    def fold_delete(self, object_: KubeObject) -> None:
        """Takes an own delete that is complete."""
        current = self.get(object_.namespace, object_.name)
        if current is not None and current.metadata.uid == object_.metadata.uid:
            self._gone[object_.metadata.uid] = None
            self._remove(current)

    # Following the server

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        quick = 0  # rounds in a row that were over at once
        while True:
            began, failed = loop.time(), False
            try:
                await self._round()
            except Gone:
                self.state = State.EMPTY
            except TimeoutError:
                _log.info("watch is silent, listing again", plane=self._client.plane, kind=self.kind.name)
                self.state = State.EMPTY
            except ApiError as error:
                # Whatever it is, refused credentials included, may be mended from outside: never give up.
                _log.debug("plane does not answer", plane=self._client.plane, kind=self.kind.name, error=str(error))
                failed = True
                if error.answered or not isinstance(error, Unavailable | Timeout):
                    self.heard = loop.time()
            # A server that ends every watch at once, however politely, must not be asked in a hot loop.
            short = loop.time() - began < SHORTEST_ROUND
            quick = quick + 1 if short else 0
            if short or failed:
                delay = min(0.1 * 2 ** min(quick, 10), LONGEST_RETRY)
                await asyncio.sleep(delay * self._generator.uniform(0.8, 1.2))

    async def _round(self) -> None:
        match self.state:
            case State.EMPTY | State.LISTING:
                await self._list()
            case State.LISTED | State.WATCHING if asyncio.get_running_loop().time() >= self._relist_at:
                await self._compare()
            case State.UNSERVED:
                await asyncio.sleep(UNSERVED_SECONDS * self._generator.uniform(0.9, 1.1))
                await self._list()
        if self.state is State.LISTED:
            await self._watch()

    async def _compare(self) -> None:
        """A list to find out what the stream has missed. When it fails, the stream still tells most of it."""
        try:
            await self._list()
        except ApiError:
            self.state = State.LISTED
            self._relist_at = asyncio.get_running_loop().time() + RELIST_RETRY_SECONDS
            raise

    async def _list(self) -> None:
        self.state = State.LISTING
        settled = list(self._gone)  # a list that is asked for after an own delete tells whether it happened
        try:
            listing, listed = await self._client.list(self.kind, limit=PAGE), State.LISTED
        except NotFound:
            if not self.optional:
                raise
            listing, listed = Listing([], ""), State.UNSERVED
        loop = asyncio.get_running_loop()
        self.heard = loop.time()
        for uid in settled:
            self._gone.pop(uid, None)
        self._swap(listing, everything=listed is State.UNSERVED)
        self._resource_version = listing.resource_version
        self._relist_at = loop.time() + RELIST_SECONDS * self._generator.uniform(0.9, 1.1)
        self.state = listed
        self.synced.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        wanted = min(self._relist_at - loop.time(), self._generator.uniform(*WATCH_SECONDS))
        timeout = max(1, int(wanted))
        try:
            async with (
                asyncio.timeout(STALL_SECONDS) as stall,
                self._client.watch(self.kind, self._resource_version, timeout_seconds=timeout) as events,
            ):
                self.state = State.WATCHING
                armed = self.heard = loop.time()
                async for event in events:
                    self._take(event)
                    self.heard = now = loop.time()
                    if now - armed >= _REARM_SECONDS:
                        stall.reschedule(now + STALL_SECONDS)
                        armed = now
                    if now >= self._relist_at:
                        return  # even when the server does not end the watch as it was asked to
        except NotFound:
            self.state = State.EMPTY  # the kind is gone, and only a list can tell
            raise
        finally:
            if self.state is State.WATCHING:
                self.state = State.LISTED

    def _take(self, event: WatchEvent[T]) -> None:
        match event:
            case WatchEvent(type="DELETED", object=object_) if object_ is not None:
                self._gone.pop(object_.metadata.uid, None)
                current = self.get(object_.namespace, object_.name)
                if current is not None and current.metadata.revision <= object_.metadata.revision:
                    self._remove(current)
            case WatchEvent(object=object_) if object_ is not None and object_.metadata.uid not in self._gone:
                self._put(object_)
        self._resource_version = event.resource_version

    def _swap(self, listing: Listing[T], *, everything: bool) -> None:
        """Takes a list for what there is. `everything`: there is nothing, own writes included."""
        listed_at = int(listing.resource_version or 0)
        places = {_place(object_) for object_ in listing.items}
        for object_ in listing.items:
            if object_.metadata.uid not in self._gone:
                self._put(object_, initial=not self.synced.is_set())
        for object_ in self.all():
            # An own write that was folded in after the server made this list is not a lost object.
            if everything or (_place(object_) not in places and object_.metadata.revision <= listed_at):
                self._remove(object_)
        uids = {object_.metadata.uid for object_ in listing.items}
        self._gone = {uid: None for uid in self._gone if uid in uids}

    def _put(self, object_: T, *, initial: bool = False) -> None:
        metadata = object_.metadata
        before = self.get(metadata.namespace, metadata.name)
        if before is not None and before.metadata.revision >= metadata.revision:
            return
        if self.transform is not None:
            object_ = self.transform(object_)
        self._namespaces.setdefault(metadata.namespace, {})[metadata.name] = object_
        for index in self._indexes.values():
            index.put(_place(object_), before, object_)
        self._tell(Change(before, object_, initial))

    def _remove(self, before: T) -> None:
        objects = self._namespaces[before.namespace]
        del objects[before.name]
        if not objects:
            del self._namespaces[before.namespace]
        for index in self._indexes.values():
            index.put(_place(before), before, None)
        self._tell(Change(before, None))

    def _tell(self, change: Change[T]) -> None:
        for handler in list(self._handlers):
            handler(change)


def cache_name(kind: Kind[Any]) -> str:
    """What tells the caches of a plane apart: a kind kept whole is not the same kind kept by its metadata alone."""
    return partial_name(kind) if kind.type is PartialObject else kind.resource


def partial_name(kind: Kind[Any]) -> str:
    return f"{kind.resource}, metadata"


def _place(object_: KubeObject) -> Place:
    return (object_.metadata.namespace, object_.metadata.name)
