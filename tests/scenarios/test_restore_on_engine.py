"""The same on the real engine, where the hub and a project are taken back to a copy of their etcd and Karmada does the
rest: one combination of our processes up and down for each, and all of them in a long run."""

from collections.abc import Mapping

import pytest

from datum_compute.platform.grants import DEFAULT_LIMITS
from tests.conftest import ENGINE, LONG
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
from tests.scenarios.federation import Federation, Project
from tests.scenarios.managers import CELLS, MANAGEMENT
from tests.scenarios.real import HUB_PLANE, RealFederation

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not ENGINE, reason="needs the real engine: make test-engine")]

PROJECT = "other"  # which has an etcd of its own, as the hub has
PROCESSES = (MANAGEMENT, *CELLS.values())
AFTER_SECONDS = 120  # a watch from before the restore is silent until the server's next bookmark, a minute later


def _combinations(*always: str) -> list[tuple[str, ...]]:
    return every_combination(PROCESSES) if LONG else [always]


async def _restored(federation: Federation, plane: str, down: tuple[str, ...]) -> tuple[Project, dict[str, str]]:
    """A plane goes back to before ten operations while some processes are down. Returns what ran when it did."""
    engine, project = _engine(federation), federation.project(PROJECT)
    await engine.allow({type_: 100 * limit for type_, limit in DEFAULT_LIMITS.items()})
    await known_to_the_backup(project)
    await engine.snapshot(plane)
    await ten_operations(federation, project)
    await federation.until(lambda: is_as_the_project_asks(engine, project), "all is as the project asks")
    await engine.down(*down)
    before = await running(engine)
    await engine.restore(plane)
    return project, before


async def _until_held(federation: Federation, held: Mapping[str, tuple[str, int]]) -> None:
    """Waits until processes, by name, count as many in a figure: they have judged, and removed nothing."""
    processes = _engine(federation).managers.running

    async def are_held() -> bool:
        return all(processes[name].total(figure) == number for name, (figure, number) in held.items())

    await federation.until(are_held, f"{held} are held", AFTER_SECONDS)


def _engine(federation: Federation) -> RealFederation:
    assert isinstance(federation.engine, RealFederation)
    return federation.engine


@pytest.mark.parametrize("down", _combinations(*PROCESSES), ids=named)
async def test_a_hub_restored_from_etcd_stops_nothing_that_runs(federation: Federation, down: tuple[str, ...]) -> None:
    engine = _engine(federation)
    project, before = await _restored(federation, HUB_PLANE, down)
    if MANAGEMENT in down:  # cells judge before anybody makes the deployments again that the hub has lost
        await engine.up(*CELLS.values())
        figure = "compute_cell_deployments_held"
        await _until_held(federation, {"pop-dfw": (figure, 1), "pop-ord": (figure, 2)})
        assert await lost(engine, before) == set()
    await engine.up(*down)
    await federation.until(
        lambda: is_as_the_project_asks(engine, project), "all is as the project asks again", AFTER_SECONDS
    )
    assert await lost(engine, before) == set()
    for name, replicas in ASKED.items():
        await project.until_ready(name, replicas)


@pytest.mark.parametrize("down", _combinations(MANAGEMENT), ids=named)
async def test_deployments_that_a_project_restored_from_etcd_lacks_keep_running_until_released(
    federation: Federation, down: tuple[str, ...]
) -> None:
    engine = _engine(federation)
    project, before = await _restored(federation, PROJECT, down)
    await engine.up(*down)
    older = "compute_cell_specs_held"
    unknown = ("compute_hub_deployments_held", len(UNKNOWN))
    await _until_held(federation, {MANAGEMENT: unknown, "pop-dfw": (older, 3), "pop-ord": (older, 1)})
    assert await lost(engine, before) == set()

    home = await project.hub_namespace()
    await release(engine.hub, home, UNKNOWN)
    for cell in engine.cells.values():
        await release(cell, home, OLDER)
    await federation.until(
        lambda: is_as_the_project_asks(engine, project), "all is as the restored project asks", AFTER_SECONDS
    )
    for name, replicas in KNOWN.items():
        await project.until_ready(name, replicas)
