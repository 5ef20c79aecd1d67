"""Writes are checked, committed and then published, one after the other."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datum_compute.embedded.storage import store as module
from datum_compute.embedded.storage.log import Log, LogError, Row
from datum_compute.embedded.storage.records import CountedUids, Event, Key, RandomUids, Record
from datum_compute.embedded.storage.store import Operation, Store, Transaction
from datum_compute.kube.errors import Conflict, Gone
from datum_compute.kube.meta import Json
from tests.conftest import count

WIDGETS = "widgets.example.test"


def key(name: str, *, plane: str = "demo", resource: str = WIDGETS, namespace: str = "default") -> Key:
    return Key(plane, resource, namespace, name)


def put(at: Key, size: int = 1) -> Operation[Record]:
    def operation(transaction: Transaction) -> Record:
        uid = transaction.new_uid(at)
        metadata = {"name": at.name, "namespace": at.namespace, "uid": uid}
        return transaction.put(at, {"metadata": metadata, "size": size})

    return operation


def remove(at: Key) -> Operation[Record]:
    return lambda transaction: transaction.delete(at)


def failing(*before: Operation[Any]) -> Operation[None]:
    """Runs the operations, then fails."""

    def operation(transaction: Transaction) -> None:
        for step in before:
            step(transaction)
        raise Conflict("no")

    return operation


def new_store(log: Log | None = None) -> Store:
    return Store(log or Log(), CountedUids())


def applied(store: Store, *operations: Operation[Record]) -> list[Record]:
    """Applies a batch in which nothing fails."""
    records = [outcome for outcome in store.apply(operations) if isinstance(outcome, Record)]
    assert len(records) == len(operations)
    return records


def state(store: Store) -> dict[Key, Json]:
    """Everything stored, on all planes."""
    return {
        at: record.object()
        for plane in ("demo", "other")
        for resource in store.resources(plane)
        for at, record in store.scan(plane, resource)
    }


class Watcher:
    """The events that a watcher got."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def changes(self) -> list[tuple[str, str, int]]:
        return [(event.type, event.key.name, event.revision) for event in self.events]


# apply


def test_a_write_is_stored_with_its_revision() -> None:
    store = new_store()
    (record,) = applied(store, put(key("a")))
    assert record.revision == store.revision == 1
    assert store.get(key("a")) == record
    assert record.object()["metadata"]["resourceVersion"] == "1"


def test_operations_of_a_batch_see_each_other() -> None:
    store = new_store()
    sizes: list[int] = []

    def look(transaction: Transaction) -> None:
        record = transaction.get(key("a"))
        sizes.append(record.object()["size"] if record else 0)

    store.apply([look, put(key("a"), 1), look, put(key("a"), 2), look, remove(key("a")), look])
    assert sizes == [0, 1, 2, 0]
    assert store.get(key("a")) is None


def test_an_operation_that_fails_changes_nothing_and_the_others_commit_together() -> None:
    log = Log()
    store = new_store(log)
    first, error, second = store.apply(
        [put(key("a")), failing(put(key("a"), 9), put(key("b")), remove(key("a"))), put(key("c"))]
    )
    assert isinstance(error, Conflict)
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert (first.revision, second.revision) == (1, 2)
    assert [row.name for row in log.rows()] == ["a", "c"]
    assert {at.name: value["size"] for at, value in state(store).items()} == {"a": 1, "c": 1}


def test_a_batch_of_failures_writes_nothing() -> None:
    log = Log()
    store = new_store(log)
    watcher = Watcher()
    store.listen("demo", watcher)
    store.apply([failing(put(key("a"))), failing()])
    assert (store.revision, list(log.rows()), watcher.events) == (0, [], [])


def test_an_object_deleted_and_created_in_one_batch_has_both_events_and_a_new_uid() -> None:
    store = new_store()
    watcher = Watcher()
    store.watch("demo", WIDGETS, 0, watcher)
    first, _, second = applied(store, put(key("a")), remove(key("a")), put(key("a")))
    assert [event.type for event in watcher.events] == ["ADDED", "DELETED", "ADDED"]
    assert first.metadata.uid != second.metadata.uid


def test_a_deletion_returns_the_last_state_at_its_own_revision() -> None:
    store = new_store()
    watcher = Watcher()
    store.watch("demo", WIDGETS, 0, watcher)
    store.apply([put(key("a"), 7)])
    store.apply([remove(key("a"))])
    gone = watcher.events[-1]
    assert (gone.type, gone.revision, gone.record.object()["size"]) == ("DELETED", 2, 7)
    assert gone.previous is not None
    assert gone.previous.revision == 1


class FailingLog(Log):
    def append(self, rows: Sequence[Row]) -> None:
        raise OSError("disk full")


def test_a_batch_that_the_log_rejects_is_invisible() -> None:
    store = new_store(FailingLog())
    watcher = Watcher()
    store.watch("demo", WIDGETS, 0, watcher)
    with pytest.raises(OSError, match="disk full"):
        store.apply([put(key("a"))])
    assert (store.get(key("a")), store.revision, watcher.events) == (None, 0, [])


def test_watchers_get_events_only_after_the_whole_batch_is_committed() -> None:
    log = Log()
    store = new_store(log)
    committed: list[list[int]] = []
    store.watch("demo", WIDGETS, 0, lambda event: committed.append([row.revision for row in log.rows()]))
    store.apply([put(key("a")), put(key("b"))])
    assert committed == [[1, 2], [1, 2]]


def test_objects_are_listed_by_namespace_and_name_within_their_plane_and_kind() -> None:
    store = new_store()
    places = [key("b"), key("a"), key("z", namespace="alpha"), key("c", plane="other"), key("d", resource="gadgets")]
    store.apply([put(place) for place in places])
    assert [(at.namespace, at.name) for at, _ in store.scan("demo", WIDGETS)] == [
        ("alpha", "z"),
        ("default", "a"),
        ("default", "b"),
    ]
    assert [at.name for at, _ in store.scan("demo", WIDGETS, "default")] == ["a", "b"]
    assert store.resources("demo") == ["gadgets", WIDGETS]


# watch


def test_a_watch_gets_past_and_present_events_in_commit_order() -> None:
    store = new_store()
    store.apply([put(key("a")), put(key("b"))])
    watcher = Watcher()
    store.watch("demo", WIDGETS, 1, watcher)
    store.apply([put(key("a")), remove(key("b"))])
    assert watcher.changes == [("ADDED", "b", 2), ("MODIFIED", "a", 3), ("DELETED", "b", 4)]


def test_a_watch_from_a_future_revision_gets_nothing_before_it() -> None:
    """As after a restore: a real server sends nothing to such a watch until it has passed the revision."""
    store = new_store()
    store.apply([put(key("a"))])
    watcher = Watcher()
    store.watch("demo", WIDGETS, 3, watcher)
    for _ in range(3):
        store.apply([put(key("a"))])
    assert watcher.changes == [("MODIFIED", "a", 4)]


def test_watches_get_only_their_plane_and_kind() -> None:
    store = new_store()
    watcher = Watcher()
    store.watch("demo", WIDGETS, 0, watcher)
    store.apply([put(key("a", plane="other")), put(key("a", resource="gadgets")), put(key("a"))])
    assert watcher.changes == [("ADDED", "a", 3)]


def test_ending_one_watch_leaves_the_other() -> None:
    store = new_store()
    first, second = Watcher(), Watcher()
    end = store.watch("demo", WIDGETS, 0, first)
    store.watch("demo", WIDGETS, 0, second)
    store.apply([put(key("a"))])
    end()
    end()
    store.apply([put(key("b"))])
    assert first.changes == [("ADDED", "a", 1)]
    assert second.changes == [("ADDED", "a", 1), ("ADDED", "b", 2)]


def test_a_watch_that_ends_itself_during_delivery_does_not_disturb_the_others() -> None:
    store = new_store()
    ends: list[Callable[[], None]] = []
    watcher = Watcher()
    ends.append(store.watch("demo", WIDGETS, 0, lambda event: ends[0]()))
    store.watch("demo", WIDGETS, 0, watcher)
    store.apply([put(key("a")), put(key("b"))])
    assert [name for _, name, _ in watcher.changes] == ["a", "b"]


def test_dropped_history_is_gone_and_the_rest_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HISTORY", 3)
    store = new_store()
    store.apply([put(key(name)) for name in "abcde"])
    with pytest.raises(Gone):
        store.watch("demo", WIDGETS, 1, Watcher())
    watcher = Watcher()
    store.watch("demo", WIDGETS, 2, watcher)
    assert [name for _, name, _ in watcher.changes] == ["c", "d", "e"]


def test_history_is_bounded_in_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    store.apply([put(key("a"))])
    size = len(store.records("demo", WIDGETS)["default", "a"].value)
    monkeypatch.setattr(module, "HISTORY_BYTES", int(2.5 * size))
    store.apply([put(key(name)) for name in "bcd"])
    with pytest.raises(Gone):
        store.watch("demo", WIDGETS, 1, Watcher())
    watcher = Watcher()
    store.watch("demo", WIDGETS, 2, watcher)
    assert [name for _, name, _ in watcher.changes] == ["c", "d"]


def test_a_busy_kind_does_not_push_out_the_history_of_a_quiet_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HISTORY", 3)
    store = new_store()
    store.apply([put(key("quiet", resource="gadgets")), *(put(key(name)) for name in "abcde")])
    watcher = Watcher()
    store.watch("demo", "gadgets", 0, watcher)
    assert watcher.changes == [("ADDED", "quiet", 1)]


def test_a_listener_gets_every_later_event_of_its_plane() -> None:
    store = new_store()
    store.apply([put(key("before"))])
    watcher = Watcher()
    store.listen("demo", watcher)
    store.apply([put(key("a")), put(key("b", resource="gadgets")), put(key("c", plane="other"))])
    assert [name for _, name, _ in watcher.changes] == ["a", "b"]


# compaction


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction starts at ten rows, retains five, and removes two per step."""
    for name, value in {"_LONGEST": 10, "RETAINED_ROWS": 5, "_STEP": 2}.items():
        monkeypatch.setattr(module, name, value)


def compacted(store: Store) -> list[int]:
    """Compacts until there is nothing to do; returns the marks."""
    marks: list[int] = []
    while (mark := store.compact()) is not None:
        store.forget(mark)
        marks.append(mark)
    return marks


@pytest.mark.usefixtures("short")
def test_a_long_log_is_compacted_down_to_the_retained_rows() -> None:
    log = Log()
    store = new_store(log)
    for size in range(10):
        store.apply([put(key("a"), size)])
    assert compacted(store) == []
    store.apply([put(key("b"))])
    assert compacted(store) == [2, 4, 6]
    assert [row.revision for row in log.rows()] == [7, 8, 9, 10, 11]
    assert compacted(store) == []


@pytest.mark.usefixtures("short")
def test_watches_and_lists_from_before_the_mark_are_gone() -> None:
    store = new_store()
    for size in range(11):
        store.apply([put(key("a"), size)])
    compacted(store)
    watcher = Watcher()
    for resource in (WIDGETS, "gadgets"):  # also a kind that never had objects
        with pytest.raises(Gone):
            store.watch("demo", resource, 5, Watcher())
    with pytest.raises(Gone):
        store.scan("demo", WIDGETS, at=5)
    store.watch("demo", WIDGETS, 6, watcher)
    assert [revision for _, _, revision in watcher.changes] == [7, 8, 9, 10, 11]
    assert store.scan("demo", WIDGETS, at=6)[0][1].object()["size"] == 5


@pytest.mark.usefixtures("short")
def test_the_log_stays_short_however_much_is_written() -> None:
    log = Log()
    store = new_store(log)
    for size in range(200):
        store.apply([put(key("busy"), size), *([put(key(f"kept-{size}"))] if size % 50 == 0 else [])])
        if (mark := store.compact()) is not None:
            store.forget(mark)
        assert len(list(log.rows())) <= 10 + 3 + 1 + 4
    assert len(store._tables["demo", WIDGETS].history) <= 10 + 3


places = st.builds(key, st.sampled_from("ab"), plane=st.sampled_from(["demo", "other"]))
steps = st.tuples(st.sampled_from(["put", "remove", "fail"]), places, st.integers(0, 3))


@settings(deadline=None, max_examples=count(60, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(steps, min_size=1, max_size=3), min_size=6, max_size=30), data=st.data())
@pytest.mark.usefixtures("short")
def test_compaction_at_any_moment_changes_neither_state_nor_restart(
    batches: list[list[tuple[str, Key, int]]], data: st.DataObject
) -> None:
    log, plain_log = Log(), Log()
    store, plain = new_store(log), new_store(plain_log)
    for batch in batches:
        store.apply([_step(*step) for step in batch])
        plain.apply([_step(*step) for step in batch])
        if data.draw(st.booleans()):
            store.compact()  # and killed before publication
        assert state(store) == state(plain)
    again = new_store(log)
    assert (state(again), again.revision) == (state(plain), plain.revision)
    watcher, expected = Watcher(), Watcher()
    again.watch("demo", WIDGETS, log.mark, watcher)
    plain.watch("demo", WIDGETS, log.mark, expected)
    assert watcher.events == expected.events
    assert again.scan("demo", WIDGETS, at=log.mark) == plain.scan("demo", WIDGETS, at=log.mark)


# starting again


def test_an_unreadable_row_is_reported_and_the_file_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = Log(path)
    log.append([Row(1, "demo", WIDGETS, "default", "a", "ADDED", b'{"metadata":{"resourceVersion":"1"}}', b"")])
    log.append([Row(2, "demo", WIDGETS, "default", "b", "ADDED", b'{"metadata":{"resou', b"")])
    log.close()
    before = path.read_bytes()
    log = Log(path)
    with pytest.raises(LogError, match=r"log\.db is damaged: row 2 cannot be read: "):
        new_store(log)
    log.close()
    assert path.read_bytes() == before


def test_revisions_are_never_used_twice(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.db")
    new_store(log).apply([put(key("a")), put(key("b")), remove(key("a")), remove(key("b"))])
    log.close()

    reopened = Log(tmp_path / "log.db")
    store = new_store(reopened)
    assert (store.revision, state(store)) == (4, {})
    store.apply([put(key("a"))])
    assert store.revision == 5
    reopened.close()


def test_a_watch_resumes_after_a_restart() -> None:
    log = Log()
    new_store(log).apply([put(key("a")), put(key("b")), remove(key("a"))])
    watcher = Watcher()
    new_store(log).watch("demo", WIDGETS, 1, watcher)
    assert watcher.changes == [("ADDED", "b", 2), ("DELETED", "a", 3)]
    assert watcher.events[-1].previous is not None


def test_counted_uids_depend_only_on_the_key_and_its_creations() -> None:
    log = Log()
    first, _ = applied(new_store(log), put(key("a")), remove(key("a")))
    (second,) = applied(new_store(log), put(key("a")))
    assert first.metadata.uid != second.metadata.uid

    undisturbed = new_store()
    again, _, last = applied(undisturbed, put(key("a")), remove(key("a")), put(key("a")))
    assert [again.metadata.uid, last.metadata.uid] == [first.metadata.uid, second.metadata.uid]
    (elsewhere,) = applied(undisturbed, put(key("a", plane="other")))
    assert elsewhere.metadata.uid != first.metadata.uid


def test_random_uids_are_all_different() -> None:
    store = Store(Log(), RandomUids())
    records = applied(store, *(put(key(str(number))) for number in range(20)))
    assert len({record.metadata.uid for record in records}) == 20


@settings(deadline=None, max_examples=count(40, 1000))
@given(batches=st.lists(st.lists(steps, min_size=1, max_size=3), max_size=8))
def test_a_prefix_of_the_log_is_the_state_after_that_many_writes(
    batches: list[list[tuple[str, Key, int]]],
) -> None:
    log = Log()
    store = new_store(log)
    states: list[dict[Key, Json]] = [{}]

    def note(event: Event) -> None:
        states.append(dict(states[-1]) | {event.key: event.record.object()})
        if event.type == "DELETED":
            del states[-1][event.key]

    store.listen("demo", note)
    store.listen("other", note)
    for batch in batches:
        store.apply([_step(*step) for step in batch])
        assert state(store) == states[-1]

    rows = list(log.rows())
    assert [row.revision for row in rows] == list(range(1, len(rows) + 1))
    for k in range(len(rows) + 1):
        part = Log()
        part.append(rows[:k])
        rebuilt = new_store(part)
        assert (rebuilt.revision, state(rebuilt)) == (k, states[k])


def _step(verb: str, at: Key, size: int) -> Operation[Any]:
    def remove_if_there(transaction: Transaction) -> None:
        if transaction.get(at) is not None:
            transaction.delete(at)

    match verb:
        case "put":
            return put(at, size)
        case "remove":
            return remove_if_there
    return failing(put(at, size), remove_if_there)
