"""A cell rolls, scales and repairs on its own: with a bad image and its fix, and without the hub."""

from datum_compute.api.instance import AVAILABLE, INSTANCE
from datum_compute.api.reasons import IMAGE_UNAVAILABLE
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from tests.scenarios.federation import Cell, Federation, Outages, Project, is_ready

BAD = "registry.example/hello:image-unavailable"
GOOD = "registry.example/hello:2"
AFTER_OUTAGE = 120.0


async def _images(cell: Cell) -> list[str]:
    sandboxes = [instance.spec.runtime.sandbox for instance in await cell.instances("web")]
    return [sandbox.containers[0].image for sandbox in sandboxes if sandbox is not None]


async def _until_broken(federation: Federation, project: Project, name: str) -> None:
    async def broken() -> bool:
        try:
            instance = await project.client.get(INSTANCE, name, "default")
        except NotFound:
            return False
        ready = conditions.find(instance.status.conditions, "Ready") if instance.status else None
        return ready is not None and ready.reason == IMAGE_UNAVAILABLE

    await federation.until(broken, f"{name} cannot be started, and the project sees why")


async def test_a_bad_image_takes_one_instance_down_and_a_fix_repairs_it(federation: Federation) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)
    following = await cell.follow()
    await project.set_image("web", BAD)
    await _until_broken(federation, project, "web-main-dfw-2")

    assert (await _images(cell)).count(BAD) == 1
    workload = await project.workload("web")
    assert workload is not None
    assert workload.status is not None
    assert conditions.is_true(workload.status.conditions, AVAILABLE)  # two still serve

    await project.set_image("web", GOOD)
    await project.until_ready("web", 3)
    await following.stop()
    assert await _images(cell) == [GOOD] * 3
    assert min(sum(map(is_ready, state.values())) for state in following.states) == 2


async def test_a_bad_first_image_is_the_reason_on_the_workload_and_can_be_fixed(
    federation: Federation,
) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], replicas=2, image=BAD)

    async def is_reported() -> bool:
        workload = await project.workload("web")
        status = workload.status if workload else None
        available = conditions.find(status.conditions, AVAILABLE) if status else None
        return available is not None and available.reason == IMAGE_UNAVAILABLE

    await federation.until(is_reported, "the workload says that the image is unavailable")
    assert len(await federation.cell("DFW").instances("web")) == 1  # the next one waits for the first
    await project.set_image("web", GOOD)
    await project.until_ready("web", 2)


async def test_a_rollout_and_a_scale_change_at_once_both_complete(federation: Federation) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=2)
    await project.until_ready("web", 2)
    await project.set_image("web", GOOD)
    await project.place("web", ["DFW"], 4)
    await project.until_ready("web", 4)
    assert await _images(cell) == [GOOD] * 4
    await project.set_image("web", "registry.example/hello:3")
    await project.place("web", ["DFW"], 1)
    await project.until_ready("web", 1)
    assert await _images(cell) == ["registry.example/hello:3"]


async def test_an_instance_deleted_by_hand_comes_back(federation: Federation) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=2)
    await project.until_ready("web", 2)
    lost = (await cell.instances("web"))[0]
    await cell.client.delete(INSTANCE, lost.name, lost.namespace)

    async def replaced() -> bool:
        found = await cell.instances("web")
        uids = {item.metadata.uid for item in found}
        return len(found) == 2 and all(map(is_ready, found)) and lost.metadata.uid not in uids

    await federation.until(replaced, "the deleted instance is replaced")


async def test_a_rollout_finishes_without_the_hub_and_the_copies_follow(
    federation: Federation, outages: Outages
) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)
    before = {instance.metadata.uid for instance in await cell.instances("web")}
    await project.set_image("web", GOOD)

    async def began() -> bool:
        return any(
            instance.metadata.deleting or instance.metadata.uid not in before
            for instance in await cell.instances("web")
        )

    await federation.until(began, "the roll has begun")
    await outages.take_away(federation.hub.plane)

    async def rolled() -> bool:
        found = await cell.instances("web")
        fresh = not before & {item.metadata.uid for item in found}
        return len(found) == 3 and fresh and all(map(is_ready, found))

    await federation.until(rolled, "the cell has rolled without the hub")
    await outages.bring_back(federation.hub.plane)
    await project.until_ready("web", 3, AFTER_OUTAGE)

    async def is_projected() -> bool:
        instances = (await project.client.list(INSTANCE)).items
        sandboxes = [instance.spec.runtime.sandbox for instance in instances]
        images = [sandbox.containers[0].image for sandbox in sandboxes if sandbox is not None]
        return images == [GOOD] * 3 and all(map(is_ready, instances))

    await federation.until(is_projected, "the project shows what runs", AFTER_OUTAGE)


async def test_a_scale_down_finishes_without_the_hub_and_its_copies_are_swept(
    federation: Federation, outages: Outages
) -> None:
    """The instances go in the cell while the hub is away; when it is back, so do their copies and projections."""
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=4)
    await project.until_ready("web", 4)
    await project.place("web", ["DFW"], 1)

    async def under_way() -> bool:
        return (
            any(instance.metadata.deleting for instance in await cell.instances("web"))
            or len(await cell.instances("web")) < 4
        )

    await federation.until(under_way, "the scale-down has begun")
    await outages.take_away(federation.hub.plane)

    async def one_left() -> bool:
        return [instance.name for instance in await cell.instances("web")] == ["web-main-dfw-0"]

    await federation.until(one_left, "one instance is left in the cell")
    await outages.bring_back(federation.hub.plane)

    async def swept() -> bool:
        copies = [instance.name for instance in (await federation.hub.list(INSTANCE)).items]
        projections = [instance.name for instance in (await project.client.list(INSTANCE)).items]
        return copies == projections == ["web-main-dfw-0"]

    await federation.until(swept, "nothing else is left on the hub or in the project", AFTER_OUTAGE)
