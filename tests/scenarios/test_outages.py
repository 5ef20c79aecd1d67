"""An outage of a plane affects only that plane, and changes made meanwhile are applied when it is back."""

from datum_compute.api.instance import INSTANCE
from tests.scenarios.federation import Cell, Federation, Outages, is_ready

# Karmada tries again a minute after an outage; that is its part, and not what is tested here.
AFTER_OUTAGE = 120.0


async def _runs_image(cell: Cell, image: str) -> bool:
    found = await cell.instances("web")
    sandboxes = [instance.spec.runtime.sandbox for instance in found]
    images = [sandbox.containers[0].image for sandbox in sandboxes if sandbox is not None]
    return bool(found) and all(map(is_ready, found)) and set(images) == {image}


async def test_a_hub_outage_stops_nothing_and_changes_are_applied_later(
    federation: Federation, outages: Outages
) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=2)
    await project.until_ready("web", 2)
    lost = (await cell.instances("web"))[1]

    await outages.take_away(federation.hub.plane)
    await project.set_image("web", "registry.example/hello:2")
    await cell.client.delete(INSTANCE, lost.name, lost.namespace)

    async def replaced() -> bool:
        found = await cell.instances("web")
        return len(found) == 2 and all(map(is_ready, found)) and found[1].metadata.uid != lost.metadata.uid

    await federation.until(replaced, "the cell has replaced an instance without the hub")
    await outages.bring_back(federation.hub.plane)

    await project.until_ready("web", 2, AFTER_OUTAGE)
    assert await _runs_image(cell, "registry.example/hello:2")


async def test_an_unreachable_cell_holds_up_no_deletion_and_catches_up_later(
    federation: Federation, outages: Outages
) -> None:
    project, away, other = federation.project(), federation.cell("DFW"), federation.cell("ORD")
    await project.deploy("web", ["DFW", "ORD"])
    await project.until_ready("web", 2)
    await project.deploy("doomed", ["DFW"])
    await project.until_ready("doomed", 1)

    await outages.take_away(away.client.plane)
    await project.set_image("web", "registry.example/hello:2")
    await project.delete("doomed")

    async def rolled_elsewhere() -> bool:
        return await _runs_image(other, "registry.example/hello:2")

    await federation.until(rolled_elsewhere, "the other city goes on")
    await project.until_gone("doomed", AFTER_OUTAGE)  # the project does not wait for a cell
    await outages.bring_back(away.client.plane)

    await project.until_ready("web", 2, AFTER_OUTAGE)
    assert await _runs_image(away, "registry.example/hello:2")

    async def nothing_left() -> bool:
        return not await away.instances("doomed")

    await federation.until(nothing_left, "the instances of the deleted workload are gone", AFTER_OUTAGE)


async def test_a_rollout_interrupted_by_a_crash_of_all_processes_is_completed(
    federation: Federation, outages: Outages
) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)
    before = {instance.metadata.uid for instance in await cell.instances("web")}
    await project.set_image("web", "registry.example/hello:2")

    async def under_way() -> bool:
        return bool({instance.metadata.uid for instance in await cell.instances("web")} - before)

    await federation.until(under_way, "the first instance is replaced")
    await outages.restart()

    await project.until_ready("web", 3)
    assert await _runs_image(cell, "registry.example/hello:2")
