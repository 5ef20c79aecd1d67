"""After a provider is switched off, what it left running is stopped, and only then released."""

from collections.abc import Callable

import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CONTAINERS_FINALIZER, PODS_FINALIZER, SIMULATED_FINALIZER
from datum_compute.federation.roles import CELL
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.providers.former import RECHECK_SECONDS, FormerProviders
from datum_compute.providers.pods.provider import PodsProvider
from datum_compute.providers.pods.state import POD
from datum_compute.providers.simulated import Behaviour, SimulatedProvider
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.events import warnings
from tests.harness import ControllerHarness
from tests.providers.container_site import Site, model_of
from tests.providers.engine_boxes import Dialect
from tests.providers.site import with_pods
from tests.scenarios.federation import template

COMPUTE = "compute.datumapis.com/instance-controller"


class Cell(ControllerHarness):
    def __init__(self, simulation: Simulation, build: Callable[[Fleet], Reconciler]) -> None:
        with with_pods():
            super().__init__(simulation, {"cell": CELL}, build)
        self.client = self.engine.client("cell")

    async def instance(self) -> Instance:
        return await self.client.get(INSTANCE, "web-0", "ns")

    async def pods(self) -> int:
        return len((await self.client.list(POD)).items)


async def ran_by(simulation: Simulation, first: Callable[[Fleet], Reconciler], current: str) -> Cell:
    """A cell with an Instance of another provider than the one about to be started."""
    cell = Cell(simulation, first)
    await cell.run()
    await cell.client.create(NAMESPACE, NAMESPACE.body("ns"))
    body = INSTANCE.body("web-0", "ns", finalizers=[COMPUTE])
    await cell.client.create(INSTANCE, body | {"spec": template()["spec"]})
    await cell.settle()
    await cell.replace(lambda fleet: FormerProviders(current))
    return cell


def pods(simulation: Simulation) -> Callable[[Fleet], Reconciler]:
    return lambda fleet: PodsProvider()


def simulated(simulation: Simulation) -> Callable[[Fleet], Reconciler]:
    return lambda fleet: SimulatedProvider(Behaviour())


@pytest.mark.parametrize("current", ["none", "pods"])
async def test_a_simulated_instance_is_released_at_once(simulation: Simulation, current: str) -> None:
    cell = await ran_by(simulation, simulated(simulation), current)
    assert SIMULATED_FINALIZER in (await cell.instance()).metadata.finalizers
    await cell.start_controllers()
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)
    await cell.stop()


@pytest.mark.parametrize("current", ["none", "simulated"])
async def test_a_deleted_instance_is_held_until_its_pod_is_gone(simulation: Simulation, current: str) -> None:
    cell = await ran_by(simulation, pods(simulation), current)
    held = {"metadata": {"finalizers": ["example.com/stopping"]}}
    await cell.client.merge_patch(POD, "web-0", "ns", held)
    await cell.client.delete(INSTANCE, "web-0", "ns")
    await cell.start_controllers()
    assert (await cell.client.get(POD, "web-0", "ns")).metadata.deleting
    await simulation.advance(60)
    assert PODS_FINALIZER in (await cell.instance()).metadata.finalizers
    await cell.client.merge_patch(POD, "web-0", "ns", {"metadata": {"finalizers": None}})
    await simulation.advance(RECHECK_SECONDS)
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)
    await cell.stop()


async def test_pods_are_stopped_when_another_provider_takes_over(simulation: Simulation) -> None:
    cell = await ran_by(simulation, pods(simulation), "simulated")
    await cell.start_controllers()
    await simulation.advance(RECHECK_SECONDS)
    assert await cell.pods() == 0
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)
    await cell.stop()


async def test_pods_keep_running_when_there_is_no_other_provider(simulation: Simulation) -> None:
    cell = await ran_by(simulation, pods(simulation), "none")
    await cell.start_controllers()
    await simulation.advance(3600)
    assert await cell.pods() == 1
    assert cell.writes.total() == 0
    await cell.stop()


async def test_an_instance_whose_pod_may_not_be_read_is_held_and_reported_once(simulation: Simulation) -> None:
    cell = await ran_by(simulation, pods(simulation), "simulated")
    await cell.client.create(NAMESPACE, NAMESPACE.body("default"))
    await cell.client.delete(INSTANCE, "web-0", "ns")
    refusal = cell.faults["cell"].refuse(calls("GET", "/pods"), Forbidden("not yours"))
    await cell.start_controllers()
    await simulation.advance(600)
    assert PODS_FINALIZER in (await cell.instance()).metadata.finalizers
    assert [(event.reason, event.count) for event in await warnings(cell.client, "web-0", "ns")] == [
        ("HeldByFormerSetup", 1)
    ]
    refusal.lift()
    await simulation.advance(60)
    assert await cell.pods() == 0
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)
    await cell.stop()


async def test_a_pod_of_somebody_else_is_not_deleted(simulation: Simulation) -> None:
    cell = await ran_by(simulation, pods(simulation), "simulated")
    await cell.client.delete(POD, "web-0", "ns")
    await cell.client.create(POD, POD.body("web-0", "ns") | {"spec": {"containers": []}})
    await cell.start_controllers()
    assert await cell.pods() == 1
    assert (await cell.instance()).metadata.finalizers == (COMPUTE,)
    await cell.stop()


async def test_finalizers_of_the_current_provider_and_of_others_stay(simulation: Simulation) -> None:
    cell = await ran_by(simulation, pods(simulation), "pods")
    await cell.client.merge_patch(
        INSTANCE, "web-0", "ns", {"metadata": {"finalizers": [PODS_FINALIZER, "example.com/other"]}}
    )
    await cell.start_controllers()
    assert (await cell.instance()).metadata.finalizers == (PODS_FINALIZER, "example.com/other")
    assert cell.writes.total() == 0
    await cell.stop()


@pytest.mark.parametrize("current", ["none", "simulated"])
async def test_an_instance_of_containers_is_released_and_no_longer_reached(
    simulation: Simulation, current: str
) -> None:
    """Whoever changes the provider removes the containers first."""
    model = model_of(Dialect.PODMAN, simulation)
    site = Site(simulation, model)
    await site.start()
    await site.create()
    await site.until_available()
    address, external = await site.addresses()
    assert external
    await site.replace(lambda fleet: FormerProviders(current))
    await site.start_controllers()
    assert (await site.instance()).metadata.finalizers == (COMPUTE,)
    assert await site.addresses() == (address, "")
    writes = site.writes.total()
    await simulation.advance(3600)
    assert site.writes.total() == writes
    await site.stop()


async def test_containers_take_over_from_a_simulation(simulation: Simulation) -> None:
    model = model_of(Dialect.PODMAN, simulation)
    site = Site(simulation, model)
    site._begin(lambda fleet: SimulatedProvider(Behaviour()))
    await site.start()
    await site.create()
    assert SIMULATED_FINALIZER in (await site.instance()).metadata.finalizers
    await site.replace(lambda fleet: [site.build(fleet), FormerProviders("containers")])
    await site.start_controllers()
    await site.until_available()
    assert set((await site.instance()).metadata.finalizers) == {COMPUTE, CONTAINERS_FINALIZER}
    assert site.box.status == "running"
    await site.stop()
