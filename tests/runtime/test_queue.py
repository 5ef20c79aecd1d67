import asyncio
from itertools import count as counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.runtime.queue import FIRST_BACKOFF, LONGEST_BACKOFF, WorkQueue
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count


@pytest.fixture
def queue() -> WorkQueue[str]:
    return WorkQueue()


async def taken(queue: WorkQueue[str]) -> list[str]:
    """All that waits, in order; each is done at once."""
    keys = []
    while len(queue):
        keys.append(await queue.get())
        queue.done(keys[-1])
    return keys


# Adding


async def test_keys_come_in_the_order_they_were_added(queue: WorkQueue[str]) -> None:
    for key in "cab":
        queue.add(key)
    assert await taken(queue) == ["c", "a", "b"]


async def test_a_waiting_key_is_queued_once(queue: WorkQueue[str]) -> None:
    for key in "aabab":
        queue.add(key)
    assert len(queue) == 2
    assert await taken(queue) == ["a", "b"]


async def test_a_key_added_while_it_runs_runs_again_and_not_at_once(queue: WorkQueue[str]) -> None:
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done(key)
    assert await taken(queue) == ["a"]


@pytest.mark.parametrize(
    ("adds", "expected"),
    [
        (["old", "new!"], ["new", "old"]),
        (["a", "b", "x!", "c", "y!"], ["x", "y", "a", "b", "c"]),
        (["a", "b", "b!"], ["b", "a"]),  # a change of what still waits for its first pass is a change
        (["b!", "a", "b"], ["b", "a"]),
    ],
)
async def test_live_changes_go_before_the_initial_list(
    queue: WorkQueue[str], adds: list[str], expected: list[str]
) -> None:
    for key in adds:
        queue.add(key.removesuffix("!"), initial=not key.endswith("!"))
    assert await taken(queue) == expected


# Delays


async def test_a_delayed_key_comes_when_it_is_due(queue: WorkQueue[str], simulation: Simulation) -> None:
    queue.add_after("a", 5)
    assert len(queue) == 0
    assert await queue.get() == "a"
    assert simulation.time() == 5


async def test_even_the_shortest_delay_takes_time(queue: WorkQueue[str], simulation: Simulation) -> None:
    """What is left of a wait may be less than the clock can tell."""
    await simulation.advance(20)
    before = simulation.time()
    queue.add_after("a", 1e-16)
    await queue.get()
    assert simulation.time() > before


@pytest.mark.parametrize("delays", [(5, 9), (9, 5), (5, 5), (9, 5, 7)])
async def test_the_earliest_of_several_delays_wins(
    queue: WorkQueue[str], simulation: Simulation, delays: tuple[float, ...]
) -> None:
    for delay in delays:
        queue.add_after("a", delay)
    assert await queue.get() == "a"
    assert simulation.time() == 5
    queue.done("a")
    await asyncio.sleep(60)
    assert len(queue) == 0


async def test_each_pass_decides_when_to_run_again(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 5)
    queue.add("a")
    assert await taken(queue) == ["a"]
    await asyncio.sleep(60)
    assert len(queue) == 0


async def test_a_delay_requested_during_a_pass_is_honoured(queue: WorkQueue[str], simulation: Simulation) -> None:
    queue.add("a")
    key = await queue.get()
    queue.add_after("a", 5)
    queue.done(key)
    assert await queue.get() == "a"
    assert simulation.time() == 5


async def test_a_delay_that_ends_while_the_key_runs_makes_it_run_again(queue: WorkQueue[str]) -> None:
    queue.add("a")
    key = await queue.get()
    queue.add_after("a", 5)
    await asyncio.sleep(6)
    assert len(queue) == 0
    queue.done(key)
    assert await taken(queue) == ["a"]


# Failures


async def test_backoff_doubles_from_5_ms_up_to_30_s(queue: WorkQueue[str]) -> None:
    delays = [queue.add_failed("a") for _ in range(2000)]
    assert (FIRST_BACKOFF, LONGEST_BACKOFF) == (0.005, 30)
    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert delays[11:16] == [10.24, 20.48, 30, 30, 30]
    assert set(delays[13:]) == {30}


async def test_backoff_is_counted_by_key(queue: WorkQueue[str]) -> None:
    for _ in range(5):
        queue.add_failed("a")
    assert queue.add_failed("b") == 0.005


async def test_backoff_starts_again_after_a_success(queue: WorkQueue[str]) -> None:
    for _ in range(5):
        queue.add_failed("a")
    queue.forget_failures("a")
    assert queue.add_failed("a") == 0.005


async def test_a_failed_key_comes_after_its_backoff(queue: WorkQueue[str], simulation: Simulation) -> None:
    for due in (0.005, 0.015, 0.035):
        queue.add_failed("a")
        assert await queue.get() == "a"
        assert simulation.time() == pytest.approx(due)
        queue.done("a")


async def test_a_floor_cuts_the_backoff_short_but_not_its_count(queue: WorkQueue[str], simulation: Simulation) -> None:
    for _ in range(20):
        assert queue.add_failed("a", no_later_than=2) <= 2
    assert await queue.get() == "a"
    queue.done("a")
    assert queue.add_failed("a", no_later_than=2) == 2
    assert queue.add_failed("a") == 30


# Groups


def first_letter(key: str) -> str:
    return key[0]


async def test_groups_take_turns() -> None:
    queue = WorkQueue(first_letter)
    for key in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.add(key)
    assert await taken(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_group_runs_at_most_its_share_at_once(simulation: Simulation) -> None:
    queue = WorkQueue(first_letter, at_once=2)
    for key in ("a1", "a2", "a3", "a4", "b1"):
        queue.add(key)
    workers = [asyncio.create_task(queue.get()) for _ in range(4)]
    await simulation.settle()
    assert sorted(worker.result() for worker in workers if worker.done()) == ["a1", "a2", "b1"]
    queue.done("a2")
    await simulation.settle()
    assert sorted(worker.result() for worker in workers) == ["a1", "a2", "a3", "b1"]


async def hanging(simulation: Simulation, queue: WorkQueue[str], group: str, keys: int) -> list[str]:
    """Adds so many keys of a group, and returns those that the queue hands out while none of them ends."""
    for number in range(keys):
        queue.add(f"{group}{number}")
    takers = [asyncio.create_task(queue.get()) for _ in range(keys)]
    await simulation.settle()
    running = [taker.result() for taker in takers if taker.done()]
    for taker in takers:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)
    return running


async def test_a_busy_group_alone_has_its_whole_share(simulation: Simulation) -> None:
    queue = WorkQueue(first_letter, 32, reserved=2, shared=512)
    assert len(await hanging(simulation, queue, "a", 100)) == 32
    assert len(await hanging(simulation, queue, "b", 100)) == 32


async def test_however_many_groups_hang_another_one_has_room(simulation: Simulation) -> None:
    queue = WorkQueue(first_letter, 32, reserved=2, shared=512)
    hung = [await hanging(simulation, queue, chr(1000 + number), 40) for number in range(300)]
    assert [len(running) for running in hung[:10]] == [32] * 10
    assert min(map(len, hung)) == 2
    assert sum(map(len, hung)) <= 512 + 2 * 300
    assert len(await hanging(simulation, queue, "z", 40)) == 2


async def test_places_that_become_free_are_for_all_groups(simulation: Simulation) -> None:
    queue = WorkQueue(first_letter, 4, reserved=1, shared=2)
    running = [*await hanging(simulation, queue, "a", 4), *await hanging(simulation, queue, "b", 4)]
    assert sorted(running) == ["a0", "a1", "b0", "b1"]
    waiting = asyncio.create_task(queue.get())
    await simulation.settle()
    assert not waiting.done()
    queue.done("a1")
    await simulation.settle()
    assert waiting.result() in ("a2", "b2")


async def test_a_key_whose_group_changes_counts_in_the_one_it_was_added_to(simulation: Simulation) -> None:
    """The group may depend on what is known of an object, and that may come to be known while the key waits or runs."""
    groups = {"a": "unknown", "b": "unknown", "c": "known"}
    queue = WorkQueue[str](groups.__getitem__, at_once=1)
    for key in "abc":
        queue.add(key)
    groups |= {"a": "known", "b": "known"}
    queue.add("b", initial=True)
    assert {await queue.get(), await queue.get()} == {"a", "c"}
    queue.done("a")
    assert await queue.get() == "b"
    queue.add("a")  # known by now, like the one that runs
    queue.done("b")
    assert len(queue) == 1
    queue.done("c")
    assert await taken(queue) == ["a"]
    queue.add("a")
    groups["a"] = "another"
    queue.drop(lambda key: True)
    assert len(queue) == 0


async def test_in_a_group_that_is_held_up_live_changes_still_go_first(simulation: Simulation) -> None:
    queue = WorkQueue(first_letter, at_once=1)
    for key in ("a1", "a2", "a3"):
        queue.add(key, initial=True)
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await simulation.settle()
    queue.add("a4")
    queue.done("a1")
    await simulation.settle()
    assert [worker.result() for worker in waiting] in (["a1", "a4"], ["a4", "a1"])


# Dropping


async def test_a_dropped_key_never_runs() -> None:
    queue = WorkQueue(first_letter)
    queue.add("a1")
    queue.add("a2", initial=True)
    queue.add_after("a3", 5)
    queue.add_failed("a4")
    queue.add("b")
    queue.drop(lambda key: key.startswith("a"))
    assert await taken(queue) == ["b"]
    await asyncio.sleep(60)
    assert len(queue) == 0
    assert queue.add_failed("a4") == 0.005


# Workers that come and go


@pytest.mark.parametrize("seed", range(20))
async def test_a_cancelled_worker_never_swallows_a_wake_up(
    queue: WorkQueue[str], simulation: Simulation, seed: int
) -> None:
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await simulation.settle()
    queue.add("a")  # wakes one of them, and whichever it is may be cancelled before it runs
    workers[0].cancel()
    workers[1].cancel()
    await simulation.settle()
    assert [worker.result() for worker in workers if worker.done() and not worker.cancelled()] == ["a"]
    for worker in workers:
        worker.cancel()


class Script:
    """Workers that take some time for each key, while somebody adds, waits, and replaces workers."""

    def __init__(self) -> None:
        self.queue: WorkQueue[str] = WorkQueue(first_letter, at_once=2, reserved=1, shared=1)
        self.requested: dict[str, int] = {}  # when a key was last asked for, in steps
        self.started: dict[str, int] = {}
        self.running: set[str] = set()
        self.steps = counter()
        self.workers = [asyncio.create_task(self.work()) for _ in range(3)]

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Simulation)
        while True:
            key = await self.queue.get()
            assert key not in self.running
            self.running.add(key)
            assert sum(first_letter(other) == first_letter(key) for other in self.running) <= 2
            self.started[key] = next(self.steps)
            try:
                await asyncio.sleep(loop.random.choice([0, 0, 1]))
            finally:
                self.running.remove(key)
                self.queue.done(key)

    async def do(self, step: str, key: str) -> None:
        match step:
            case "add":
                self.queue.add(key)
            case "add initial":
                self.queue.add(key, initial=True)
            case "add soon":
                self.queue.add_after(key, 0)
            case "add later":
                self.queue.add_after(key, 1)
            case "add much later":
                self.queue.add_after(key, 60)
            case "fail":
                self.queue.add_failed(key)
            case "yield":
                await asyncio.sleep(0)
            case "wait":
                await asyncio.sleep(1)
            case "replace worker":
                self.workers.pop(0).cancel()
                self.workers.append(asyncio.create_task(self.work()))
        if step.startswith(("add", "fail")):
            self.requested[key] = next(self.steps)


STEPS = st.tuples(
    st.sampled_from(
        ["add", "add initial", "add soon", "add later", "add much later", "fail", "yield", "wait", "replace worker"]
    ),
    st.sampled_from(["a1", "a2", "a3", "b1"]),
)


@given(seed=st.integers(0, 1000), steps=st.lists(STEPS, max_size=40))
@settings(max_examples=count(300, 5000), deadline=None)
def test_no_key_runs_twice_at_once_and_no_add_is_lost(seed: int, steps: list[tuple[str, str]]) -> None:
    async def main() -> None:
        script = Script()
        for step, key in steps:
            await script.do(step, key)
        await asyncio.sleep(100)
        late = [key for key, requested in script.requested.items() if script.started.get(key, -1) < requested]
        assert late == []
        assert len(script.queue) == 0
        for worker in script.workers:
            assert not worker.done()
            worker.cancel()

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        runner.run(main())
