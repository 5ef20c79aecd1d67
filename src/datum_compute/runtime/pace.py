"""How long a plane's server wants to be left alone. Entry points: `Pace`, `Patient`.

A server that answers 429 or 5xx with `Retry-After` asks it of the whole process, not of one caller: until then no call
goes out. Passes are refused at once, since they have other work to do, and learn when to come back; caches wait.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog

from datum_compute.kube.errors import ApiError, TooManyRequests, from_status
from datum_compute.kube.transport import Answer, Call, Transport

LONGEST_PAUSE = 60.0  # whatever the server asks for
_APART = 0.01  # between those who come back: the first of them learns whether the server has recovered
_APART_AT_MOST = 1.0

_log = structlog.get_logger(__name__)


class Paced(TooManyRequests):
    """A call that was not sent, because the server asked to be left alone."""


class Pace:
    """Passes calls on while the server takes them, and refuses them with `Paced` while it does not."""

    def __init__(self, plane: str, transport: Transport) -> None:
        self._plane = plane
        self._transport = transport
        self._until = float("-inf")  # loop time
        self._refused = 0  # callers during this pause

    @property
    def left(self) -> float:
        """Seconds until the pause ends; 0 when there is none."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    async def call(self, call: Call) -> Answer:
        self._check()
        answer = await self._transport.call(call)
        if answer.code >= 300:
            self._heed(from_status(answer.code, answer.body, self._plane, answer.retry_after))
        return answer

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._streaming(call)

    @asynccontextmanager
    async def _streaming(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        self._check()
        try:
            async with self._transport.stream(call) as lines:
                yield lines
        except ApiError as error:
            self._heed(error)
            raise

    def _check(self) -> None:
        if not (left := self.left):
            return
        apart = min(self._refused * _APART, _APART_AT_MOST)
        self._refused += 1
        message = f"the server asked to be left alone for {left:.0f} s more; what waits for it goes on then"
        raise Paced(message, plane=self._plane, retry_after=left + apart)

    def _heed(self, error: ApiError) -> None:
        if isinstance(error, Paced) or not error.retry_after or not (error.code == 429 or error.code >= 500):
            return  # a wish about one object, as with an eviction that has to wait, is no wish about the plane
        seconds = min(error.retry_after, LONGEST_PAUSE)
        if not self.left:
            self._refused = 0
            _log.warning("the server asked to be left alone", plane=self._plane, seconds=seconds, error=str(error))
        self._until = max(self._until, asyncio.get_running_loop().time() + seconds)


class Patient:
    """For caches, which have nothing else to do: waits until the pause ends instead of failing."""

    def __init__(self, transport: Transport, pace: Pace) -> None:
        self._transport = transport
        self._pace = pace

    async def call(self, call: Call) -> Answer:
        await self._wait()
        return await self._transport.call(call)

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._streaming(call)

    @asynccontextmanager
    async def _streaming(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        await self._wait()
        async with self._transport.stream(call) as lines:
            yield lines

    async def _wait(self) -> None:
        while left := self._pace.left:  # noqa: ASYNC110 - it is time that has to pass, and it may be extended
            await asyncio.sleep(left)
