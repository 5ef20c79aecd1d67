"""The events on their way to a watcher, and its selection. Entry points: `Selection`, `Watch`."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator

from msgspec import Struct

from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.storage.records import Event, Key, Record, record_of
from datum_compute.kube.errors import Gone
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.selectors import FieldSelector, LabelSelector

_BACKLOG = 10_000  # events besides the initial list; a watcher further behind has to list again


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
    """The events on their way to one watcher, one per line; watchers share the objects until they are sent."""

    def __init__(self, served: ServedKind, selection: Selection, *, bookmarks: bool) -> None:
        self.served = served
        self._selection = selection
        self._bookmarks = bookmarks
        self._events: deque[tuple[str, bytes]] = deque()
        self._initial = 0  # length of the initial list
        self._ended = False
        self._awaited: asyncio.Future[None] | None = None

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> bytes:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._awaited = asyncio.get_running_loop().create_future()
            await self._awaited
        return _line(*self._events.popleft())

    def ready(self, size: int) -> Iterator[bytes]:
        """The lines that are available without waiting, up to about `size` bytes."""
        while self._events and size > 0:
            line = _line(*self._events.popleft())
            size -= len(line)
            yield line

    def start(self, objects: Iterable[tuple[Key, Record]]) -> None:
        """Delivers the initial list, whatever its length."""
        self._events.extend(("ADDED", record.value) for key, record in objects if self._selection.has(key, record))
        self._initial = len(self._events)

    def deliver(self, event: Event) -> None:
        if len(self._events) >= self._initial + _BACKLOG:
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
            metadata = {"resourceVersion": str(revision)} | ({"annotations": annotations} if annotations else {})
            self._put("BOOKMARK", encode(head | {"metadata": metadata}))

    def end(self) -> None:
        """Ends the watch once the events on their way have been sent."""
        self._ended = True
        self._wake()

    def _put(self, type_: str, value: bytes) -> None:
        if not self._ended:
            self._events.append((type_, value))
            self._wake()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)


def _last(event: Event) -> Record:
    """An object that was deleted or left the selection: its last state in there, at the revision of the event."""
    if event.type == "DELETED" or event.previous is None:
        return event.record
    value = event.previous.object()
    value["metadata"]["resourceVersion"] = event.record.metadata.resource_version
    return record_of(encode(value))


def _line(type_: str, value: bytes) -> bytes:
    return b'{"type":"%s","object":%s}' % (type_.encode(), value)
