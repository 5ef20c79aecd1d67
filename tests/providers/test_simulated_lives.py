"""Which simulated containers run, as it is told to those who work out their lines."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CITY_CODE, PLACEMENT_NAME, SIMULATE, WORKLOAD_NAME
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.lines import Origin, nanoseconds
from datum_compute.federation.lives import Life
from datum_compute.federation.roles import CELL
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.providers.simulated import Behaviour, SimulatedProvider
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness

LABELS = {WORKLOAD_NAME: "api", PLACEMENT_NAME: "default", CITY_CODE: "DFW"}
TWO = [
    {"name": "app", "image": "registry.example/hello:1", "ports": [{"name": "http", "port": 9000}]},
    {"name": "sidecar", "image": "registry.example/proxy:2"},
]


class Recorded:
    def __init__(self) -> None:
        self.lives: dict[tuple[str, str], Life] = {}
        self.ends: dict[str, int] = {}

    def begin(self, life: Life) -> None:
        self.lives[life.origin.generation, life.origin.container] = life

    def end(self, generation: str, time: int) -> None:
        self.ends.setdefault(generation, time)


class Cell(ControllerHarness):
    def __init__(self, simulation: Simulation) -> None:
        self.recorded = Recorded()
        super().__init__(simulation, {"cell": CELL}, self._build)
        self.client = self.engine.client("cell")

    def _build(self, fleet: Fleet) -> SimulatedProvider:
        return SimulatedProvider(Behaviour(start_seconds=1, stop_seconds=1), self.recorded)

    async def start(self) -> None:
        await self.client.create(NAMESPACE, NAMESPACE.body("ns-1", labels=hub_labels("demo", "default")))
        await self.client.create(NAMESPACE, NAMESPACE.body("nameless"))
        await self.run()

    async def create(
        self, runtime: Json, *, namespace: str = "ns-1", annotations: dict[str, str] | None = None
    ) -> Instance:
        spec = {
            "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}} | runtime,
            "networkInterfaces": [{"network": {"name": "default"}}],
        }
        body = INSTANCE.body("api-default-dfw-0", namespace, labels=LABELS, annotations=annotations)
        created = await self.client.create(INSTANCE, body | {"spec": spec})
        await self.simulation.advance(5)
        return created


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Cell]:
    cell = Cell(simulation)
    runner.run(cell.start())
    yield cell
    runner.run(cell.stop())


async def test_each_container_lives_from_the_moment_that_the_instance_reports(cell: Cell) -> None:
    created = nanoseconds(cell.simulation.now())
    instance = await cell.create({"sandbox": {"containers": TWO}})
    uid = instance.metadata.uid
    app, sidecar = cell.recorded.lives[uid, "app"], cell.recorded.lives[uid, "sidecar"]
    assert app.origin == Origin("demo", "default", "api", "default", "DFW", "api-default-dfw-0", uid, "app")
    assert (app.image, app.port, app.crashes) == ("registry.example/hello:1", 9000, False)
    assert (sidecar.image, sidecar.port) == ("registry.example/proxy:2", 0)
    assert app.start == created + 1_000_000_000
    assert cell.recorded.ends == {}


async def test_another_process_records_the_same_life(cell: Cell) -> None:
    await cell.create({"sandbox": {"containers": TWO}})
    before = dict(cell.recorded.lives)
    cell.recorded.lives.clear()
    await cell.simulation.advance(100)
    await cell.client.merge_patch(INSTANCE, "api-default-dfw-0", "ns-1", {"metadata": {"labels": {"by": "hand"}}})
    await cell.settle()
    assert cell.recorded.lives == before


async def test_a_life_ends_when_the_instance_is_deleted(cell: Cell) -> None:
    instance = await cell.create({"sandbox": {"containers": TWO}})
    deleted = nanoseconds(cell.simulation.now())
    await cell.client.delete(INSTANCE, "api-default-dfw-0", "ns-1")
    await cell.simulation.advance(5)
    assert cell.recorded.ends == {instance.metadata.uid: deleted}


async def test_a_crashing_instance_lives_as_one_that_crashes(cell: Cell) -> None:
    instance = await cell.create({"sandbox": {"containers": TWO[:1]}}, annotations={SIMULATE: "crashing"})
    assert cell.recorded.lives[instance.metadata.uid, "app"].crashes


@pytest.mark.parametrize("failure", ["image-unavailable", "configuration-error"])
async def test_what_never_ran_has_no_life(cell: Cell, failure: str) -> None:
    await cell.create({"sandbox": {"containers": TWO}}, annotations={SIMULATE: failure})
    assert cell.recorded.lives == {}


async def test_a_virtual_machine_lives_without_the_name_of_a_container(cell: Cell) -> None:
    machine = {"virtualMachine": {"volumeAttachments": [{"name": "boot"}]}}
    instance = await cell.create(machine)
    assert cell.recorded.lives[instance.metadata.uid, ""].image == "the virtual machine"


async def test_an_instance_of_no_known_project_has_no_life(cell: Cell) -> None:
    await cell.create({"sandbox": {"containers": TWO}}, namespace="nameless")
    assert cell.recorded.lives == {}
