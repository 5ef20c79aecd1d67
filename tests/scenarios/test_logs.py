"""Logs of simulated instances in the whole federation: followed through a roll, a new instance and a deletion."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.local.logs import Logs
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation, Project
from tests.scenarios.life import BEHAVIOUR
from tests.telemetry.asgi import Open, ask

WEB = {"query": '{datum_workload_name="web"}'}
SECOND = 1_000_000_000


class Readable:
    """A federation with its logs."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.logs = Logs(simulation)
        self.embedded = EmbeddedFederation(simulation, BEHAVIOUR, recorder=self.logs.lives)

    @property
    def project(self) -> Project:
        return Federation(self.embedded).project()

    async def restart(self) -> None:
        """What was in memory is gone."""
        self.logs = Logs(self.simulation)
        self.embedded.recorder = self.logs.lives
        await self.embedded.restart()

    async def read(self, project: str = "demo") -> list[tuple[int, str, str]]:
        """Time, instance and text of all lines, by time."""
        opened = Open(self.logs.gateway, "query_range", WEB | {"limit": "5000", "start": "7d"}, plane=project)
        await opened.ended()
        [document] = opened.frames
        return sorted(
            (int(time), stream["stream"]["datum_instance_name"], text)
            for stream in document["data"]["result"]
            for time, text in stream["values"]
        )


@pytest.fixture
def readable(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Readable]:
    async def build() -> Readable:
        readable = Readable(simulation)
        await readable.embedded.start()
        return readable

    readable = runner.run(build())
    yield readable
    runner.run(readable.embedded.stop())


def followed(tail: Open) -> list[tuple[int, str, str]]:
    """Time, instance and text of all lines, in the order in which they came."""
    return [
        (int(time), stream["stream"]["datum_instance_name"], text)
        for frame in tail.frames
        for stream in frame.get("streams", ())
        for time, text in stream["values"]
    ]


@pytest.mark.parametrize("seed", range(count(3, 100)))
async def test_a_roll_and_a_deletion_lose_double_and_disorder_no_line(readable: Readable, seed: int) -> None:
    await readable.project.deploy("web", ["DFW", "ORD"], replicas=2)
    tail = Open(readable.logs.gateway, "tail", WEB)
    await readable.project.until_ready("web", 4)
    await readable.simulation.advance(10)
    await readable.project.set_image("web", "registry.example/hello:2")
    await readable.simulation.advance(20)
    await readable.project.until_ready("web", 4)
    await readable.project.delete("web")
    await readable.project.until_gone("web")
    await readable.simulation.advance(10)

    lines = followed(tail)
    assert sorted(lines) == await readable.read()
    assert len(lines) > 8 * 2 + 4 * 10
    texts = [text for _, _, text in lines]
    assert sum(text == "starting registry.example/hello:2" for text in texts) == 4
    latest = 0
    for time, _, _ in lines:
        assert time > latest - 300_000_000
        latest = max(latest, time)
    names = sorted(f"web-main-{city}-{number}" for city in ("dfw", "ord") for number in (0, 1))
    for kind in ("joined", "generation", "left"):
        assert sorted(notice["instance"] for notice in tail.notices if notice["kind"] == kind) == names, kind
    assert len(tail.notices) == 12
    await tail.leave()


async def test_a_new_instance_joins_with_one_notice(readable: Readable) -> None:
    await readable.project.deploy("web", ["DFW"], replicas=1)
    await readable.project.until_ready("web", 1)
    tail = Open(readable.logs.gateway, "tail", WEB)
    await readable.simulation.advance(5)
    await readable.project.place("web", ["DFW"], replicas=2)
    await readable.project.until_ready("web", 2)
    await readable.simulation.advance(5)
    assert [(notice["kind"], notice["instance"]) for notice in tail.notices] == [("joined", "web-main-dfw-1")]
    assert {instance for _, instance, _ in followed(tail)} == {"web-main-dfw-0", "web-main-dfw-1"}
    await tail.leave()


async def test_a_line_reaches_a_follower_soon_after_its_time(readable: Readable) -> None:
    await readable.project.deploy("web", ["DFW"], replicas=2)
    await readable.project.until_ready("web", 2)
    await readable.simulation.advance(5)
    tail = Open(readable.logs.gateway, "tail", WEB)
    await readable.simulation.advance(1)
    delays: list[float] = []
    known = len(followed(tail))
    for _ in range(3000):
        await readable.simulation.advance(0.01)
        now = int(readable.simulation.now().timestamp() * 1e9)
        delays += [(now - time) / 1e9 for time, _, _ in followed(tail)[known:]]
        known = len(followed(tail))
    assert len(delays) >= 28
    assert max(delays) < 0.25
    await tail.leave()


async def test_the_lines_are_the_same_after_a_restart(readable: Readable) -> None:
    await readable.project.deploy("web", ["DFW"], replicas=2)
    await readable.project.until_ready("web", 2)
    await readable.simulation.advance(60)
    before = await readable.read()
    await readable.restart()
    await readable.simulation.advance(10)
    after = await readable.read()
    assert after[: len(before)] == before != []
    assert len(after) > len(before)


async def test_a_project_does_not_see_the_lines_of_another_with_equal_names(readable: Readable) -> None:
    other = Federation(readable.embedded).project("other")
    for project in (readable.project, other):
        await project.deploy("web", ["DFW"], replicas=1, image=f"registry.example/hello:{project.client.plane}")
        await project.until_ready("web", 1)
    await readable.simulation.advance(10)
    for name, stranger in (("demo", "other"), ("other", "demo")):
        texts = [text for _, _, text in await readable.read(name)]
        assert f"starting registry.example/hello:{name}" in texts
        assert not any(stranger in text for text in texts)
    _, values = await ask(readable.logs.gateway, "label/datum_workload_name/values")
    assert values["data"] == ["web"]
