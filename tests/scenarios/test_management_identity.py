"""The hub namespace, proved by its uid, decides which project an object belongs to, never a label."""

from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import (
    COMPUTE_LABELS,
    DEPLOYMENT_NAME,
    SOURCE_CLUSTER,
    UPSTREAM_CLUSTER,
    UPSTREAM_NAMESPACE,
    WORKLOAD_NAME,
)
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.kinds import NAMESPACE, Kind
from tests.scenarios.federation import Federation, Project, is_ready, placement, template

KINDS: tuple[Kind[Any], ...] = (WORKLOAD, WORKLOAD_DEPLOYMENT, INSTANCE)


async def _versions(project: Project) -> dict[str, str]:
    """Every object of compute in a project, and its resourceVersion."""
    found: dict[str, str] = {}
    for kind in KINDS:
        for object_ in (await project.client.list(kind)).items:
            found[f"{kind.plural}/{object_.namespace}/{object_.name}"] = object_.metadata.resource_version
    return found


async def _shows_ready(federation: Federation, project: Project, count: int) -> None:
    async def is_projected() -> bool:
        instances = (await project.client.list(INSTANCE)).items
        return len(instances) == count and all(map(is_ready, instances))

    await federation.until(is_projected, f"{count} ready instances are shown")


async def test_equal_names_in_two_projects_share_nothing_on_any_plane(federation: Federation) -> None:
    demo, other = federation.project("demo"), federation.project("other")
    await demo.deploy("web", ["DFW"], replicas=1, image="registry.example/demo:1")
    await other.deploy("web", ["DFW"], replicas=2, image="registry.example/other:1")
    for project, replicas, image in ((demo, 1, "demo:1"), (other, 2, "other:1")):
        await project.until_ready("web", replicas)
        await _shows_ready(federation, project, replicas)
        for instance in (await project.client.list(INSTANCE)).items:
            assert instance.spec.runtime.sandbox is not None
            assert instance.spec.runtime.sandbox.containers[0].image == f"registry.example/{image}"
    assert await demo.hub_namespace() != await other.hub_namespace()

    before = await _versions(other)
    await demo.delete("web")
    await demo.until_gone("web")
    await _shows_ready(federation, demo, 0)
    assert await _versions(other) == before


@pytest.mark.parametrize("label", ["cluster-org_demo", "cluster-_demo"])
async def test_a_project_named_with_its_organisation_is_the_same_project(federation: Federation, label: str) -> None:
    """Other operators write the path of a project; it leads to the same project, and ends as we write it."""
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    await _shows_ready(federation, project, 1)
    home = await project.hub_namespace()
    await federation.hub.merge_patch(NAMESPACE, home, "", {"metadata": {"labels": {UPSTREAM_CLUSTER: label}}})
    await project.place("web", ["DFW"], 2)
    await project.until_ready("web", 2)
    await _shows_ready(federation, project, 2)

    async def as_we_write_it() -> bool:
        labels = (await federation.hub.get(NAMESPACE, home)).metadata.labels
        copies = (await federation.hub.list(INSTANCE, home)).items
        return {copy.metadata.labels[UPSTREAM_CLUSTER] for copy in copies} | {labels[UPSTREAM_CLUSTER]} == {
            "cluster-demo"
        }

    await federation.until(as_we_write_it, "the label is as we write it")


async def test_a_hub_instance_in_the_wrong_namespace_reaches_nobody(federation: Federation) -> None:
    """It carries the labels of project other, and stands in the hub namespace of demo."""
    demo, other = federation.project("demo"), federation.project("other")
    for project in (demo, other):
        await project.deploy("web", ["DFW"])
        await project.until_ready("web", 1)
        await _shows_ready(federation, project, 1)
    before, home = await _versions(other), await demo.hub_namespace()
    labels = {UPSTREAM_CLUSTER: "cluster-other", UPSTREAM_NAMESPACE: "default", DEPLOYMENT_NAME: "web-main-dfw"}
    for name in ("web-main-dfw-0-forged", "web-main-dfw-7"):
        body = INSTANCE.body(name, home, labels=labels) | {"spec": template("registry.example/forged:1")["spec"]}
        await federation.hub.create(INSTANCE, body)

    await demo.place("web", ["DFW"], 2)  # what comes after it on the same way has been seen
    await demo.until_ready("web", 2)
    await _shows_ready(federation, demo, 2)
    assert await _versions(other) == before
    for name in ("web-main-dfw-0-forged", "web-main-dfw-7"):
        await federation.hub.delete(INSTANCE, name, home)
    await demo.place("web", ["DFW"], 1)
    await demo.until_ready("web", 1)
    assert await _versions(other) == before


async def test_identity_labels_in_a_template_decide_nothing(federation: Federation) -> None:
    """A user may write any label into the template; on its way it meets those that are really so."""
    demo, other = federation.project("demo"), federation.project("other")
    await other.deploy("web", ["DFW"])
    await other.until_ready("web", 1)
    await _shows_ready(federation, other, 1)
    before = await _versions(other)
    forged = dict.fromkeys(COMPUTE_LABELS, "forged") | {
        UPSTREAM_CLUSTER: "cluster-other",
        UPSTREAM_NAMESPACE: "kube-system",
        SOURCE_CLUSTER: "elsewhere",
    }
    spec = {"template": template(labels=forged), "placements": [placement("main", ["DFW"], 1)]}
    await demo.client.create(WORKLOAD, WORKLOAD.body("web", "default") | {"spec": spec})
    await demo.until_ready("web", 1)
    await _shows_ready(federation, demo, 1)

    home, cell = await demo.hub_namespace(), federation.cell("DFW").client
    for client, namespace in ((cell, home), (federation.hub, home), (demo.client, "default")):
        labels = (await client.get(INSTANCE, "web-main-dfw-0", namespace)).metadata.labels
        assert (labels[DEPLOYMENT_NAME], labels[WORKLOAD_NAME]) == ("web-main-dfw", "web")
        assert "forged" not in [labels[key] for key in COMPUTE_LABELS]
    for client, namespace in ((federation.hub, home), (demo.client, "default")):
        labels = (await client.get(INSTANCE, "web-main-dfw-0", namespace)).metadata.labels
        assert (labels[UPSTREAM_CLUSTER], labels[UPSTREAM_NAMESPACE]) == ("cluster-demo", "default")
        assert labels[SOURCE_CLUSTER] == cell.plane
    assert await _versions(other) == before


async def test_a_projection_edited_by_a_user_is_repaired_and_leaks_nowhere(federation: Federation) -> None:
    demo, other = federation.project("demo"), federation.project("other")
    for project in (demo, other):
        await project.deploy("web", ["DFW"])
        await project.until_ready("web", 1)
        await _shows_ready(federation, project, 1)
    name, before = "web-main-dfw-0", await _versions(other)
    original = await demo.client.get(INSTANCE, name, "default")
    hub = await federation.hub.get(INSTANCE, name, await demo.hub_namespace())
    edits = {
        "metadata": {"labels": {UPSTREAM_CLUSTER: "cluster-other", DEPLOYMENT_NAME: "forged"}, "ownerReferences": None},
        "spec": {"runtime": {"sandbox": {"containers": [{"name": "web", "image": "registry.example/forged:1"}]}}},
    }
    await demo.client.merge_patch(INSTANCE, name, "default", edits)

    async def restored() -> bool:
        now = await demo.client.get(INSTANCE, name, "default")
        return (now.metadata.labels, now.metadata.owner_references, now.spec) == (
            original.metadata.labels,
            original.metadata.owner_references,
            original.spec,
        )

    await federation.until(restored, "the projection tells the truth again")
    after = await federation.hub.get(INSTANCE, name, await demo.hub_namespace())
    assert after.metadata.resource_version == hub.metadata.resource_version
    assert await _versions(other) == before
