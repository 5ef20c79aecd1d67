"""A real container engine, for `make test-containers`; otherwise nothing is collected.

`podman` is an engine of the tests' own with the images of `tests.containers.podman`, empty before and after each test.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from datum_compute.local import daemon
from datum_compute.providers.engine.client import EngineClient
from tests.containers.machine import Machine
from tests.containers.podman import Podman, obstacle

collect_ignore_glob = [] if os.environ.get("CONTAINERS") == "1" else ["test_*.py"]


@pytest.fixture(scope="session")
def podman_service() -> Iterator[Podman]:
    if reason := obstacle():
        pytest.skip(reason)
    podman = Podman()
    try:
        podman.start()
        podman.load()
        yield podman
    finally:
        podman.close()


@pytest.fixture
def podman(podman_service: Podman) -> Iterator[Podman]:
    yield podman_service
    podman_service.clear()


@pytest.fixture
def machine(podman: Podman, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(podman, tmp_path / "state")
    yield machine
    daemon.down(machine.directory)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Real time: nobody simulates Podman."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def engine(podman: Podman, runner: asyncio.Runner) -> Iterator[EngineClient]:
    client = runner.run(EngineClient.connect(str(podman.path)))
    yield client
    runner.run(client.close())
