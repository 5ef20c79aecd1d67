import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from datum_compute.runtime.testing.simulation import START, Deadlock, Simulation, Stalled

T = TypeVar("T")

EMPTY: dict[str, object] = {}
ROOT = Path(__file__).parents[2]


def simulate(seed: int, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        return runner.run(main())


async def holds() -> bool:
    return True


async def never() -> bool:
    return False


# The order of steps


async def story() -> list[str]:
    """Tasks that meet in every way asyncio knows; the order in which they do is the result."""
    loop = asyncio.get_running_loop()
    steps: list[str] = []
    queue: asyncio.Queue[str] = asyncio.Queue(maxsize=2)
    lock = asyncio.Lock()

    def note(text: str) -> None:
        steps.append(f"{loop.time():.3f} {text}")

    async def produce(name: str) -> None:
        for number in range(3):
            await queue.put(f"{name}{number}")
            note(f"put {name}{number}")

    async def consume(name: str) -> None:
        try:
            while True:
                item = await queue.get()
                async with lock:
                    note(f"{name} took {item}")
                    await asyncio.sleep(0.5)
        finally:
            note(f"{name} ends")  # the task group cancels its tasks from a set

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            for name in "abc":
                tasks.create_task(produce(name))
            for name in ("north", "south", "east", "west"):
                tasks.create_task(consume(name))
            await asyncio.sleep(3)
            raise LookupError
    return steps


def test_the_same_seed_gives_the_same_order() -> None:
    assert simulate(7, story) == simulate(7, story)


def test_other_seeds_give_other_orders() -> None:
    assert len({tuple(simulate(seed, story)) for seed in range(20)}) == 20


def test_the_order_is_the_same_in_another_process() -> None:
    assert order_in_another_process("1") == order_in_another_process("4242") == order_of_five()


def order_of_five() -> list[str]:
    return [step for seed in range(5) for step in simulate(seed, story)]


def order_in_another_process(hash_seed: str) -> list[str]:
    script = "from tests.runtime.testing.test_simulation import order_of_five; print('\\n'.join(order_of_five()))"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


# Time


async def test_time_jumps_without_waiting(simulation: Simulation) -> None:
    await asyncio.sleep(10 * 365 * 24 * 3600)  # the test's own timeout is a minute
    assert simulation.time() == 10 * 365 * 24 * 3600
    assert simulation.now().year == START.year + 10


async def test_timers_run_in_the_order_of_their_times(simulation: Simulation) -> None:
    fired: list[float] = []
    for seconds in (3.0, 1.0, 2.0):
        simulation.call_later(seconds, fired.append, seconds)
    await asyncio.sleep(2.5)
    assert fired == [1.0, 2.0]


async def test_a_cancelled_timer_neither_runs_nor_moves_time(simulation: Simulation) -> None:
    fired: list[float] = []
    simulation.call_later(5, fired.append, 5.0).cancel()
    with pytest.raises(Stalled):
        await simulation.until(never, within=60)
    assert (fired, simulation.time()) == ([], 0.0)


@pytest.mark.parametrize("seed", range(10))
async def test_settle_runs_all_that_is_due_and_does_not_move_time(simulation: Simulation, seed: int) -> None:
    done: list[str] = []

    async def chain(depth: int) -> None:
        if depth:
            await asyncio.create_task(chain(depth - 1))
        done.append(f"depth {depth}")

    later = asyncio.create_task(asyncio.sleep(0.001))
    deep = asyncio.create_task(chain(20))
    simulation.call_later(0, done.append, "due now")
    await simulation.settle()
    assert deep.done()
    assert "due now" in done
    assert not later.done()
    assert simulation.time() == 0.0


async def test_until_returns_at_the_first_moment_the_condition_holds(simulation: Simulation) -> None:
    simulation.call_later(10, lambda: None)
    ready: list[bool] = []
    simulation.call_later(30, ready.append, True)

    async def is_ready() -> bool:
        return bool(ready)

    await simulation.until(is_ready, within=60)
    assert simulation.time() == 30


async def test_until_does_not_move_time_for_what_holds_already(simulation: Simulation) -> None:
    simulation.call_later(30, lambda: None)
    await simulation.until(holds, within=60)
    assert simulation.time() == 0


@pytest.mark.parametrize("seed", [5])
async def test_until_says_what_did_not_come_true_and_with_which_seed(simulation: Simulation, seed: int) -> None:
    simulation.call_later(61, lambda: None)
    with pytest.raises(Stalled, match=r"the moon did not come true within 60 s \(seed 5\)"):
        await simulation.until(never, within=60, what="the moon")
    assert simulation.time() == 0  # what is due later than asked for was not run


@pytest.mark.parametrize("seed", range(10))
async def test_until_can_be_cancelled(simulation: Simulation, seed: int) -> None:
    simulation.call_later(60, lambda: None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await simulation.until(never, within=3600)
    await asyncio.sleep(60)


# What goes wrong


def test_a_deadlock_is_reported_with_the_names_of_its_tasks() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def wait_for_ever() -> None:
            await loop.create_future()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_ever(), name="philosopher/1")
            tasks.create_task(wait_for_ever(), name="philosopher/2")

    with pytest.raises(Deadlock, match=r"\(seed 3\).*philosopher/1, philosopher/2"):
        simulate(3, main)


def test_a_crash_in_a_background_task_ends_the_simulation() -> None:
    async def crash() -> None:
        await asyncio.sleep(1)
        raise LookupError("nobody waits for this")

    async def main() -> None:
        asyncio.create_task(crash())  # noqa: RUF006
        await asyncio.sleep(3600)
        raise AssertionError("the simulation went on")

    with pytest.raises(LookupError, match="nobody waits for this"):
        simulate(1, main)


def test_a_crash_in_a_referenced_task_fails_the_run_at_its_end() -> None:
    async def crash() -> None:
        raise LookupError("nobody asked")

    async def main() -> None:
        task = asyncio.create_task(crash())
        await asyncio.sleep(1)
        assert task.done()

    with pytest.raises(LookupError, match="nobody asked"):
        simulate(1, main)


def test_a_crash_in_a_callback_ends_the_simulation() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, EMPTY.__getitem__, "missing")
        await asyncio.sleep(3600)

    with pytest.raises(KeyError, match="missing"):
        simulate(1, main)


def test_after_a_crash_the_other_tasks_are_still_cleaned_up() -> None:
    cleaned: set[int] = set()

    async def tidy(number: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)
            cleaned.add(number)

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, EMPTY.__getitem__, "missing")
        await asyncio.gather(*(tidy(number) for number in range(5)))

    runner = asyncio.Runner(loop_factory=lambda: Simulation.seeded(1))
    with pytest.raises(KeyError):
        runner.run(main())
    runner.close()
    assert cleaned == {0, 1, 2, 3, 4}


def test_a_loop_that_never_waits_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datum_compute.runtime.testing.simulation._STEPS_WITHOUT_TIME", 1000)

    async def main() -> None:
        while True:
            await asyncio.create_task(holds())

    with pytest.raises(Deadlock, match="for ever without waiting"):
        simulate(1, main)


@pytest.mark.parametrize(
    "reach_outside",
    [
        lambda: asyncio.open_connection("127.0.0.1", 1),
        lambda: asyncio.start_server(lambda reader, writer: None, "127.0.0.1"),
        lambda: asyncio.to_thread(print),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 80),
    ],
    ids=["connection", "server", "thread", "process", "name"],
)
def test_reaching_outside_fails_loudly(reach_outside: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async def main() -> None:
        await reach_outside()

    with pytest.raises(NotImplementedError):
        simulate(1, main)


# What asyncio offers


@pytest.mark.parametrize("seed", range(10))
async def test_a_timeout_ends_what_takes_longer(simulation: Simulation, seed: int) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await asyncio.sleep(6)
    assert simulation.time() == 5
    async with asyncio.timeout(5):
        await asyncio.sleep(4)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 1)
    assert simulation.time() == 10


@pytest.mark.parametrize("seed", range(10))
async def test_a_task_group_cancels_the_others_when_one_fails(simulation: Simulation, seed: int) -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise LookupError

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as tasks:
            slow = tasks.create_task(asyncio.sleep(3600))
            tasks.create_task(fail())
    assert caught.group_contains(LookupError)
    assert slow.cancelled()
    assert simulation.time() == 1


@pytest.mark.parametrize("seed", range(10))
async def test_queues_events_and_gather_hand_over(simulation: Simulation, seed: int) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
    finished = asyncio.Event()

    async def produce() -> None:
        for number in range(5):
            await queue.put(number)
        await queue.join()
        finished.set()

    async def consume() -> list[int]:
        taken = []
        for _ in range(5):
            taken.append(await queue.get())
            queue.task_done()
        await finished.wait()
        return taken

    _, taken = await asyncio.gather(produce(), consume())
    assert taken == [0, 1, 2, 3, 4]
