import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.kube.errors import ApiError, Timeout, Unavailable
from datum_compute.kube.retries import Policy, Retrying, pause_before_retry
from datum_compute.kube.transport import Answer, Broken, Call, Untrusted

GET = Call("GET", "/x")
WRITES = [Call(method, "/x") for method in ("POST", "PUT", "PATCH", "DELETE")]
NO_ANSWER: list[ApiError] = [Unavailable("away"), Timeout("late"), Broken("half")]


def pause(
    call: Call, outcome: Answer | ApiError, tries: int = 1, spent: float = 0.0, jitter: float = 0.5
) -> float | None:
    return pause_before_retry(call, outcome, tries=tries, spent=spent, jitter=jitter)


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_read_is_retried_after_a_temporary_error(code: int) -> None:
    assert pause(GET, Answer(code, b"")) == pytest.approx(0.1)


@pytest.mark.parametrize("code", [200, 301, 400, 401, 403, 404, 409, 410, 422])
def test_any_other_answer_is_the_answer(code: int) -> None:
    assert pause(GET, Answer(code, b"")) is None


@pytest.mark.parametrize("error", NO_ANSWER)
def test_a_read_without_an_answer_is_retried(error: ApiError) -> None:
    assert pause(GET, error) is not None


def test_an_untrusted_server_is_not_called_again() -> None:
    assert pause(GET, Untrusted("who is that")) is None


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_retried_only_when_it_certainly_did_not_happen(write: Call) -> None:
    assert pause(write, Answer(429, b"", retry_after=3)) == 3
    assert [pause(write, error) for error in NO_ANSWER] == [None] * 3
    assert [pause(write, Answer(code, b"")) for code in (500, 502, 503, 504)] == [None] * 4


@pytest.mark.parametrize(("tries", "expected"), [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, None), (6, None)])
def test_pauses_double_until_the_tries_are_used_up(tries: int, expected: float | None) -> None:
    assert pause(GET, Answer(503, b""), tries) == (expected and pytest.approx(expected))


@pytest.mark.parametrize(("retry_after", "expected"), [(0, 0.1), (1, 1), (7, 7), (30, 30), (3600, 30)])
def test_a_server_that_asks_for_patience_gets_it_within_reason(retry_after: int, expected: float) -> None:
    assert pause(GET, Answer(429, b"", retry_after=retry_after)) == pytest.approx(expected)
    assert pause(GET, Unavailable("away", retry_after=retry_after)) == pytest.approx(expected)


@pytest.mark.parametrize(("spent", "again"), [(0, True), (55, True), (58, False), (61, False)])
def test_no_try_begins_after_the_deadline(spent: float, again: bool) -> None:
    assert (pause(GET, Answer(429, b"", retry_after=5), spent=spent) is not None) is again


@settings(deadline=None)
@given(
    tries=st.integers(1, 20),
    spent=st.floats(0, 200),
    jitter=st.floats(0, 1),
    retry_after=st.integers(0, 10_000),
    code=st.sampled_from([200, 404, 429, 500, 503]),
)
def test_every_pause_is_within_the_policy(tries: int, spent: float, jitter: float, retry_after: int, code: int) -> None:
    policy = Policy(tries=4, first_pause=0.5, longest_pause=10, deadline=30)
    outcome = Answer(code, b"", retry_after=retry_after)
    seconds = pause_before_retry(GET, outcome, tries=tries, spent=spent, jitter=jitter, policy=policy)
    if seconds is not None:
        assert tries < 4
        assert code in (429, 500, 503)
        assert min(retry_after, 10) <= seconds <= 10
        assert seconds >= 0.375
        assert spent + seconds <= 30


POST = Call("POST", "/x", body=b"{}")


class Scripted:
    """Gives one outcome after the other and records when it was called."""

    def __init__(self, *outcomes: Answer | Exception, seconds: float = 0.0) -> None:
        self.outcomes = list(outcomes)
        self.called_at: list[float] = []
        self.streams = 0
        self._seconds = seconds

    async def call(self, call: Call) -> Answer:
        self.called_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._seconds)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        self.streams += 1
        raise Unavailable("away")

    def pauses(self) -> list[float]:
        return [round(after - before, 3) for before, after in zip(self.called_at, self.called_at[1:], strict=False)]


def retrying(transport: Scripted, policy: Policy | None = None) -> Retrying:
    return Retrying(transport, lambda: 0.5, policy=policy or Policy())


async def test_a_read_is_retried_until_it_succeeds() -> None:
    transport = Scripted(Unavailable("away"), Answer(500, b""), Timeout("late"), Answer(200, b"{}"))
    assert await retrying(transport).call(GET) == Answer(200, b"{}")
    assert transport.pauses() == [0.1, 0.2, 0.4]


async def test_the_last_outcome_is_what_the_caller_gets() -> None:
    transport = Scripted(*[Answer(503, b"no")] * 5, Answer(200, b""))
    assert await retrying(transport).call(GET) == Answer(503, b"no")
    transport = Scripted(*[Unavailable("away")] * 5, Answer(200, b""))
    with pytest.raises(Unavailable, match="away"):
        await retrying(transport).call(GET)
    assert len(transport.called_at) == 5


async def test_retry_after_is_waited_for_by_reads_and_writes() -> None:
    for call in (GET, POST):
        transport = Scripted(Answer(429, b"", retry_after=7), Answer(200, b""))
        assert (await retrying(transport).call(call)).code == 200
        assert transport.pauses() == [7.0]


async def test_a_write_whose_outcome_is_not_known_is_made_once() -> None:
    transport = Scripted(Timeout("late"), Answer(200, b""))
    with pytest.raises(Timeout):
        await retrying(transport).call(POST)
    assert len(transport.called_at) == 1


async def test_all_tries_together_end_by_the_deadline() -> None:
    transport = Scripted(*[Timeout("late")] * 5, seconds=30.0)
    with pytest.raises(Timeout):
        await retrying(transport, Policy(deadline=45)).call(GET)
    assert len(transport.called_at) == 2


async def test_a_watch_is_not_retried() -> None:
    transport = Scripted()
    with pytest.raises(Unavailable):
        async with retrying(transport).stream(GET):
            pass
    assert transport.streams == 1


async def test_the_sleep_function_can_be_injected() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    transport = Scripted(Answer(429, b"", retry_after=20), Answer(200, b""))
    assert (await Retrying(transport, lambda: 0.0, sleep=sleep).call(GET)).code == 200
    assert slept == [20]
