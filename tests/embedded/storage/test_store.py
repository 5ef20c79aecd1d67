"""One write after the other: checked, committed, then told."""

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
    """Does all that, then finds that it must not."""

    def operation(transaction: Transaction) -> None:
        for step in before:
            step(transaction)
        raise Conflict("no")

    return operation


def new_store(log: Log | None = None) -> Store:
    return Store(log or Log(), CountedUids())


def applied(store: Store, *operations: Operation[Record]) -> list[Record]:
    """One batch in which nothing fails."""
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


class Told:
    """What a watcher heard."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def heard(self) -> list[tuple[str, str, int]]:
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
    seen: list[int] = []

    def look(transaction: Transaction) -> None:
        record = transaction.get(key("a"))
        seen.append(record.object()["size"] if record else 0)

    store.apply([look, put(key("a"), 1), look, put(key("a"), 2), look, remove(key("a")), look])
    assert seen == [0, 1, 2, 0]
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


def test_a_batch_in_which_all_fails_writes_nothing() -> None:
    log = Log()
    store = new_store(log)
    told = Told()
    store.listen("demo", told)
    store.apply([failing(put(key("a"))), failing()])
    assert (store.revision, list(log.rows()), told.events) == (0, [], [])


def test_what_is_deleted_and_created_in_one_batch_is_told_as_such_and_is_another_object() -> None:
    store = new_store()
    told = Told()
    store.watch("demo", WIDGETS, 0, told)
    first, _, second = applied(store, put(key("a")), remove(key("a")), put(key("a")))
    assert [event.type for event in told.events] == ["ADDED", "DELETED", "ADDED"]
    assert first.metadata.uid != second.metadata.uid


def test_a_delete_leaves_the_last_state_at_the_revision_of_the_delete() -> None:
    store = new_store()
    told = Told()
    store.watch("demo", WIDGETS, 0, told)
    store.apply([put(key("a"), 7)])
    store.apply([remove(key("a"))])
    gone = told.events[-1]
    assert (gone.type, gone.revision, gone.record.object()["size"]) == ("DELETED", 2, 7)
    assert gone.previous is not None
    assert gone.previous.revision == 1


class FailingLog(Log):
    def append(self, rows: Sequence[Row]) -> None:
        raise OSError("disk full")


def test_nothing_is_visible_of_what_the_log_did_not_take() -> None:
    store = new_store(FailingLog())
    told = Told()
    store.watch("demo", WIDGETS, 0, told)
    with pytest.raises(OSError, match="disk full"):
        store.apply([put(key("a"))])
    assert (store.get(key("a")), store.revision, told.events) == (None, 0, [])


def test_watchers_are_told_only_after_the_whole_batch_is_in_the_log() -> None:
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


def test_a_watch_hears_the_past_after_its_revision_and_then_the_present_in_commit_order() -> None:
    store = new_store()
    store.apply([put(key("a")), put(key("b"))])
    told = Told()
    store.watch("demo", WIDGETS, 1, told)
    store.apply([put(key("a")), remove(key("b"))])
    assert told.heard == [("ADDED", "b", 2), ("MODIFIED", "a", 3), ("DELETED", "b", 4)]


def test_a_watch_from_the_future_hears_nothing_before_that() -> None:
    """As after a restore: a real server leaves such a watch in silence until it has passed the revision."""
    store = new_store()
    store.apply([put(key("a"))])
    told = Told()
    store.watch("demo", WIDGETS, 3, told)
    for _ in range(3):
        store.apply([put(key("a"))])
    assert told.heard == [("MODIFIED", "a", 4)]


def test_watches_hear_only_their_plane_and_kind() -> None:
    store = new_store()
    told = Told()
    store.watch("demo", WIDGETS, 0, told)
    store.apply([put(key("a", plane="other")), put(key("a", resource="gadgets")), put(key("a"))])
    assert told.heard == [("ADDED", "a", 3)]


def test_ending_one_watch_leaves_the_other() -> None:
    store = new_store()
    one, other = Told(), Told()
    end = store.watch("demo", WIDGETS, 0, one)
    store.watch("demo", WIDGETS, 0, other)
    store.apply([put(key("a"))])
    end()
    end()
    store.apply([put(key("b"))])
    assert one.heard == [("ADDED", "a", 1)]
    assert other.heard == [("ADDED", "a", 1), ("ADDED", "b", 2)]


def test_a_watch_that_ends_itself_while_it_is_told_does_not_disturb_the_others() -> None:
    store = new_store()
    ends: list[Callable[[], None]] = []
    told = Told()
    ends.append(store.watch("demo", WIDGETS, 0, lambda event: ends[0]()))
    store.watch("demo", WIDGETS, 0, told)
    store.apply([put(key("a")), put(key("b"))])
    assert [name for _, name, _ in told.heard] == ["a", "b"]


def test_history_that_was_dropped_is_gone_and_the_rest_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HISTORY", 3)
    store = new_store()
    store.apply([put(key(name)) for name in "abcde"])
    with pytest.raises(Gone):
        store.watch("demo", WIDGETS, 1, Told())
    told = Told()
    store.watch("demo", WIDGETS, 2, told)
    assert [name for _, name, _ in told.heard] == ["c", "d", "e"]


def test_history_is_bounded_in_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    store.apply([put(key("a"))])
    size = len(store.records("demo", WIDGETS)["default", "a"].value)
    monkeypatch.setattr(module, "HISTORY_BYTES", int(2.5 * size))
    store.apply([put(key(name)) for name in "bcd"])
    with pytest.raises(Gone):
        store.watch("demo", WIDGETS, 1, Told())
    told = Told()
    store.watch("demo", WIDGETS, 2, told)
    assert [name for _, name, _ in told.heard] == ["c", "d"]


def test_a_busy_kind_does_not_push_out_the_history_of_a_quiet_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HISTORY", 3)
    store = new_store()
    store.apply([put(key("quiet", resource="gadgets")), *(put(key(name)) for name in "abcde")])
    told = Told()
    store.watch("demo", "gadgets", 0, told)
    assert told.heard == [("ADDED", "quiet", 1)]


def test_a_listener_hears_every_kind_of_its_plane_from_now_on() -> None:
    store = new_store()
    store.apply([put(key("before"))])
    told = Told()
    store.listen("demo", told)
    store.apply([put(key("a")), put(key("b", resource="gadgets")), put(key("c", plane="other"))])
    assert [name for _, name, _ in told.heard] == ["a", "b"]


# compaction


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is long after ten rows, of which five stay, two a step."""
    for name, value in {"_LONGEST": 10, "RETAINED_ROWS": 5, "_STEP": 2}.items():
        monkeypatch.setattr(module, name, value)


def compacted(store: Store) -> list[int]:
    """Compacts until there is nothing to do; the marks on the way."""
    marks: list[int] = []
    while (mark := store.compact()) is not None:
        store.forget(mark)
        marks.append(mark)
    return marks


@pytest.mark.usefixtures("short")
def test_a_log_is_compacted_when_it_is_long_and_then_down_to_what_is_kept() -> None:
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
def test_below_the_mark_a_watch_and_a_look_at_the_past_are_gone_and_after_it_all_is_there() -> None:
    store = new_store()
    for size in range(11):
        store.apply([put(key("a"), size)])
    compacted(store)
    told = Told()
    for resource in (WIDGETS, "gadgets"):  # also a kind of which there never was anything
        with pytest.raises(Gone):
            store.watch("demo", resource, 5, Told())
    with pytest.raises(Gone):
        store.scan("demo", WIDGETS, at=5)
    store.watch("demo", WIDGETS, 6, told)
    assert [revision for _, _, revision in told.heard] == [7, 8, 9, 10, 11]
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
def test_compaction_at_any_moment_changes_neither_state_nor_what_a_restart_finds(
    batches: list[list[tuple[str, Key, int]]], data: st.DataObject
) -> None:
    log, plain_log = Log(), Log()
    store, plain = new_store(log), new_store(plain_log)
    for batch in batches:
        store.apply([_step(*step) for step in batch])
        plain.apply([_step(*step) for step in batch])
        if data.draw(st.booleans()):
            store.compact()  # and killed before anybody was told
        assert state(store) == state(plain)
    again = new_store(log)
    assert (state(again), again.revision) == (state(plain), plain.revision)
    told, expected = Told(), Told()
    again.watch("demo", WIDGETS, log.mark, told)
    plain.watch("demo", WIDGETS, log.mark, expected)
    assert told.events == expected.events
    assert again.scan("demo", WIDGETS, at=log.mark) == plain.scan("demo", WIDGETS, at=log.mark)


# starting again


def test_a_row_that_cannot_be_read_is_told_and_the_file_left_alone(tmp_path: Path) -> None:
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


def test_a_watch_goes_on_after_a_restart_from_the_revision_it_had() -> None:
    log = Log()
    new_store(log).apply([put(key("a")), put(key("b")), remove(key("a"))])
    told = Told()
    new_store(log).watch("demo", WIDGETS, 1, told)
    assert told.heard == [("ADDED", "b", 2), ("DELETED", "a", 3)]
    assert told.events[-1].previous is not None


def test_counted_uids_depend_only_on_the_name_and_how_often_it_was_used() -> None:
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
def test_the_first_rows_of_a_log_are_exactly_the_state_after_as_many_writes(
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
