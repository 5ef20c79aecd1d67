"""Calls on an API server in this process. Entry point: `InProcess`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from datum_compute.kube.errors import ApiError
from datum_compute.kube.transport import Answer, Call


class LocalServer(Protocol):
    """An API server in this process."""

    async def answer(self, call: Call) -> Answer: ...

    def watch(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...


class InProcess:
    """A transport to a server in this process. It yields before and after each call, as a network would."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server

    async def call(self, call: Call) -> Answer:
        await asyncio.sleep(0)
        answer = await self._server.answer(call)
        await asyncio.sleep(0)
        return answer

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        await asyncio.sleep(0)
        opened = False
        try:
            async with self._server.watch(call) as events:
                opened = True
                yield events
        except ApiError as error:
            error.answered = error.answered or not opened  # a refused watch is an answer
            raise
