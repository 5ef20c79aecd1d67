"""Calls that are made again where that is safe and can help. Entry point: `Retrying`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from datum_compute.kube.errors import ApiError
from datum_compute.kube.retries import POLICY, Policy, pause_before_retry
from datum_compute.kube.transport import Answer, Call, Transport


class Retrying:
    """A transport around another one. `jitter` draws from 0 to 1, as `random.Random(...).random` does."""

    def __init__(
        self,
        transport: Transport,
        jitter: Callable[[], float],
        *,
        policy: Policy = POLICY,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._jitter = jitter
        self._policy = policy
        self._sleep = sleep

    async def call(self, call: Call) -> Answer:
        loop = asyncio.get_running_loop()
        began, tries = loop.time(), 0
        while True:
            outcome = await self._tried(call)
            tries += 1
            pause = pause_before_retry(
                call, outcome, tries=tries, spent=loop.time() - began, jitter=self._jitter(), policy=self._policy
            )
            if pause is None:
                break
            await self._sleep(pause)
        if isinstance(outcome, ApiError):
            raise outcome
        return outcome

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._transport.stream(call)

    async def _tried(self, call: Call) -> Answer | ApiError:
        try:
            return await self._transport.call(call)
        except ApiError as error:
            return error
