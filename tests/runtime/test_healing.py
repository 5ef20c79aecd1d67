"""Everything that is known to go wrong between a controller and its planes heals by itself, one test each."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.errors import Conflict, Gone, Invalid, ServerError, Unauthorized, Unavailable
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Call
from datum_compute.runtime.caches.informer import RELIST_SECONDS, STALL_SECONDS, UNSERVED_SECONDS
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request, Unfinished
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.server import GADGET, NAMESPACE, WIDGET, Server, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.conftest import count
from tests.runtime.world import World


@pytest.mark.parametrize("seed", range(20))
async def test_a_wake_up_that_comes_in_the_moment_a_pass_ends_is_not_lost(simulation: Simulation, seed: int) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        informer = world.fleet.plane("a").informer(WIDGET)
        seen = informer.get(NAMESPACE, "w")
        assert seen is not None
        looked_at.append(seen.metadata.resource_version)
        for _ in range(simulation.random.randrange(4)):
            await asyncio.sleep(0)

    looked_at: list[str] = []
    world = World()
    world.recorder.act = act
    server = world.add("a")
    server.make("w")
    async with world.running(simulation):
        for _ in range(30):
            server.change("w")
            for _ in range(simulation.random.randrange(12)):
                await asyncio.sleep(0)
        await simulation.settle()
        assert looked_at[-1] == server.versions()["w"]


async def test_a_stream_that_is_silent_from_some_point_on_is_noticed(simulation: Simulation) -> None:
    world = World()
    server = world.add("a")
    async with world.running(simulation):
        server.make("seen")
        await simulation.settle()
        world.faults["a"].silence_watches()
        server.make("unseen")
        await simulation.settle()
        assert world.recorder.requests == ["a:default/seen"]
        await simulation.until(world.has_run(2), within=STALL_SECONDS)
        assert world.recorder.requests[1:] == ["a:default/unseen"]


@pytest.mark.parametrize("lost", ["made", "changed", "removed"])
async def test_one_event_dropped_from_a_live_stream_is_healed_by_the_next_relist(
    simulation: Simulation, lost: str
) -> None:
    world = World()
    server = world.add("a")
    server.make("old")
    async with world.running(simulation):
        world.faults["a"].drop_event(calls(path="/widgets"))
        match lost:
            case "made":
                server.make("new")
            case "changed":
                server.change("old")
            case "removed":
                server.remove("old")
        server.make("later")  # the stream itself is fine
        await simulation.settle()
        assert world.recorder.requests == ["a:default/old", "a:default/later"]
        await simulation.until(world.has_run(3), within=RELIST_SECONDS * 1.1 + 1)
        assert world.recorder.requests[2] == ("a:default/new" if lost == "made" else "a:default/old")


async def test_410_in_the_middle_of_a_watch_lists_again(simulation: Simulation) -> None:
    world = World()
    server = world.add("a")
    async with world.running(simulation):
        world.faults["a"].drop_event(calls(path="/widgets"))
        server.make("w")
        server.send(encode({"type": "ERROR", "object": Gone("too old resource version").status()}))
        await simulation.until(world.has_run(1), within=1)
        assert server.list_calls() == 2


async def test_a_silent_connection_is_replaced(simulation: Simulation) -> None:
    world = World()
    server = world.add("a")
    async with world.running(simulation):
        world.faults["a"].silence_watches()  # for ever; the network itself is fine again
        world.faults["a"].restore_watches()
        await asyncio.sleep(STALL_SECONDS)
        server.make("w")
        await simulation.settle()
        assert world.recorder.requests == ["a:default/w"]


async def test_credentials_that_are_refused_for_a_while_need_no_restart(simulation: Simulation) -> None:
    world = World()
    server = world.add("a")
    async with world.running(simulation):
        server.refuse = [Unauthorized("expired")] * 50
        server.end_watches()
        server.make("w")
        await asyncio.sleep(60)
        assert world.recorder.ran == []
        server.refuse = []
        await simulation.until(world.has_run(1), within=6)


def test_credentials_rotated_under_a_running_watch_need_no_restart(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    asyncio.run(rotated(str(token), lambda: token.write_text("second")))


async def rotated(token: str, rotate: Callable[[], object]) -> None:
    """On the real loop, over HTTP: the server takes another token, and later the file holds it."""
    server = Server()
    accepted = "first"
    refused = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {accepted}":
            refused.set()
            return web.json_response(Unauthorized("who are you").status(), status=401)
        call = Call(request.method, request.path, dict(request.query), await request.read())
        if "watch" not in call.query:
            answer = await server.answer(call)
            return web.Response(body=answer.body, status=answer.code)
        response = web.StreamResponse()
        await response.prepare(request)
        async with server.watch(call) as lines:
            async for line in lines:
                await response.write(line + b"\n")
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    transport = HttpTransport(Endpoint(f"http://127.0.0.1:{port}", token_file=token))
    plane = Plane("a", "east", transport, writes=Writes(), generator=random.Random(1))
    arrived: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("before", "after", "later")}
    plane.informer(WIDGET).subscribe(lambda change: arrived[change.object.name].set())
    try:
        async with background(plane.run()), asyncio.timeout(30):
            server.make("before")
            await arrived["before"].wait()
            accepted = "second"
            server.make("after")
            server.end_watches()
            await refused.wait()
            rotate()
            await arrived["after"].wait()
            server.make("later")
            await arrived["later"].wait()
    finally:
        await transport.close()
        server.end_watches()
        await runner.cleanup()


@pytest.mark.parametrize("seed", range(10))
async def test_a_plane_added_removed_and_added_again_misses_no_event(simulation: Simulation, seed: int) -> None:
    world = World()
    server, other = world.add("a"), world.add("b")
    async with world.running(simulation):
        for number in range(40):
            match simulation.random.randrange(4):
                case 0 if world.fleet.knows("a"):
                    world.fleet.remove("a")
                case 1 if not world.fleet.knows("a"):
                    world.add("a", server=server)
                case _:
                    server.make(f"w{number}")
            other.make(f"w{number}")
            for _ in range(simulation.random.randrange(30)):
                await asyncio.sleep(0)
        if world.fleet.knows("a"):
            world.fleet.remove("a")
        await simulation.settle()
        world.recorder.ran.clear()
        world.add("a", server=server)
        await simulation.settle()
        server.make("last")
        await simulation.settle()
        assert sorted(world.recorder.requests) == sorted(f"a:default/{name}" for name in server.versions())
        informer = world.fleet.plane("b").informer(WIDGET)
        assert {item.name: item.metadata.resource_version for item in informer.all()} == other.versions()
        assert world.controller.crashes == []


async def test_a_kind_that_appears_later_is_followed(simulation: Simulation) -> None:
    world = World(Source("east", WIDGET, itself), Source("east", GADGET, itself, optional=True))
    server = world.add("a")
    server.unserved = {GADGET.plural}
    async with world.running(simulation):
        server.make("w")  # nothing else waits for the kind
        await simulation.settle()
        assert world.recorder.requests == ["a:default/w"]
        server.unserved.clear()
        server.make("g", GADGET)
        await simulation.until(world.has_run(3), within=UNSERVED_SECONDS * 1.1 + 1)
        assert sorted(world.recorder.requests[1:]) == ["a:default/g", "a:default/w"]


# Whatever a pass does

OUTCOMES = [
    None,
    Conflict("changed", plane="a"),
    ServerError("no", plane="a"),
    Unavailable("no", plane="b"),
    Invalid("never", plane="a"),
    Unfinished("not yet"),
    LookupError("a defect"),
    ExceptionGroup("at once", [Conflict("changed"), ServerError("no")]),
]
OUTCOME = st.sampled_from(range(len(OUTCOMES)))
STEPS = st.tuples(OUTCOME, st.sampled_from([0.5, 3.0, 45.0]), st.booleans(), st.booleans())


@given(seed=st.integers(0, 1000), steps=st.lists(STEPS, min_size=1, max_size=15))
@settings(max_examples=count(100, 2000), deadline=None)
def test_a_pass_runs_again_no_later_than_the_floor_it_declared(
    seed: int, steps: list[tuple[int, float, bool, bool]]
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Simulation)
        due: list[float] = []

        async def act(request: Request, pass_: Pass) -> None:
            now = loop.time()
            if due:
                assert now <= due[-1] + 1e-6
            if not steps:
                due[:] = [float("inf")]
                return
            outcome, floor, slow, changed = steps.pop(0)
            pass_.no_later_than(floor)
            pass_.no_later_than(100.0)
            if changed:
                server.change("w")
            if slow:
                await asyncio.sleep(loop.random.choice([0, 1]))
            due.append(loop.time() + floor)
            if (error := OUTCOMES[outcome]) is not None:
                raise error

        world = World()
        world.recorder.act = act
        server = world.add("a")
        server.make("w")
        async with world.running(loop):
            await asyncio.sleep(1000)
        assert steps == []

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        runner.run(main())
