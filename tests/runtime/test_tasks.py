"""Concurrent tasks of which the first to end ends all."""

import asyncio

import pytest

from datum_compute.runtime.tasks import CANCEL_SECONDS, first
from datum_compute.runtime.testing.simulation import Simulation


async def _fail() -> None:
    await asyncio.sleep(1)
    raise ZeroDivisionError("a defect")


async def test_the_first_task_to_end_ends_the_others() -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("long")

    await first(asyncio.sleep(1), long())
    assert ended == ["long"]


async def test_the_error_of_the_first_task_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await first(_fail(), asyncio.sleep(3600))


async def test_errors_while_the_others_end_do_not_hide_the_first_outcome() -> None:
    async def fail_at_the_end() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ZeroDivisionError("too late")

    await first(asyncio.sleep(1), fail_at_the_end())


async def test_a_task_that_does_not_end_is_abandoned(simulation: Simulation) -> None:
    over = asyncio.Event()

    async def stubborn() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    began = simulation.time()
    with pytest.raises(ZeroDivisionError):
        await first(stubborn(), _fail())
    assert simulation.time() - began == 1 + CANCEL_SECONDS
    over.set()
    await simulation.settle()
