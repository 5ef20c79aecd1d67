"""Writers call `Store.commit` in the event loop or in a thread with group commit. Entry points: `InlineWriter`,
`WriterThread`.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

import structlog
from msgspec import Struct

from datum_compute.embedded.storage.store import Committed, Operation, Store
from datum_compute.kube.errors import ServerError, Unavailable

T = TypeVar("T")

_LARGEST_BATCH = 256  # operations; keeps each publication on the loop short

_log = structlog.get_logger(__name__)


class WriterFailed(Exception):
    """Nothing can be written any more. What was committed is safe; a new process will find it."""


class Writer(Protocol):
    async def submit(self, operation: Operation[T]) -> T:
        """Applies one write; when it returns, the log has committed it and watchers have received it."""
        ...

    def failure(self) -> Coroutine[Any, Any, None] | None:
        """Raises `WriterFailed` once this writer cannot go on; None for a writer that fails in `submit` instead."""
        ...

    def close(self) -> None:
        """Finishes the submitted writes and refuses later ones. The log is unused when it returns."""
        ...


class InlineWriter:
    """Writes at once, in the caller's step, as a simulation needs: a thread would not be repeatable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def submit(self, operation: Operation[T]) -> T:
        result: T = _result(self._store.apply([operation])[0])
        return result

    def failure(self) -> None:
        return None

    def close(self) -> None:
        pass


class _Write(Struct, frozen=True):
    operation: Operation[Any]
    outcome: asyncio.Future[Any]


class WriterThread:
    """Writes in a dedicated thread; the writes that queue up during one commit are committed together in the next.

    Only this thread uses the log. Only the loop's thread publishes and reads, a whole batch in one step, so readers and
    watchers see whole committed batches in order, exactly as with `InlineWriter`; writes are answered with their
    publication. The thread starts with the first write and belongs to that write's loop. `close` may be called with
    the loop running, stopped or closed. After each commit the thread compacts a log that has grown long, step by step.

    When the log cannot be written for now, the writes at hand fail. Any other failure ends the thread, and `failure`
    raises: a process whose memory and log differ must not go on.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closed = False
        self._compaction_failed = False  # logged once, not on every attempt
        self._waiting: set[asyncio.Future[Any]] = set()
        self._failed = asyncio.Event()
        self._reason = ""

    async def submit(self, operation: Operation[T]) -> T:
        if self._closed:
            raise Unavailable("the server is stopping; nothing was written")
        if self._failed.is_set():
            raise ServerError(self._reason)
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = Thread(target=self._run, args=(loop,), name="embedded-writer", daemon=True)
            self._thread.start()
        outcome = loop.create_future()
        self._waiting.add(outcome)
        outcome.add_done_callback(self._waiting.discard)
        self._queue.put(_Write(operation, outcome))
        result: T = _result(await outcome)
        return result

    async def failure(self) -> None:
        await self._failed.wait()
        raise WriterFailed(self._reason)

    def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    # In the thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        last = False
        try:
            while not last:
                writes, last = self._next()
                for committed, outcomes in self._commit(writes):
                    _call(loop, self._publish, committed, outcomes)
                if (mark := self._compact()) is not None:
                    _call(loop, self._store.forget, mark)
        except Exception as error:
            _call(loop, self._fail, error)

    def _next(self) -> tuple[list[_Write], bool]:
        """All queued writes, waiting for at least one, and whether they are the last."""
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
            if _is_final(error):
                raise
            # A defect in one operation, or a log that cannot be written: nothing of the batch is committed, so each
            # operation is tried alone.
            if len(writes) > 1:
                return [result for write in writes for result in self._commit([write])]
            if isinstance(error, (sqlite3.Error, OSError)):
                error = ServerError(f"the change could not be stored: {error}")
            return [(Committed([error], []), waiting)]

    def _compact(self) -> int | None:
        try:
            mark = self._store.compact()
        except Exception as error:  # most likely a full disk; the log is as it was
            if not self._compaction_failed:
                _log.error("the log cannot be compacted", error=repr(error))
            self._compaction_failed = True
            return None
        self._compaction_failed = False
        return mark

    # On the loop

    def _publish(self, committed: Committed, waiting: Sequence[asyncio.Future[Any]]) -> None:
        try:
            self._store.publish(committed)
        finally:  # even if a watcher failed, the write has happened
            for outcome, future in zip(committed.outcomes, waiting, strict=True):
                if not future.done():  # the caller may have been cancelled
                    future.set_result(outcome)

    def _fail(self, error: Exception) -> None:
        self._reason = f"no further change can be stored: {error}"
        _log.error("the writer ended", error=repr(error), exc_info=error)
        self._failed.set()
        for future in list(self._waiting):
            if not future.done():
                future.set_result(ServerError(self._reason))


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody is waiting for an answer
        loop.call_soon_threadsafe(function, *arguments)


def _is_final(error: Exception) -> bool:
    """Whether the log is damaged or differs from memory; a full disk or an unsuitable value can pass."""
    transient = (sqlite3.OperationalError, sqlite3.DataError)
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, transient)


def _result(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
