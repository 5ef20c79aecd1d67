"""The client of container engines, against both dialects and against engines that answer badly."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from datum_compute.federation.lines import STDERR, STDOUT
from datum_compute.federation.sessions import Command, Session, Unstartable
from datum_compute.kube.meta import Json
from datum_compute.providers.engine.answers import TooOld
from datum_compute.providers.engine.client import EngineClient, Limits
from datum_compute.providers.engine.interface import ContainerEngine, EngineAway, EngineError, PullProgress, Refused
from datum_compute.providers.engine.streams import Frames, split_time
from tests.providers.engine_boxes import Dialect, Image
from tests.providers.engine_model import EngineModel
from tests.providers.engine_server import Answer, EngineServer

LABELS = {"local": "me"}
BODY: Json = {
    "Image": "app:1",
    "Labels": LABELS,
    "HostConfig": {"NetworkMode": "city", "PortBindings": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "0"}]}},
}
SOON = Limits(hello=0.3, answer=0.3, start=0.6, pull_silence=0.3, event_silence=0.1)


@pytest.fixture(params=list(Dialect))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> EngineServer:
    model = EngineModel(request.param)
    model.images["app:1"] = Image()
    model.networks_there["city"] = {}
    return EngineServer(model, tmp_path / "s")


@asynccontextmanager
async def connected(server: EngineServer, limits: Limits | None = None) -> AsyncIterator[EngineClient]:
    async with server.serving():
        client = await EngineClient.connect(server.path, limits)
        try:
            yield client
        finally:
            await client.close()


def run(
    server: EngineServer, scenario: Callable[[EngineClient], Awaitable[None]], limits: Limits | None = None
) -> None:
    async def main() -> None:
        async with connected(server, limits) as client:
            await scenario(client)

    asyncio.run(main())


async def started(engine: ContainerEngine, name: str = "web") -> str:
    id = await engine.create(name, BODY)
    await engine.start(id)
    return id


# Versions


@pytest.mark.parametrize(
    ("offered", "minimum", "spoken"),
    [
        ("1.41", "1.24", "1.41"),
        ("1.52", "1.44", "1.44"),
        ("1.54", "1.40", "1.44"),
        ("1.60", "1.48", "1.48"),
        ("1.40", "", "1.40"),
    ],
)
def test_the_version_that_both_know_is_spoken(server: EngineServer, offered: str, minimum: str, spoken: str) -> None:
    server.api, server.minimum = offered, minimum or "1.0"

    async def scenario(engine: EngineClient) -> None:
        assert engine.info.api == spoken
        await engine.containers(LABELS)
        assert server.requests[-1].startswith(f"GET /v{spoken}/containers/json")

    run(server, scenario)


@pytest.mark.parametrize("offered", ["1.39", "1.24", "", "new"])
def test_an_engine_that_is_too_old_is_refused(server: EngineServer, offered: str) -> None:
    server.api, server.minimum = offered, "1.12"

    async def main() -> None:
        async with server.serving():
            with pytest.raises(TooOld) as refused:
                await EngineClient.connect(server.path)
            assert "at least 1.40 is needed" in str(refused.value)

    asyncio.run(main())


def test_the_engine_says_what_it_is(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        info = engine.info
        docker = server.model.dialect is Dialect.DOCKER
        assert (info.product, info.version) == (("Docker", "29.1.0") if docker else ("Podman", "4.3.1"))
        assert (info.address, info.cpus) == (f"unix://{server.path}", 4)
        assert info.limits_memory
        assert info.limits_cpu
        assert info.limits_processes

    run(server, scenario)


# Life


def test_a_container_lives(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        id = await started(engine)
        await engine.start(id)
        found = await engine.inspect("web")
        assert found == server.model.box(id).container(server.model.dialect)
        assert found is not None
        assert found.state.status == "running"
        assert found.ports["8080/tcp"]
        assert found.addresses["city"]
        assert await engine.containers(LABELS) == [server.model.box(id).summary()]
        assert await engine.containers({"local": ""}) == [server.model.box(id).summary()]
        assert await engine.containers({"local": "other"}) == []
        await engine.stop(id, 0.2)
        await engine.stop(id, 0.2)
        assert "stop?t=1" in server.requests[-1]
        await engine.remove(id)
        await engine.remove(id)
        await engine.stop(id, 0.2)
        assert await engine.inspect(id) is None

    run(server, scenario)


def test_a_refusal_carries_the_words_of_the_engine(server: EngineServer) -> None:
    docker = server.model.dialect is Dialect.DOCKER

    async def scenario(engine: EngineClient) -> None:
        await engine.create("web", BODY)
        with pytest.raises(Refused) as taken:
            await engine.create("web", BODY)
        assert taken.value.code == (409 if docker else 500)
        assert "already in use" in taken.value.message

        server.model.images["app:1"] = Image(programs=("/app",))
        with pytest.raises(Refused) as missing:
            await started_with(engine, ["/nope"])
        assert missing.value.code == (400 if docker else 500)
        assert "no such file" in missing.value.message
        found = await engine.inspect("other")
        assert found is not None
        assert (found.state.status, found.state.exit_code) == ("created", 127 if docker else 0)

    run(server, scenario)


async def started_with(engine: ContainerEngine, command: list[str]) -> None:
    await engine.start(await engine.create("other", BODY | {"Entrypoint": command}))


def test_a_start_or_stop_that_is_refused_but_happened_is_fine(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        id = await started(engine)
        server.fault("POST", "/start", (500, '{"message": "container already running"}'))
        await engine.start(id)
        server.fault("POST", "/stop", (500, '{"message": "is running"}'))
        with pytest.raises(Refused):
            await engine.stop(id, 1)
        server.model.end("web", 0)
        server.fault("POST", "/stop", (500, '{"message": "container state improper"}'))
        await engine.stop(id, 1)
        server.fault("DELETE", "/containers", (409, '{"message": "removal is already in progress"}'))
        with pytest.raises(Refused):
            await engine.remove(id)
        server.model.remove_by_hand("web")
        server.fault("DELETE", "/containers", (500, '{"message": "gone"}'))
        await engine.remove(id)

    run(server, scenario)


def test_networks_are_made_and_removed_once(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        await engine.create_network("datum-dfw", LABELS)
        await engine.create_network("datum-dfw", LABELS)
        assert await engine.networks(LABELS) == ["datum-dfw"]
        await engine.remove_network("datum-dfw")
        await engine.remove_network("datum-dfw")
        assert await engine.networks(LABELS) == []
        await started(engine)
        with pytest.raises(Refused):
            await engine.remove_network("city")

    run(server, scenario)


# Images


def test_images_are_looked_for_and_pulled(server: EngineServer) -> None:
    model = server.model
    model.registry["registry.example:5000/team/app:2"] = Image()
    model.registry["registry.example/app@sha256:00"] = Image()
    model.registry["registry.example:5000/app:latest"] = Image()
    model.pull_pauses = [0, 0, 0]

    async def scenario(engine: EngineClient) -> None:
        assert await engine.has_image("app:1")
        assert not await engine.has_image("registry.example:5000/team/app:2")
        steps = [step async for step in engine.pull("registry.example:5000/team/app:2", "c2VjcmV0")]
        assert [step.fraction for step in steps] == [0.333, 0.667, 1.0]
        assert await engine.has_image("registry.example:5000/team/app:2")
        assert model.pulls == [("registry.example:5000/team/app:2", "c2VjcmV0")]
        [_ async for _ in engine.pull("registry.example/app@sha256:00", "")]
        assert await engine.has_image("registry.example/app@sha256:00")
        [_ async for _ in engine.pull("registry.example:5000/app", "")]
        assert model.pulls[-1] == ("registry.example:5000/app:latest", "")

    run(server, scenario)


@pytest.mark.parametrize("pauses", [[], [0]])
def test_a_failed_pull_ends_with_the_words_of_the_engine(server: EngineServer, pauses: list[float]) -> None:
    server.model.pull_pauses = pauses

    async def scenario(engine: EngineClient) -> None:
        steps = [step async for step in engine.pull("registry.example/none:1", "")]
        assert steps[-1] == PullProgress(error="reading manifest in registry.example/none:1: manifest unknown")

    run(server, scenario)


def test_a_pull_that_goes_silent_is_given_up(server: EngineServer) -> None:
    server.model.pull_pauses = [0, 60]

    async def scenario(engine: EngineClient) -> None:
        began = time.monotonic()
        with pytest.raises(EngineAway):
            [_ async for _ in engine.pull("registry.example/app:1", "")]
        assert time.monotonic() - began < 10

    run(server, scenario, SOON)


def test_a_pull_may_take_longer_than_its_silence(server: EngineServer) -> None:
    server.model.registry["app:2"] = Image()
    server.model.pull_pauses = [0.1] * 6

    async def scenario(engine: EngineClient) -> None:
        steps = [step async for step in engine.pull("app:2", "")]
        assert steps[-1].fraction == 1

    run(server, scenario, SOON)


@pytest.mark.parametrize("reference", ["../containers", "a/../../version", "app:1?x=y", "app#1", "app 1", "%2e%2e/x"])
def test_an_odd_name_leads_nowhere_else(server: EngineServer, reference: str) -> None:
    async def scenario(engine: EngineClient) -> None:
        assert not await engine.has_image(reference)
        assert server.requests[-1].startswith("GET /v")
        assert "/images/" in server.requests[-1]

    run(server, scenario)


# Streams


async def listening(server: EngineServer) -> None:
    async with asyncio.timeout(5):
        while True:
            if server.model.listeners:
                return
            await asyncio.sleep(0.01)


def test_events_are_heard_from_the_moment_of_entering(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        async with engine.events(LABELS) as events:
            waiting = asyncio.ensure_future(anext(aiter(events)))
            await listening(server)
            id = await engine.create("web", BODY)
            event = await asyncio.wait_for(waiting, 5)
            assert (event.action, event.id, event.labels) == ("create", id, LABELS)
            server.model.remove_by_hand("web")
            removed = "destroy" if server.model.dialect is Dialect.DOCKER else "remove"
            assert (await anext(aiter(events))).action == removed
            server.model.end_events()
            with pytest.raises(EngineAway):
                await anext(aiter(events))

    run(server, scenario)


def test_silent_events_end_when_the_engine_stops_answering(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        async with engine.events(LABELS) as events:
            waiting = asyncio.ensure_future(anext(aiter(events)))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            server.model.silent = True
            with pytest.raises(EngineAway):
                await asyncio.wait_for(waiting, 5)

    run(server, scenario, SOON)


def test_a_broken_connection_ends_events_and_logs(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        id = await started(engine)
        server.model.write("web", "hello\n")
        async with engine.events(LABELS) as events, aclosing(engine.logs(id, 10)) as logs:
            waiting = asyncio.ensure_future(anext(aiter(events)))
            await listening(server)
            server.model.pause("web")  # so that the stream has begun
            assert (await waiting).action == "pause"
            assert await anext(logs)
            server.break_connections()
            with pytest.raises(EngineAway):
                await asyncio.wait_for(anext(aiter(events)), 5)
            with pytest.raises(EngineAway):
                await asyncio.wait_for(anext(logs), 5)

    run(server, scenario)


def test_logs_are_followed_to_the_end_of_the_container(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        id = await started(engine)
        server.model.write("web", "one\n")
        frames = Frames()
        lines: list[tuple[str, bytes, bool]] = []
        async for chunk in engine.logs(id, 10):
            for stream, piece, _ in frames.feed(chunk):
                moment, text = split_time(piece)
                lines.append((stream, text, moment % 1_000_000_000 != 0))
            if len(lines) == 1:
                server.model.write("web", "two\n", STDERR)
                server.model.end("web", 3)
        exact = server.model.dialect is Dialect.DOCKER
        assert lines == [(STDOUT, b"one\n", exact), (STDERR, b"two\n", exact)]
        with pytest.raises(Refused):
            await anext(engine.logs("none", 10))

    run(server, scenario)


# Commands


async def outcome(session: Session) -> tuple[int, dict[str, bytes]]:
    output: dict[str, bytes] = {}
    async for stream, data in session.output():
        output[stream] = output.get(stream, b"") + data
    code = await session.exit_code()
    await session.close()
    return code, output


def test_commands_are_run(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        id = await started(engine)
        assert await outcome(await engine.exec(id, Command(["exit", "7"]))) == (7, {})
        both = {STDOUT: b"to stdout\n", STDERR: b"to stderr\n"}
        assert await outcome(await engine.exec(id, Command(["both"]))) == (0, both)
        body = next(iter(server.executions.values())).body
        assert body["DetachKeys"] not in ("", "ctrl-p,ctrl-q")
        assert body["AttachStdout"]
        assert body["AttachStderr"]
        assert not body["AttachStdin"]

    run(server, scenario)


def test_input_reaches_a_command_and_ends(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        session = await engine.exec(await started(engine), Command(["cat"], stdin=True))
        for _ in range(20):
            await session.write(b"x" * 50_000)
        await session.end_input()
        code, output = await outcome(session)
        assert (code, len(output[STDOUT])) == (0, 1_000_000)

    run(server, scenario)


def test_a_terminal_is_resized_and_its_output_is_not_framed(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        session = await engine.exec(await started(engine), Command(["cat"], stdin=True, tty=True))
        await session.resize(120, 30)
        [execution] = server.executions.values()
        assert execution.session is not None
        assert execution.session.sizes == [(120, 30)]
        await session.write(b"\x01\x00\x00\x00plain")
        await session.end_input()
        assert await outcome(session) == (0, {STDOUT: b"\x01\x00\x00\x00plain"})

    run(server, scenario)


def test_a_missing_program_is_said(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        id = await started(engine)
        if server.model.dialect is Dialect.DOCKER:
            with pytest.raises(Unstartable) as refused:
                await engine.exec(id, Command(["nope"]))
            assert "executable file not found" in str(refused.value)
        else:
            code, output = await outcome(await engine.exec(id, Command(["nope"])))
            assert code == 127
            assert b"not found" in output[STDERR]
        server.model.end("web", 0)
        with pytest.raises(Unstartable):
            await engine.exec(id, Command(["exit", "0"]))

    run(server, scenario)


def test_a_lost_connection_is_no_exit_code(server: EngineServer) -> None:
    async def scenario(engine: EngineClient) -> None:
        session = await engine.exec(await started(engine), Command(["sleep"]))
        server.break_connections()
        with pytest.raises(EngineAway):
            await outcome(session)
        await session.close()

    run(server, scenario, SOON)


# Bad answers

CALLS: dict[str, tuple[str, str, Callable[[EngineClient], Awaitable[object]]]] = {
    "containers": ("GET", "/containers/json", lambda engine: engine.containers(LABELS)),
    "inspect": ("GET", "/json", lambda engine: engine.inspect("web")),
    "create": ("POST", "/create", lambda engine: engine.create("web", BODY)),
    "networks": ("GET", "/networks", lambda engine: engine.networks(LABELS)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", list(Answer))
def test_an_engine_that_answers_badly_is_away(tmp_path: Path, call: str, answer: Answer) -> None:
    method, path, make = CALLS[call]
    server = EngineServer(EngineModel(), tmp_path / "s")
    server.model.images["app:1"] = Image()
    server.model.networks_there["city"] = {}

    async def scenario(engine: EngineClient) -> None:
        server.fault(method, path, answer, times=-1)
        began = time.monotonic()
        with pytest.raises(EngineAway):
            await make(engine)
        assert time.monotonic() - began < 5

    run(server, scenario, SOON)


@pytest.mark.parametrize("body", ["", "<html>", "[]", '{"message": 7}', "x" * 100_000])
def test_a_refusal_without_a_sentence_is_still_one(tmp_path: Path, body: str) -> None:
    server = EngineServer(EngineModel(), tmp_path / "s")

    async def scenario(engine: EngineClient) -> None:
        server.fault("GET", "/containers", (503, body))
        with pytest.raises(Refused) as refused:
            await engine.containers(LABELS)
        assert refused.value.code == 503
        assert 0 < len(str(refused.value)) < 300

    run(server, scenario)


@pytest.mark.parametrize(
    "answer", [Answer.NONE, Answer.CLOSED, Answer.GARBAGE, (503, "starting"), (404, "page not found")]
)
def test_what_does_not_greet_as_an_engine_is_none(tmp_path: Path, answer: Answer | tuple[int, str]) -> None:
    server = EngineServer(EngineModel(), tmp_path / "s")
    server.fault("GET", "/version" if answer is Answer.GARBAGE else "/_ping", answer, times=-1)

    async def main() -> None:
        async with server.serving():
            with pytest.raises(EngineError):
                await EngineClient.connect(server.path, SOON)

    asyncio.run(main())


def test_the_same_client_works_after_the_engine_came_back(server: EngineServer) -> None:
    async def main() -> None:
        async with server.serving():
            engine = await EngineClient.connect(server.path)
            id = await started(engine)
        with pytest.raises(EngineAway):
            await engine.containers(LABELS)
        async with server.serving():
            assert [found.id for found in await engine.containers(LABELS)] == [id]
        await engine.close()

    asyncio.run(main())
