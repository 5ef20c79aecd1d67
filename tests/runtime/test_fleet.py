import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from datum_compute.kube.errors import Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import Kind
from datum_compute.runtime.fleet import LATE_SECONDS, LONGEST_PAUSE, Fleet, NotEngaged
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import Faults, calls
from datum_compute.runtime.testing.server import GADGET, NAMESPACE, WIDGET, Server, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes


class Member:
    """Caches widgets on every plane of the east, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.seen: dict[str, list[str]] = {}

    def prepare(self, plane: Plane) -> None:
        self.calls.append(f"prepare {plane.name}")
        if "east" in plane.roles:
            plane.informer(WIDGET)

    def engaged(self, plane: Plane) -> None:
        self.calls.append(f"engaged {plane.name}")
        if "east" in plane.roles:
            self.seen[plane.name] = [widget.name for widget in plane.informer(WIDGET).all()]

    def disengaged(self, plane: Plane) -> None:
        self.calls.append(f"disengaged {plane.name}")


class Cache:
    """A member that needs one kind on planes of a role."""

    def __init__(self, role: str, kind: Kind[Any]) -> None:
        self._role = role
        self._kind = kind

    def prepare(self, plane: Plane) -> None:
        if self._role in plane.roles:
            plane.informer(self._kind)

    def engaged(self, plane: Plane) -> None: ...

    def disengaged(self, plane: Plane) -> None: ...


class World:
    def __init__(self) -> None:
        self.fleet = Fleet()
        self.member = Member()
        self.fleet.join(self.member)
        self.servers: dict[str, Server] = {}
        self.faults: dict[str, Faults] = {}

    def add(self, name: str, role: str = "east") -> Server:
        server = self.servers.setdefault(name, Server())
        self.faults[name] = Faults(InProcess(server), random.Random(1))
        self.fleet.add(Plane(name, role, self.faults[name], writes=Writes(), generator=random.Random(1)))
        return server

    @asynccontextmanager
    async def running(self, simulation: Simulation) -> AsyncIterator[None]:
        async with background(self.fleet.run()):
            await simulation.settle()
            yield


@pytest.fixture
def world() -> World:
    return World()


# Coming


async def test_a_plane_is_engaged_when_its_caches_are_filled(world: World, simulation: Simulation) -> None:
    world.add("a").make("w")
    assert not world.fleet.has("a")
    async with world.running(simulation):
        assert world.fleet.plane("a").name == "a"
        assert world.member.calls == ["prepare a", "engaged a"]
        assert world.member.seen == {"a": ["w"]}


async def test_a_plane_may_be_added_at_any_time(world: World, simulation: Simulation) -> None:
    async with world.running(simulation):
        world.add("a")
        await simulation.settle()
        assert world.fleet.has("a")


async def test_a_plane_that_does_not_answer_does_not_hold_up_another(world: World, simulation: Simulation) -> None:
    world.add("hung").answering.clear()
    world.add("away")
    world.faults["away"].take_away()
    world.add("b")
    async with world.running(simulation):
        assert [plane.name for plane in world.fleet.of_role("east")] == ["b"]
        world.servers["hung"].answering.set()
        world.faults["away"].bring_back()
        await asyncio.sleep(6)
        assert sorted(plane.name for plane in world.fleet.of_role("east")) == ["away", "b", "hung"]


async def test_a_plane_without_caches_is_engaged_and_can_be_cached_later(world: World, simulation: Simulation) -> None:
    world.add("c", role="west").make("g", GADGET)
    async with world.running(simulation):
        informer = world.fleet.plane("c").informer(GADGET)
        await simulation.settle()
        assert informer.get(NAMESPACE, "g") is not None


async def test_a_plane_is_added_only_once(world: World, simulation: Simulation) -> None:
    world.add("a")
    with pytest.raises(ValueError, match="already here"):
        world.add("a")
    async with world.running(simulation):
        with pytest.raises(ValueError, match="already here"):
            world.add("a")


# Asking for planes


async def test_a_plane_that_is_not_engaged_is_an_error_that_names_it(world: World, simulation: Simulation) -> None:
    with pytest.raises(NotEngaged) as caught:
        world.fleet.plane("a")
    assert caught.value.plane == "a"
    assert caught.value.retryable


async def test_a_plane_is_coming_until_it_is_engaged_or_first_fails(world: World, simulation: Simulation) -> None:
    def is_coming(name: str) -> bool:
        with pytest.raises(NotEngaged) as caught:
            world.fleet.plane(name)
        return caught.value.coming

    def role_is_coming(role: str) -> bool:
        with pytest.raises(NotEngaged) as caught:
            world.fleet.only(role)
        return caught.value.coming

    world.add("slow").answering.clear()
    world.add("hung", "west").answering.clear()
    world.fleet.join(Cache("west", GADGET))
    world.add("away")
    world.faults["away"].take_away()
    assert (is_coming("slow"), is_coming("away"), is_coming("nowhere")) == (True, True, False)
    async with world.running(simulation):
        assert (is_coming("slow"), is_coming("away")) == (True, False)
        assert (role_is_coming("east"), role_is_coming("west"), role_is_coming("south")) == (True, True, False)
        await asyncio.sleep(LATE_SECONDS)
        assert (is_coming("hung"), role_is_coming("west")) == (False, False)
        world.servers["slow"].answering.set()
        await simulation.settle()
        assert world.fleet.has("slow")
        world.fleet.remove("slow")
        assert not is_coming("slow")


async def test_a_plane_is_known_before_it_answers_and_until_it_leaves(world: World, simulation: Simulation) -> None:
    world.add("a")
    world.add("hung").answering.clear()
    world.add("c", role="west")
    async with world.running(simulation):
        assert [plane.name for plane in world.fleet.of_role("east")] == ["a"]
        assert [plane.name for plane in world.fleet.known("east")] == ["a", "hung"]
        world.fleet.remove("hung")
        world.fleet.remove("a")
        assert world.fleet.known("east") == []
        assert [plane.name for plane in world.fleet.known("west")] == ["c"]


async def test_the_only_plane_of_a_role(world: World, simulation: Simulation) -> None:
    world.add("a")
    world.add("b")
    world.add("c", role="west")
    async with world.running(simulation):
        assert world.fleet.only("west").name == "c"
        for role in ("east", "south"):
            with pytest.raises(NotEngaged, match=role):
                world.fleet.only(role)


# Going


async def test_a_plane_that_leaves_is_no_longer_followed(world: World, simulation: Simulation) -> None:
    world.add("a")
    world.add("b")
    async with world.running(simulation):
        plane = world.fleet.plane("a")
        world.fleet.remove("a")
        await simulation.settle()
        assert not world.fleet.has("a")
        assert world.member.calls[-1] == "disengaged a"
        calls = len(world.servers["a"].calls)
        for server in world.servers.values():
            server.make("w")
        await asyncio.sleep(3600)
        assert len(world.servers["a"].calls) == calls
        assert plane.informer(WIDGET).all() == []
        assert world.fleet.plane("b").informer(WIDGET).get(NAMESPACE, "w") is not None


async def test_a_plane_that_leaves_before_it_was_engaged_is_only_disengaged(
    world: World, simulation: Simulation
) -> None:
    world.add("a").answering.clear()
    async with world.running(simulation):
        world.fleet.remove("a")
        world.servers["a"].answering.set()
        await asyncio.sleep(60)
        assert world.member.calls == ["prepare a", "disengaged a"]


@pytest.mark.parametrize("seed", range(20))
async def test_a_plane_may_come_and_go_at_any_moment(world: World, simulation: Simulation, seed: int) -> None:
    async with world.running(simulation):
        for _ in range(10):
            world.add("a")
            for _ in range(simulation.random.randrange(20)):
                await asyncio.sleep(0)
            world.fleet.remove("a")
        world.add("a").make("w")
        await simulation.settle()
        assert world.fleet.plane("a").informer(WIDGET).get(NAMESPACE, "w") is not None
        assert world.member.calls[-1] == "engaged a"


async def test_removing_an_unknown_plane_does_nothing(world: World) -> None:
    world.fleet.remove("nowhere")
    assert world.member.calls == []


# Members that raise


class Clumsy(Member):
    """Raises the first times that a certain method is called."""

    def __init__(self, step: str, times: int) -> None:
        super().__init__()
        self._left = {step: times}

    def prepare(self, plane: Plane) -> None:
        self._stumble("prepare", plane)
        super().prepare(plane)

    def engaged(self, plane: Plane) -> None:
        self._stumble("engage", plane)
        super().engaged(plane)

    def disengaged(self, plane: Plane) -> None:
        self._stumble("disengage", plane)
        super().disengaged(plane)

    def _stumble(self, step: str, plane: Plane) -> None:
        if plane.name == "a" and self._left.get(step, 0):
            self._left[step] -= 1
            raise LookupError(step)


@pytest.mark.parametrize("step", ["prepare", "engage"])
async def test_a_member_that_raises_is_called_again_without_affecting_others(
    world: World, simulation: Simulation, step: str
) -> None:
    clumsy = Clumsy(step, 3)
    world.fleet.join(clumsy)
    world.add("a").make("w")
    world.add("b")
    with capture_logs() as logs:
        async with world.running(simulation):
            calls = ["prepare a", "prepare b", "engaged a", "engaged b"]
            assert sorted(world.member.calls) == sorted(calls)
            assert "engaged a" not in clumsy.calls
            await asyncio.sleep(LONGEST_PAUSE)
            assert (world.member.calls.count("engaged a"), clumsy.calls.count("engaged a")) == (1, 1)
            assert clumsy.seen["a"] == ["w"]
            assert world.fleet.plane("a").failures.defects == {("", step): 3}
    (line,) = [line for line in logs if line["log_level"] == "error"]
    assert (line["plane"], line["phase"]) == ("a", step)


async def test_a_member_that_raises_cannot_keep_a_plane_from_leaving(world: World, simulation: Simulation) -> None:
    world.fleet.join(Clumsy("disengage", 1))
    later = Member()
    world.fleet.join(later)
    world.add("a")
    with capture_logs():
        async with world.running(simulation):
            world.fleet.remove("a")
            assert (world.member.calls[-1], later.calls[-1]) == ("disengaged a", "disengaged a")
            world.add("a")
            await simulation.settle()
            assert world.fleet.has("a")


# Returning


@pytest.mark.parametrize("way", ["call", "watch"])
async def test_a_plane_says_when_it_answers_again(world: World, simulation: Simulation, way: str) -> None:
    world.add("a")
    async with world.running(simulation):
        returned: list[float] = []
        plane = world.fleet.plane("a")
        plane.on_return(lambda: returned.append(simulation.time()))
        await plane.client.list(WIDGET)
        assert returned == []
        world.faults["a"].take_away()
        await simulation.settle()
        world.faults["a"].bring_back()
        if way == "call":
            await plane.client.list(WIDGET)
            assert returned == [0]
        await asyncio.sleep(60)
        assert len(returned) == 1


async def test_a_callback_that_raises_does_not_fail_the_call_that_found_the_plane_back(
    world: World, simulation: Simulation
) -> None:
    def failing() -> None:
        raise LookupError

    world.add("a")
    with capture_logs() as logs:
        async with world.running(simulation):
            returned: list[float] = []
            plane = world.fleet.plane("a")
            plane.on_return(failing)
            end = plane.on_return(lambda: returned.append(simulation.time()))
            world.faults["a"].fail(calls())
            with pytest.raises(Unavailable):
                await plane.client.list(WIDGET)
            await plane.client.list(WIDGET)
            assert returned == [0]
            end()
            await asyncio.sleep(60)
            world.faults["a"].fail(calls())
            with pytest.raises(Unavailable):
                await plane.client.list(WIDGET)
            await plane.client.list(WIDGET)
            assert returned == [0]
    assert [line["phase"] for line in logs if line["log_level"] == "error"] == ["return"]
