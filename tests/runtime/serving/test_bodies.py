"""Request bodies that are large, slow, or too many at once."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from datum_compute.kube.errors import BadRequest, Timeout, TooLarge, TooManyRequests
from datum_compute.runtime.serving.bodies import Bodies, Receive
from datum_compute.runtime.testing.simulation import Simulation

SCOPE: dict[str, Any] = {"headers": []}


def sends(*pieces: bytes, ends: bool = True, pause: float = 0) -> Receive:
    """A client that sends these pieces, and then no more; without an end, it stays silent."""
    left = iter(enumerate(pieces, 1))

    async def receive() -> Any:
        await asyncio.sleep(pause)
        number, piece = next(left, (0, b""))
        if not number:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": piece, "more_body": not ends or number < len(pieces)}

    return receive


async def test_a_body_in_pieces_is_put_together() -> None:
    assert await Bodies(10, seconds=1, together=10).read(SCOPE, sends(b"abc", b"", b"def")) == b"abcdef"


async def test_a_body_that_is_too_large_is_read_to_its_end_and_refused() -> None:
    received = 0

    def counted(receive: Receive) -> Receive:
        async def count() -> Any:
            nonlocal received
            received += 1
            return await receive()

        return count

    with pytest.raises(TooLarge, match="limit is 10"):
        await Bodies(10, seconds=1, together=100).read(SCOPE, counted(sends(*[b"abcde"] * 5)))
    assert received == 5, "else the client would be cut off while it sends, and see no answer"


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"1000000")]])
async def test_an_endless_body_is_not_read_forever(headers: Iterable[tuple[bytes, bytes]]) -> None:
    with pytest.raises(TooLarge):
        await Bodies(10, seconds=1, together=100).read({"headers": headers}, sends(*[b"abcde"] * 1000, ends=False))


async def test_a_slow_body_is_refused(simulation: Simulation) -> None:
    began = simulation.time()
    with pytest.raises(Timeout, match="did not arrive within 30 s"):
        await Bodies(1000, seconds=30, together=1000).read(SCOPE, sends(*[b"a"] * 100, pause=1))
    assert simulation.time() - began == 30


async def test_a_client_that_disconnects_has_sent_no_body() -> None:
    async def leave() -> Any:
        return {"type": "http.disconnect"}

    with pytest.raises(BadRequest):
        await Bodies(10, seconds=1, together=10).read(SCOPE, leave)


async def test_too_many_bodies_at_once_are_refused_until_some_have_ended(simulation: Simulation) -> None:
    bodies = Bodies(10, seconds=30, together=25)
    slow = [asyncio.create_task(bodies.read(SCOPE, sends(b"a" * 9, ends=False))) for _ in range(2)]
    await simulation.settle()
    with pytest.raises(TooManyRequests, match="try again"):
        await bodies.read(SCOPE, sends(b"a" * 9))
    assert await bodies.read(SCOPE, sends(b"small")) == b"small"
    with pytest.raises(TooLarge):
        await bodies.read(SCOPE, sends(b"a" * 5, b"a" * 50))
    slow[0].cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    for _ in range(3):
        assert await bodies.read(SCOPE, sends(b"a" * 9)) == b"a" * 9
