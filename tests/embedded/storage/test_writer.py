"""Group commit in a thread: acknowledged writes are in the log, and readers see whole commits in order."""

import asyncio
import random
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.embedded.engine import Engine
from datum_compute.embedded.storage import store as store_module
from datum_compute.embedded.storage.log import Log, Row
from datum_compute.embedded.storage.records import CountedUids, Event, Key, RandomUids, Record
from datum_compute.embedded.storage.store import Committed, Operation, Store, Transaction
from datum_compute.embedded.storage.writer import WriterFailed, WriterThread
from datum_compute.federation.roles import CELL
from datum_compute.kube.errors import ApiError, Conflict, NotFound, ServerError, Unavailable
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.transport import Call
from datum_compute.local.engine import compute_engine
from tests.conftest import count

WIDGETS = "widgets.example.test"


def key(name: str) -> Key:
    return Key("demo", WIDGETS, "default", name)


def put(name: str, size: int = 1) -> Operation[Record]:
    value = {"metadata": {"name": name, "namespace": "default"}, "size": size}
    return lambda transaction: transaction.put(key(name), value)


def grow(name: str) -> Operation[int]:
    """Increments a counter: loses an update if it does not see everything that is committed."""

    def operation(transaction: Transaction) -> int:
        record = transaction.get(key(name))
        size = (record.object()["size"] if record else 0) + 1
        put(name, size)(transaction)
        return size

    return operation


def remove(name: str) -> Operation[Record]:
    def operation(transaction: Transaction) -> Record:
        if transaction.get(key(name)) is None:
            raise NotFound(name)
        return transaction.delete(key(name))

    return operation


class Gate(Log):
    """Blocks every commit until it is let through, and counts the rows of each."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self.open = threading.Event()
        self.reached = threading.Event()
        self.commits: list[int] = []

    def append(self, rows: Sequence[Row]) -> None:
        self.reached.set()
        self.open.wait()
        super().append(rows)
        self.commits.append(len(rows))


async def while_committing(gate: Gate, *, first: Operation[Any], then: Sequence[Operation[Any]]) -> list[Any]:
    """Submits `then` while `first` is being committed, so that all of it is committed next; returns all outcomes."""
    writer = WriterThread(Store(gate, RandomUids()))
    tasks = [asyncio.create_task(writer.submit(first))]
    await asyncio.to_thread(gate.reached.wait)
    tasks += [asyncio.create_task(writer.submit(operation)) for operation in then]
    await asyncio.sleep(0)
    gate.open.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    writer.close()
    return outcomes


# What is acknowledged


def test_every_acknowledged_write_is_in_the_log_in_the_order_of_its_revision(tmp_path: Path) -> None:
    acknowledged: list[Record] = []

    async def write(writer: WriterThread, number: int) -> None:
        for step in range(20):
            acknowledged.append(await writer.submit(put(f"{number}-{step % 3}", step)))

    async def scenario() -> None:
        log = Log(tmp_path / "log.db")
        writer = WriterThread(Store(log, RandomUids()))
        await asyncio.gather(*(write(writer, number) for number in range(50)))
        writer.close()
        log.close()

    asyncio.run(scenario())
    reopened = Log(tmp_path / "log.db")
    rows = list(reopened.rows())
    reopened.close()
    assert [row.revision for row in rows] == list(range(1, 1001))
    by_revision = {record.revision: record.value for record in acknowledged}
    assert by_revision == {row.revision: row.value for row in rows}


def test_a_write_sees_everything_committed_before_it() -> None:
    async def scenario() -> list[int]:
        writer = WriterThread(Store(Log(), RandomUids()))
        sizes = await asyncio.gather(*(writer.submit(grow("a")) for _ in range(500)))
        writer.close()
        return sizes

    assert asyncio.run(scenario()) == list(range(1, 501))


def test_writes_queued_during_a_commit_are_committed_together() -> None:
    gate = Gate()
    asyncio.run(while_committing(gate, first=put("a"), then=[put(f"b{number}") for number in range(100)]))
    assert gate.commits == [1, 100]


def test_nothing_is_visible_or_answered_before_the_commit() -> None:
    gate = Gate()
    store = Store(gate, RandomUids())
    events: list[Event] = []
    store.watch("demo", WIDGETS, 0, events.append)

    async def scenario() -> None:
        writer = WriterThread(store)
        task = asyncio.create_task(writer.submit(put("a")))
        await asyncio.to_thread(gate.reached.wait)
        assert (store.get(key("a")), store.scan("demo", WIDGETS), store.revision, events) == (None, [], 0, [])
        assert not task.done()
        gate.open.set()
        record = await task
        assert (store.get(key("a")), store.revision) == (record, 1)
        assert [event.record for event in events] == [record]
        writer.close()

    asyncio.run(scenario())


def test_events_and_answers_are_delivered_on_the_thread_of_the_loop() -> None:
    store = Store(Log(), RandomUids())
    threads: set[int] = set()
    store.watch("demo", WIDGETS, 0, lambda event: threads.add(threading.get_ident()))

    async def scenario() -> None:
        writer = WriterThread(store)
        await asyncio.gather(*(writer.submit(put(str(number))) for number in range(50)))
        writer.close()

    asyncio.run(scenario())
    assert threads == {threading.get_ident()}


# Failures


def test_a_refused_operation_does_not_affect_the_others() -> None:
    gate = Gate()
    outcomes = asyncio.run(while_committing(gate, first=put("a"), then=[put("b"), remove("nobody"), put("c")]))
    assert [type(outcome) for outcome in outcomes] == [Record, Record, NotFound, Record]
    assert gate.commits == [1, 2]


def test_a_crashing_operation_does_not_affect_the_others() -> None:
    gate = Gate()

    def crash(transaction: Transaction) -> None:
        put("half")(transaction)
        raise ZeroDivisionError("a defect")

    outcomes = asyncio.run(while_committing(gate, first=put("a"), then=[put("b"), crash, grow("b"), put("c")]))
    assert [type(outcome) for outcome in outcomes] == [Record, Record, ZeroDivisionError, int, Record]
    assert [(row.name, row.revision) for row in gate.rows()] == [("a", 1), ("b", 2), ("b", 3), ("c", 4)]


class FullDisk(Log):
    full = False

    def append(self, rows: Sequence[Row]) -> None:
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        super().append(rows)


def test_a_write_that_the_log_rejects_is_an_error_and_leaves_nothing() -> None:
    log = FullDisk()
    store = Store(log, RandomUids())

    async def scenario() -> None:
        writer = WriterThread(store)
        await writer.submit(put("a"))
        log.full = True
        failed = await asyncio.gather(*(writer.submit(grow("b")) for _ in range(5)), return_exceptions=True)
        assert [type(error) for error in failed] == [ServerError] * 5
        assert "disk is full" in str(failed[0])
        log.full = False
        assert await writer.submit(grow("b")) == 1
        writer.close()

    asyncio.run(scenario())
    assert [(row.name, row.revision) for row in log.rows()] == [("a", 1), ("b", 2)]
    assert [at.name for at, _ in store.scan("demo", WIDGETS)] == ["a", "b"]


def test_a_crashing_watcher_does_not_hold_up_the_answer() -> None:
    store = Store(Log(), RandomUids())
    failures: list[Any] = []

    def crash(event: Event) -> None:
        raise ZeroDivisionError("a defect")

    store.watch("demo", WIDGETS, 0, crash)

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))
        writer = WriterThread(store)
        await writer.submit(put("a"))
        writer.close()

    asyncio.run(scenario())
    assert [type(error) for failure in failures for error in failure.exceptions] == [ZeroDivisionError]
    assert store.get(key("a")) is not None


def test_a_crashing_listener_leaves_no_batch_half_published() -> None:
    gate = Gate()
    store = Store(gate, RandomUids())
    names: list[str] = []
    failures: list[Any] = []

    def crash(event: Event) -> None:
        if event.key.name == "b":
            raise ZeroDivisionError("a defect")

    store.listen("demo", crash)
    store.watch("demo", WIDGETS, 0, crash)
    store.listen("demo", lambda event: names.append(event.key.name))

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))
        writer = WriterThread(store)
        tasks = [asyncio.create_task(writer.submit(put("a")))]
        await asyncio.to_thread(gate.reached.wait)
        tasks += [asyncio.create_task(writer.submit(put(name))) for name in "bcd"]  # one batch
        await asyncio.sleep(0)
        gate.open.set()
        assert len(await asyncio.gather(*tasks)) == 4
        writer.close()

    asyncio.run(scenario())
    assert gate.commits == [1, 3]
    assert names == ["a", "b", "c", "d"]
    assert [at.name for at, _ in store.scan("demo", WIDGETS)] == ["a", "b", "c", "d"]
    assert store.revision == 4
    (failure,) = failures
    assert [type(error) for error in failure.exceptions] == [ZeroDivisionError] * 2, "and nobody is left in the dark"


class OddCompaction(Log):
    def compact(self, mark: int, dead: Iterable[int]) -> None:
        raise KeyError("odd")


def test_a_log_that_cannot_be_compacted_is_still_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_LONGEST", 2)
    monkeypatch.setattr(store_module, "RETAINED_ROWS", 1)
    log = OddCompaction()

    async def scenario() -> None:
        writer = WriterThread(Store(log, RandomUids()))
        async with asyncio.timeout(30):
            for number in range(10):
                await writer.submit(put(str(number)))
        writer.close()

    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())
    assert len(list(log.rows())) == 10
    assert [(line["event"], line["log_level"]) for line in lines] == [("the log cannot be compacted", "error")]


class Lying(Log):
    """Reports failure after writing, as a disk that fails at the wrong moment may."""

    lies = 0

    def append(self, rows: Sequence[Row]) -> None:
        super().append(rows)
        if self.lies:
            self.lies -= 1
            raise sqlite3.OperationalError("disk I/O error")


def test_a_failed_writer_ends_the_engine_with_its_reason() -> None:
    log = Lying()

    async def scenario() -> None:
        engine = compute_engine(log, writer=WriterThread)
        engine.serve("cell-dfw", CELL)
        running = asyncio.create_task(engine.run())
        client = engine.client("cell-dfw")
        await client.create(NAMESPACE, NAMESPACE.body("one"))
        log.lies = 1
        with pytest.raises(ServerError, match="disk I/O error"):
            await client.create(NAMESPACE, NAMESPACE.body("two"))
        later = [asyncio.create_task(client.create(NAMESPACE, NAMESPACE.body(name))) for name in ("three", "four")]
        async with asyncio.timeout(30):
            for error in await asyncio.gather(*later, return_exceptions=True):
                assert isinstance(error, ServerError)
                assert "no further change can be stored" in str(error)
            with pytest.raises(ServerError, match="no further change can be stored"):
                await client.create(NAMESPACE, NAMESPACE.body("five"))
            with pytest.raises(ExceptionGroup) as ended:
                await running
        assert ended.group_contains(WriterFailed, match="no further change can be stored: UNIQUE constraint failed")
        engine.close()

    asyncio.run(scenario())
    assert writer_threads() == []


def test_a_cancelled_caller_gets_no_answer_but_the_write_happens() -> None:
    gate = Gate()

    async def scenario() -> None:
        writer = WriterThread(Store(gate, RandomUids()))
        task = asyncio.create_task(writer.submit(put("a")))
        await asyncio.to_thread(gate.reached.wait)
        task.cancel()
        gate.open.set()
        await writer.submit(put("b"))
        assert task.cancelled()
        writer.close()

    asyncio.run(scenario())
    assert [row.name for row in gate.rows()] == ["a", "b"]


# The end


def writer_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "embedded-writer"]


def test_closing_completes_submitted_writes_and_refuses_later_ones() -> None:
    log = Log()

    async def scenario() -> None:
        writer = WriterThread(Store(log, RandomUids()))
        tasks = [asyncio.create_task(writer.submit(put(str(number)))) for number in range(20)]
        await asyncio.sleep(0)
        writer.close()
        assert writer_threads() == []
        assert len(list(log.rows())) == 20
        assert len(await asyncio.gather(*tasks)) == 20
        with pytest.raises(Unavailable, match="stopping"):
            await writer.submit(put("late"))
        writer.close()

    asyncio.run(scenario())


def test_closing_works_after_the_loop_has_ended() -> None:
    gate = Gate()
    writer = WriterThread(Store(gate, RandomUids()))

    async def scenario() -> None:
        task = asyncio.create_task(writer.submit(put("a")))
        await asyncio.to_thread(gate.reached.wait)
        task.cancel()

    asyncio.run(scenario())
    gate.open.set()
    writer.close()
    assert writer_threads() == []
    assert [row.name for row in gate.rows()] == ["a"]


def test_a_writer_that_was_never_used_has_no_thread() -> None:
    writer = WriterThread(Store(Log(), RandomUids()))
    assert writer_threads() == []
    writer.close()


# Between commit and publication


def test_a_watch_started_between_commit_and_publication_gets_each_event_once() -> None:
    store = Store(Log(), RandomUids())
    store.apply([put("a")])
    committed = store.commit([put("b"), put("a")])
    revisions: list[int] = []
    store.watch("demo", WIDGETS, store.revision, lambda event: revisions.append(event.revision))
    assert (store.revision, revisions) == (1, [])
    store.publish(committed)
    assert (store.revision, revisions) == (3, [2, 3])


names = st.sampled_from("ab")
steps = st.one_of(names.map(grow), names.map(remove), names.map(lambda name: put(name, 5)))


@settings(deadline=None, max_examples=count(60, 2000))
@given(batches=st.lists(st.lists(steps, min_size=1, max_size=3), max_size=10), lag=st.randoms())
def test_publishing_late_changes_neither_outcomes_nor_log(
    batches: list[list[Operation[Any]]], lag: random.Random
) -> None:
    inline, late = Store(Log(), CountedUids()), Store(Log(), CountedUids())
    waiting: deque[Committed] = deque()
    for batch in batches:
        while waiting and lag.random() < 0.5:
            late.publish(waiting.popleft())
        expected = inline.apply(batch)
        committed = late.commit(batch)
        waiting.append(committed)
        assert [_seen(outcome) for outcome in committed.outcomes] == [_seen(outcome) for outcome in expected]
        scanned = late.commit([lambda transaction: transaction.scan("demo", WIDGETS)]).outcomes[0]
        assert scanned == inline.scan("demo", WIDGETS)
    while waiting:
        late.publish(waiting.popleft())
    assert late.scan("demo", WIDGETS) == inline.scan("demo", WIDGETS)
    assert list(late._log.rows()) == list(inline._log.rows())


def _seen(outcome: Any) -> Any:
    return type(outcome) if isinstance(outcome, ApiError) else outcome


# All together


def test_list_and_watch_agree_while_many_write(tmp_path: Path) -> None:
    """Listing at any moment and watching from there leads to the final state, with each change delivered once."""

    async def write(engine: Engine, generator: random.Random) -> None:
        client = engine.client("cell")
        for _ in range(40):
            name = f"n{generator.randrange(8)}"
            try:
                await client.create(NAMESPACE, NAMESPACE.body(name, labels={"at": str(generator.random())[:8]}))
            except ApiError:
                patch = {"metadata": {"labels": {"at": str(generator.random())[:8]}}}
                await client.merge_patch(NAMESPACE, name, "", patch)

    async def follow(engine: Engine, until: Callable[[], bool]) -> dict[str, Any]:
        server = engine.plane("cell")
        assert server is not None
        listed = msgspec.json.decode((await server.answer(Call("GET", "/api/v1/namespaces"))).body)
        state = {item["metadata"]["name"]: item for item in listed["items"]}
        last = int(listed["metadata"]["resourceVersion"])
        assert all(int(item["metadata"]["resourceVersion"]) <= last for item in state.values())
        query = {"watch": "true", "resourceVersion": str(last)}
        async with server.watch(Call("GET", "/api/v1/namespaces", query)) as lines:
            async for line in lines:
                event = msgspec.json.decode(line)
                revision = int(event["object"]["metadata"]["resourceVersion"])
                assert revision == last + 1  # nothing else is written: none missed, none repeated
                last = revision
                state[event["object"]["metadata"]["name"]] = event["object"]
                if until():
                    break
        return state

    async def scenario() -> None:
        engine = compute_engine(Log(tmp_path / "log.db"), writer=WriterThread)
        engine.serve("cell", CELL)
        done = False
        writers = [asyncio.create_task(write(engine, random.Random(seed))) for seed in range(16)]
        followers: list[asyncio.Task[dict[str, Any]]] = []
        while not all(task.done() for task in writers):
            if len(followers) < 30:
                followers.append(asyncio.create_task(follow(engine, lambda: done)))
            await asyncio.sleep(0)
        await asyncio.gather(*writers)
        done = True
        await engine.client("cell").create(NAMESPACE, NAMESPACE.body("last"))  # lets every follower see the end
        states = await asyncio.gather(*followers)
        server = engine.plane("cell")
        assert server is not None
        final = msgspec.json.decode((await server.answer(Call("GET", "/api/v1/namespaces"))).body)
        expected = {item["metadata"]["name"]: item for item in final["items"]}
        assert followers
        assert all(state == expected for state in states)
        engine.close()

    asyncio.run(scenario())


def test_an_operation_that_raises_a_conflict_raises_it_for_its_caller() -> None:
    def conflict(transaction: Transaction) -> None:
        raise Conflict("no")

    async def scenario() -> None:
        engine = compute_engine(writer=WriterThread)
        with pytest.raises(Conflict):
            await engine.submit(conflict)
        engine.close()

    asyncio.run(scenario())
