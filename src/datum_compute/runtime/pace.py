"""Honours `Retry-After` for a whole plane. Entry points: `Pace`, `Patient`.

A server that answers 429 or 5xx with `Retry-After` means the whole process, not one caller: until then no call goes
out. Passes fail at once, since they have other work to do, and learn when to retry; caches wait.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog

from datum_compute.kube.errors import ApiError, TooManyRequests, from_status
from datum_compute.kube.transport import Answer, Call, Transport

LONGEST_PAUSE = 60.0  # whatever the server asks for
_SPACING = 0.01  # between retries: the first of them learns whether the server has recovered
_SPACING_AT_MOST = 1.0

_log = structlog.get_logger(__name__)


class Paced(TooManyRequests):
    """A call that was not sent, because the server asked for no calls."""


class Pace:
    """A transport that refuses calls with `Paced` while the server asks for none."""

    def __init__(self, plane: str, transport: Transport) -> None:
        self._plane = plane
        self._transport = transport
        self._until = float("-inf")  # loop time
        self._refused = 0  # calls during this pause

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
        spacing = min(self._refused * _SPACING, _SPACING_AT_MOST)
        self._refused += 1
        message = f"the server asked for no calls for {left:.0f} s more; what waits for it continues then"
        raise Paced(message, plane=self._plane, retry_after=left + spacing)

    def _heed(self, error: ApiError) -> None:
        if isinstance(error, Paced) or not error.retry_after or not (error.code == 429 or error.code >= 500):
            return  # about one object, such as an eviction that has to wait, not about the plane
        seconds = min(error.retry_after, LONGEST_PAUSE)
        if not self.left:
            self._refused = 0
            _log.warning("server asked for no calls", plane=self._plane, seconds=seconds, error=str(error))
        self._until = max(self._until, asyncio.get_running_loop().time() + seconds)


class Patient:
    """For caches, which have nothing else to do: waits for the end of a pause instead of failing."""

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
        while left := self._pace.left:  # noqa: ASYNC110 - the pause may be extended meanwhile
            await asyncio.sleep(left)
