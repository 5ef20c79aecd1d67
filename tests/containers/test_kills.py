"""A local federation that is killed at any moment, and started again, loses no container and makes none twice."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from datum_compute.local import daemon
from tests.conftest import count
from tests.containers.machine import Machine
from tests.containers.podman import HELLO, HELLO_2, Podman, until

KILLS = 5
INSTANCE = "compute.datumapis.com/instance"
IMAGES = (HELLO, HELLO_2)


@pytest.fixture
def machine(podman: Podman, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(podman, tmp_path / "state")
    yield machine
    daemon.down(tmp_path / "state")


def kill(machine: Machine) -> None:
    running = daemon.status(machine.directory)
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    until("the federation is dead", lambda: daemon.status(machine.directory) is None, 10)


def names(machine: Machine) -> list[str]:
    """The instance of each of our containers that runs."""
    ours = machine.ours()
    boxes = machine.podman.containers()
    return sorted(box["Labels"][INSTANCE] for box in boxes if ours.get(box["Id"]) == "running")


@pytest.mark.parametrize("seed", range(count(1, 4)))
def test_kills_lose_and_double_nothing(machine: Machine, seed: int) -> None:
    draw = random.Random(seed)
    machine.up()
    expected = [f"web-default-{city}-{number}" for city in ("ams", "dfw") for number in (0, 1)]
    for number in range(KILLS):
        machine(f"deploy web --image={IMAGES[number % 2]} --city=DFW,AMS --min=2 --port=8080 --no-wait")
        time.sleep(draw.uniform(0, 3))  # somewhere in creates, starts and stops
        kill(machine)
        machine("local up")
    machine("rollout status web --timeout=90s")
    until("each runs once", lambda: names(machine) == expected and len(machine.ours()) == 4, 30)
    before = machine.ours()
    kill(machine)
    machine("local up")
    machine("rollout status web --timeout=60s")
    assert machine.ours() == before
    assert names(machine) == expected
