"""Counts requests to API servers by role, method and status code. Entry points: `Calls`, `Counted`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager

from datum_compute.kube.errors import ApiError
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.runtime.telemetry.histogram import Histogram
from datum_compute.runtime.telemetry.table import CODES, METHODS, NO_ANSWER, OTHER, REQUEST_SECONDS


class Calls:
    """The requests of a process. They are counted by role, since planes come and go."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()  # by code, method and role
        self.seconds: dict[tuple[str, str], Histogram] = {}  # by verb and role

    def count(self, role: str, method: str, verb: str, code: str, seconds: float) -> None:
        known = code if code in CODES else OTHER  # whatever a server answers, the number of series is bounded
        self.counts[known, method, role] += 1
        self.seconds.setdefault((verb, role), Histogram(REQUEST_SECONDS)).observe(seconds)


class Counted:
    """A transport that counts what another one carries."""

    def __init__(self, transport: Transport, calls: Calls, role: str) -> None:
        self._transport = transport
        self._calls = calls
        self._role = role

    async def call(self, call: Call) -> Answer:
        with self._timed(call.method, call.method) as outcome:
            answer = await self._transport.call(call)
            outcome.append(str(answer.code))
        return answer

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._streaming(call)

    @asynccontextmanager
    async def _streaming(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        async with AsyncExitStack() as stack:
            with self._timed(call.method, "WATCH") as outcome:
                lines = await stack.enter_async_context(self._transport.stream(call))
                outcome.append("200")
            yield lines

    @contextmanager
    def _timed(self, method: str, verb: str) -> Iterator[list[str]]:
        loop, outcome = asyncio.get_running_loop(), list[str]()
        began = loop.time()
        try:
            yield outcome
        except ApiError as error:
            outcome.append(str(error.code) if error.answered else NO_ANSWER)
            raise
        finally:
            if outcome and method in METHODS:  # a call that was cancelled has no outcome
                self._calls.count(self._role, method, verb, outcome[0], loop.time() - began)
