"""Projects come and go while others work. The real engine has only two, so this is for the embedded one."""

import asyncio

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.services import PROJECT
from datum_compute.local.federation import ROOT_PLANE
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.embedded import PROJECTS, EmbeddedFederation
from tests.scenarios.federation import Federation, Outages

MANY, FEW = 50, 10
FOLLOWING = ("plane", "informer", "Collector", "NamespaceLifecycle", "Definitions")  # what a plane's tasks are named by
NAMES = [f"project-{number:02}" for number in range(MANY)]


async def _come(federation: Federation, embedded: EmbeddedFederation, names: list[str]) -> None:
    root = embedded.local.client(ROOT_PLANE)
    for name in names:
        await root.create(PROJECT, PROJECT.body(name) | {"spec": {}})

    async def all_ready() -> bool:
        return all([await embedded.local.is_ready(name) for name in names])

    await federation.until(all_ready, "all projects are ready")
    for name in names:
        await embedded.local.prepare(name)


async def _leave(federation: Federation, embedded: EmbeddedFederation) -> None:
    root = embedded.local.client(ROOT_PLANE)
    for name in NAMES:
        await root.delete(PROJECT, name)

    async def all_gone() -> bool:
        return [project.name for project in (await root.list(PROJECT)).items] == sorted(PROJECTS)

    await federation.until(all_gone, "all projects are gone", 120)


@pytest.mark.timeout(300)
async def test_nothing_is_left_of_fifty_projects_that_come_and_go(
    federation: Federation, embedded: EmbeddedFederation, simulation: Simulation
) -> None:
    demo = federation.project()
    await demo.deploy("web", ["DFW"])
    await demo.until_ready("web", 1)

    await _come(federation, embedded, NAMES)
    projects = {name: federation.project(name) for name in NAMES}
    for number, project in enumerate(projects.values()):
        await project.deploy("web", ["DFW" if number % 2 else "ORD"])
    for project in projects.values():
        await project.until_ready("web", 1)
    homes = {await project.hub_namespace() for project in projects.values()}
    assert len(homes) == MANY
    assert {name for name in NAMES if embedded.local.manager.fleet.has(name)} == set(NAMES)

    await _leave(federation, embedded)
    assert not [name for name in NAMES if embedded.local.manager.fleet.knows(name)]

    async def nothing_left() -> bool:
        home = await demo.hub_namespace()
        for client in (federation.hub, *(federation.cell(city).client for city in ("DFW", "ORD"))):
            for kind in (WORKLOAD_DEPLOYMENT, INSTANCE, *((PROPAGATION_POLICY,) if client is federation.hub else ())):
                if any(item.namespace != home for item in (await client.list(kind)).items):
                    return False
        return True

    await federation.until(nothing_left, "nothing of them is left on hub and cells", 120)
    await simulation.settle()
    following = [task.get_name() for task in asyncio.all_tasks() if task.get_name().partition("/")[0] in FOLLOWING]
    assert [name for name in following if "/project-" in name] == []
    await demo.place("web", ["DFW"], 2)
    await demo.until_ready("web", 2)


@pytest.mark.timeout(300)
async def test_projects_removed_during_their_work_hold_up_no_other(
    federation: Federation, embedded: EmbeddedFederation
) -> None:
    await _come(federation, embedded, NAMES[:FEW])
    for name in NAMES[:FEW]:
        await federation.project(name).deploy("web", ["DFW"])
    fleet = embedded.local.manager.fleet
    for name in NAMES[:FEW:2]:  # disengaged with everything under way
        fleet.remove(name)
    demo = federation.project()
    await demo.deploy("web", ["DFW"])
    await demo.until_ready("web", 1)
    for name in NAMES[1:FEW:2]:
        await federation.project(name).until_ready("web", 1)
    for name in NAMES[:FEW:2]:
        await embedded.resume(name)
    for name in NAMES[:FEW:2]:
        await federation.project(name).until_ready("web", 1)


async def test_a_project_deleted_while_a_cell_is_unreachable_leaves_nothing_there(
    federation: Federation, embedded: EmbeddedFederation, outages: Outages
) -> None:
    await _come(federation, embedded, NAMES[:1])
    project, cell = federation.project(NAMES[0]), federation.cell("DFW")
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    await outages.take_away(cell.client.plane)
    await project.delete("web")
    await project.until_gone("web", 300)
    root = embedded.local.client(ROOT_PLANE)
    await root.delete(PROJECT, NAMES[0])

    async def gone() -> bool:
        return NAMES[0] not in [project.name for project in (await root.list(PROJECT)).items]

    await federation.until(gone, "the project is gone", 300)
    await outages.bring_back(cell.client.plane)

    async def nothing_left() -> bool:
        found = [*(await cell.client.list(INSTANCE)).items, *(await cell.client.list(WORKLOAD_DEPLOYMENT)).items]
        return not found

    await federation.until(nothing_left, "nothing of it is left in the cell", 300)
