"""The hub and cell namespaces of a project namespace are removed after it, and not before."""

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.networking import NETWORK
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE
from tests.conftest import ENGINE, LONG
from tests.scenarios.federation import Federation, placement, template

# On the real engine a hundred seconds pass before an empty namespace goes.
pytestmark = pytest.mark.skipif(ENGINE and not LONG, reason="takes long on the real engine: make test-engine-long")


async def _has(client: Client, namespace: str) -> bool:
    try:
        await client.get(NAMESPACE, namespace)
    except NotFound:
        return False
    return True


async def test_a_deleted_project_namespace_leaves_nothing_on_hub_and_cells(federation: Federation) -> None:
    project = federation.project("other")
    planes = [federation.hub, *federation.engine.cells.values()]
    await project.client.create(NAMESPACE, NAMESPACE.body("team"))
    await project.client.create(NETWORK, NETWORK.body("default", "team") | {"spec": {"ipam": {"mode": "Auto"}}})
    home = f"ns-{(await project.client.get(NAMESPACE, 'team')).metadata.uid}"
    spec = {"template": template(), "placements": [placement("main", ["DFW"], 1)]}
    await project.client.create(WORKLOAD, WORKLOAD.body("web", "team") | {"spec": spec})

    async def runs() -> bool:
        found = (await project.client.list(WORKLOAD_DEPLOYMENT, "team")).items
        return bool(found) and found[0].status is not None and found[0].status.ready_replicas == 1

    await federation.until(runs, "web runs in team")
    assert [await _has(plane, home) for plane in planes] == [True] * len(planes)
    default = await project.hub_namespace()
    before = [await _has(plane, default) for plane in planes]

    await project.client.delete(NAMESPACE, "team")

    async def is_gone() -> bool:
        return not await _has(project.client, "team") and not any([await _has(plane, home) for plane in planes])

    await federation.until(is_gone, "nothing is left of team", 1500)
    assert [await _has(plane, default) for plane in planes] == before
