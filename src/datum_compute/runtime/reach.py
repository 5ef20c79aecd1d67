"""Whether a plane answers, learnt from the calls that are made anyway. Entry points: `Reach`, `FailFast`.

A plane is silent while calls do not reach it or get no answer. Any answer, whatever it says, ends the silence. With
502, 503 or 504, which a gateway gives in the place of a server, the plane is still away: what failed on it runs again
when it gives another answer. A watch that breaks off proves neither; the next call finds out.
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
    """Passes every call on, notices when the plane goes away, and tells when it is back.

    Caches call through it directly: they wait for nobody, and are the first to find out. A plane that comes and goes
    many times a second is told of less and less often, so that what fails on it does not run in a hot loop.
    """

    def __init__(self, transport: Transport) -> None:
        self.on_return: list[Callable[[], None]] = []
        self.guards: list[Callable[[Call], None]] = []
        self.silent = False  # calls got no answer at all: the next would only wait for nothing
        self._transport = transport
        self._away = False
        self._told_at = float("-inf")
        self._pause = FIRST_PAUSE
        self._telling: asyncio.TimerHandle | None = None

    async def call(self, call: Call) -> Answer:
        if call.method != "GET":
            for may in self.guards:
                may(call)
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
        """Caches get what the server had refused them: what it refused to passes may succeed now too."""
        self._away = True
        self._answered()

    def _not_served(self, *, answered: bool) -> None:
        self._away = True
        self.silent = not answered

    def _answered(self) -> None:
        self.silent = False
        if self._away:
            self._away = False
            if self._telling is None:
                loop = asyncio.get_running_loop()
                due = self._told_at + self._pause
                if due <= loop.time():
                    self._tell()
                else:
                    self._telling = loop.call_at(due, self._tell)

    def _tell(self) -> None:
        self._telling = None
        if self._away:
            return  # gone again meanwhile; its next answer brings us back here
        now = asyncio.get_running_loop().time()
        flapping = now - self._told_at <= 2 * self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if flapping else FIRST_PAUSE
        self._told_at = now
        for callback in self.on_return:
            callback()


class FailFast:
    """For passes, which have other work to do: while the plane is silent, only one call at a time is tried on it."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._probing = False
        self._probes = 0  # without an answer, in a row
        self._next_probe = 0.0

    async def call(self, call: Call) -> Answer:
        if not self._reach.silent:
            self._probes = 0
            return await self._reach.call(call)
        loop = asyncio.get_running_loop()
        if self._probing or (self._probes and loop.time() < self._next_probe):
            raise Unavailable("the plane has stopped to answer; what waits for it goes on when it does")
        self._probing = True
        try:
            return await self._reach.call(call)
        finally:
            self._probing = False
            self._next_probe = loop.time() + min(FIRST_PROBE * 2 ** min(self._probes, 10), LONGEST_PROBE)
            self._probes += 1

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._reach.stream(call)
