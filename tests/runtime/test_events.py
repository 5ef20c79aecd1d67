import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Forbidden, Invalid, NotFound
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import EVENT, Kind
from datum_compute.kube.meta import Json, KubeObject, ObjectMeta, decode
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime.events import LONGEST_MESSAGE, PAUSE_SECONDS, PENDING_AT_MOST, REMEMBERED, TRIES, Recorder
from datum_compute.runtime.testing.faults import Faults, calls
from datum_compute.runtime.testing.server import NAMESPACE, WIDGET, Server, Widget, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Write, Writes

SITE = Kind("example.test", "v1", "Site", "sites", KubeObject, namespaced=False)


class World:
    """A recorder on a scripted plane."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.server = Server()
        self.faults = Faults(InProcess(self.server), simulation.random)
        self.writes = Writes()
        self.recorder = Recorder(Client("a", self.faults), self.writes)

    def tell(self, message: str = "it was so", *, name: str = "w", reason: str = "Changed") -> None:
        widget = WIDGET.mark(Widget(ObjectMeta(name=name, namespace=NAMESPACE, uid=f"uid-{name}")))
        self.recorder.warning("signer", widget, reason, message, now=self.simulation.now())

    def events(self) -> list[Json]:
        """Every event there is, in the order in which they were created."""
        return [self.server.get(name, EVENT) for name in self._names()]

    def _names(self) -> list[str]:
        seen = dict.fromkeys(object_["metadata"]["name"] for object_ in self.server.history())
        return [name for name in seen if self.server.has(name, EVENT)]


@pytest.fixture
def world(simulation: Simulation) -> World:
    return World(simulation)


# Content


async def test_an_event_names_its_object_and_reason(world: World, simulation: Simulation) -> None:
    world.tell("no room in the east")
    async with background(world.recorder.run()):
        await simulation.settle()
    [event] = world.events()
    del event["metadata"]
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": "example.test/v1",
            "kind": "Widget",
            "name": "w",
            "namespace": NAMESPACE,
            "uid": "uid-w",
        },
        "type": "Warning",
        "reason": "Changed",
        "message": "no room in the east",
        "source": {"component": "signer"},
        "firstTimestamp": "2026-06-01T12:00:00Z",
        "lastTimestamp": "2026-06-01T12:00:00Z",
        "count": 1,
    }


async def test_events_of_cluster_scoped_objects_are_in_default(world: World, simulation: Simulation) -> None:
    site = SITE.mark(KubeObject(ObjectMeta(name="dfw", uid="uid-dfw")))
    world.recorder.normal("signer", site, "Opened", "welcome", now=simulation.now())
    async with background(world.recorder.run()):
        await simulation.settle()
    [event] = world.events()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]
    assert event["type"] == "Normal"


@given(st.text())
def test_a_message_is_passed_on_as_it_is_up_to_1024_bytes(message: str) -> None:
    """No format, no template: what a user wrote in a name can be in it."""

    async def recorded(loop: Simulation) -> str:
        world = World(loop)
        world.tell(message)
        async with background(world.recorder.run()):
            await loop.settle()
        [event] = world.events()
        text: str = event["message"]
        return text

    loop = Simulation.seeded(1)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        text = runner.run(recorded(loop))
    assert message.startswith(text)
    assert len(text.encode()) <= LONGEST_MESSAGE
    assert text == message or len(text.encode()) > LONGEST_MESSAGE - 4


@pytest.mark.parametrize("message", ["{0} %s {name}", "x" * 5000, "é" * 5000, "\ud800 alone"])
async def test_odd_messages_are_recorded_too(world: World, simulation: Simulation, message: str) -> None:
    world.tell(message)
    async with background(world.recorder.run()):
        await simulation.settle()
    [event] = world.events()
    assert 0 < len(event["message"].encode()) <= LONGEST_MESSAGE


@pytest.mark.parametrize("name", ["w" * 253, "w" * 219 + "-" + "w" * 33, "a.b"])
async def test_the_name_of_an_event_fits_whatever_its_object_is_called(
    world: World, simulation: Simulation, name: str
) -> None:
    world.tell(name=name)
    async with background(world.recorder.run()):
        await simulation.settle()
    [event] = world.events()
    assert len(event["metadata"]["name"]) <= 253
    assert all(part and part[-1] != "-" for part in event["metadata"]["name"].split("."))


async def test_events_are_recorded_in_order(world: World, simulation: Simulation) -> None:
    expected = [f"reason-{number}" for number in range(20)]
    for reason in expected:
        world.tell(reason=reason)
    async with background(world.recorder.run()):
        await simulation.settle()
    assert [event["reason"] for event in world.events()] == expected


# LogThrottle


async def test_a_repeated_event_is_counted_on_the_first(world: World, simulation: Simulation) -> None:
    async with background(world.recorder.run()):
        for _ in range(3):
            world.tell()
            await simulation.advance(60)
    [event] = world.events()
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (
        3,
        "2026-06-01T12:00:00Z",
        "2026-06-01T12:02:00Z",
    )


async def test_an_event_that_repeats_before_it_is_recorded_is_recorded_once(
    world: World, simulation: Simulation
) -> None:
    for _ in range(1000):
        world.tell()
    async with background(world.recorder.run()):
        await simulation.settle()
    [event] = world.events()
    assert event["count"] == 1000
    assert world.writes.counts == {Write("a", "signer", "create", "Event"): 1}


@pytest.mark.parametrize("other", [{"message": "other"}, {"name": "v"}, {"reason": "Other"}])
async def test_events_that_differ_are_recorded_separately(
    world: World, simulation: Simulation, other: dict[str, Any]
) -> None:
    world.tell()
    world.tell(**other)
    async with background(world.recorder.run()):
        await simulation.settle()
    assert [event["count"] for event in world.events()] == [1, 1]


async def test_an_event_that_the_server_forgot_is_created_again(world: World, simulation: Simulation) -> None:
    async with background(world.recorder.run()):
        world.tell()
        await simulation.settle()
        [first] = world.events()
        world.server.remove(first["metadata"]["name"], EVENT)
        await simulation.advance(3600)
        world.tell()
        await simulation.settle()
    [second] = world.events()
    assert (second["count"], second["firstTimestamp"]) == (1, "2026-06-01T13:00:00Z")


# Bounds


async def test_waiting_events_are_bounded_and_dropped_ones_counted(world: World, simulation: Simulation) -> None:
    for number in range(PENDING_AT_MOST + 7):
        world.tell(reason=str(number))
    assert world.recorder.dropped == {"too_many": 7}
    async with background(world.recorder.run()):
        await simulation.settle()
    assert len(world.server.versions(EVENT)) == PENDING_AT_MOST


async def test_memory_is_bounded_and_forgets_the_oldest_first(world: World, simulation: Simulation) -> None:
    async with background(world.recorder.run()):
        for number in range(REMEMBERED + 1):
            world.tell(name=f"w-{number}")
            if number % 500 == 0:
                await simulation.settle()
        await simulation.settle()
        world.tell(name="w-0")
        world.tell(name=f"w-{REMEMBERED}")
        await simulation.settle()
    assert world.writes.counts[Write("a", "signer", "create", "Event")] == REMEMBERED + 2
    assert world.writes.counts[Write("a", "signer", "patch", "Event")] == 1


# Whatever goes wrong


@pytest.mark.parametrize("error", [Invalid("no"), Forbidden("namespace is being terminated"), NotFound("no namespace")])
async def test_a_refused_event_does_not_delay_others(
    world: World, simulation: Simulation, monkeypatch: pytest.MonkeyPatch, error: ApiError
) -> None:
    world.tell(reason="Refused")
    world.tell(reason="Fine")
    accept = world.server.answer

    async def answer(call: Call) -> Answer:
        if decode(call.body, dict)["reason"] == "Refused":
            raise error
        return await accept(call)

    monkeypatch.setattr(world.server, "answer", answer)
    async with background(world.recorder.run()):
        await simulation.settle()
        assert simulation.time() == 0.0
    assert [event["reason"] for event in world.events()] == ["Fine"]
    assert world.recorder.dropped == {"refused": 1}


async def test_events_are_recorded_when_their_plane_returns(world: World, simulation: Simulation) -> None:
    world.faults.take_away()
    async with background(world.recorder.run()):
        world.tell(reason="First")
        await simulation.advance(PAUSE_SECONDS * 3)
        for _ in range(5):
            world.tell(reason="Second")
        world.faults.bring_back()
        await simulation.advance(PAUSE_SECONDS)
    assert [(event["reason"], event["count"]) for event in world.events()] == [("First", 1), ("Second", 5)]
    assert world.recorder.dropped == {}


async def test_events_for_a_plane_that_stays_away_are_given_up_one_at_a_time(
    world: World, simulation: Simulation
) -> None:
    world.faults.take_away()
    async with background(world.recorder.run()):
        world.tell(reason="First")
        world.tell(reason="Second")
        await simulation.advance(PAUSE_SECONDS * TRIES)
        assert world.recorder.dropped == {"out_of_reach": 1}


@pytest.mark.parametrize("nth", [1, 2])
async def test_a_lost_answer_makes_no_second_event(world: World, simulation: Simulation, nth: int) -> None:
    fault = world.faults.lose_answer(calls(path="/events"), nth)
    async with background(world.recorder.run()):
        for _ in range(3):
            world.tell()
            await simulation.advance(PAUSE_SECONDS)
    [event] = world.events()
    assert fault.fired
    assert event["count"] == 3


async def test_a_defect_is_counted_and_ends_nothing(
    world: World, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with background(world.recorder.run()):
        with monkeypatch.context() as patched:
            patched.setattr(Client, "create", defective)
            world.tell(reason="First")
            await simulation.settle()
        world.tell(reason="Second")
        await simulation.settle()
    assert world.recorder.dropped == {"crashed": 1}
    assert [event["reason"] for event in world.events()] == ["Second"]


async def defective(*arguments: object) -> None:
    raise TypeError("a defect")


async def test_events_need_only_creates_and_patches(world: World, simulation: Simulation) -> None:
    async with background(world.recorder.run()):
        for _ in range(2):
            world.tell()
            await simulation.settle()
    assert {call.method for call in world.server.calls} == {"POST", "PATCH"}


def test_the_same_seed_gives_the_same_run() -> None:
    async def story(loop: Simulation) -> list[str]:
        world = World(loop)
        world.faults.fail(calls("POST"), 2)
        async with background(world.recorder.run()):
            for number in range(5):
                world.tell(reason=str(number % 3))
                await loop.advance(number)
            await loop.advance(60)
        return [event["metadata"]["name"] for event in world.events()]

    def names() -> list[str]:
        loop = Simulation.seeded(7)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(story(loop))

    assert names() == names()
