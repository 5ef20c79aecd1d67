"""Any order of steps ends in the same state, and one seed is one order."""

import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.conftest import count
from tests.scenarios import life

CHUNK = 10


@cache
def _expected() -> dict[str, dict[str, Any]]:
    return life.run(0).states


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(1, count(100, 1000) + 1, CHUNK))
def test_every_seed_ends_in_the_same_state(first: int) -> None:
    for seed in range(first, first + CHUNK):
        states = life.run(seed).states
        for step, expected in _expected().items():
            assert states[step] == expected, f"seed {seed}: the state after {step!r} differs from that of seed 0"


def test_nothing_but_the_hub_namespace_is_left_after_a_delete() -> None:
    left = [place for place in _expected()["deleted"] if "/ns-" in place or "web" in place]
    assert {place.rsplit("/", 3)[1] for place in left} == {"namespaces"}
    assert len(left) == 3  # on the hub and in both cells


def test_one_seed_gives_the_same_writes_in_two_processes() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.scenarios.life", "7"],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"\n") > 100
