"""What is left to do, each key at most once at a time. Entry point: `WorkQueue`."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF = 0.005
LONGEST_BACKOFF = 30.0


class WorkQueue(Generic[K]):
    """Deduplicated: a key waits once, runs on one worker, and runs again when it was added while running.

    Live changes go before the initial list, so that a restart does not make users wait for what did not change.
    """

    def __init__(self) -> None:
        self._live: OrderedDict[K, None] = OrderedDict()
        self._initial: OrderedDict[K, None] = OrderedDict()
        self._running: dict[K, bool] = {}  # value: added again meanwhile
        self._delayed: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wake: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._live) + len(self._initial)

    def add(self, key: K, *, initial: bool = False) -> None:
        if key in self._running:
            self._running[key] = True
        elif key in self._initial and not initial:
            del self._initial[key]
            self._live[key] = None
        elif key not in self._live and key not in self._initial:
            (self._initial if initial else self._live)[key] = None
            self._wake_one()

    def add_after(self, key: K, seconds: float) -> None:
        """Adds the key later; of several delays the earliest counts."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        earlier = self._delayed.get(key)
        if earlier is not None:
            if earlier.when() <= when:
                return
            earlier.cancel()
        self._delayed[key] = loop.call_at(when, self._due, key)

    def add_failed(self, key: K, *, no_later_than: float | None = None) -> float:
        """Adds the key after its backoff, which doubles with each failure in a row; returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        backoff: float = min(FIRST_BACKOFF * 2 ** min(failures, 20), LONGEST_BACKOFF)
        delay = backoff if no_later_than is None else min(backoff, no_later_than)
        self.add_after(key, delay)
        return delay

    def forget_failures(self, key: K) -> None:
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; it is the caller's until `done`. Its delayed add is dropped: the coming pass decides anew."""
        while not len(self):
            woken = asyncio.get_running_loop().create_future()
            self._wake.append(woken)
            try:
                await woken
            except asyncio.CancelledError:
                if not woken.cancelled() and woken.done():
                    self._wake_one()  # the wake-up was meant for a worker that no longer listens
                raise
        key, _ = (self._live or self._initial).popitem(last=False)
        self._running[key] = False
        if (delayed := self._delayed.pop(key, None)) is not None:
            delayed.cancel()
        return key

    def done(self, key: K) -> None:
        if self._running.pop(key):
            self.add(key)

    def drop(self, matches: Callable[[K], bool]) -> None:
        """Forgets keys that will never be valid again; a pass that runs is not stopped."""
        for lane in (self._live, self._initial, self._failures):
            for key in [key for key in lane if matches(key)]:
                del lane[key]
        for key in [key for key in self._delayed if matches(key)]:
            self._delayed.pop(key).cancel()

    def _due(self, key: K) -> None:
        self._delayed.pop(key, None)
        self.add(key)

    def _wake_one(self) -> None:
        while self._wake:
            woken = self._wake.popleft()
            if not woken.done():
                woken.set_result(None)
                return
