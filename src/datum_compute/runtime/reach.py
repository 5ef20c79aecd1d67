"""Whether a plane answers, learnt from its ordinary calls. Entry points: `Reach`, `FailFast`.

A plane is silent while calls do not reach it or get no answer. Any answer ends the silence. After a 502, 503 or 504,
which a gateway sends in place of the server, the plane is still away: what failed on it runs again after another
answer. A watch that breaks proves nothing; the next call finds out.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from datum_compute.kube.errors import ApiError, Timeout, Unavailable
from datum_compute.kube.transport import Answer, Call, Transport

FIRST_PROBE = 0.01
LONGEST_PROBE = 1.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0

_GATEWAY = frozenset({502, 503, 504})


class Reach:
    """A transport that notices when the plane is away, and calls back when it returns.

    Caches use it directly, so they are the first to find out. For a plane that flaps, the callbacks become less and
    less frequent, so that what fails on it does not run in a hot loop.
    """

    def __init__(self, transport: Transport) -> None:
        self.on_return: list[Callable[[], None]] = []
        self.guards: list[Callable[[Call], None]] = []
        self.silent = False  # the last call got no answer at all
        self._transport = transport
        self._away = False
        self._notified_at = float("-inf")
        self._pause = FIRST_PAUSE
        self._timer: asyncio.TimerHandle | None = None

    async def call(self, call: Call) -> Answer:
        if call.method != "GET":
            for guard in self.guards:
                guard(call)
        try:
            answer = await self._transport.call(call)
        except (Unavailable, Timeout) as error:
            self._not_served(answered=error.answered)
            raise
        if answer.code in _GATEWAY:
            self._not_served(answered=True)
        else:
            self._answered()
        return answer

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._streaming(call)

    @asynccontextmanager
    async def _streaming(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        opened = False
        try:
            async with self._transport.stream(call) as lines:
                opened = True
                self._answered()
                yield lines
        except (Unavailable, Timeout) as error:
            self._not_served(answered=opened or error.answered)
            raise
        except ApiError as error:
            if error.answered:
                self._answered()
            raise

    def served_again(self) -> None:
        """Called when caches are no longer refused: what was refused to passes may succeed now too."""
        self._away = True
        self._answered()

    def _not_served(self, *, answered: bool) -> None:
        self._away = True
        self.silent = not answered

    def _answered(self) -> None:
        self.silent = False
        if self._away:
            self._away = False
            if self._timer is None:
                loop = asyncio.get_running_loop()
                due = self._notified_at + self._pause
                if due <= loop.time():
                    self._notify()
                else:
                    self._timer = loop.call_at(due, self._notify)

    def _notify(self) -> None:
        self._timer = None
        if self._away:
            return  # away again; its next answer leads back here
        now = asyncio.get_running_loop().time()
        flapping = now - self._notified_at <= 2 * self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if flapping else FIRST_PAUSE
        self._notified_at = now
        for callback in self.on_return:
            callback()


class FailFast:
    """For passes, which have other work to do: while the plane is silent, only one call at a time is attempted."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._probing = False
        self._probes = 0  # in a row, without an answer
        self._next_probe = 0.0

    async def call(self, call: Call) -> Answer:
        if not self._reach.silent:
            self._probes = 0
            return await self._reach.call(call)
        loop = asyncio.get_running_loop()
        if self._probing or (self._probes and loop.time() < self._next_probe):
            raise Unavailable("the plane stopped answering; what waits for it continues when it answers again")
        self._probing = True
        try:
            return await self._reach.call(call)
        finally:
            self._probing = False
            self._next_probe = loop.time() + min(FIRST_PROBE * 2 ** min(self._probes, 10), LONGEST_PROBE)
            self._probes += 1

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._reach.stream(call)
