"""Who gets the last unit of a quota, and who gets it next."""

from datum_compute.api.deployment import REPLICAS_READY
from datum_compute.api.instance import READY
from datum_compute.api.quota import INSTANCES, RESOURCE_CLAIM, RESOURCE_GRANT
from datum_compute.api.reasons import PENDING_QUOTA, QUOTA_EXCEEDED
from datum_compute.kube import conditions
from tests.scenarios.federation import Federation, Project, is_ready


async def _allow(federation: Federation, project: Project, instances: int) -> None:
    async def granted() -> bool:
        found = (await project.client.list(RESOURCE_GRANT)).items
        for grant in found:
            if grant.spec.allowances[0].resource_type == INSTANCES:
                allowances = [{"resourceType": INSTANCES, "buckets": [{"amount": instances}]}]
                patch = {"spec": {"allowances": allowances}}
                await project.client.merge_patch(RESOURCE_GRANT, grant.name, grant.namespace, patch)
                return True
        return False

    await federation.until(granted, f"{instances} instances are allowed")


async def _states(federation: Federation, *workloads: str) -> dict[str, str]:
    """By instance: the reason of its Ready."""
    found = {}
    for workload in workloads:
        for instance in await federation.cell("DFW").instances(workload):
            ready = conditions.find(instance.status.conditions, READY) if instance.status else None
            found[instance.name] = "ready" if is_ready(instance) else ready.reason if ready else ""
    return found


async def test_two_deployments_compete_for_the_last_unit_and_the_loser_runs_when_one_is_freed(
    federation: Federation,
) -> None:
    project = federation.project()
    await _allow(federation, project, 2)
    await project.deploy("first", ["DFW"])
    await project.until_ready("first", 1)
    await project.deploy("left", ["DFW"])
    await project.deploy("right", ["DFW"])

    async def decided() -> bool:
        states = await _states(federation, "left", "right")
        return sorted(states.values()) == sorted(["ready", PENDING_QUOTA])

    await federation.until(decided, "one of two has the last unit, the other waits for quota")
    states = await _states(federation, "left", "right")
    (loser,) = [name for name, state in states.items() if state != "ready"]
    claims = {claim.name for claim in (await project.client.list(RESOURCE_CLAIM)).items}
    assert f"instance-{loser}" in claims

    async def is_reported() -> bool:
        deployment = await project.deployment(loser.removesuffix("-0"))
        found = conditions.find(deployment.status.conditions, REPLICAS_READY) if deployment.status else None
        return found is not None and found.reason == QUOTA_EXCEEDED

    await federation.until(is_reported, "the deployment says why it waits")
    await project.delete("first")
    await project.until_gone("first")
    for name in ("left", "right"):
        await project.until_ready(name, 1)


async def test_a_deployment_that_serves_stays_available_while_more_of_it_waits_for_quota(
    federation: Federation,
) -> None:
    project = federation.project()
    await _allow(federation, project, 1)
    await project.deploy("web", ["DFW"], replicas=2)

    async def waits() -> bool:
        return await _states(federation, "web") == {"web-main-dfw-0": "ready", "web-main-dfw-1": PENDING_QUOTA}

    await federation.until(waits, "one runs, one waits")
    await _allow(federation, project, 2)
    await project.until_ready("web", 2)
