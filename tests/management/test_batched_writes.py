"""Writes that several passes share."""

import asyncio

import pytest

from datum_compute.management.batched_writes import BatchedWrites
from datum_compute.runtime.testing.simulation import Simulation


class Slow:
    """Takes a second per write, and fails the first `failures` times."""

    def __init__(self, failures: int = 0) -> None:
        self.written: list[list[str]] = []
        self._failures = failures

    async def __call__(self, entries: list[str]) -> None:
        await asyncio.sleep(1)
        if self._failures:
            self._failures -= 1
            raise ValueError("no")
        self.written.append(entries)


@pytest.mark.parametrize("seed", range(5))
async def test_entries_added_during_a_write_share_the_next_one(simulation: Simulation, seed: int) -> None:
    batches, slow = BatchedWrites[str](), Slow()
    first = asyncio.create_task(batches.add("a", "1", slow))
    await asyncio.sleep(0.5)
    others = [asyncio.create_task(batches.add("a", name, slow)) for name in "234"]
    apart = asyncio.create_task(batches.add("b", "5", slow))
    await asyncio.gather(first, apart, *others)
    assert sorted(sorted(entries) for entries in slow.written) == [["1"], ["2", "3", "4"], ["5"]]


async def test_a_failed_write_fails_only_the_pass_that_made_it(simulation: Simulation) -> None:
    batches, slow = BatchedWrites[str](), Slow(failures=1)
    outcomes = await asyncio.gather(*(batches.add("a", name, slow) for name in "123"), return_exceptions=True)
    failed = [name for name, outcome in zip("123", outcomes, strict=True) if isinstance(outcome, ValueError)]
    assert len(failed) == 1
    assert [set(entries) for entries in slow.written] == [set("123") - set(failed)]


async def test_a_cancelled_pass_leaves_no_entry_behind(simulation: Simulation) -> None:
    batches, slow = BatchedWrites[str](), Slow()
    first = asyncio.create_task(batches.add("a", "1", slow))
    await asyncio.sleep(0.5)
    second = asyncio.create_task(batches.add("a", "2", slow))
    await asyncio.sleep(0.1)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await batches.add("a", "3", slow)
    assert slow.written == [["1"], ["3"]]
