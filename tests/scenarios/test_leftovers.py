"""Objects that real Karmada leaves behind after an outage are removed and do not come back."""

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import RESOURCE_BINDING, WORK, WORK_NAME, WORK_NAMESPACE
from datum_compute.federation.removal import GRACE_SECONDS
from datum_compute.kube.errors import NotFound
from tests.conftest import ENGINE
from tests.engine.running import running_engine
from tests.scenarios.federation import Federation

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not ENGINE, reason="needs the real engine: make test-engine")]

COLLECTOR = "downstream-controllers"
BINDING_ID = "resourcebinding.karmada.io/permanent-id"  # by which Karmada finds the Works of a binding


async def test_a_work_that_karmada_lost_track_of_is_removed_with_its_copy(federation: Federation) -> None:
    """As after an outage of the hub: the binding goes before Karmada has heard of its Work."""
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=1)
    await project.until_ready("web", 1)
    home = await project.hub_namespace()
    copy = await cell.client.get(WORKLOAD_DEPLOYMENT, "web-main-dfw", home)
    space, name = (copy.metadata.annotations[key] for key in (WORK_NAMESPACE, WORK_NAME))
    await federation.hub.merge_patch(WORK, name, space, {"metadata": {"labels": {BINDING_ID: None}}})

    await project.delete("web")
    await project.until_gone("web")
    # Karmada alone would leave it for ever; when only the copy is deleted, it makes another.
    await cell.client.delete(WORKLOAD_DEPLOYMENT, copy.name, home, uid=copy.metadata.uid)

    async def made_again() -> bool:
        found = (await cell.client.list(WORKLOAD_DEPLOYMENT, home)).items
        return bool(found) and found[0].metadata.uid != copy.metadata.uid

    await federation.until(made_again, "Karmada has made another copy")

    async def nothing_left() -> bool:
        found = [*(await cell.client.list(WORKLOAD_DEPLOYMENT)).items, *(await cell.client.list(INSTANCE)).items]
        try:
            await federation.hub.get(WORK, name, space)
        except NotFound:
            return not found
        return False

    await federation.until(nothing_left, "copy and Work are gone", GRACE_SECONDS)


async def test_a_binding_overlooked_by_garbage_collection_holds_up_no_later_deployment(
    federation: Federation,
) -> None:
    """As after an outage of the hub: it does not watch while a deployment is replaced by another of its name."""
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    home, engine = await project.hub_namespace(), running_engine()
    binding = await federation.hub.get(RESOURCE_BINDING, "web-main-dfw-workloaddeployment", home)
    try:
        engine.pause(COLLECTOR)
        await project.delete("web")
        await project.until_gone("web")
        left = await federation.hub.get(RESOURCE_BINDING, binding.name, home)
        assert (left.metadata.uid, left.metadata.deleting) == (binding.metadata.uid, False)
        await project.deploy("web", ["DFW"])
        await project.until_ready("web", 1)
    finally:
        engine.resume(COLLECTOR)
    assert (await federation.hub.get(RESOURCE_BINDING, binding.name, home)).metadata.uid != binding.metadata.uid
