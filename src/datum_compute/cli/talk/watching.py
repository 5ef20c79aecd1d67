"""Waiting for changes on the server. Entry points: `Changes`, `watch`.

Watches only wake the reader, which reads everything again, so that nothing depends on the order of events.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, Self

from datum_compute.cli.shell.failures import Failure
from datum_compute.kube.access.kubeconfig import KubeconfigError
from datum_compute.kube.blocking import BlockingTransport, Stream
from datum_compute.kube.errors import ApiError
from datum_compute.kube.transport import Call

_WATCH_SECONDS = 240  # then a new watch starts, with a fresh token
_SILENCE_SECONDS = 300.0  # after which a connection is considered dead
_RETRY_SECONDS = 2.0


class Changes(Protocol):
    @property
    def trusted(self) -> bool:
        """Whether every watch is up, so that no change is missed."""
        ...

    def wait(self, seconds: float) -> bool:
        """Returns True as soon as something may have changed, False after so many seconds."""
        ...


Watching = Callable[[BlockingTransport, Sequence[Call]], AbstractContextManager[Changes]]


class Watches:
    """A context manager that runs one thread per watch."""

    def __init__(self, transport: BlockingTransport, calls: Sequence[Call]) -> None:
        self._transport = transport
        self._threads = [
            threading.Thread(target=self._follow, args=(call,), name=f"watch {call.path}", daemon=True)
            for call in calls
        ]
        self._streams: set[Stream] = set()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._ended.set()
            for stream in self._streams:
                stream.close()
        for thread in self._threads:
            thread.join(timeout=1.0)

    @property
    def trusted(self) -> bool:
        with self._lock:
            return len(self._streams) == len(self._threads)

    def wait(self, seconds: float) -> bool:
        changed = self._changed.wait(seconds)
        self._changed.clear()
        return changed

    def _follow(self, call: Call) -> None:
        # Without a resourceVersion the server starts with all existing objects, so that a new watch after a broken one
        # wakes the reader as well.
        query = call.query | {"watch": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
        watched = Call(call.method, call.path, query)
        while not self._ended.is_set():
            try:
                with self._transport.stream(watched, silence=_SILENCE_SECONDS) as stream:
                    self._read(stream)
            except (ApiError, Failure, KubeconfigError):
                pass  # the reader polls while a watch is down, and reports errors
            self._ended.wait(_RETRY_SECONDS)

    def _read(self, stream: Stream) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._streams.add(stream)
        try:
            for _ in stream:
                self._changed.set()
        finally:
            with self._lock:
                self._streams.discard(stream)


watch: Watching = Watches
