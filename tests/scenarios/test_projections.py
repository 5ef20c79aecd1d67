"""Instances of the cells are projected into the project at once, and their projections deleted with them."""

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, READY
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import (
    DEPLOYMENT_UID,
    SOURCE_CLUSTER,
    UPSTREAM_CLUSTER,
    UPSTREAM_NAMESPACE,
    WORKLOAD_UID,
)
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.reasons import IMAGE_UNAVAILABLE
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from tests.scenarios.federation import Federation, is_ready


async def test_every_instance_is_shown_in_its_project_with_its_status(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW", "ORD"], replicas=2)
    await project.until_ready("web", 4)

    async def is_projected() -> bool:
        instances = (await project.client.list(INSTANCE)).items
        return len(instances) == 4 and all(map(is_ready, instances))

    await federation.until(is_projected, "four ready instances in the project")
    deployment = await project.deployment("web-main-dfw")
    workload = await project.workload("web")
    assert workload is not None
    projection = await project.client.get(INSTANCE, "web-main-dfw-1", "default")
    assert projection.metadata.labels[DEPLOYMENT_UID] == deployment.metadata.uid
    assert projection.metadata.labels[WORKLOAD_UID] == workload.metadata.uid
    assert [owner.uid for owner in projection.metadata.owner_references] == [deployment.metadata.uid]
    assert projection.metadata.finalizers == ()


async def test_the_hub_copy_names_its_project_and_cell(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    namespace = await project.hub_namespace()
    copy = await federation.hub.get(INSTANCE, "web-main-dfw-0", namespace)
    labels = copy.metadata.labels
    assert (labels[UPSTREAM_CLUSTER], labels[UPSTREAM_NAMESPACE]) == ("cluster-demo", "default")
    assert labels[SOURCE_CLUSTER] == federation.cell("DFW").client.plane
    owner = copy.metadata.controller
    assert owner is not None
    hub_deployment = await federation.hub.get(WORKLOAD_DEPLOYMENT, "web-main-dfw", namespace)
    assert (owner.uid, owner.block_owner_deletion) == (hub_deployment.metadata.uid, True)


async def test_a_projection_is_deleted_when_its_instance_is_scaled_down(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)
    await project.place("web", ["DFW"], 1)

    async def one_left() -> bool:
        return [instance.name for instance in (await project.client.list(INSTANCE)).items] == ["web-main-dfw-0"]

    await federation.until(one_left, "one projection is left")


async def test_an_edited_projection_is_repaired_and_a_deleted_one_comes_back(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)

    async def ready() -> bool:
        try:
            return is_ready(await project.client.get(INSTANCE, "web-main-dfw-0", "default"))
        except NotFound:
            return False

    await federation.until(ready, "the projection is ready")
    before = await project.client.get(INSTANCE, "web-main-dfw-0", "default")
    patch = {"spec": {"controller": {"templateHash": "forged"}}, "metadata": {"labels": {WORKLOAD_UID: "forged"}}}
    await project.client.merge_patch(INSTANCE, "web-main-dfw-0", "default", patch)

    async def restored() -> bool:
        now = await project.client.get(INSTANCE, "web-main-dfw-0", "default")
        return now.spec == before.spec and now.metadata.labels == before.metadata.labels

    await federation.until(restored, "the projection is as it was")
    await project.client.delete(INSTANCE, "web-main-dfw-0", "default")
    await federation.until(ready, "the projection is back")


async def test_instance_labels_never_decide_identity(federation: Federation) -> None:
    """A hub Instance that claims another project, or a namespace that lies, changes nothing there."""
    demo, other = federation.project("demo"), federation.project("other")
    await demo.deploy("web", ["DFW"])
    await demo.until_ready("web", 1)
    await other.deploy("web", ["DFW"])
    await other.until_ready("web", 1)
    namespace = await demo.hub_namespace()

    async def shown_in_other() -> bool:
        return bool((await other.client.list(INSTANCE)).items)

    await federation.until(shown_in_other, "other shows its own instance")
    before = (await other.client.list(INSTANCE)).items
    forged = {"metadata": {"labels": {UPSTREAM_CLUSTER: "cluster-other"}}}
    await federation.hub.merge_patch(INSTANCE, "web-main-dfw-0", namespace, forged)

    async def repaired() -> bool:
        copy = await federation.hub.get(INSTANCE, "web-main-dfw-0", namespace)
        return copy.metadata.labels[UPSTREAM_CLUSTER] == "cluster-demo"

    await federation.until(repaired, "the cell has repaired its copy")
    after = (await other.client.list(INSTANCE)).items
    assert [item.metadata.resource_version for item in after] == [item.metadata.resource_version for item in before]


async def test_the_project_sees_why_an_instance_waits(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], image="registry.example/hello:image-unavailable")

    async def reason() -> str:
        try:
            instance = await project.client.get(INSTANCE, "web-main-dfw-0", "default")
        except NotFound:
            return ""
        ready = conditions.find(instance.status.conditions, READY) if instance.status else None
        return ready.reason if ready else ""

    async def waits() -> bool:
        return await reason() == IMAGE_UNAVAILABLE

    async def runs() -> bool:
        return await reason() == "Available"

    await federation.until(waits, "the project sees that the image cannot be had")
    await project.set_image("web", "registry.example/hello:2")
    await federation.until(runs, "the project sees that it runs")


async def test_a_deletion_leaves_nothing_on_any_plane(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW", "ORD"], replicas=2)
    await project.until_ready("web", 4)
    await project.delete("web")
    await project.until_gone("web")

    async def nothing_left() -> bool:
        clients = [project.client, federation.hub, federation.cell("DFW").client, federation.cell("ORD").client]
        for client in clients:
            if (await client.list(WORKLOAD_DEPLOYMENT)).items or (await client.list(INSTANCE)).items:
                return False
        claims = (await project.client.list(RESOURCE_CLAIM)).items
        return not claims and not (await federation.hub.list(PROPAGATION_POLICY)).items

    await federation.until(nothing_left, "nothing is left")
