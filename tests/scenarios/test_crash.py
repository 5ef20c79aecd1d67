"""A process that crashes after any write and restarts reaches the same state as one that never crashed."""

import random
from functools import cache

import pytest

from tests.conftest import LONG
from tests.scenarios import life
from tests.scenarios.life import ONE_INSTANCE, Life, Plan

CHUNKS = 8


@cache
def _whole(plan: Plan) -> Life:
    return life.run(0, plan)


def _check(plan: Plan, writes: int) -> None:
    whole = _whole(plan)
    again = life.run(writes, plan, whole.rows[:writes])
    for step, state in again.states.items():
        assert state == whole.states[step], f"after a crash at write {writes} the state {step!r} differs"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_one_instance_survives_a_crash_after_every_write(chunk: int) -> None:
    for writes in range(chunk, len(_whole(ONE_INSTANCE).rows) + 1, CHUNKS):
        _check(ONE_INSTANCE, writes)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_two_cities_of_two_survive_a_crash_after_any_write(chunk: int) -> None:
    """Every write in the long run; a seeded tenth otherwise."""
    all_writes = range(len(_whole(Plan()).rows) + 1)
    chosen = all_writes if LONG else sorted(random.Random(1).sample(all_writes, len(all_writes) // 10))
    for writes in chosen[chunk::CHUNKS]:
        _check(Plan(), writes)
