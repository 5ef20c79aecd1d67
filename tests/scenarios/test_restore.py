"""A hub or a project is restored from a backup that lacks the last ten operations: nothing that runs is lost."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.local.federation import HUB_PLANE
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import LONG
from tests.events import events
from tests.scenarios.backups import (
    ASKED,
    KNOWN,
    OLDER,
    UNKNOWN,
    every_combination,
    is_as_the_project_asks,
    known_to_the_backup,
    lost,
    named,
    release,
    running,
    ten_operations,
)
from tests.scenarios.federation import Federation
from tests.scenarios.restorable import CITIES, KARMADA, MANAGEMENT, RestorableFederation

OUTAGE_SECONDS = 3000.0  # longer than any grace, sweep and relist

# Karmada's part goes on over the restore, and in a long run also stops.
COMBINATIONS = every_combination((MANAGEMENT, *CITIES.values(), *((KARMADA,) if LONG else ())))


@pytest.fixture
def engine(runner: asyncio.Runner, simulation: Simulation) -> Iterator[RestorableFederation]:
    async def build() -> RestorableFederation:
        engine = RestorableFederation(simulation)
        await engine.start()
        return engine

    engine = runner.run(build())
    yield engine
    runner.run(engine.stop())


@pytest.mark.parametrize("down", COMBINATIONS, ids=named)
async def test_a_restored_hub_stops_nothing_that_runs(engine: RestorableFederation, down: tuple[str, ...]) -> None:
    """Each process goes on over the restore, or is down from before it until long after; management comes back last."""
    federation = Federation(engine)
    project = federation.project()
    await known_to_the_backup(project)
    backup = engine.planes.snapshot(HUB_PLANE)
    await ten_operations(federation, project)
    await engine.until(lambda: is_as_the_project_asks(engine, project), 60, "all is as the project asks")
    await engine.down(*down)

    before = await running(engine)
    await engine.planes.restore(HUB_PLANE, backup)
    await engine.advance(OUTAGE_SECONDS)
    assert await lost(engine, before) == set()
    engine.up(*(name for name in down if name != MANAGEMENT))
    await engine.advance(OUTAGE_SECONDS)
    assert await lost(engine, before) == set()
    engine.up(*down)
    await engine.until(lambda: is_as_the_project_asks(engine, project), 3600, "all is as the project asks again")
    await engine.advance(OUTAGE_SECONDS)
    assert await lost(engine, before) == set()
    assert await is_as_the_project_asks(engine, project)
    for name, replicas in ASKED.items():
        await project.until_ready(name, replicas)


async def _held(client: Client) -> set[str]:
    """The deployments of a plane of which an event says that they are held."""
    return {event.about["name"] for event in await events(client) if event.reason == "Held"}


@pytest.mark.parametrize("down", COMBINATIONS, ids=named)
async def test_deployments_that_a_restored_project_lacks_keep_running_until_released(
    engine: RestorableFederation, down: tuple[str, ...]
) -> None:
    federation = Federation(engine)
    project = federation.project()
    await known_to_the_backup(project)
    backup = engine.planes.snapshot("demo")
    await ten_operations(federation, project)
    await engine.until(lambda: is_as_the_project_asks(engine, project), 60, "all is as the project asks")
    home = await project.hub_namespace()
    await engine.down(*down)

    before = await running(engine)
    await engine.planes.restore("demo", backup)
    await engine.advance(OUTAGE_SECONDS)
    engine.up(*down)
    await engine.advance(OUTAGE_SECONDS)
    assert await lost(engine, before) == set()
    runs = await running(engine)
    assert {"ORD/old-main-ord-0", "ORD/wide-main-ord-0"} <= runs.keys(), "what the backup asks for runs again"
    assert await _held(engine.hub) == UNKNOWN
    assert await _held(engine.cells["DFW"]) | await _held(engine.cells["ORD"]) == OLDER
    for name in OLDER:
        held = conditions.find(conditions.of(await project.deployment(name)), "ReplicasReady")
        assert held is not None
        assert held.reason == "Held"

    await release(engine.hub, home, UNKNOWN)
    for cell in engine.cells.values():
        await release(cell, home, OLDER)
    await engine.until(lambda: is_as_the_project_asks(engine, project), 3600, "all is as the restored project asks")
    for name, replicas in KNOWN.items():
        await project.until_ready(name, replicas)
