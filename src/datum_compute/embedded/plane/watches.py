"""What a watcher wants to see, and the events on their way to it. Entry points: `Selection`, `Watch`."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator

from msgspec import Struct

from datum_compute.embedded.kinds.served import Served
from datum_compute.embedded.storage.records import Event, Key, Record, record_of
from datum_compute.kube.errors import Gone
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.selectors import FieldSelector, LabelSelector

_BACKLOG = 10_000  # events beside its first list; a watcher that far behind is cut off and lists again


class Selection(Struct, frozen=True):
    namespace: str
    labels: LabelSelector
    fields: FieldSelector

    def has(self, key: Key, record: Record) -> bool:
        return (
            (not self.namespace or key.namespace == self.namespace)
            and (not self.labels.requirements or self.labels.matches(record.metadata.labels))
            and (not self.fields.terms or self._has_fields(key, record))
        )

    def _has_fields(self, key: Key, record: Record) -> bool:
        return self.fields.matches(key.namespace, key.name, record.object() if self.fields.needs_object else None)


class Watch:
    """The events on their way to one watcher, a line each; watchers share the objects until they are sent."""

    def __init__(self, served: Served, selection: Selection, *, bookmarks: bool) -> None:
        self.served = served
        self._selection = selection
        self._bookmarks = bookmarks
        self._events: deque[tuple[str, bytes]] = deque()
        self._listed = 0
        self._over = False
        self._awaited: asyncio.Future[None] | None = None

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> bytes:
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            self._awaited = asyncio.get_running_loop().create_future()
            await self._awaited
        return _line(*self._events.popleft())

    def ready(self, size: int) -> Iterator[bytes]:
        """The lines that can be had without waiting, until they come to `size` bytes."""
        while self._events and size > 0:
            line = _line(*self._events.popleft())
            size -= len(line)
            yield line

    def first(self, listed: Iterable[tuple[Key, Record]]) -> None:
        """What there is to begin with, however much it is."""
        self._events.extend(("ADDED", record.value) for key, record in listed if self._selection.has(key, record))
        self._listed = len(self._events)

    def deliver(self, event: Event) -> None:
        if len(self._events) >= self._listed + _BACKLOG:
            self._put("ERROR", encode(Gone("the watcher is too far behind; list again").status()))
            self.end()
            return
        now = event.type != "DELETED" and self._selection.has(event.key, event.record)
        before = event.previous is not None and self._selection.has(event.key, event.previous)
        if now:
            self._put("MODIFIED" if before else "ADDED", event.record.value)
        elif before:
            self._put("DELETED", _last(event).value)

    def bookmark(self, revision: int, annotations: Json | None = None) -> None:
        if self._bookmarks:
            head = {"kind": self.served.kind, "apiVersion": self.served.api_version}
            said = {"annotations": annotations} if annotations else {}
            self._put("BOOKMARK", encode(head | {"metadata": {"resourceVersion": str(revision), **said}}))

    def end(self) -> None:
        """What is on its way is still sent."""
        self._over = True
        self._wake()

    def _put(self, type_: str, value: bytes) -> None:
        if not self._over:
            self._events.append((type_, value))
            self._wake()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)


def _last(event: Event) -> Record:
    """What a watch tells of an object that is gone or no longer selected: its last state there, at this revision."""
    if event.type == "DELETED" or event.previous is None:
        return event.record
    value = event.previous.object()
    value["metadata"]["resourceVersion"] = event.record.metadata.resource_version
    return record_of(encode(value))


def _line(type_: str, value: bytes) -> bytes:
    return b'{"type":"%s","object":%s}' % (type_.encode(), value)
