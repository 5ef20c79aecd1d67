"""A copy of all objects of one kind on one plane, kept current. Entry point: `Informer`.

A state machine: empty, listing, watching. A relist swaps the copy in one step and synthesises the deletes nobody saw.
Lost events heal by themselves: every copy is compared with the server every ten minutes, and at once when its stream
falls silent.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Generic, TypeVar

import msgspec
import structlog
from msgspec import Struct

from datum_compute.kube.client import Client, Listing, WatchEvent
from datum_compute.kube.errors import ApiError, Gone
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

RELIST_SECONDS = 600.0
STALL_SECONDS = 150.0  # two bookmarks and a half
WATCH_SECONDS = (240, 480)
SHORTEST_ROUND = 0.5  # a list and a watch that are over sooner brought nothing
LONGEST_RETRY = 5.0  # short: the first answer of a plane that was away restarts everything that waits for it

_log = structlog.get_logger(__name__)


class State(Enum):
    EMPTY = "empty"
    LISTING = "listing"
    WATCHING = "watching"


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
Place = tuple[str, str]


class Informer(Generic[T]):
    """Shared by every controller of the process that looks at this kind on this plane. `run` never returns."""

    def __init__(self, client: Client, kind: Kind[T], generator: random.Random) -> None:
        self.kind = kind
        self.state = State.EMPTY
        self.synced = asyncio.Event()
        self._client = client
        self._generator = generator
        self._objects: dict[Place, T] = {}
        self._indexes: dict[str, _Index[T]] = {}
        self._handlers: list[Handler[T]] = []
        self._gone: dict[str, None] = {}  # uids of own deletes that the stream has not confirmed yet
        self._resource_version = ""

    # Reading

    def get(self, namespace: str, name: str) -> T | None:
        return self._objects.get((namespace, name))

    def all(self, namespace: str = "") -> list[T]:
        found = (object_ for place, object_ in self._objects.items() if not namespace or place[0] == namespace)
        return sorted(found, key=_place)

    def by(self, index: str, value: str) -> list[T]:
        places = self._indexes[index].places.get(value, {})
        return sorted((self._objects[place] for place in places), key=_place)

    def index(self, name: str, values: Callable[[T], Iterable[str]]) -> None:
        """Declares an index; declaring it twice is harmless. Values that are empty are not indexed."""
        if name not in self._indexes:
            self._indexes[name] = index = _Index(values)
            for place, object_ in self._objects.items():
                index.put(place, None, object_)

    def subscribe(self, handler: Handler[T]) -> Callable[[], None]:
        """Tells of every object there is, then of every change; the returned function ends it."""
        self._handlers.append(handler)
        for object_ in self.all():
            handler(Change(None, object_, initial=True))
        return lambda: self._handlers.remove(handler)

    # Own writes: a pass never acts on the past it just changed

    def fold(self, object_: T) -> None:
        """Takes the answer of an own write as if the stream had brought it already."""
        current = self._objects.get(_place(object_))
        known = current is not None and current.metadata.uid == object_.metadata.uid
        # One that is not here, and that the stream has passed already, may have been deleted since.
        ahead = object_.metadata.revision > int(self._resource_version or 0)
        if self.synced.is_set() and (known or ahead) and object_.metadata.uid not in self._gone:
            self._put(object_)

    def fold_delete(self, object_: T) -> None:
        """Takes an own delete that is complete."""
        current = self._objects.get(_place(object_))
        if current is not None and current.metadata.uid == object_.metadata.uid:
            self._gone[object_.metadata.uid] = None
            self._remove(_place(object_))

    # Following the server

    async def run(self) -> None:
        retries = 0
        relist_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            began, failed = loop.time(), False
            try:
                if self.state is not State.WATCHING or began >= relist_at:
                    await self._list()
                    relist_at = loop.time() + RELIST_SECONDS * self._generator.uniform(0.9, 1.1)
                await self._watch(relist_at)
            except Gone:
                self.state = State.EMPTY
            except TimeoutError:
                _log.info("watch is silent, listing again", plane=self._client.plane, kind=self.kind.name)
                self.state = State.EMPTY
            except ApiError as error:
                # Whatever it is, refused credentials included, may be mended from outside: never give up.
                _log.debug("plane does not answer", plane=self._client.plane, kind=self.kind.name, error=str(error))
                failed = True
            # A server that ends every watch at once, however politely, must not be asked in a hot loop.
            short = loop.time() - began < SHORTEST_ROUND
            retries = retries + 1 if short else 0
            if short or failed:
                delay = min(0.1 * 2 ** min(retries, 10), LONGEST_RETRY)
                await asyncio.sleep(delay * self._generator.uniform(0.8, 1.2))

    async def _list(self) -> None:
        first = self.state is State.EMPTY
        self.state = State.LISTING if first else self.state
        listing = await self._client.list(self.kind)
        self._swap(listing)
        self._resource_version = listing.resource_version
        self.state = State.WATCHING
        self.synced.set()

    async def _watch(self, relist_at: float) -> None:
        loop = asyncio.get_running_loop()
        wanted = min(relist_at - loop.time(), self._generator.uniform(*WATCH_SECONDS))
        timeout = max(1, int(wanted))
        async with self._client.watch(self.kind, self._resource_version, timeout_seconds=timeout) as events:
            while True:
                async with asyncio.timeout(STALL_SECONDS):
                    event = await anext(events, None)
                if event is None:
                    return
                self._take(event)
                if loop.time() >= relist_at:
                    return  # even when the server does not end the watch as it was asked to

    def _take(self, event: WatchEvent[T]) -> None:
        match event:
            case WatchEvent(type="DELETED", object=object_) if object_ is not None:
                self._gone.pop(object_.metadata.uid, None)
                current = self._objects.get(_place(object_))
                if current is not None and current.metadata.revision <= object_.metadata.revision:
                    self._remove(_place(object_))
            case WatchEvent(object=object_) if object_ is not None and object_.metadata.uid not in self._gone:
                self._put(object_)
        self._resource_version = event.resource_version

    def _swap(self, listing: Listing[T]) -> None:
        listed_at = int(listing.resource_version or 0)
        places = {_place(object_) for object_ in listing.items}
        for object_ in listing.items:
            if object_.metadata.uid not in self._gone:
                self._put(object_, initial=not self.synced.is_set())
        for place, object_ in sorted(self._objects.items(), key=lambda item: item[0]):
            # An own write that was folded in after the server made this list is not a lost object.
            if place not in places and object_.metadata.revision <= listed_at:
                self._remove(place)
        uids = {object_.metadata.uid for object_ in listing.items}
        self._gone = {uid: None for uid in self._gone if uid in uids}

    def _put(self, object_: T, *, initial: bool = False) -> None:
        place = _place(object_)
        before = self._objects.get(place)
        if before is not None and before.metadata.revision >= object_.metadata.revision:
            return
        self._objects[place] = object_
        for index in self._indexes.values():
            index.put(place, before, object_)
        self._tell(Change(before, object_, initial))

    def _remove(self, place: Place) -> None:
        before = self._objects.pop(place)
        for index in self._indexes.values():
            index.put(place, before, None)
        self._tell(Change(before, None))

    def _tell(self, change: Change[T]) -> None:
        for handler in list(self._handlers):
            handler(change)


class _Index(Generic[T]):
    def __init__(self, values: Callable[[T], Iterable[str]]) -> None:
        self._values = values
        self.places: dict[str, dict[Place, None]] = {}

    def put(self, place: Place, before: T | None, after: T | None) -> None:
        for value in self._of(before):
            entry = self.places.get(value)
            if entry is not None:
                entry.pop(place, None)
                if not entry:
                    del self.places[value]
        for value in self._of(after):
            self.places.setdefault(value, {})[place] = None

    def _of(self, object_: T | None) -> list[str]:
        """An object whose content cannot be read is not indexed; it must not stop the others."""
        try:
            return [value for value in self._values(object_) if value] if object_ is not None else []
        except msgspec.MsgspecError:
            return []


def _place(object_: KubeObject) -> Place:
    return (object_.metadata.namespace, object_.metadata.name)
