"""A cache of all objects of one kind on one plane. Entry point: `Informer`.

A state machine: empty, listing, listed, watching, and unserved for an optional kind. A relist replaces the cache in one
step, whatever its revisions say, and synthesizes the deletes that were missed; only own writes answered since the list
was requested are kept. Lost events heal by themselves: every cache is compared with the server every ten minutes, and
at once when its stream falls silent.
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
from datum_compute.runtime.caches.index import Index, Key
from datum_compute.runtime.caches.phases import Phase
from datum_compute.runtime.caches.selection import EVERYTHING, Selection

T = TypeVar("T", bound=KubeObject)

RELIST_SECONDS = 600.0
RELIST_RETRY_SECONDS = 30.0  # when a relist fails; meanwhile the watch goes on
UNSERVED_SECONDS = 300.0
STALL_SECONDS = 150.0  # two and a half bookmarks
PAGE = 500
WATCH_SECONDS = (240, 480)
SHORTEST_ROUND = 0.5  # a list and watch that ended sooner brought nothing
LONGEST_RETRY = 5.0  # short, because the first answer of a plane restarts everything that waits for it
_REARM_SECONDS = 1.0  # at most this often is the stall timer reset, not for each event

_log = structlog.get_logger(__name__)


class State(Enum):
    EMPTY = "empty"  # nothing is known, or the watch cannot be resumed
    LISTING = "listing"
    LISTED = "listed"  # the cache is complete, and a watch can continue it
    WATCHING = "watching"
    UNSERVED = "unserved"  # the plane does not serve this optional kind, or does not let us list it


class Change(Struct, Generic[T], frozen=True):
    """A change of one object. `before` is None for a new object, `after` for a deleted one."""

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
    """The cache that all controllers of the process share for this kind on this plane. `run` never returns.

    An `optional` kind may be missing on the plane: its cache is then empty, and it is looked for every few minutes. A
    `best_effort` cache is also empty where this process may not list the kind: a missing object may still exist.
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
        self.label = f"{kind.name}{self.name.removeprefix(kind.resource)}"  # in metrics
        self.served = True  # as far as is known
        self.last_heard = 0.0  # loop time at which the server last sent anything
        self.failures = failures or Failures(client.plane)
        self.rewinds = 0  # lists older than the cache: the server was restored from a backup
        self._client = client
        self._generator = generator
        self._namespaces: dict[str, dict[str, T]] = {}
        self._indexes: dict[str, Index[T]] = {}
        self._handlers: list[Handler[T]] = []
        self._gone: dict[str, None] = {}  # uids of own deletes that the watch has not confirmed yet
        self._folded: dict[Key, None] = {}  # own writes answered since the last list was requested
        self._resource_version = ""
        self._relist_at = 0.0
        self._wake = asyncio.Event()  # to look for an unserved kind now
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
        return sorted((object_ for objects in chosen for object_ in objects.values()), key=_key)

    def by(self, index: str, value: str) -> list[T]:
        return [self._namespaces[namespace][name] for namespace, name in self._indexes[index].keys(value)]

    def index(
        self,
        name: str,
        values: Callable[[T], Iterable[str]],
        crashed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Declares an index; declaring it twice is harmless. Empty values are not indexed.

        Nor is an object on which the function fails; `crashed` is called once per version of it.
        """

        def report(error: Exception) -> None:
            self.failures.crashed(self.kind.name, "index", error)
            crashed(error)

        if name not in self._indexes:
            self._indexes[name] = index = Index(values, report)
            for object_ in self.all():
                index.put(_key(object_), None, object_)

    def subscribe(self, handler: Handler[T]) -> Callable[[], None]:
        """Calls the handler for every cached object, then for every change; the returned function unsubscribes."""
        self._handlers.append(handler)
        for object_ in self.all():
            self._call(handler, Change(None, object_, initial=True))
        return lambda: self._handlers.remove(handler)

    def on_served(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when an unserved kind becomes served, even without objects; the returned function unsubscribes."""
        self._on_served.append(callback)
        return lambda: self._on_served.remove(callback)

    # Own writes are visible at once, so that a pass never acts on the state it just changed

    def fold(self, object_: T) -> None:
        """Applies the answer of an own write as if the watch had brought it already."""
        current = self.get(object_.namespace, object_.name)
        known = current is not None and current.metadata.uid == object_.metadata.uid
        if not self.selection.holds(object_.metadata):
            if known and current is not None and not _is_newer(current, object_):
                self._remove(current)  # it is no longer selected
            return
        # An uncached object with a version that the watch has already passed may have been deleted since.
        ahead = is_older(self._resource_version, object_.metadata.resource_version)
        if self.synced.is_set() and (known or ahead) and object_.metadata.uid not in self._gone:
            # An answer older than the cache comes from a server that went back: its list knows better than either.
            if current is None or not _is_newer(current, object_):
                self._folded[_key(object_)] = None
            self._put_newer(object_)

    def fold_delete(self, object_: KubeObject) -> None:
        """Applies an own delete that is complete."""
        current = self.get(object_.namespace, object_.name)
        if current is not None and current.metadata.uid == object_.metadata.uid:
            self._gone[object_.metadata.uid] = None
            self._remove(current)

    # Following the server

    def look_again(self) -> None:
        """Looks for an unserved kind now, for example after the whole plane had refused calls for a while."""
        if self.state is State.UNSERVED:
            self._wake.set()

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
                # Whatever it is, refused credentials included, may be fixed from outside: never give up.
                failed = True
                self._failed(error)
                if error.answered or not isinstance(error, Unavailable | Timeout):
                    self.last_heard = loop.time()
                elif self._doing is Phase.WATCH and not self._streaming:
                    # The server is away. If it returns restored from a backup, it keeps this watch silent for minutes.
                    self._relist_at = loop.time()
            except Exception as error:
                # A defect, here or in the server, must only affect this cache.
                failed = True
                self.failures.crashed(self.kind.name, self._doing.value, error)
                self.state = State.EMPTY
                self.last_heard = loop.time()  # a restart would not help, and would affect all other planes
            # A server that ends every watch at once must not be called in a hot loop.
            short = loop.time() - began < SHORTEST_ROUND
            quick = quick + 1 if short else 0
            if short or failed:
                delay = min(0.1 * 2 ** min(quick, 10), LONGEST_RETRY)
                await asyncio.sleep(delay * self._generator.uniform(0.8, 1.2))

    def _failed(self, error: ApiError) -> None:
        was_open = self._doing is Phase.WATCH and self._streaming
        if was_open and not isinstance(error, Unreadable):
            # Watches end in many ways; the next attempt shows whether it is an outage.
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
                        await self._wake.wait()
                self._wake.clear()
                await self._list()
        if self.state is State.LISTED:
            await self._watch()

    async def _compare(self) -> None:
        """Lists to find what the watch has missed. When that fails, the watch goes on."""
        try:
            await self._list()
        except ApiError:
            self.state = State.LISTED
            self._relist_at = asyncio.get_running_loop().time() + RELIST_RETRY_SECONDS
            raise

    async def _list(self) -> None:
        self.state, self._doing = State.LISTING, Phase.LIST
        settled = list(self._gone)  # a list requested after an own delete shows whether it happened
        self._folded.clear()
        try:
            listing, listed = await self._client.list(self.kind, **self._selected, limit=PAGE), State.LISTED
        except NotFound:
            if not self.optional:
                raise
            listing, listed = Listing([], ""), State.UNSERVED
        except (Unauthorized, Forbidden) as error:
            # The content of a cache that was filled before stays the best that is known.
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
        seconds = min(self._relist_at - loop.time(), self._generator.uniform(*WATCH_SECONDS))
        timeout = max(1, int(seconds))
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
                        raise Gone("the server is behind the start of this watch: it was restored from a backup")
                    self._take(event)
                    self.last_heard = now = loop.time()
                    if now - armed >= _REARM_SECONDS:
                        stall.reschedule(now + STALL_SECONDS)
                        armed = now
                    if now >= self._relist_at:
                        return  # also when the server does not end the watch as requested
        except NotFound:
            self.state = State.EMPTY  # the kind may be gone, which only a list shows
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
        """Replaces the cache by a list. With `everything`, own writes are dropped as well."""
        initial = not self.synced.is_set()
        listed = {_key(object_): object_ for object_ in listing.items if object_.metadata.uid not in self._gone}
        rewound = not everything and self._is_rewound(listing.resource_version, listed)
        for key, object_ in listed.items():
            before = self.get(*key)
            if before is None:
                self._put(None, object_, initial=initial)
            elif key in self._folded:
                self._put_newer(object_)
            elif not _same_version(before, object_) or (rewound and before != object_):
                self._put(before, object_, initial=initial)
        for object_ in self.all():
            key = _key(object_)
            # An own write that was answered while the server made this list is not a deleted object.
            own = key in self._folded and is_older(listing.resource_version, object_.metadata.resource_version)
            if everything or not (own or key in listed):
                self._remove(object_)
        uids = {object_.metadata.uid for object_ in listing.items}
        self._gone = {uid: None for uid in self._gone if uid in uids}

    def _is_rewound(self, version: str, listed: dict[Key, T]) -> bool:
        """Whether a list is older than the cache. Counted and logged once: the next list is compared with this one."""
        rewound = is_older(version, self._resource_version) or any(
            (before := self.get(*key)) is not None and key not in self._folded and _is_newer(before, object_)
            for key, object_ in listed.items()
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
        """Caches an object unless the cached one is newer; if versions cannot be compared, the last to arrive wins."""
        before = self.get(object_.namespace, object_.name)
        if before is None or not (_same_version(before, object_) or _is_newer(before, object_)):
            self._put(before, object_)

    def _put(self, before: T | None, object_: T, *, initial: bool = False) -> None:
        self._namespaces.setdefault(object_.namespace, {})[object_.name] = object_
        for index in self._indexes.values():
            index.put(_key(object_), before, object_)
        self._tell(Change(before, object_, initial))

    def _remove(self, before: T) -> None:
        objects = self._namespaces[before.namespace]
        del objects[before.name]
        if not objects:
            del self._namespaces[before.namespace]
        for index in self._indexes.values():
            index.put(_key(before), before, None)
        self._tell(Change(before, None))

    def _tell(self, change: Change[T]) -> None:
        for handler in list(self._handlers):
            self._call(handler, change)

    def _call(self, handler: Handler[T], change: Change[T]) -> None:
        """A handler that fails misses this change; the cache and the other handlers go on."""
        try:
            handler(change)
        except Exception as error:
            self.failures.crashed(self.kind.name, "handler", error)


def cache_name(kind: Kind[Any], selection: Selection = EVERYTHING) -> str:
    """Identifies a cache of a plane: the kind, whether only metadata is cached, and the selection."""
    resource = kind.resource if kind.type is not PartialObject else f"{kind.resource}, metadata"
    return resource if selection is EVERYTHING else f"{resource}{selection}"


def _key(object_: KubeObject) -> Key:
    return (object_.metadata.namespace, object_.metadata.name)


def _same_object(left: KubeObject, right: KubeObject) -> bool:
    return left.metadata.uid == right.metadata.uid


def _same_version(left: KubeObject, right: KubeObject) -> bool:
    return _same_object(left, right) and left.metadata.resource_version == right.metadata.resource_version


def _is_newer(object_: KubeObject, other: KubeObject) -> bool:
    return is_older(other.metadata.resource_version, object_.metadata.resource_version)
