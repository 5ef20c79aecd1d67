"""The state of all planes in memory, changed only through the log. Entry points: `Store.apply`, `Store.watch`.

A write is one plain function: check, append, commit, then publish. Nothing is visible or answered before the log has
committed it. The two halves may run in different threads: `commit` in the one that owns the log, `publish` and all
reads in the other, batch by batch in the order of the commits.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from datum_compute.embedded.storage.log import Log, LogError, Row
from datum_compute.embedded.storage.records import Event, Key, Record, Uids, record_of
from datum_compute.kube.errors import ApiError, Gone, TooLarge
from datum_compute.kube.meta import Json, encode

T = TypeVar("T")

HISTORY = 4096  # events kept per plane and kind; a watch from before them has to list again
HISTORY_BYTES = 64 * 1024 * 1024  # and at most this much of them, where objects are large
RETAINED_ROWS = 10_000  # rows of the log that survive compaction
_LONGEST = 2 * RETAINED_ROWS  # rows after the mark at which compaction starts
_STEP = 1000  # rows compacted at once, so that no write waits long
_LARGEST = 4 * 1024 * 1024  # bytes of an object, however it grew to that size


class _Table:
    """One kind on one plane."""

    def __init__(self, floor: int) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self.history: deque[Event] = deque()
        self._bytes = 0  # of the objects in the history
        self.floor = floor  # the history is complete after this revision
        self.watches: dict[int, Callable[[Event], None]] = {}

    def remember(self, event: Event) -> None:
        place = (event.key.namespace, event.key.name)
        if event.type == "DELETED":
            self.records.pop(place, None)
        else:
            self.records[place] = event.record
        self.history.append(event)
        self._bytes += len(event.record.value)
        while len(self.history) > HISTORY or self._bytes > HISTORY_BYTES:
            self.floor = self._forget_oldest()

    def forget(self, mark: int) -> None:
        while self.history and self.history[0].revision <= mark:
            self._forget_oldest()
        self.floor = max(self.floor, mark)

    def _forget_oldest(self) -> int:
        oldest = self.history.popleft()
        self._bytes -= len(oldest.record.value)
        return oldest.revision

    def records_at(self, revision: int) -> dict[tuple[str, str], Record]:
        """The records as of a past revision, by undoing the events after it."""
        if revision < self.floor:
            raise Gone(f"too old resource version: {revision} ({self.floor})")
        records = dict(self.records)
        for event in reversed(self.history):
            if event.revision <= revision:
                break
            place = (event.key.namespace, event.key.name)
            if event.previous is None:
                records.pop(place, None)
            else:
                records[place] = event.previous
        return records


class Committed(Struct, frozen=True):
    """A committed batch: one outcome per operation, and the events to publish."""

    outcomes: list[Any | ApiError]
    events: list[Event]


class Store:
    def __init__(self, log: Log, uids: Uids) -> None:
        self._log = log
        self.uids = uids
        self.revision = 0  # the newest published one
        self._tables: dict[tuple[str, str], _Table] = {}
        self._listeners: dict[str, list[Callable[[Event], None]]] = {}
        self._watch_ids = 0
        self._compacting = False
        self._floor = log.mark  # for kinds without history
        self._load(log)
        self._committed = _CommittedState(self)

    def _load(self, log: Log) -> None:
        """Raises `LogError`; the log is not changed before all of it has been read."""
        self.revision = log.mark
        for row in log.rows():
            try:
                event = _event(row)
            except msgspec.MsgspecError as error:
                raise LogError(f"{log.path} is damaged: row {row.revision} cannot be read: {error}") from None
            if event.revision != row.revision:
                raise LogError(f"{log.path} is damaged: row {row.revision} holds revision {event.revision}")
            if row.revision > log.mark:
                self._publish(event)
            else:
                self._table(row.plane, row.resource).records[row.namespace, row.name] = event.record
                self.uids.loaded(event.key)
        log.begin()

    def get(self, key: Key) -> Record | None:
        table = self._tables.get((key.plane, key.resource))
        return table.records.get((key.namespace, key.name)) if table else None

    def scan(self, plane: str, resource: str, namespace: str = "", at: int | None = None) -> list[tuple[Key, Record]]:
        """All objects of a kind in order of namespace and name, now or as of a revision."""
        table = self._tables.get((plane, resource))
        if table is None:
            return []
        records = table.records if at is None or at >= self.revision else table.records_at(at)
        return [
            (Key(plane, resource, *place), record)
            for place, record in sorted(records.items(), key=lambda item: item[0])
            if not namespace or place[0] == namespace
        ]

    def records(self, plane: str, resource: str) -> dict[tuple[str, str], Record]:
        """A copy of all objects of a kind by namespace and name; made in one step, so any thread may call it."""
        table = self._tables.get((plane, resource))
        return table.records.copy() if table else {}

    def has_deleted(self, key: Key, uid: str) -> bool:
        """Whether the history contains the deletion of an object with this uid."""
        table = self._tables.get((key.plane, key.resource))
        place = (key.namespace, key.name)
        return table is not None and any(
            event.type == "DELETED"
            and (event.key.namespace, event.key.name) == place
            and event.record.metadata.uid == uid
            for event in reversed(table.history)
        )

    def resources(self, plane: str) -> list[str]:
        return sorted(resource for owner, resource in self._tables if owner == plane)

    def apply(self, batch: Sequence["Operation[Any]"]) -> list[Any | ApiError]:
        """Runs the operations in order, each seeing the effects of the ones before it, and commits them together.

        An operation that raises an `ApiError` changes nothing, and the error is its outcome.
        """
        committed = self.commit(batch)
        self.publish(committed)
        return committed.outcomes

    def commit(self, batch: Sequence["Operation[Any]"]) -> Committed:
        """The first half of `apply`: the log holds the whole batch when this returns, and none of it when this raises.

        Called by one thread at a time.
        """
        transaction = Transaction(self._committed)
        outcomes: list[Any | ApiError] = []
        for operation in batch:
            try:
                outcomes.append(operation(transaction))
                transaction.keep()
            except ApiError as error:
                transaction.discard()
                outcomes.append(error)
        if transaction.events:
            self._log.append([_row(event) for event in transaction.events])
            self._committed.committed(transaction.events)
        return Committed(outcomes, transaction.events)

    def publish(self, committed: Committed) -> None:
        """The second half: makes the batch visible to readers and delivers it to watchers.

        A watcher that fails does not hold up the others; the failures are raised as an `ExceptionGroup` at the end.
        """
        failures: list[Exception] = []
        for event in committed.events:
            failures += self._publish(event)
        if failures:
            raise ExceptionGroup("watchers failed", failures)

    def compact(self) -> int | None:
        """Shortens a log that has grown long by one step; returns the new mark, or None when there was nothing to do.

        Called by the thread that commits; the one that publishes passes the mark to `forget`.
        """
        mark, newest = self._log.mark, self._committed.revision
        if newest - mark <= (RETAINED_ROWS if self._compacting else _LONGEST):
            self._compacting = False
            return None
        self._compacting = True
        up_to = min(mark + _STEP, newest - RETAINED_ROWS)
        dead: list[int] = []
        for row in self._log.rows(mark, up_to):
            current = self._committed.get(Key(row.plane, row.resource, row.namespace, row.name))
            if current is None or current.revision != row.revision:
                dead.append(row.revision)
            if row.previous:
                dead.append(record_of(row.previous).revision)
        self._log.compact(up_to, dead)
        return up_to

    def forget(self, mark: int) -> None:
        """Drops the history up to the mark: watches from before it have to list again, as after a restart."""
        self._floor = mark
        for table in self._tables.values():
            table.forget(mark)

    def watch(self, plane: str, resource: str, after: int, deliver: Callable[[Event], None]) -> Callable[[], None]:
        """Delivers every event after a revision, past ones at once; the returned function ends the watch."""
        table = self._table(plane, resource)
        if after < table.floor:
            raise Gone(f"too old resource version: {after} ({table.floor})")
        for event in table.history:
            if event.revision > after:
                deliver(event)
        self._watch_ids += 1
        watch = self._watch_ids
        # A watch from a future revision, as after a restore, gets nothing before it, as on a kube-apiserver.
        table.watches[watch] = deliver if after <= self.revision else _delivery_after(after, deliver)
        return lambda: table.watches.pop(watch, None) and None

    def listen(self, plane: str, deliver: Callable[[Event], None]) -> None:
        """Delivers every event on a plane from now on, whatever its kind."""
        self._listeners.setdefault(plane, []).append(deliver)

    def leave(self, plane: str) -> None:
        """Removes all listeners of a plane; its objects stay stored."""
        self._listeners.pop(plane, None)

    def _table(self, plane: str, resource: str) -> _Table:
        table = self._tables.get((plane, resource))
        if table is None:
            table = self._tables[plane, resource] = _Table(self._floor)
        return table

    def _publish(self, event: Event) -> list[Exception]:
        """Returns the failures of watchers."""
        table = self._table(event.key.plane, event.key.resource)
        table.remember(event)
        self.revision = event.revision
        if event.type == "ADDED":
            self.uids.loaded(event.key)
        failures: list[Exception] = []
        for deliver in [*table.watches.values(), *self._listeners.get(event.key.plane, ())]:
            try:
                deliver(event)
            except Exception as error:
                failures.append(error)
        return failures


class _CommittedState:
    """The committed state, published or not, as only the committing thread sees it.

    A key without an entry here is published. The publishing thread stores a record before it advances the revision,
    and an entry is dropped only once the revision has passed it, so reading here first and there second never returns
    a stale record.
    """

    def __init__(self, store: Store) -> None:
        self.uids = store.uids
        self.revision = store.revision
        self._store = store
        self._latest: dict[Key, Event] = {}
        self._unpublished: deque[Event] = deque()

    def get(self, key: Key) -> Record | None:
        event = self._latest.get(key)
        if event is not None:
            return None if event.type == "DELETED" else event.record
        return self._store.get(key)

    def records(self, plane: str, resource: str) -> dict[tuple[str, str], Record]:
        records = self._store.records(plane, resource)
        for key, event in self._latest.items():
            if (key.plane, key.resource) == (plane, resource):
                _set(records, key, None if event.type == "DELETED" else event.record)
        return records

    def committed(self, events: Sequence[Event]) -> None:
        published = self._store.revision
        while self._unpublished and self._unpublished[0].revision <= published:
            event = self._unpublished.popleft()
            if self._latest[event.key] is event:
                del self._latest[event.key]
        self._unpublished.extend(events)
        self._latest |= {event.key: event for event in events}
        self.revision = events[-1].revision


class Transaction:
    """The reads and writes of one batch; each operation sees the uncommitted work of those before it."""

    def __init__(self, store: _CommittedState) -> None:
        self._store = store
        self.events: list[Event] = []
        self._checkpoint = 0
        self._rehearsing = False
        self._pending: dict[Key, Record | None] = {}
        self._own: dict[Key, Record | None] = {}

    def get(self, key: Key) -> Record | None:
        for layer in (self._own, self._pending):
            if key in layer:
                return layer[key]
        return self._store.get(key)

    def scan(self, plane: str, resource: str, namespace: str = "") -> list[tuple[Key, Record]]:
        """All objects of a kind in order of namespace and name, with the uncommitted changes."""
        records = self._store.records(plane, resource)
        for layer in (self._pending, self._own):
            for key, record in layer.items():
                if (key.plane, key.resource) == (plane, resource):
                    _set(records, key, record)
        return [
            (Key(plane, resource, *place), record)
            for place, record in sorted(records.items(), key=lambda item: item[0])
            if not namespace or place[0] == namespace
        ]

    def put(self, key: Key, value: Json) -> Record:
        previous = self.get(key)
        record = self._record(value)
        self.events.append(Event("MODIFIED" if previous else "ADDED", key, record, previous))
        self._own[key] = record
        return record

    def delete(self, key: Key) -> Record:
        """Deletes an existing object; returns its last state, at the revision of the deletion."""
        previous = self.get(key)
        assert previous is not None
        record = self._record(previous.object())
        self.events.append(Event("DELETED", key, record, previous))
        self._own[key] = None
        return record

    def new_uid(self, key: Key) -> str:
        before = self.events if key in self._own or key in self._pending else ()
        return self._store.uids.assign(key, sum(event.type == "ADDED" and event.key == key for event in before))

    def keep(self) -> None:
        self._pending |= self._own
        self._own = {}
        self._checkpoint = len(self.events)

    def discard(self) -> None:
        del self.events[self._checkpoint :]
        self._own = {}

    def rehearse(self, operation: "Operation[T]") -> T:
        """The outcome of an operation, errors included, without its effect; records keep the revision they had."""
        self._rehearsing = True
        try:
            return operation(self)
        finally:
            self._rehearsing = False
            self.discard()

    def _record(self, value: Json) -> Record:
        if self._rehearsing:
            return record_of(encode(value))
        revision = self._store.revision + len(self.events) + 1
        encoded = encode(value | {"metadata": value["metadata"] | {"resourceVersion": str(revision)}})
        if len(encoded) > _LARGEST:  # a small patch can make a large object
            raise TooLarge(f"the object would have {len(encoded)} bytes; the limit is {_LARGEST}")
        return record_of(encoded)


Operation = Callable[[Transaction], T]


def _delivery_after(after: int, deliver: Callable[[Event], None]) -> Callable[[Event], None]:
    def deliver_if_later(event: Event) -> None:
        if event.revision > after:
            deliver(event)

    return deliver_if_later


def _set(records: dict[tuple[str, str], Record], key: Key, record: Record | None) -> None:
    if record is None:
        records.pop((key.namespace, key.name), None)
    else:
        records[key.namespace, key.name] = record


def _event(row: Row) -> Event:
    key = Key(row.plane, row.resource, row.namespace, row.name)
    return Event(row.type, key, record_of(row.value), record_of(row.previous) if row.previous else None)


def _row(event: Event) -> Row:
    key, previous = event.key, event.previous.value if event.previous else b""
    return Row(
        event.revision, key.plane, key.resource, key.namespace, key.name, event.type, event.record.value, previous
    )
