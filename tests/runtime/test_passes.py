"""What a pass offers its reconciler."""

import pytest

from datum_compute.kube.kinds import EVENT
from datum_compute.runtime.controller import Controller
from datum_compute.runtime.fleet import NotEngaged
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.requests import Request
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.testing.server import NAMESPACE, WIDGET
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Write
from tests.runtime.world import Recorder, World

REQUEST = Request("a", NAMESPACE, "w")


class Named(Recorder):
    """Its events show another name than its own."""

    component = "spokesman"


def new_pass(world: World, simulation: Simulation, recorder: Recorder | None = None) -> Pass:
    return Controller(recorder or world.recorder, world.fleet, simulation).new_pass(REQUEST)


@pytest.fixture
def world() -> World:
    world = World(Source("east", WIDGET, itself), Source("west", WIDGET))
    world.add("a").make("w")
    return world


async def test_a_pass_reads_and_writes_the_object_of_its_request(world: World, simulation: Simulation) -> None:
    async with world.running(simulation):
        pass_ = new_pass(world, simulation)
        widget = pass_.get(WIDGET)
        assert widget is not None
        assert widget.name == "w"
        await pass_.write.status(widget, {"ready": True})
        assert world.servers["a"].get("w")["status"] == {"ready": True}
        assert world.writes.counts == {Write("a", "recorder", "status", "Widget"): 1}


async def test_another_plane_is_reached_by_name_or_as_the_only_one_of_its_role(
    world: World, simulation: Simulation
) -> None:
    world.add("b", "west").make("v")
    async with world.running(simulation):
        pass_ = new_pass(world, simulation)
        west = pass_.on("west")
        assert west.name == "b"
        assert [widget.name for widget in west.informer(WIDGET).all()] == ["v"]
        assert pass_.on(world.fleet.plane("b")).plane is west.plane
        assert pass_.plane is world.fleet.plane("a")


async def test_a_role_without_a_plane_is_waited_for(world: World, simulation: Simulation) -> None:
    async with world.running(simulation):
        with pytest.raises(NotEngaged) as error:
            new_pass(world, simulation).on("west")
        assert error.value.role == "west"


@pytest.mark.parametrize(("recorder", "component"), [(Recorder(()), "recorder"), (Named(()), "spokesman")])
async def test_events_show_the_component_and_the_time_of_the_clock(
    world: World, simulation: Simulation, recorder: Recorder, component: str
) -> None:
    async with world.running(simulation):
        pass_ = new_pass(world, simulation, recorder)
        widget = pass_.get(WIDGET)
        assert widget is not None
        pass_.events.warning(widget, "Odd", "it is odd")
        await simulation.settle()
        [event] = [found for found in world.servers["a"].history() if found["kind"] == EVENT.name]
    assert (event["type"], event["source"]["component"], event["reason"]) == ("Warning", component, "Odd")
    assert event["involvedObject"]["kind"] == "Widget"
    assert event["firstTimestamp"] == f"{pass_.now():%Y-%m-%dT%H:%M:%SZ}"
