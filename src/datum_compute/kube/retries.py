"""Repeats calls that did not succeed, where that is safe and can help. Entry points: `Retrying`, `pause_before_retry`.

Reads are repeated after 429, 5xx and when there was no answer. A write is repeated only after 429, which says that it
did not happen; after anything else its caller has to find out. Watches are never repeated here: their reader has to
know that they ended.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from msgspec import Struct

from datum_compute.kube.errors import ApiError
from datum_compute.kube.transport import Answer, Call, Transport


class Policy(Struct, frozen=True):
    tries: int = 5
    first_pause: float = 0.1  # doubled with every try
    longest_pause: float = 30.0  # whatever the server asks for
    deadline: float = 60.0  # after which no further attempt begins


POLICY = Policy()


def pause_before_retry(
    call: Call, outcome: Answer | ApiError, *, tries: int, spent: float, jitter: float, policy: Policy = POLICY
) -> float | None:
    """Seconds to wait before the call is repeated; None when the caller gets `outcome`.

    `tries` attempts were made in `spent` seconds. `jitter`, random from 0 to 1, keeps clients from returning all
    at once.
    """
    if tries >= policy.tries or not _worth_repeating(call, outcome):
        return None
    doubled = policy.first_pause * 2.0 ** (tries - 1) * (0.75 + jitter / 2)
    pause = min(max(doubled, outcome.retry_after), policy.longest_pause)
    return pause if spent + pause <= policy.deadline else None


def _worth_repeating(call: Call, outcome: Answer | ApiError) -> bool:
    if isinstance(outcome, ApiError):
        return call.method == "GET" and outcome.retryable
    return outcome.code == 429 or (call.method == "GET" and outcome.code >= 500)


class Retrying:
    """A transport that repeats calls of another one. `jitter` is a function like `random.random`."""

    def __init__(
        self,
        transport: Transport,
        jitter: Callable[[], float],
        *,
        policy: Policy = POLICY,
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._transport = transport
        self._jitter = jitter
        self._policy = policy
        self._sleep = sleep

    async def call(self, call: Call) -> Answer:
        import asyncio  # the blocking transport does without

        loop, sleep = asyncio.get_running_loop(), self._sleep or asyncio.sleep
        began, tries = loop.time(), 0
        while True:
            outcome = await self._tried(call)
            tries += 1
            pause = pause_before_retry(
                call, outcome, tries=tries, spent=loop.time() - began, jitter=self._jitter(), policy=self._policy
            )
            if pause is None:
                break
            await sleep(pause)
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
