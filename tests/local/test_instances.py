"""What runs the instances of a whole federation: chosen, changed over, waited for and left, on an engine in memory."""

import asyncio
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CONTAINERS_FINALIZER, LOCAL, SIMULATED_FINALIZER
from datum_compute.embedded.storage.log import Row
from datum_compute.local.choice import CONTAINERS, SIMULATED, Wish
from datum_compute.local.containers import Record, recall, remember
from datum_compute.local.endpoints import Endpoints
from datum_compute.local.instances import BEHAVIOUR, Engines, Instances, open_instances
from datum_compute.local.logs import Logs
from datum_compute.local.overview import Overview
from datum_compute.local.state import LocalError, Paths
from datum_compute.providers.engine.address import Attempt, NoEngine
from datum_compute.providers.engine.interface import ContainerEngine
from datum_compute.runtime.testing.simulation import Simulation
from tests.providers.container_site import model_of
from tests.providers.engine_boxes import Box, Dialect, Image
from tests.providers.engine_model import EngineModel
from tests.scenarios.embedded import CITIES, EmbeddedFederation
from tests.scenarios.federation import IMAGE, Federation

ADDRESS = "unix:///run/model.sock"
OTHER = "unix:///run/other.sock"


class World:
    """A machine with engines by address, and a federation that is started and stopped on it."""

    def __init__(self, simulation: Simulation, paths: Paths) -> None:
        self.simulation = simulation
        self.paths = paths
        self.model = self.add_engine()
        self.engines = {ADDRESS: self.model}
        self.searches: list[str] = []
        self.signs_of_life = 0
        self.rows: list[Row] = []
        self.federation: EmbeddedFederation | None = None

    def add_engine(self, address: str = ADDRESS) -> EngineModel:
        model = model_of(Dialect.PODMAN, self.simulation)
        model.info = replace(model.info, address=address)
        model.images[IMAGE] = Image()
        return model

    async def _connect(self, address: str) -> ContainerEngine:
        self.searches.append(address)
        tried = [address] if address else list(self.engines)
        for candidate in tried:
            if (model := self.engines.get(candidate)) is not None and not model.away:
                return model
        raise NoEngine([Attempt("", candidate, "nobody listens") for candidate in tried])

    def _live(self) -> None:
        self.signs_of_life += 1

    async def up(self, instances: str = "", engine: str = "", *, leave: bool = False) -> Instances:
        embedded = EmbeddedFederation(self.simulation, BEHAVIOUR, self.rows)
        try:
            opened = await open_instances(
                embedded.engine,
                CITIES.values(),
                self.paths,
                Wish(instances, engine, leave),
                logs=Logs(self.simulation),
                clock=self.simulation,
                engines=Engines(self._connect, self._connect),
                progress=self._live,
            )
        except LocalError:
            embedded.engine.close()
            raise
        embedded.use(opened.provider)
        self.federation = embedded
        await embedded.start()
        return opened

    async def down(self) -> None:
        """As `kill -9`: nothing is cleaned up."""
        assert self.federation is not None
        await self.federation.stop()
        self.rows = list(self.federation.engine.log.rows())
        self.federation = None

    async def deploy(self, name: str = "web") -> None:
        assert self.federation is not None
        await Federation(self.federation).project().deploy(name, ["DFW", "ORD"])
        await self.until_ready(name)

    async def until_ready(self, name: str = "web") -> None:
        assert self.federation is not None
        project = Federation(self.federation).project()
        await self.federation.until(partial(project.is_ready, name, 2), 60, f"{name} is ready")

    async def delete(self, name: str = "web") -> None:
        assert self.federation is not None
        project = Federation(self.federation).project()
        await project.delete(name)

        async def gone() -> bool:
            return not await self.instances()

        await self.federation.until(gone, 60, "all instances are gone")

    async def instances(self) -> list[Instance]:
        assert self.federation is not None
        return [item for cell in self.federation.cells.values() for item in (await cell.list(INSTANCE)).items]

    async def finalizers(self) -> set[str]:
        """The finalizers of providers."""
        ours = {CONTAINERS_FINALIZER, SIMULATED_FINALIZER}
        return {name for instance in await self.instances() for name in instance.metadata.finalizers} & ours

    async def external_addresses(self) -> set[str]:
        return {
            interface.assignments.external_ip
            for instance in await self.instances()
            for interface in (instance.status.network_interfaces if instance.status else ())
        }

    @property
    def record(self) -> Record:
        return recall(self.paths).record

    def boxes(self) -> list[Box]:
        return [box for box in self.model.boxes.values() if box.status == "running"]


@pytest.fixture
def world(runner: asyncio.Runner, simulation: Simulation, tmp_path: Path) -> Iterator[World]:
    folder = tmp_path / "state"
    folder.mkdir()
    world = World(simulation, Paths(folder))
    yield world
    if world.federation is not None:
        runner.run(world.down())


async def test_an_engine_that_answers_is_used_and_remembered(world: World) -> None:
    opened = await world.up()
    assert (opened.mode, opened.summary, list(opened.notes)) == (
        CONTAINERS,
        "containers of Podman 4.3.1; a city is a name here",
        [],
    )
    assert (world.record.instances, world.record.address, world.record.engine) == (CONTAINERS, ADDRESS, "Podman 4.3.1")
    await world.deploy()
    assert {box.labels[LOCAL] for box in world.boxes()} == {world.record.id}
    assert await world.finalizers() == {CONTAINERS_FINALIZER}
    assert all(address.startswith("127.0.0.1:") for address in await world.external_addresses())
    before = set(world.model.boxes)
    await world.down()
    await world.up()
    await world.until_ready()
    assert set(world.model.boxes) == before, "what runs is adopted"


async def test_endpoints_say_where_each_port_is_published(world: World) -> None:
    opened = await world.up()
    await world.deploy()
    assert world.federation is not None
    endpoints = Endpoints(world.federation.local.manager.fleet, "demo", opened.published)
    found = endpoints.of("web")
    assert [(each.instance, each.city, each.available) for each in found] == [
        ("web-main-dfw-0", "DFW", True),
        ("web-main-ord-0", "ORD", True),
    ]
    addresses = {each.web.address for each in found if each.web is not None}
    assert addresses == await world.external_addresses()
    document = Overview("demo", 8088, opened, endpoints).document()
    assert document["engine"] == {"name": "Podman 4.3.1", "address": ADDRESS, "unenforced": ()}
    assert [entry["ports"][0]["port"] for entry in document["endpoints"]] == [8080, 8080]
    world.model.away = True
    world.model.end_events()
    await world.simulation.advance(5)
    assert Overview("demo", 8088, opened, endpoints).document()["summary"] == (
        "containers of Podman 4.3.1, which does not answer"
    )


async def test_without_an_engine_everything_is_simulated(world: World) -> None:
    world.engines.clear()
    opened = await world.up()
    assert (opened.mode, opened.summary) == (SIMULATED, "simulated (no container engine answers)")
    assert (world.record.instances, world.record.address) == (SIMULATED, "")
    await world.deploy()
    assert opened.published is None


async def test_no_engine_is_touched_when_a_simulation_is_asked_for(world: World) -> None:
    opened = await world.up(SIMULATED)
    assert opened.summary == "simulated"
    await world.deploy()
    await world.down()
    await world.up(SIMULATED)
    assert (world.searches, world.model.calls) == ([], [])


async def test_a_simulation_is_not_swapped_for_containers_but_they_are_offered(world: World) -> None:
    await world.up(SIMULATED)
    await world.deploy()
    await world.down()
    opened = await world.up()
    assert (opened.mode, opened.summary) == (SIMULATED, "simulated")
    (note,) = opened.notes
    assert note == (
        "Podman 4.3.1 answers; 'compute local down', then 'compute local up --instances=containers' runs them there "
        "instead."
    )
    await world.delete()
    await world.down()
    assert (await world.up()).mode == CONTAINERS, "now there is nothing that could be swapped"


async def test_instances_of_a_version_that_knew_no_containers_stay_simulated(world: World) -> None:
    await world.up(SIMULATED)
    await world.deploy()
    await world.down()
    world.paths.containers.unlink()
    assert (await world.up()).mode == SIMULATED


async def test_whoever_asks_for_containers_hears_what_each_address_said(world: World) -> None:
    world.engines.clear()
    with pytest.raises(LocalError) as error:
        await world.up(CONTAINERS, ADDRESS)
    assert str(error.value).splitlines() == [
        "no container engine answers; tried were",
        f"  {ADDRESS}: nobody listens",
        "Start Docker or Podman, or name its socket with --engine=unix://PATH.",
    ]
    assert not world.paths.containers.exists(), "nothing was changed"


async def test_a_simulation_changes_over_to_containers(world: World) -> None:
    await world.up(SIMULATED)
    await world.deploy()
    await world.down()
    assert (await world.up(CONTAINERS)).mode == CONTAINERS
    await world.until_ready()
    assert len(world.boxes()) == 2
    assert await world.finalizers() == {CONTAINERS_FINALIZER}
    await world.delete()
    assert world.model.boxes == {}


async def test_containers_are_removed_before_a_simulation_takes_over(world: World) -> None:
    await world.up()
    await world.deploy()
    await world.down()
    foreign = dict.fromkeys([LOCAL], "f" * 32)
    await world.model.create("datum-foreign-web", {"Image": IMAGE, "Labels": foreign})
    opened = await world.up(SIMULATED)
    assert opened.mode == SIMULATED
    assert [box.name for box in world.model.boxes.values()] == ["datum-foreign-web"]
    assert world.signs_of_life == 4, "each of two was stopped and removed, which may take long"
    assert world.model.networks_there == {}
    assert (world.record.instances, world.record.address) == (SIMULATED, "")
    await world.until_ready()
    assert await world.finalizers() == {SIMULATED_FINALIZER}
    assert await world.external_addresses() == {""}, "nobody answers there any more"
    await world.delete()


async def test_what_runs_is_waited_for_while_its_engine_is_away(world: World) -> None:
    await world.up()
    await world.deploy()
    await world.down()
    before = set(world.model.boxes)
    world.model.away = True
    world.engines[OTHER] = world.add_engine(OTHER)
    opened = await world.up()
    assert (opened.mode, opened.summary) == (CONTAINERS, "containers of Podman 4.3.1, which does not answer")
    assert "--instances=simulated --leave-containers" in opened.notes[1]
    assert world.record.address == ADDRESS, "another engine does not take its place"
    world.model.away = False
    await world.simulation.advance(60)
    await world.until_ready()
    assert set(world.model.boxes) == before
    assert world.engines[OTHER].boxes == {}


async def test_containers_out_of_reach_are_not_given_up_for_a_simulation(world: World) -> None:
    await world.up()
    await world.deploy()
    await world.down()
    record, rows = world.record, world.rows
    world.model.away = True
    with pytest.raises(
        LocalError, match=r"cannot be removed now: .*leave the containers behind with 'compute local up "
    ):
        await world.up(SIMULATED)
    assert (world.record, world.rows) == (record, rows)
    opened = await world.up(SIMULATED, leave=True)
    assert opened.mode == SIMULATED
    assert list(opened.notes) == [
        f"Containers of this federation were left behind; they have the label {LOCAL}={record.id}."
    ]
    assert world.record.address == ""
    await world.until_ready()
    await world.delete()
    assert len(world.model.boxes) == 2, "nothing was removed"


async def test_another_engine_is_refused_while_the_first_has_containers(world: World) -> None:
    await world.up()
    await world.deploy()
    await world.down()
    world.engines[OTHER] = world.add_engine(OTHER)
    with pytest.raises(
        LocalError, match=r"Podman 4\.3\.1 at unix:///run/model\.sock has 2 containers of this federation"
    ):
        await world.up(CONTAINERS, OTHER)
    world.model.away = True
    with pytest.raises(LocalError, match=r"which does not answer; start it, or give its containers up with"):
        await world.up("", OTHER)
    world.model.away = False
    await world.up()
    await world.delete()
    await world.down()
    opened = await world.up(CONTAINERS, OTHER)
    assert opened.mode == CONTAINERS


async def test_a_simulation_takes_over_from_the_engine_that_is_remembered_whichever_is_named(world: World) -> None:
    await world.up()
    await world.deploy()
    await world.down()
    other = world.engines[OTHER] = world.add_engine(OTHER)
    assert (await world.up(SIMULATED, OTHER)).mode == SIMULATED
    assert (world.model.boxes, world.model.networks_there, other.calls) == ({}, {}, [])
    assert world.record.address == ""


async def test_containers_are_left_behind_without_a_look_at_any_engine(world: World) -> None:
    await world.up()
    await world.deploy()
    await world.down()
    world.engines[OTHER] = world.add_engine(OTHER)
    world.searches.clear()
    assert (await world.up(SIMULATED, OTHER, leave=True)).mode == SIMULATED
    assert (world.searches, world.record.address) == ([], "")
    assert len(world.boxes()) == 2


async def without_instances(world: World) -> None:
    """Networks stay, and a container that nobody knows, in an engine that is not the first to be found any more."""
    await world.up()
    await world.deploy()
    await world.delete()
    await world.down()
    await world.model.create("stray", {"Image": IMAGE, "Labels": {LOCAL: world.record.id}})
    world.engines = {OTHER: world.add_engine(OTHER), ADDRESS: world.model}
    assert len(world.model.networks_there) == 2


async def test_an_engine_that_still_has_networks_is_used_again(world: World) -> None:
    await without_instances(world)
    await world.up()
    assert (world.record.address, world.engines[OTHER].calls) == (ADDRESS, [])


async def test_a_simulation_removes_what_the_remembered_engine_still_has(world: World) -> None:
    await without_instances(world)
    await world.up(SIMULATED)
    assert (world.model.boxes, world.model.networks_there, world.record.address) == ({}, {}, "")
    assert world.engines[OTHER].calls == []


async def test_an_engine_is_cleaned_up_before_another_takes_its_place(world: World) -> None:
    await without_instances(world)
    opened = await world.up(CONTAINERS, OTHER)
    assert (world.model.boxes, world.model.networks_there, list(opened.notes)) == ({}, {}, [])
    assert world.record.address == OTHER


@pytest.mark.parametrize("named", ["", OTHER])
async def test_an_engine_that_is_gone_and_had_no_instances_is_named_and_replaced(world: World, named: str) -> None:
    await without_instances(world)
    world.model.away = True
    opened = await world.up(engine=named)
    assert list(opened.notes) == [
        f"Podman 4.3.1 at {ADDRESS} is not used any more and could not be cleaned up; what it still has of this "
        f"federation has the label {LOCAL}={world.record.id}."
    ]
    assert world.record.address == OTHER


async def test_an_engine_that_is_gone_is_not_forgotten_for_a_simulation(world: World) -> None:
    await without_instances(world)
    world.model.away = True
    assert (await world.up(SIMULATED)).mode == SIMULATED
    assert (world.record.address, world.engines[OTHER].calls) == (ADDRESS, [])


async def test_a_copied_directory_makes_containers_of_its_own(world: World, tmp_path: Path) -> None:
    await world.up()
    await world.deploy()
    await world.down()
    first, before = world.record, set(world.model.boxes)
    world.paths = Paths(Path(shutil.copytree(world.paths.directory, tmp_path / "copy")))
    opened = await world.up()
    assert opened.mode == CONTAINERS
    assert list(opened.notes) == [
        f"Containers of {first.directory} stay as they are; they have the label {first.label}."
    ]
    await world.until_ready()
    await world.simulation.advance(120)
    assert before < set(world.model.boxes), "those of the other directory were not touched"
    assert {box.labels[LOCAL] for box in world.model.boxes.values()} == {first.id, world.record.id}
    await world.delete()
    assert set(world.model.boxes) == before


async def test_a_removal_that_fails_leaves_everything_as_it_was(world: World) -> None:
    await world.up()
    await world.deploy()
    await world.down()
    record, rows = world.record, world.rows
    world.model.after_call = lambda call: setattr(world.model, "away", world.model.away or call.startswith("stop"))
    with pytest.raises(LocalError, match="the containers could not be removed: "):
        await world.up(SIMULATED)
    assert (world.record, world.rows) == (record, rows)
    world.model.away, world.model.after_call = False, lambda call: None
    await world.up()
    await world.until_ready()
    assert await world.finalizers() == {CONTAINERS_FINALIZER}


async def test_an_engine_that_is_found_late_is_remembered(world: World) -> None:
    await world.up(CONTAINERS)
    await world.deploy()
    await world.down()
    remember(world.paths, replace(recall(world.paths).record, address="", engine=""))
    world.model.away = True
    await world.up()
    await world.simulation.advance(5)
    assert recall(world.paths).record.address == ""
    world.model.away = False
    await world.simulation.advance(60)
    assert recall(world.paths).record.address == world.model.info.address
