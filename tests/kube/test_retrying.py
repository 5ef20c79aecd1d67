"""Calls that are made again, in simulated time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from datum_compute.kube.errors import Timeout, Unavailable
from datum_compute.kube.retries import Policy
from datum_compute.kube.retrying import Retrying
from datum_compute.kube.transport import Answer, Call

GET = Call("GET", "/x")
POST = Call("POST", "/x", body=b"{}")


class Told:
    """Gives one outcome after the other and notes when it was asked."""

    def __init__(self, *outcomes: Answer | Exception, seconds: float = 0.0) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[float] = []
        self.streams = 0
        self._seconds = seconds

    async def call(self, call: Call) -> Answer:
        self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._seconds)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        self.streams += 1
        raise Unavailable("away")

    def pauses(self) -> list[float]:
        return [round(after - before, 3) for before, after in zip(self.asked, self.asked[1:], strict=False)]


def retrying(transport: Told, policy: Policy | None = None) -> Retrying:
    return Retrying(transport, lambda: 0.5, policy=policy or Policy())


async def test_a_read_is_made_again_until_it_succeeds() -> None:
    told = Told(Unavailable("away"), Answer(500, b""), Timeout("late"), Answer(200, b"{}"))
    assert await retrying(told).call(GET) == Answer(200, b"{}")
    assert told.pauses() == [0.1, 0.2, 0.4]


async def test_the_last_outcome_is_what_the_caller_gets() -> None:
    told = Told(*[Answer(503, b"no")] * 5, Answer(200, b""))
    assert await retrying(told).call(GET) == Answer(503, b"no")
    told = Told(*[Unavailable("away")] * 5, Answer(200, b""))
    with pytest.raises(Unavailable, match="away"):
        await retrying(told).call(GET)
    assert len(told.asked) == 5


async def test_retry_after_is_waited_for_by_reads_and_writes() -> None:
    for call in (GET, POST):
        told = Told(Answer(429, b"", retry_after=7), Answer(200, b""))
        assert (await retrying(told).call(call)).code == 200
        assert told.pauses() == [7.0]


async def test_a_write_whose_outcome_is_not_known_is_made_once() -> None:
    told = Told(Timeout("late"), Answer(200, b""))
    with pytest.raises(Timeout):
        await retrying(told).call(POST)
    assert len(told.asked) == 1


async def test_all_tries_together_end_by_the_deadline() -> None:
    told = Told(*[Timeout("late")] * 5, seconds=30.0)
    with pytest.raises(Timeout):
        await retrying(told, Policy(deadline=45)).call(GET)
    assert len(told.asked) == 2


async def test_a_watch_is_not_made_again() -> None:
    told = Told()
    with pytest.raises(Unavailable):
        async with retrying(told).stream(GET):
            pass
    assert told.streams == 1


async def test_sleeping_can_be_given() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    told = Told(Answer(429, b"", retry_after=20), Answer(200, b""))
    assert (await Retrying(told, lambda: 0.0, sleep=sleep).call(GET)).code == 200
    assert slept == [20]
