"""The objects that come with an entitlement exist as long as it does."""

import asyncio

import pytest

from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.quota import QUOTA_NAMESPACE, RESOURCE_GRANT
from datum_compute.api.services import SERVICE_ENTITLEMENT, SERVICE_OBJECT
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.client import Client
from datum_compute.platform.entitlement import EntitlementController
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count
from tests.harness import ControllerHarness

ASKED = SERVICE_ENTITLEMENT.body("compute") | {"spec": {"serviceRef": {"name": SERVICE_OBJECT}}}


async def entitled(simulation: Simulation) -> tuple[ControllerHarness, Client]:
    harness = ControllerHarness(
        simulation,
        {"demo": PROJECT},
        lambda fleet: EntitlementController(cities=["DFW"], limits=DEFAULT_LIMITS),
    )
    client = harness.engine.client("demo")
    await harness.run()
    await client.create(SERVICE_ENTITLEMENT, ASKED)
    await harness.settle()
    return harness, client


async def grants_and_cities(client: Client) -> tuple[int, list[str]]:
    grants = (await client.list(RESOURCE_GRANT)).items
    return len(grants), [binding.name for binding in (await client.list(LOCATION_BINDING)).items]


@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_an_entitlement_deleted_and_requested_again_brings_everything(seed: int) -> None:
    async def play(simulation: Simulation) -> None:
        harness, client = await entitled(simulation)
        await client.delete(SERVICE_ENTITLEMENT, "compute")
        await client.create(SERVICE_ENTITLEMENT, ASKED)
        await harness.settle()
        await simulation.advance(60)
        assert await grants_and_cities(client) == (3, ["dfw"])
        await harness.stop()

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        runner.run(play(loop))


async def test_manually_deleted_objects_are_created_again(simulation: Simulation) -> None:
    harness, client = await entitled(simulation)
    await client.delete(LOCATION_BINDING, "dfw")
    await client.delete(RESOURCE_GRANT, (await client.list(RESOURCE_GRANT)).items[0].name, QUOTA_NAMESPACE)
    await harness.settle()
    assert await grants_and_cities(client) == (3, ["dfw"])
    await harness.stop()


async def test_the_objects_of_a_deleted_entitlement_are_deleted(simulation: Simulation) -> None:
    harness, client = await entitled(simulation)
    await client.delete(SERVICE_ENTITLEMENT, "compute")
    await harness.settle()
    assert await grants_and_cities(client) == (0, [])
    await harness.stop()
