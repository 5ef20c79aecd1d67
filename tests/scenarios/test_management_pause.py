"""A paused rollout stops where it is, and continues when it is resumed."""

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube import conditions
from tests.scenarios.federation import Federation, Project

NEW = "registry.example/hello:2"


async def _pause(federation: Federation, project: Project, paused: bool) -> None:
    """Returns when the server has confirmed it, on the workload and all the way to the cell and back."""
    value = "true" if paused else None
    patch = {"metadata": {"annotations": {ROLLOUT_PAUSED: value}}}
    await project.client.merge_patch(WORKLOAD, "web", "default", patch)

    async def confirmed() -> bool:
        workload, deployment = await project.workload("web"), await project.deployment("web-main-dfw")
        statuses = [workload.status if workload else None, deployment.status]
        found = [conditions.find(status.conditions, "Progressing") for status in statuses if status is not None]
        reasons = [item.reason if item is not None else "" for item in found]
        return reasons == (["RolloutPaused"] * 2 if paused else [""] * 2)

    await federation.until(confirmed, "the pause is confirmed" if paused else "the resume is confirmed")


async def _images(federation: Federation) -> list[str]:
    sandboxes = [instance.spec.runtime.sandbox for instance in await federation.cell("DFW").instances("web")]
    return [sandbox.containers[0].image for sandbox in sandboxes if sandbox is not None]


async def test_a_paused_workload_accepts_scale_but_no_template_until_it_is_resumed(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], replicas=1)
    await project.until_ready("web", 1)
    await _pause(federation, project, True)
    before = (await federation.cell("DFW").instances("web"))[0].metadata.uid
    await project.set_image("web", NEW)
    await project.place("web", ["DFW"], 2)

    async def scaled() -> bool:
        workload = await project.workload("web")
        return workload is not None and workload.status is not None and workload.status.ready_replicas == 2

    await federation.until(scaled, "it has been scaled while paused")
    assert await _images(federation) == ["registry.example/hello:1"] * 2
    assert (await federation.cell("DFW").instances("web"))[0].metadata.uid == before
    workload = await project.workload("web")
    assert workload is not None
    assert workload.status is not None
    assert workload.status.updated_replicas == 0  # none is on the template that was asked for

    await _pause(federation, project, False)
    await project.until_ready("web", 2)
    assert await _images(federation) == [NEW] * 2
    home = await project.hub_namespace()
    copy = await federation.hub.get(WORKLOAD_DEPLOYMENT, "web-main-dfw", home)
    assert ROLLOUT_PAUSED not in copy.metadata.annotations


async def test_a_rollout_paused_half_way_stays_half_way(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)
    await project.set_image("web", NEW)

    async def begun() -> bool:
        return NEW in await _images(federation)

    await federation.until(begun, "the first is replaced")
    await _pause(federation, project, True)

    async def stands() -> bool:
        workload = await project.workload("web")
        status = workload.status if workload else None
        return status is not None and status.ready_replicas == status.replicas == 3

    await federation.until(stands, "all are ready while it is paused")
    await project.deploy("probe", ["DFW"])  # the cell goes on with everything else
    await project.until_ready("probe", 1)
    assert "registry.example/hello:1" in await _images(federation)
    await _pause(federation, project, False)
    await project.until_ready("web", 3)
    assert await _images(federation) == [NEW] * 3
