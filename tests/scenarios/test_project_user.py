"""The commands on the real engine with the permissions of a project's user, which suffice and allow nothing else."""

import asyncio
import sys

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import RESTARTED_AT
from datum_compute.api.quota import ALLOWANCE_BUCKET, RESOURCE_CLAIM
from datum_compute.kube.access.kubeconfig import load
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE
from tests.conftest import ENGINE
from tests.engine.running import running_engine
from tests.scenarios.federation import Federation

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not ENGINE, reason="needs the real engine: make test-engine")]

CREATE = ["deploy", "web", "--image=registry.example/hello:1", "--city=DFW,ORD", "--port=8080", "-y"]
LIFE = [
    "access",
    "cities",
    "status web",
    "workloads",
    "workloads describe web",
    "instances",
    "instances describe web-default-dfw-0",
    "deploy web --image=registry.example/hello:2 -y",
    "rollout status web",
    "scale web --min=2 --wait",
    "restart web --wait",
    "restart web --city=DFW --wait",
    "rollout history web",
    "rollout undo web --to-revision=1 -y --wait",
    "rollout pause web",
    "rollout resume web",
    "quota --breakdown",
    "destroy web -y --wait",
]


async def compute(*arguments: str) -> str:
    """What a command printed; it has to succeed."""
    kubeconfig = str(running_engine().kubeconfig("control-plane", "user"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "datum_compute.cli.main", "--kubeconfig", kubeconfig, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, f"{' '.join(arguments)} ended with {process.returncode}:\n{output.decode()}"
    return output.decode()


async def test_every_command_is_allowed_to_a_user_of_the_project(federation: Federation) -> None:
    assert "Rollout complete" in await compute(*CREATE)
    results = {command: await compute(*command.split()) for command in LIFE}

    assert "Available" in results["status web"]
    assert "web-default-ord-0" in results["instances"]
    assert "#1" in results["rollout history web"]
    assert await federation.project().workload("web") is None


async def test_a_user_cannot_change_objects_of_others(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    user = federation.engine.user_client("demo")
    forged = {"metadata": {"labels": {"forged": "yes"}}}

    await user.get(INSTANCE, "web-main-dfw-0", "default")
    later = {"spec": {"template": {"metadata": {"annotations": {RESTARTED_AT: "2100-01-01T00:00:00Z"}}}}}
    for refused in (
        user.merge_patch(INSTANCE, "web-main-dfw-0", "default", forged),
        user.merge_patch(INSTANCE, "web-main-dfw-0", "default", {"status": {"conditions": []}}, "status"),
        user.delete(INSTANCE, "web-main-dfw-0", "default"),
        user.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", later),
        user.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", {"spec": {"cityCode": "ORD"}}),
        user.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", {"status": {"replicas": 9}}, "status"),
        user.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("mine", "default") | {"spec": {}}),
        user.delete(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default"),
        user.delete(RESOURCE_CLAIM, "anything", "default"),
        user.merge_patch(ALLOWANCE_BUCKET, "anything", "milo-system", forged),
        user.create(NAMESPACE, NAMESPACE.body("mine")),
    ):
        with pytest.raises(Forbidden):
            await refused


async def test_the_extra_role_allows_a_restart_of_a_city_through_its_deployment_and_nothing_else(
    federation: Federation,
) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    before = (await project.client.get(INSTANCE, "web-main-dfw-0", "default")).metadata.uid
    transport = HttpTransport(load([running_engine().kubeconfig("control-plane", "user-city-restart")]))
    user = Client("demo", transport)
    try:
        for patch in (
            {"spec": {"cityCode": "ORD"}},
            {"spec": {"scaleSettings": {"minReplicas": 5}}},
            {"spec": {"template": {"metadata": {"annotations": {"team": "mine"}}}}},
            {"metadata": {"ownerReferences": None}},
            {"metadata": {"finalizers": None}},
        ):
            with pytest.raises(Forbidden, match="follows from its Workload"):
                await user.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", patch)
        restart = {"template": {"metadata": {"annotations": {RESTARTED_AT: "2026-06-01T12:00:00Z"}}}}
        await user.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", {"spec": restart})
    finally:
        await transport.close()

    async def replaced() -> bool:
        found = (await project.client.list(INSTANCE, "default")).items
        return [item.name for item in found] == ["web-main-dfw-0"] and found[0].metadata.uid != before

    await federation.until(replaced, "the instance is started anew")
    await project.until_ready("web", 1)


async def test_a_restart_of_one_city_replaces_its_instances_and_no_others(federation: Federation) -> None:
    """By the note on the workload alone: who asks may not write deployments."""
    project = federation.project()
    await project.deploy("web", ["DFW", "ORD"])
    await project.until_ready("web", 2)

    async def uids() -> dict[str, str]:
        found = (await project.client.list(INSTANCE, "default")).items
        return {item.name: item.metadata.uid for item in found}

    before = await uids()
    output = await compute("restart", "web", "--city=DFW", "--wait")
    assert "rolling restart initiated" in output
    await project.until_ready("web", 2)
    after = await uids()
    assert after["web-main-dfw-0"] != before["web-main-dfw-0"]
    assert after["web-main-ord-0"] == before["web-main-ord-0"]
