"""Containers and disks that misbehave on a real engine: nothing else is harmed, and what is wrong is said."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from datum_compute.providers.containers.logs import ContainerLogs
from datum_compute.providers.engine.client import EngineClient
from datum_compute.runtime.clock import SystemClock
from tests.containers.podman import HELLO, Podman, obstacle
from tests.containers.test_engine import body, settled
from tests.containers.test_logs import until
from tests.containers.test_provider import Machine
from tests.providers.containers.test_logs import WEB, Collected

PROCESSES = 64


async def test_a_fork_bomb_stays_within_its_limit_and_others_go_on(podman: Podman, engine: EngineClient) -> None:
    if not engine.info.limits_processes:
        pytest.skip("the engine does not limit processes")
    sink = Collected()
    logs = ContainerLogs(sink, SystemClock())
    calm = await engine.create("calm", body("count", "30", "50ms"))
    bomb = await engine.create("bomb", body("fork", PidsLimit=PROCESSES))
    await engine.start(bomb)
    await engine.start(calm)
    logs.follow(engine, calm, WEB)
    await until(lambda: len(sink.texts()) >= 30)
    assert sink.texts() == [f"line {number}" for number in range(1, 31)]
    limit, current = processes(bomb)
    assert limit == PROCESSES
    assert 10 < current <= PROCESSES
    await logs.close()
    await engine.remove(bomb)
    assert await engine.inspect(bomb) is None
    await settled(engine, calm, "running")


def processes(container: str) -> tuple[int, int]:
    """How many processes a container may have, and how many it has."""
    [limit] = Path("/sys/fs/cgroup").glob(f"**/*{container}*/pids.max")
    return int(limit.read_text()), int((limit.parent / "pids.current").read_text())


@pytest.fixture
def small_podman() -> Iterator[Podman]:
    """With 64 MB for images and containers."""
    if reason := obstacle():
        pytest.skip(reason)
    podman = Podman()
    try:
        podman.limit_storage(64)
        podman.start()
        podman.load()
        yield podman
    finally:
        podman.close()


async def test_a_full_disk_is_said_and_instances_start_when_there_is_room(small_podman: Podman) -> None:
    machine = Machine(small_podman)
    await machine.start()
    filler = small_podman.folder / "storage" / "filler"
    fill(filler)
    await machine.deploy("DFW", image=HELLO)
    await machine.until_message("the disk of the container engine is full")
    filler.unlink()

    async def runs() -> bool:
        return {reason for reason, _ in (await machine.reports()).values()} == {"Available"}

    await machine.until("it runs once there is room", runs, 60)
    assert len(await machine.answers()) == 1
    await machine.stop()
    machine.engine.close()


def fill(path: Path) -> None:
    """Until there is no byte left."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
        assert os.fstatvfs(file.fileno()).f_bavail == 0
