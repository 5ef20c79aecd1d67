"""A deduplicating work queue with fair groups. Entry point: `WorkQueue`."""

import asyncio
import math
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from datum_compute.runtime.telemetry.histogram import QUEUE_SECONDS, Histogram

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF = 0.005
LONGEST_BACKOFF = 30.0
_SHARE = 4  # a group may take one in so many of the free shared places


class WorkQueue(Generic[K]):
    """A key waits once, runs on one worker, and runs again if it was added while running.

    Live changes run before the initial list, so that after a restart users do not wait for what did not change. Groups
    take turns and run at most `at_once` keys each. However many groups hang, every other one has room for `reserved`
    keys. Beyond them a group uses `shared` places, but only a fraction of the free ones, so that some are left for the
    next. If the group of a key changes, the key stays in its old one until its run is done.
    """

    def __init__(
        self,
        group: Callable[[K], Hashable] = lambda key: None,
        at_once: int = sys.maxsize,
        *,
        reserved: int = 1,
        shared: int = sys.maxsize,
    ) -> None:
        self.adds = 0
        self.retries = 0
        self.waited = Histogram(QUEUE_SECONDS)
        self.worked = Histogram(QUEUE_SECONDS)
        self._group = group
        self._at_once = at_once
        self._reserved = reserved
        self._shared = shared  # free places
        self._busy: Counter[Hashable] = Counter()  # keys running, by group
        self._groups: dict[K, Hashable] = {}  # of each waiting or running key
        self._live: _Lane[K] = _Lane(self._groups)
        self._initial: _Lane[K] = _Lane(self._groups)
        self._running: dict[K, _Run] = {}
        self._since: dict[K, float] = {}  # loop time of the oldest change that no pass has handled
        self._queued: dict[K, float] = {}  # loop time since when each key waits
        self._delayed: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wake: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._quiet = asyncio.Event()  # set while nothing runs
        self._quiet.set()

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, key: K, *, initial: bool = False) -> None:
        self.adds += 1
        self._since.setdefault(key, asyncio.get_running_loop().time())
        if (run := self._running.get(key)) is not None:
            run.again = True
        elif key in self._initial and not initial:
            self._initial.remove(key)
            self._live.add(key)
        elif key not in self._live and key not in self._initial:
            self._groups[key] = self._group(key)
            (self._initial if initial else self._live).add(key)
            self._queued[key] = asyncio.get_running_loop().time()
            self._wake_one()

    def add_after(self, key: K, seconds: float) -> None:
        """Adds the key later; of several delays the shortest counts."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        when = now + seconds
        if seconds > 0:  # a delay that rounding swallows would run the key for ever at the same time
            when = max(when, math.nextafter(now, math.inf))
        earlier = self._delayed.get(key)
        if earlier is not None:
            if earlier.when() <= when:
                return
            earlier.cancel()
        self._delayed[key] = loop.call_at(when, self._due, key)

    def add_retry(self, key: K, seconds: float) -> None:
        """Adds a running key later; the change that it did not handle keeps its age."""
        self.retries += 1
        run = self._running.get(key)
        if run is not None:
            self._since[key] = min(run.since, self._since.get(key, run.since))
        self.add_after(key, seconds)

    def add_failed(self, key: K, *, no_later_than: float | None = None) -> float:
        """Adds the key after its backoff, which doubles with each failure in a row; returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        backoff: float = min(FIRST_BACKOFF * 2 ** min(failures, 20), LONGEST_BACKOFF)
        delay = backoff if no_later_than is None else min(backoff, no_later_than)
        self.add_retry(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """How often in a row the key has failed."""
        return self._failures.get(key, 0)

    def since(self, key: K) -> float:
        """Loop time of the oldest change that the running pass of this key handles."""
        return self._running[key].since

    def forget_failures(self, key: K) -> None:
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key, the caller's until `done`. Its delayed add is dropped: the coming pass decides again."""
        while (key := self._next()) is None:
            woken = asyncio.get_running_loop().create_future()
            self._wake.append(woken)
            try:
                await woken
            except asyncio.CancelledError:
                if not woken.cancelled() and woken.done():
                    self._wake_one()  # pass on the wake-up that this worker cannot use
                raise
        now = asyncio.get_running_loop().time()
        self.waited.observe(now - self._queued.pop(key))
        self._running[key] = _Run(self._since.pop(key), now)
        self._quiet.clear()
        group = self._groups[key]
        self._busy[group] += 1
        self._shared -= self._busy[group] > self._reserved
        if (delayed := self._delayed.pop(key, None)) is not None:
            delayed.cancel()
        return key

    def done(self, key: K) -> None:
        run = self._running.pop(key)
        self.worked.observe(asyncio.get_running_loop().time() - run.started)
        group = self._groups.pop(key)
        self._shared += self._busy[group] > self._reserved
        self._busy[group] -= 1
        if not self._busy[group]:
            del self._busy[group]
        if run.again:
            self.add(key)
        if not self._running:
            self._quiet.set()
        self._wake_one()  # another key of the group may be waiting for this one

    def drop(self, is_over: Callable[[K], bool]) -> None:
        """Forgets keys; running passes are not stopped."""
        for key in [key for key in self._queued if is_over(key)]:
            (self._live if key in self._live else self._initial).remove(key)
            del self._groups[key]
        for memory in (self._failures, self._since, self._queued):
            for key in [key for key in memory if is_over(key)]:
                del memory[key]
        for key in [key for key in self._delayed if is_over(key)]:
            self._delayed.pop(key).cancel()

    def close(self) -> None:
        """Hands out no more keys. Running ones may end; `drained` waits for them."""
        self._closed = True

    async def drained(self) -> None:
        await self._quiet.wait()

    def running_seconds(self) -> list[float]:
        """How long each running key has been running."""
        if not self._running:
            return []
        now = asyncio.get_running_loop().time()
        return [now - run.started for run in self._running.values()]

    def _next(self) -> K | None:
        if self._closed:
            return None
        key = self._live.take(self._has_room)
        return self._initial.take(self._has_room) if key is None else key

    def _has_room(self, group: Hashable) -> bool:
        busy = self._busy[group]
        beyond = busy - self._reserved
        return busy < self._at_once and (beyond < 0 or beyond < self._shared / _SHARE)

    def _due(self, key: K) -> None:
        self._delayed.pop(key, None)
        self.add(key)

    def _wake_one(self) -> None:
        while self._wake:
            woken = self._wake.popleft()
            if not woken.done():
                woken.set_result(None)
                return


class _Run:
    """A running key."""

    def __init__(self, since: float, started: float) -> None:
        self.since = since  # loop time of the oldest change it handles
        self.started = started
        self.again = False  # whether it was added while running


class _Lane(Generic[K]):
    """Waiting keys: first come, first served in each group; groups take turns."""

    def __init__(self, groups: Mapping[K, Hashable]) -> None:
        self._groups = groups
        self._waiting: dict[Hashable, OrderedDict[K, None]] = {}

    def __len__(self) -> int:
        return sum(len(keys) for keys in self._waiting.values())

    def __contains__(self, key: K) -> bool:
        return key in self._groups and key in self._waiting.get(self._groups[key], ())

    def add(self, key: K) -> None:
        self._waiting.setdefault(self._groups[key], OrderedDict())[key] = None

    def remove(self, key: K) -> None:
        group = self._groups[key]
        del self._waiting[group][key]
        if not self._waiting[group]:
            del self._waiting[group]

    def take(self, has_room: Callable[[Hashable], bool]) -> K | None:
        for group, keys in self._waiting.items():
            if has_room(group):
                key, _ = keys.popitem(last=False)
                del self._waiting[group]
                if keys:
                    self._waiting[group] = keys  # now behind the others
                return key
        return None
