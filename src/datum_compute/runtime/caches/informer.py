"""A copy of all objects of one kind on one plane, kept current. Entry point: `Informer`.

A state machine: empty, listing, listed, watching, and unserved for a kind that the plane need not have. A relist
replaces the copy in one step, whatever its revisions say, and synthesises the deletes nobody saw; only own writes that
were answered after it was asked for are kept. Lost events heal by themselves: every copy is compared with the server
every ten minutes, and at once when its stream falls silent.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import Any, Generic, TypeVar

import structlog
from msgspec import Struct

from datum_compute.kube.calls import WatchEvent
from datum_compute.kube.client import Client, Listing, Unreadable
from datum_compute.kube.errors import ApiError, Forbidden, Gone, NotFound, Timeout, Unauthorized, Unavailable
from datum_compute.kube.kinds import Kind, PartialObject
from datum_compute.kube.meta import KubeObject
from datum_compute.kube.versions import is_older
from datum_compute.runtime.caches.failures import Failures
from datum_compute.runtime.caches.index import Index, Place
from datum_compute.runtime.caches.phases import Phase
from datum_compute.runtime.caches.selection import EVERYTHING, Selection

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
    UNSERVED = "unserved"  # the plane does not have this kind now, or does not let us list it, which is fine


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

    An `optional` kind may be missing on the plane: it is then an empty copy, asked for again every few minutes. A
    `best_effort` one is also empty where this process may not list it; that an object is not in it then means nothing.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        generator: random.Random,
        *,
        optional: bool = False,
        best_effort: bool = False,
        selection: Selection = EVERYTHING,
        failures: Failures | None = None,
    ) -> None:
        self.kind = kind
        self.state = State.EMPTY
        self.synced = asyncio.Event()
        self.optional = optional or best_effort
        self.best_effort = best_effort
        self.selection = selection
        self.name = cache_name(kind, selection)
        self.label = f"{kind.name}{self.name.removeprefix(kind.resource)}"  # for metrics: the kind, if that is all
        self.served = True  # as far as is known
        self.last_heard = 0.0  # loop time at which the server last said anything
        self.failures = failures or Failures(client.plane)
        self.rewinds = 0  # lists that were older than what had been seen: the server was restored from a backup
        self._client = client
        self._generator = generator
        self._namespaces: dict[str, dict[str, T]] = {}
        self._indexes: dict[str, Index[T]] = {}
        self._handlers: list[Handler[T]] = []
        self._gone: dict[str, None] = {}  # uids of own deletes that the stream has not confirmed yet
        self._folded: dict[Place, None] = {}  # own writes answered since the last list was asked for
        self._resource_version = ""
        self._relist_at = 0.0
        self._looked_for = asyncio.Event()
        self._on_served: list[Callable[[], None]] = []
        self._selected = {"namespace": selection.namespace, "selector": selection.labels}
        self._doing = Phase.LIST
        self._streaming = False  # the last watch was opened

    # Reading

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

    def index(
        self,
        name: str,
        values: Callable[[T], Iterable[str]],
        crashed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Declares an index; declaring it twice is harmless. Values that are empty are not indexed.

        An object on which the function fails is not indexed either; `crashed` hears of it, once per version.
        """

        def report(error: Exception) -> None:
            self.failures.crashed(self.kind.name, "index", error)
            crashed(error)

        if name not in self._indexes:
            self._indexes[name] = index = Index(values, report)
            for object_ in self.all():
                index.put(_place(object_), None, object_)

    def subscribe(self, handler: Handler[T]) -> Callable[[], None]:
        """Tells of every object there is, then of every change; the returned function ends it."""
        self._handlers.append(handler)
        for object_ in self.all():
            self._call(handler, Change(None, object_, initial=True))
        return lambda: self._handlers.remove(handler)

    def on_served(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Called when the kind is served that was not, be it without an object; the returned function ends it."""
        self._on_served.append(callback)
        return lambda: self._on_served.remove(callback)

    # Own writes: a pass never acts on the past it just changed

    def fold(self, object_: T) -> None:
        """Takes the answer of an own write as if the stream had brought it already."""
        current = self.get(object_.namespace, object_.name)
        known = current is not None and current.metadata.uid == object_.metadata.uid
        if not self.selection.holds(object_.metadata):
            if known and current is not None and not _is_newer(current, object_):
                self._remove(current)  # it is no longer one of those
            return
        # One that is not here, and that the stream has passed already, may have been deleted since.
        ahead = is_older(self._resource_version, object_.metadata.resource_version)
        if self.synced.is_set() and (known or ahead) and object_.metadata.uid not in self._gone:
            self._folded[_place(object_)] = None
            self._put_newer(object_)

    def fold_delete(self, object_: KubeObject) -> None:
        """Takes an own delete that is complete."""
        current = self.get(object_.namespace, object_.name)
        if current is not None and current.metadata.uid == object_.metadata.uid:
            self._gone[object_.metadata.uid] = None
            self._remove(current)

    # Following the server

    def look_again(self) -> None:
        """Asks at once for a kind that was not served, as when all of the plane was refused for a while."""
        if self.state is State.UNSERVED:
            self._looked_for.set()

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
                failed = True
                self._failed(error)
                if error.answered or not isinstance(error, Unavailable | Timeout):
                    self.last_heard = loop.time()
            except Exception as error:
                # A defect, here or in the server: it must cost this cache only, and only until it is gone.
                failed = True
                self.failures.crashed(self.kind.name, self._doing.value, error)
                self.state = State.EMPTY
                self.last_heard = loop.time()  # a restart would not mend it, and would cost all other planes
            # A server that ends every watch at once, however politely, must not be asked in a hot loop.
            short = loop.time() - began < SHORTEST_ROUND
            quick = quick + 1 if short else 0
            if short or failed:
                delay = min(0.1 * 2 ** min(quick, 10), LONGEST_RETRY)
                await asyncio.sleep(delay * self._generator.uniform(0.8, 1.2))

    def _failed(self, error: ApiError) -> None:
        broke_off = self._doing is Phase.WATCH and self._streaming
        if broke_off and not isinstance(error, Unreadable):
            # Streams end in many ways; whether that is an outage is for the next attempt to find out.
            _log.debug("watch broke off", plane=self._client.plane, kind=self.kind.name, error=str(error))
        else:
            self.failures.failed(self.name, self.kind.name, error, self._doing)

    async def _round(self) -> None:
        match self.state:
            case State.EMPTY | State.LISTING:
                await self._list()
            case State.LISTED | State.WATCHING if asyncio.get_running_loop().time() >= self._relist_at:
                await self._compare()
            case State.UNSERVED:
                with suppress(TimeoutError):
                    async with asyncio.timeout(UNSERVED_SECONDS * self._generator.uniform(0.9, 1.1)):
                        await self._looked_for.wait()
                self._looked_for.clear()
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
        self.state, self._doing = State.LISTING, Phase.LIST
        settled = list(self._gone)  # a list that is asked for after an own delete tells whether it happened
        self._folded.clear()
        try:
            listing, listed = await self._client.list(self.kind, **self._selected, limit=PAGE), State.LISTED
        except NotFound:
            if not self.optional:
                raise
            listing, listed = Listing([], ""), State.UNSERVED
        except (Unauthorized, Forbidden) as error:
            # What a cache holds stays the best that is known.
            if not self.best_effort or self.synced.is_set():
                raise
            self.synced.set()
            if isinstance(error, Unauthorized):
                raise
            self.failures.skipped(self.name, self.kind.name, error)
            self.last_heard = asyncio.get_running_loop().time()
            self.served = False
            self.state = State.UNSERVED
            return
        loop = asyncio.get_running_loop()
        self.last_heard = loop.time()
        for uid in settled:
            self._gone.pop(uid, None)
        self._swap(listing, everything=listed is State.UNSERVED)
        self._resource_version = listing.resource_version
        self._relist_at = loop.time() + RELIST_SECONDS * self._generator.uniform(0.9, 1.1)
        self._note_served(listed is State.LISTED)
        self.state = listed
        self.synced.set()
        if listed is State.UNSERVED:
            self.failures.recovered(self.name)

    def _note_served(self, served: bool) -> None:
        if served is self.served:
            return
        self.served = served
        event = "kind is served again" if served else "kind is not served, going on without it"
        _log.info(event, plane=self._client.plane, kind=self.kind.name)
        for callback in list(self._on_served) if served else ():
            try:
                callback()
            except Exception as error:
                self.failures.crashed(self.kind.name, "served", error)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._doing, self._streaming = Phase.WATCH, False
        began_at = self._resource_version
        wanted = min(self._relist_at - loop.time(), self._generator.uniform(*WATCH_SECONDS))
        timeout = max(1, int(wanted))
        try:
            async with (
                asyncio.timeout(STALL_SECONDS) as stall,
                self._client.watch(
                    self.kind, self._resource_version, timeout_seconds=timeout, **self._selected
                ) as events,
            ):
                self.state, self._streaming = State.WATCHING, True
                self.failures.recovered(self.name)
                armed = self.last_heard = loop.time()
                async for event in events:
                    if event.type == "BOOKMARK" and is_older(event.resource_version, began_at):
                        raise Gone("the server is not yet where this watch began: it was restored from a backup")
                    self._take(event)
                    self.last_heard = now = loop.time()
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
                if current is not None and (_same_object(current, object_) or not _is_newer(current, object_)):
                    self._remove(current)
            case WatchEvent(object=object_) if object_ is not None and object_.metadata.uid not in self._gone:
                self._put_newer(object_)
        self._resource_version = event.resource_version or self._resource_version

    def _swap(self, listing: Listing[T], *, everything: bool) -> None:
        """Takes a list for what there is. `everything`: there is nothing, own writes included."""
        initial = not self.synced.is_set()
        listed = {_place(object_): object_ for object_ in listing.items if object_.metadata.uid not in self._gone}
        rewound = not everything and self._is_rewound(listing.resource_version, listed)
        for place, object_ in listed.items():
            before = self.get(*place)
            if before is None:
                self._put(None, object_, initial=initial)
            elif place in self._folded:
                self._put_newer(object_)
            elif not _same_version(before, object_) or (rewound and before != object_):
                self._put(before, object_, initial=initial)
        for object_ in self.all():
            place = _place(object_)
            # An own write that was answered while the server made this list is not a lost object.
            own = place in self._folded and is_older(listing.resource_version, object_.metadata.resource_version)
            if everything or not (own or place in listed):
                self._remove(object_)
        uids = {object_.metadata.uid for object_ in listing.items}
        self._gone = {uid: None for uid in self._gone if uid in uids}

    def _is_rewound(self, version: str, listed: dict[Place, T]) -> bool:
        """Whether a list is older than what was seen. Counted and logged once: the next one is compared with it."""
        rewound = is_older(version, self._resource_version) or any(
            (before := self.get(*place)) is not None and place not in self._folded and _is_newer(before, object_)
            for place, object_ in listed.items()
        )
        if rewound:
            self.rewinds += 1
            _log.warning(
                "the server went back to an earlier state, as when restored from a backup; its list replaces the cache",
                plane=self._client.plane,
                kind=self.kind.name,
                seen=self._resource_version,
                listed=version,
            )
        return rewound

    def _put_newer(self, object_: T) -> None:
        """Takes an object unless what is here is newer; of versions that cannot be compared the later to come wins."""
        before = self.get(object_.namespace, object_.name)
        if before is None or not (_same_version(before, object_) or _is_newer(before, object_)):
            self._put(before, object_)

    def _put(self, before: T | None, object_: T, *, initial: bool = False) -> None:
        self._namespaces.setdefault(object_.namespace, {})[object_.name] = object_
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
            self._call(handler, change)

    def _call(self, handler: Handler[T], change: Change[T]) -> None:
        """A handler that fails has not heard of this change; the cache and the other handlers go on."""
        try:
            handler(change)
        except Exception as error:
            self.failures.crashed(self.kind.name, "handler", error)


def cache_name(kind: Kind[Any], selection: Selection = EVERYTHING) -> str:
    """What tells the caches of a plane apart: the kind, whether only its metadata is kept, and what is selected."""
    whole = kind.resource if kind.type is not PartialObject else f"{kind.resource}, metadata"
    return whole if selection is EVERYTHING else f"{whole}{selection}"


def _place(object_: KubeObject) -> Place:
    return (object_.metadata.namespace, object_.metadata.name)


def _same_object(one: KubeObject, other: KubeObject) -> bool:
    return one.metadata.uid == other.metadata.uid


def _same_version(one: KubeObject, other: KubeObject) -> bool:
    return _same_object(one, other) and one.metadata.resource_version == other.metadata.resource_version


def _is_newer(one: KubeObject, other: KubeObject) -> bool:
    return is_older(other.metadata.resource_version, one.metadata.resource_version)
