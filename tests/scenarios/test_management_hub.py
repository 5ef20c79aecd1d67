"""The way over the hub from end to end: federation, projection, write-back, ownership and reclaim.

Some scenarios use objects that are created by hand instead of by a Workload.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import (
    CITY_CODE,
    DEPLOYMENT_NAME,
    DEPLOYMENT_UID,
    FEDERATION_NAMESPACE,
    FEDERATOR_FINALIZER,
    INSTANCE_INDEX,
    PLACEMENT_NAME,
    TOPOLOGY_CITY,
    UPSTREAM_CLUSTER,
    UPSTREAM_NAMESPACE,
    WORKLOAD_NAME,
    WORKLOAD_UID,
)
from datum_compute.api.networking import NETWORK
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, as_dict
from tests.scenarios.federation import Federation, Outages, Project, is_ready, placement, template

CITIES = {"DFW": "ORD", "ORD": "DFW"}  # each with another


async def _exists(client: Client, kind: Kind[Any], name: str, namespace: str) -> bool:
    try:
        await client.get(kind, name, namespace)
    except NotFound:
        return False
    return True


def _deployment_spec(city: str) -> Json:
    return {
        "workloadRef": {"name": "hand", "uid": "made-by-hand"},
        "placementName": "main",
        "cityCode": city,
        "template": template(),
        "scaleSettings": {"minReplicas": 1, "instanceManagementPolicy": "OrderedReady"},
    }


async def _went_its_way(federation: Federation, project: Project) -> None:
    """A workload that goes all the way and back: whatever else was due has been done by then."""
    await project.deploy("probe", ["DFW", "ORD"])
    await project.until_ready("probe", 2)
    await project.delete("probe")
    await project.until_gone("probe")


@pytest.mark.parametrize("city", CITIES)
async def test_a_project_deployment_reaches_the_hub_with_its_policy(federation: Federation, city: str) -> None:
    project = federation.project()
    await project.deploy("web", [city])
    await project.until_ready("web", 1)
    home = await project.hub_namespace()
    copy = await federation.hub.get(WORKLOAD_DEPLOYMENT, f"web-main-{city.lower()}", home)
    assert copy.metadata.labels[TOPOLOGY_CITY] == city
    policy = await federation.hub.get(PROPAGATION_POLICY, f"city-{city.lower()}", home)
    (selector,) = policy.spec.resource_selectors
    assert (selector.api_version, selector.kind) == (WORKLOAD_DEPLOYMENT.api_version, WORKLOAD_DEPLOYMENT.name)
    match = {"matchLabels": {TOPOLOGY_CITY: city}}
    assert as_dict(policy.spec_json)["resourceSelectors"][0]["labelSelector"] == match
    assert as_dict(policy.spec_json)["placement"]["clusterAffinity"]["labelSelector"] == match


async def test_deleting_a_deployment_deletes_its_hub_copy(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    home = await project.hub_namespace()
    await project.delete("web")

    async def gone() -> bool:
        return not await _exists(federation.hub, WORKLOAD_DEPLOYMENT, "web-main-dfw", home)

    await federation.until(gone, "the hub deployment is gone", 30)
    await project.until_gone("web")


async def test_a_policy_lives_as_long_as_its_last_deployment(federation: Federation) -> None:
    project = federation.project()
    for name in ("web", "more"):
        await project.deploy(name, ["DFW"])
    for name in ("web", "more"):
        await project.until_ready(name, 1)
    home = await project.hub_namespace()
    uid = (await federation.hub.get(PROPAGATION_POLICY, "city-dfw", home)).metadata.uid
    await project.delete("web")
    await project.until_gone("web")
    await _went_its_way(federation, project)
    assert (await federation.hub.get(PROPAGATION_POLICY, "city-dfw", home)).metadata.uid == uid
    await project.delete("more")

    async def policy_gone() -> bool:
        return not await _exists(federation.hub, PROPAGATION_POLICY, "city-dfw", home)

    await federation.until(policy_gone, "the policy went with its last user")


async def test_a_hub_instance_created_by_hand_is_projected(federation: Federation) -> None:
    """A hub Instance that no cell wrote is shown as long as its labels are complete."""
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    home, owner = await project.hub_namespace(), await project.deployment("web-main-dfw")
    labels = {
        UPSTREAM_CLUSTER: "cluster-demo",
        UPSTREAM_NAMESPACE: "default",
        DEPLOYMENT_NAME: "web-main-dfw",
        DEPLOYMENT_UID: "of-the-cell",
    }
    body = INSTANCE.body("by-hand", home, labels=labels) | {"spec": template()["spec"]}
    await federation.hub.create(INSTANCE, body)

    async def is_projected() -> bool:
        return await _exists(project.client, INSTANCE, "by-hand", "default")

    await federation.until(is_projected, "it is shown")
    projection = await project.client.get(INSTANCE, "by-hand", "default")
    assert projection.metadata.labels[UPSTREAM_CLUSTER] == "cluster-demo"
    assert projection.metadata.labels[DEPLOYMENT_UID] == owner.metadata.uid
    assert [item.uid for item in projection.metadata.owner_references] == [owner.metadata.uid]
    await federation.hub.delete(INSTANCE, "by-hand", home)

    async def gone() -> bool:
        return not await is_projected()

    await federation.until(gone, "it went with its original")


@asynccontextmanager
async def _made_by_hand(federation: Federation, project: Project) -> AsyncIterator[str]:
    """A hub deployment without a project deployment, and an Instance of it in a cell; both go at the end."""
    home, cell = await project.hub_namespace(), federation.cell("DFW").client
    body = WORKLOAD_DEPLOYMENT.body("hand", home, labels={UPSTREAM_NAMESPACE: "default"})
    await federation.hub.create(WORKLOAD_DEPLOYMENT, body | {"spec": _deployment_spec("DFW")})
    labels = {
        WORKLOAD_UID: "made-by-hand",
        WORKLOAD_NAME: "hand",
        DEPLOYMENT_NAME: "hand",
        DEPLOYMENT_UID: "made-by-hand",
        PLACEMENT_NAME: "main",
        CITY_CODE: "DFW",
        INSTANCE_INDEX: "0",
    }
    await cell.create(INSTANCE, INSTANCE.body("hand-0", home, labels=labels) | {"spec": template()["spec"]})
    try:
        yield home
    finally:
        await cell.delete(INSTANCE, "hand-0", home)
        if await _exists(federation.hub, WORKLOAD_DEPLOYMENT, "hand", home):
            await federation.hub.delete(WORKLOAD_DEPLOYMENT, "hand", home)

        async def gone() -> bool:
            left = [await _exists(client, INSTANCE, "hand-0", home) for client in (cell, federation.hub)]
            return not any(left)

        await federation.until(gone, "what was made by hand is gone")


async def test_a_copy_follows_its_hub_deployment_and_does_not_come_back(federation: Federation) -> None:
    """A cell's Instance is copied to the hub; a copy that the hub reclaimed is not made again while it lives."""
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    async with _made_by_hand(federation, project) as home:

        async def copied() -> bool:
            return await _exists(federation.hub, INSTANCE, "hand-0", home)

        await federation.until(copied, "the instance is on the hub")
        labels = (await federation.hub.get(INSTANCE, "hand-0", home)).metadata.labels
        assert (labels[UPSTREAM_CLUSTER], labels[UPSTREAM_NAMESPACE]) == ("cluster-demo", "default")

        await federation.hub.delete(WORKLOAD_DEPLOYMENT, "hand", home)

        async def reclaimed() -> bool:
            return not await copied()

        await federation.until(reclaimed, "the hub has reclaimed the copy", 300)
        await _went_its_way(federation, project)
        assert not await copied()
        assert await _exists(federation.cell("DFW").client, INSTANCE, "hand-0", home)


@pytest.mark.parametrize("city", CITIES)
async def test_a_deployment_runs_in_its_cell_and_is_projected_back(federation: Federation, city: str) -> None:
    project, name = federation.project(), f"web-main-{city.lower()}"
    await project.deploy("web", [city])
    await project.until_ready("web", 1)
    home = await project.hub_namespace()
    for client, namespace in (
        (federation.hub, home),
        (federation.cell(city).client, home),
        (project.client, "default"),
    ):
        status = (await client.get(WORKLOAD_DEPLOYMENT, name, namespace)).status
        assert status is not None
        assert (status.replicas, status.desired_replicas) == (1, 1)
    assert not await _exists(federation.cell(CITIES[city]).client, WORKLOAD_DEPLOYMENT, name, home)
    assert [instance.name for instance in await federation.cell(city).instances("web", home)] == [f"{name}-0"]
    copy = await federation.hub.get(INSTANCE, f"{name}-0", home)
    assert copy.metadata.labels[UPSTREAM_CLUSTER] == "cluster-demo"

    async def shown_ready() -> bool:
        return is_ready(await project.client.get(INSTANCE, f"{name}-0", "default"))

    await federation.until(shown_ready, "the projection is ready")


async def test_federated_objects_carry_finalizer_annotation_and_owner(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    home, deployment = await project.hub_namespace(), await project.deployment("web-main-dfw")
    assert deployment.metadata.annotations[FEDERATION_NAMESPACE] == home
    assert FEDERATOR_FINALIZER in deployment.metadata.finalizers
    owner = (await federation.hub.get(INSTANCE, "web-main-dfw-0", home)).metadata.controller
    assert owner is not None
    hub_deployment = await federation.hub.get(WORKLOAD_DEPLOYMENT, "web-main-dfw", home)
    assert (owner.uid, owner.controller, owner.block_owner_deletion) == (hub_deployment.metadata.uid, True, True)


async def test_a_deleted_deployment_is_reclaimed_without_its_cell(federation: Federation, outages: Outages) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=2)
    await project.until_ready("web", 2)
    home = await project.hub_namespace()
    await outages.take_away(cell.client.plane)
    await project.delete("web")
    await project.until_gone("web", 180)

    async def reclaimed() -> bool:
        deployments = (await federation.hub.list(WORKLOAD_DEPLOYMENT, home)).items
        instances = (await federation.hub.list(INSTANCE, home)).items
        projections = (await project.client.list(INSTANCE)).items
        return not deployments and not instances and not projections

    await federation.until(reclaimed, "nothing is left on hub and project", 300)
    await outages.bring_back(cell.client.plane)

    async def caught_up() -> bool:
        return not await cell.instances("web", home)

    await federation.until(caught_up, "the cell has caught up", 120)


async def test_a_project_namespace_with_federated_deployments_can_be_deleted(federation: Federation) -> None:
    """A project namespace that is deleted takes its workloads along, on every plane, and is not held up by them."""
    project = federation.project()
    await project.client.create(NAMESPACE, NAMESPACE.body("team"))
    network = NETWORK.body("default", "team") | {"spec": {"ipam": {"mode": "Auto"}}}
    await project.client.create(NETWORK, network)  # asked for where networking is on
    spec = {"template": template(), "placements": [placement("main", ["DFW"], 1)]}
    await project.client.create(WORKLOAD, WORKLOAD.body("web", "team") | {"spec": spec})
    home = f"ns-{(await project.client.get(NAMESPACE, 'team')).metadata.uid}"

    async def recorded() -> bool:
        if not await _exists(project.client, WORKLOAD_DEPLOYMENT, "web-main-dfw", "team"):
            return False
        metadata = (await project.client.get(WORKLOAD_DEPLOYMENT, "web-main-dfw", "team")).metadata
        noted = metadata.annotations.get(FEDERATION_NAMESPACE) == home and FEDERATOR_FINALIZER in metadata.finalizers
        return noted and await _exists(federation.hub, WORKLOAD_DEPLOYMENT, "web-main-dfw", home)

    await federation.until(recorded, "it is on the hub")
    await project.client.delete(NAMESPACE, "team")

    async def gone() -> bool:
        namespaces = [namespace.name for namespace in (await project.client.list(NAMESPACE)).items]
        return "team" not in namespaces and not (await federation.hub.list(WORKLOAD_DEPLOYMENT, home)).items

    await federation.until(gone, "namespace and hub deployment are gone", 300)

    async def nothing_runs() -> bool:
        return not await federation.cell("DFW").instances("web", home)

    await federation.until(nothing_runs, "the cell has let go of it", 120)
