"""An event loop in which time jumps and the order of steps is drawn from a seed. Entry point: `Simulation`.

Used through `asyncio.Runner(loop_factory=...)`. A run is exactly repeatable from its seed: the next step is drawn from
everything that could run now, and when nothing can, time jumps to the next timer. Sockets, threads and executors are
not implemented, so code that reaches outside fails loudly.
"""

import asyncio
import contextvars
import heapq
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
_STEPS_WITHOUT_TIME = 2_000_000  # more than any real work: a busy loop is reported instead of hanging


class Deadlock(Exception):
    """Nothing can run, no timer is set, and the main task is not done."""


class Stalled(Exception):
    """The condition did not come true in the simulated time it was given."""


class _Task(asyncio.Task[T]):
    """Hashed by its number: asyncio keeps tasks in sets, whose order would otherwise depend on addresses."""

    def __init__(self, coro: Coroutine[Any, Any, T], number: int, **options: Any) -> None:
        self._number = number  # before it is put into the first set
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Simulation(asyncio.AbstractEventLoop):
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._task_count = 0
        self._time = 0.0
        self._quiet: list[asyncio.Future[None]] = []
        self._closed = False
        self._running = False
        self._failures: list[BaseException] = []

    # For tests

    @classmethod
    def seeded(cls, seed: int) -> "Simulation":
        """For `asyncio.Runner(loop_factory=...)`."""
        return cls(seed)

    def now(self) -> datetime:
        """Wall time: the simulation is its own clock."""
        return START + timedelta(seconds=self._time)

    async def settle(self) -> None:
        """Returns when nothing else is due now; time does not move."""
        quiet = self.create_future()
        self._quiet.append(quiet)
        await quiet

    async def advance(self, seconds: float) -> None:
        """Lets simulated time pass, with everything that is due in it."""
        passed = self.create_future()
        self.call_later(seconds, passed.set_result, None)
        await passed
        await self.settle()

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float, what: str = "") -> None:
        """Returns as soon as the condition holds; jumps from timer to timer for at most `within` seconds."""
        deadline = self._time + within
        while True:
            await self.settle()
            if await condition():
                return
            due = self._next_timer()
            if due is None or due > deadline:
                raise Stalled(f"{what or 'the condition'} did not come true within {within} s (seed {self.seed})")
            jumped = self.create_future()
            self.call_at(due, _release, jumped)
            await jumped

    # The event loop

    def time(self) -> float:
        return self._time

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    # Only the handler for Ctrl-C uses this, to wake a waiting loop; this one never waits.
    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._time + max(delay, 0), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if when <= self._time:
            self._ready.append(handle)
        else:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio; a cancelled timer is dropped when its turn comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        self._task_count += 1
        return _Task(coro, self._task_count, loop=self, name=name, context=context)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        main: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        asyncio._set_running_loop(self)
        self._running = True
        steps, steps_at = 0, self._time
        try:
            while not main.done():
                self._step()
                if self._failures:
                    failures, self._failures = self._failures, []  # raised once, so that cleanup can go on
                    raise failures[0]
                steps = steps + 1 if self._time == steps_at else 0
                steps_at = self._time
                if steps > _STEPS_WITHOUT_TIME:
                    raise Deadlock(f"something runs for ever without waiting (seed {self.seed}): {self._task_names()}")
        finally:
            self._running = False
            asyncio._set_running_loop(None)
        return main.result()

    def _step(self) -> None:
        if self._ready:
            chosen = self.random.randrange(len(self._ready))
            self._ready[chosen], self._ready[-1] = self._ready[-1], self._ready[chosen]
            handle = self._ready.pop()
            if not handle.cancelled():
                handle._run()
        elif self._quiet:
            waiting, self._quiet = self._quiet, []
            for future in waiting:
                _release(future)
        elif (due := self._next_timer()) is not None:
            self._time = max(self._time, due)
            while self._timers and self._timers[0][0] <= self._time:
                self._ready.append(heapq.heappop(self._timers)[2])
        else:
            raise Deadlock(f"nothing can run and nothing is due (seed {self.seed}): {self._task_names()}")

    def _next_timer(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _task_names(self) -> str:
        return ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self)))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A failure that nobody awaits ends the simulation; in production it would only be a log line."""
        error = context.get("exception") or RuntimeError(context.get("message"))
        self._failures.append(error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self) -> None:
        pass

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()
