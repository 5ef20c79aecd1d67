"""A deployment without a city: the schema refuses it, and one stored under an older schema can be deleted."""

import asyncio

import pytest
from msgspec.structs import replace

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.embedded.storage.log import Row
from datum_compute.kube.errors import Invalid
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation
from tests.scenarios.life import BEHAVIOUR

CITY = b'"cityCode":"DFW"'


async def test_a_city_cannot_be_removed_by_an_edit(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    with pytest.raises(Invalid, match=r"spec\.cityCode"):
        await project.client.merge_patch(WORKLOAD_DEPLOYMENT, "web-main-dfw", "default", {"spec": {"cityCode": ""}})


@pytest.mark.parametrize("where", ["the project", "the project and the hub"])
def test_a_stored_deployment_without_a_city_is_deleted_with_its_workload_and_instances(where: str) -> None:
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(1)) as runner:
        rows = runner.run(_deployed(runner))
    planes = ("demo", "hub") if "hub" in where else ("demo",)
    stored = [_without_city(row) if row.plane in planes else row for row in rows]
    assert stored != rows
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(1)) as runner:
        runner.run(_deleted(runner, stored))


async def _deployed(runner: asyncio.Runner) -> list[Row]:
    engine = EmbeddedFederation(_simulation(runner), BEHAVIOUR)
    await engine.start()
    project = Federation(engine).project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    await project.delete("web")  # the process ends before anybody has heard of it
    rows = list(engine.engine.log.rows())
    await engine.stop()
    return rows


async def _deleted(runner: asyncio.Runner, rows: list[Row]) -> None:
    engine = EmbeddedFederation(_simulation(runner), BEHAVIOUR, rows)
    await engine.start()
    project = Federation(engine).project()
    await project.until_gone("web")

    async def stopped() -> bool:
        return not (await engine.cells["DFW"].list(INSTANCE)).items

    await engine.until(stopped, 60, "nothing runs any more")
    assert (await engine.hub.list(WORKLOAD_DEPLOYMENT)).items == []
    assert (await engine.hub.list(PROPAGATION_POLICY)).items == []
    await engine.stop()


def _simulation(runner: asyncio.Runner) -> Simulation:
    loop = runner.get_loop()
    assert isinstance(loop, Simulation)
    return loop


def _without_city(row: Row) -> Row:
    if not row.resource.startswith("workloaddeployments."):
        return row
    return replace(row, value=row.value.replace(CITY, b'"cityCode":""'))
