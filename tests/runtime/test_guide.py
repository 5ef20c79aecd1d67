"""The code in docs/runtime.md works, in a simulation with faults."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from datum_compute.kube.errors import NotFound
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import EVENT
from datum_compute.kube.meta import Json
from datum_compute.runtime.testing.faults import Faults, writes
from datum_compute.runtime.testing.server import Server, background
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count
from tests.runtime.telemetry.test_health import ask

GUIDE = Path(__file__).parents[2] / "docs" / "runtime.md"


def guide() -> dict[str, Any]:
    """All that the guide defines."""
    code: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), code)
    return code


class Kitchen:
    """The guide's code over a scripted server."""

    def __init__(self, simulation: Simulation) -> None:
        self.code = guide()
        self.server = Server()
        self.faults = Faults(InProcess(self.server), simulation.random)
        self.manager, self.probes = self.replica(simulation, "one")

    def replica(self, simulation: Simulation, identity: str) -> Any:
        host = InProcess(self.server)
        return self.code["assemble"](self.faults, host, identity, simulation, simulation.random)

    def order(self, name: str) -> None:
        self.server.make(name, self.code["RECIPE"])
        self.server.change(name, {"spec": {"flour": "rye"}}, self.code["RECIPE"])

    def bake(self, name: str) -> None:
        self.server.change(name, {"status": {"baked": True}}, self.code["LOAF"])

    def recipe(self, name: str) -> Json:
        return self.server.get(name, self.code["RECIPE"])

    def events(self) -> list[Json]:
        return [object_ for object_ in self.server.history() if object_["kind"] == EVENT.name]


@pytest.fixture
def kitchen(simulation: Simulation) -> Kitchen:
    return Kitchen(simulation)


async def test_the_guide_bakes_a_loaf_and_records_one_event(kitchen: Kitchen, simulation: Simulation) -> None:
    kitchen.order("bread")
    async with background(kitchen.manager.run()):
        await simulation.settle()
        loaf = kitchen.server.get("bread", kitchen.code["LOAF"])
        assert loaf["spec"] == {"flour": "rye"}
        assert loaf["metadata"]["ownerReferences"][0]["name"] == "bread"
        assert kitchen.recipe("bread")["status"] == {"ready": False, "reason": "InTheOven"}
        kitchen.bake("bread")
        await simulation.settle()
        assert kitchen.recipe("bread")["status"] == {"ready": True, "reason": "Baked"}
        assert [event["message"] for event in kitchen.events()] == ["bread is out of the oven"]


async def test_the_guide_writes_nothing_when_nothing_changed(kitchen: Kitchen, simulation: Simulation) -> None:
    kitchen.order("bread")
    async with background(kitchen.manager.run()):
        await simulation.settle()
        kitchen.bake("bread")
        await simulation.settle()
        before = len(kitchen.events()), kitchen.recipe("bread")
        await simulation.advance(3600)
        assert (len(kitchen.events()), kitchen.recipe("bread")) == before


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(count(3, 50)))
async def test_the_guide_ends_the_same_whatever_is_lost(
    kitchen: Kitchen, simulation: Simulation, seed: int, nth: int
) -> None:
    kitchen.faults.fail(writes, nth)
    kitchen.faults.lose_answer(writes, nth + 1)
    kitchen.order("bread")
    async with background(kitchen.manager.run()):
        await simulation.until(is_there(kitchen, "LOAF"), within=60)
        kitchen.bake("bread")
        await simulation.until(is_ready(kitchen), within=1300)


def test_the_guides_own_test_passes_and_crashes_after_every_write() -> None:
    code = guide()
    crashes: list[bool] = []
    bake = code["bake"]

    async def recording(simulation: Simulation, crash_after: int) -> Any:
        status, crashed = await bake(simulation, crash_after)
        crashes.append(crashed)
        return status, crashed

    code["bake"] = recording
    code["test_the_bread_is_baked_wherever_the_controller_crashes"]()
    assert crashes == [True] * (len(crashes) - 1) + [False]
    assert len(crashes) > 3  # a loaf, two states and an event


async def test_the_guide_serves_probes_and_metrics(kitchen: Kitchen, simulation: Simulation) -> None:
    code, text, _ = await ask(kitchen.probes, "/readyz")
    assert (code, text) == (500, "[+]ping ok\n[-]kitchen failed: not engaged yet: main\nreadyz check failed\n")
    kitchen.order("bread")
    async with background(kitchen.manager.run()):
        await simulation.settle()
        assert (await ask(kitchen.probes, "/healthz?verbose"))[1] == (
            "[+]ping ok\n[+]caches ok\n[+]event-loop ok\nhealthz check passed\n"
        )
        assert (await ask(kitchen.probes, "/readyz"))[0] == 200
        _, text, _ = await ask(kitchen.probes, "/metrics")
    wanted = 'bakery_api_writes_total{controller="bakery",kind="Loaf",plane="main",verb="create"} 1.0'
    assert wanted in text.splitlines()
    for name in re.findall(r"`(\w+)`", GUIDE.read_text("utf-8").split("your prefix for")[1].split("`logs.")[0]):
        assert f"bakery_{name}" in text, name


async def test_a_second_process_of_the_guide_waits_and_takes_over(kitchen: Kitchen, simulation: Simulation) -> None:
    second, _ = kitchen.replica(simulation, "two")
    async with background(second.run()):
        first = asyncio.create_task(kitchen.manager.run())
        await simulation.advance(5)
        assert second.working != kitchen.manager.working
        leader, other = (second, kitchen.manager) if second.working else (kitchen.manager, second)
        leader.stop()
        kitchen.order("bread")
        await simulation.until(is_there(kitchen, "LOAF"), within=5)
        assert other.working
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


def is_there(kitchen: Kitchen, kind: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        try:
            return bool(kitchen.server.get("bread", kitchen.code[kind]))
        except NotFound:
            return False

    return look


def is_ready(kitchen: Kitchen) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return bool(kitchen.recipe("bread").get("status", {}).get("ready"))

    return look
