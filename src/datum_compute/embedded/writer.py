"""Who calls `Store.commit`: the event loop itself, or a thread with group commit. Entry points: `InlineWriter`,
`WriterThread`.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

import structlog
from msgspec import Struct

from datum_compute.embedded.store import Committed, Operation, Store
from datum_compute.kube.errors import ServerError, Unavailable

T = TypeVar("T")

_LARGEST_BATCH = 256  # operations; keeps the loop's share of one publication short

_log = structlog.get_logger(__name__)


class Writer(Protocol):
    async def submit(self, operation: Operation[T]) -> T:
        """Applies one write; when it returns, the log has committed it and watchers have been told."""
        ...

    def close(self) -> None:
        """Finishes what was submitted; what comes later is refused. The log is free when it returns."""
        ...


class InlineWriter:
    """Writes at once, in the caller's step: what a simulation needs, because a thread would not be repeatable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def submit(self, operation: Operation[T]) -> T:
        result: T = _result(self._store.apply([operation])[0])
        return result

    def close(self) -> None:
        pass


class _Write(Struct, frozen=True):
    operation: Operation[Any]
    outcome: asyncio.Future[Any]


class WriterThread:
    """Writes in a thread of its own; what queues up during one commit goes into the next together.

    Only this thread uses the log. Only the loop's thread publishes and reads, a whole batch in one step, so readers and
    watchers see whole committed batches in order, exactly as with `InlineWriter`; answers go out with the publication.
    The thread starts with the first write and belongs to the loop of that one. `close` may be called with the loop
    running, stopped or closed. After each commit it shortens a log that has grown long, a little at a time.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closed = False
        self._told = False  # that the log cannot be compacted

    async def submit(self, operation: Operation[T]) -> T:
        if self._closed:
            raise Unavailable("the server is stopping; nothing was written")
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = Thread(target=self._run, args=(loop,), name="embedded-writer", daemon=True)
            self._thread.start()
        outcome = loop.create_future()
        self._queue.put(_Write(operation, outcome))
        result: T = _result(await outcome)
        return result

    def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    # In the thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        last = False
        while not last:
            writes, last = self._next()
            with suppress(RuntimeError):  # the loop is closed: nobody waits for an answer any more
                for committed, outcomes in self._commit(writes):
                    loop.call_soon_threadsafe(self._publish, committed, outcomes)
                if (mark := self._compact()) is not None:
                    loop.call_soon_threadsafe(self._store.forget, mark)

    def _next(self) -> tuple[list[_Write], bool]:
        """Everything that waits, at least one, and whether it is the last."""
        writes: list[_Write] = []
        write = self._queue.get()
        while write is not None:
            writes.append(write)
            if len(writes) == _LARGEST_BATCH:
                return writes, False
            try:
                write = self._queue.get_nowait()
            except Empty:
                return writes, False
        return writes, True

    def _commit(self, writes: Sequence[_Write]) -> list[tuple[Committed, list[asyncio.Future[Any]]]]:
        waiting = [write.outcome for write in writes]
        try:
            return [(self._store.commit([write.operation for write in writes]), waiting)]
        except Exception as error:
            # A defect in one operation, or a log that takes nothing: nothing of the batch is committed, and each
            # stands for itself now.
            if len(writes) > 1:
                return [result for write in writes for result in self._commit([write])]
            if isinstance(error, (sqlite3.Error, OSError)):
                error = ServerError(f"the change could not be stored: {error}")
            return [(Committed([error], []), waiting)]

    def _compact(self) -> int | None:
        try:
            mark = self._store.compact()
        except (sqlite3.Error, OSError) as error:  # a full disk, most likely; the log is as good as before
            if not self._told:
                _log.warning("the log cannot be compacted", error=str(error))
            self._told = True
            return None
        self._told = False
        return mark

    # On the loop

    def _publish(self, committed: Committed, waiting: Sequence[asyncio.Future[Any]]) -> None:
        try:
            self._store.publish(committed)
        finally:  # whatever a watcher makes of it, the write has happened
            for outcome, future in zip(committed.outcomes, waiting, strict=True):
                if not future.done():  # who asked may have been cancelled
                    future.set_result(outcome)


def _result(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
