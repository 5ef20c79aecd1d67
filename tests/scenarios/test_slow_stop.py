"""An instance that stops slowly is counted, shown and named for as long as it runs."""

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, READY
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.kube import conditions
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation

SLOW = "registry.example/hello:slow-stop"  # takes a minute
RESTART = "2026-06-01T12:00:00Z"


async def _claims(embedded: EmbeddedFederation) -> list[str]:
    return sorted(claim.name for claim in (await embedded.project_client("demo").list(RESOURCE_CLAIM)).items)


async def test_quota_counts_an_instance_until_it_has_stopped(
    embedded: EmbeddedFederation, simulation: Simulation
) -> None:
    project = Federation(embedded).project()
    await project.deploy("web", ["DFW"], image=SLOW)
    await project.until_ready("web", 1)
    before = await _claims(embedded)
    assert before == ["instance-web-main-dfw-0"]
    await project.delete("web")
    await project.until_gone("web")
    await simulation.advance(50)
    assert len((await embedded.cells["DFW"].list(INSTANCE)).items) == 1
    assert await _claims(embedded) == before
    await simulation.advance(15)
    assert (await embedded.cells["DFW"].list(INSTANCE)).items == []
    assert await _claims(embedded) == []


async def test_a_restart_shows_that_the_old_instance_is_stopping(
    embedded: EmbeddedFederation, simulation: Simulation
) -> None:
    project = Federation(embedded).project()
    await project.deploy("web", ["DFW"], image=SLOW)
    await project.until_ready("web", 1)
    projection = (await project.client.list(INSTANCE)).items[0]
    await project.restart("web", RESTART)
    await simulation.advance(30)
    deployment = await project.deployment("web-main-dfw")
    available = conditions.find(conditions.of(deployment), "Available")
    assert available is not None
    sentence = "1 instance is still stopping; the next one is created after that"
    assert (available.reason, available.message) == ("Stopping", sentence)
    workload = await project.workload("web")
    assert workload is not None
    condition = conditions.find(conditions.of(workload), "Available")
    assert condition is not None
    assert (condition.reason, condition.message) == ("Stopping", sentence)
    ready = conditions.find(conditions.of((await project.client.list(INSTANCE)).items[0]), READY)
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Stopping")

    await project.until_ready("web", 1, within=60)
    after = (await project.client.list(INSTANCE)).items
    assert [instance.metadata.uid == projection.metadata.uid for instance in after] == [False]


async def test_a_workload_of_the_same_name_says_that_the_earlier_one_is_stopping(
    embedded: EmbeddedFederation, simulation: Simulation
) -> None:
    project = Federation(embedded).project()
    await project.deploy("web", ["DFW"], replicas=2, image=SLOW)
    await project.until_ready("web", 2)
    await project.delete("web")
    await project.until_gone("web")
    await project.deploy("web", ["DFW"], replicas=2)
    await simulation.advance(30)
    sentence = "Waiting for an earlier deployment of this name: 2 instances are still stopping"
    copy = (await embedded.cells["DFW"].list(WORKLOAD_DEPLOYMENT)).items[0]
    assert copy.metadata.deleting
    workload = await project.workload("web")
    assert workload is not None
    for found in (copy, await project.deployment("web-main-dfw"), workload):
        available = conditions.find(conditions.of(found), "Available")
        assert available is not None, found.name
        assert (available.status, available.reason, available.message) == ("False", "Stopping", sentence)
    deployment = await project.deployment("web-main-dfw")
    assert deployment.status is not None
    assert deployment.status.observed_generation < deployment.metadata.generation
    await project.until_ready("web", 2, within=90)
