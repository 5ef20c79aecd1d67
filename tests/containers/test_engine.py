"""What the client does with a real engine: the life of containers, images, networks, events."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from datum_compute.providers.engine.address import find_engine
from datum_compute.providers.engine.client import EngineClient, Limits
from datum_compute.providers.engine.interface import Container, EngineAway, Event, Refused
from tests.containers.podman import FOREIGN, HELLO, Podman

LABELS = {"example.test/local": "me"}


def body(*arguments: str, **host: object) -> dict[str, object]:
    return {
        "Image": HELLO,
        "Cmd": list(arguments),
        "Labels": LABELS,
        "HostConfig": {
            "NetworkMode": "none",
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m"}},
            **host,
        },
    }


async def settled(engine: EngineClient, id: str, status: str) -> Container:
    async with asyncio.timeout(20):
        while True:
            found = await engine.inspect(id)
            if found is not None and found.state.status == status:
                return found
            await asyncio.sleep(0.05)


async def test_the_engine_is_found_and_says_what_it_is(podman: Podman) -> None:
    engine = await find_engine({"CONTAINER_HOST": podman.address}, Path("/nowhere"))
    assert engine.info.product == "Podman"
    assert engine.info.version
    assert engine.info.address == podman.address
    assert engine.info.cpus > 0
    await engine.close()


async def test_a_container_lives_and_answers(engine: EngineClient) -> None:
    await engine.create_network("datum-test-dfw", LABELS)
    await engine.create_network("datum-test-dfw", LABELS)
    assert await engine.networks(LABELS) == ["datum-test-dfw"]
    ports = {"ExposedPorts": {"8080/tcp": {}}, "Hostname": "web-0"}
    bindings = {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "0"}]}
    id = await engine.create("web", {**body("serve", NetworkMode="datum-test-dfw", PortBindings=bindings), **ports})
    created = await engine.inspect("web")
    assert created is not None
    assert (created.state.status, created.state.started, created.image) == ("created", 0, HELLO)

    await engine.start(id)
    await engine.start(id)
    found = await settled(engine, id, "running")
    assert found.state.started > 0
    assert list(found.addresses) == ["datum-test-dfw"]
    assert await answer(found.ports["8080/tcp"]) == "hello from web-0\n"

    await engine.stop(id, 5)
    await engine.stop(id, 5)
    assert (await settled(engine, id, "exited")).state.exit_code == 0
    [summary] = await engine.containers(LABELS)
    assert (summary.id, summary.name, summary.state, summary.labels) == (id, "web", "exited", LABELS)
    assert await engine.containers({"example.test/local": "other"}) == []

    await engine.start(id)
    again = await settled(engine, id, "running")
    assert await answer(again.ports["8080/tcp"]) == "hello from web-0\n"
    await engine.remove(id)
    await engine.remove(id)
    assert await engine.inspect(id) is None
    await engine.remove_network("datum-test-dfw")
    await engine.remove_network("datum-test-dfw")
    assert await engine.networks(LABELS) == []


async def answer(port: int) -> str:
    async with asyncio.timeout(10):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                data = await reader.read()
                writer.close()
                return data.partition(b"\r\n\r\n")[2].decode()
            except OSError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("code", [0, 3, 255])
async def test_an_exit_code_is_seen(engine: EngineClient, code: int) -> None:
    id = await engine.create("exits", body("exit", str(code)))
    await engine.start(id)
    found = await settled(engine, id, "exited")
    assert found.state.exit_code == code
    assert found.state.finished >= found.state.started


async def test_a_container_that_takes_too_much_memory_is_killed(engine: EngineClient) -> None:
    limit = 32 << 20
    id = await engine.create("large", body("allocate", "512", Memory=limit, MemorySwap=limit))
    await engine.start(id)
    assert (await settled(engine, id, "exited")).state.exit_code == 137
    assert not Path("oom").exists(), "the engine leaves its files in a folder of its own"  # noqa: ASYNC240 - once


async def test_refusals_leave_what_is_there(engine: EngineClient) -> None:
    id = await engine.create("web", body("sleep"))
    with pytest.raises(Refused) as refused:
        await engine.create("web", body("sleep"))
    assert "already in use" in refused.value.message
    found = await engine.inspect("web")
    assert found is not None
    assert found.id == id

    missing = await engine.create("missing", {**body(), "Entrypoint": ["/no-such-program"]})
    with pytest.raises(Refused) as refused:
        await engine.start(missing)
    assert "/no-such-program" in refused.value.message
    found = await engine.inspect(missing)
    assert found is not None
    assert found.state.status == "created"

    with pytest.raises(Refused):
        await engine.create("none", {**body(), "Image": "localhost/none:1"})


async def test_an_image_for_another_processor_ends_at_once_and_says_why(engine: EngineClient) -> None:
    id = await engine.create("foreign", {**body(), "Image": FOREIGN})
    await engine.start(id)  # runc notices only then
    assert (await settled(engine, id, "exited")).state.exit_code == 1
    assert "exec format error" in b"".join([chunk async for chunk in engine.logs(id, 10)]).decode()


async def test_images_are_found_by_their_short_names_too(engine: EngineClient) -> None:
    assert [await engine.has_image(name) for name in (HELLO, "hello:1", "hello:dev", "hello:none", "Not//Valid")] == [
        True, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reference", "words"),
    [("127.0.0.1:1/none:1", "connection refused"), ("Not//Valid", "invalid reference format")],
)
async def test_a_pull_that_fails_says_why(engine: EngineClient, reference: str, words: str) -> None:
    steps = [step async for step in engine.pull(reference, "")]
    assert words in steps[-1].error
    assert not await engine.has_image(reference)


async def test_events_tell_what_happens_from_the_moment_of_entering(engine: EngineClient) -> None:
    async with engine.events(LABELS) as events:
        id = await engine.create("web", body("exit", "1"))
        await engine.create("other", {**body("sleep"), "Labels": {}})
        await engine.start(id)
        seen = await actions(events, "die")
        assert {event for _, event in seen} >= {"create", "start", "die"}
        assert {name for name, _ in seen} == {id}
        await engine.remove(id)
        assert (id, "remove") in await actions(events, "remove")


async def actions(events: AsyncIterator[Event], last: str) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    async with asyncio.timeout(20):
        async for event in events:
            seen.append((event.id, event.action))
            if seen[-1][1] == last:
                break
    return seen


async def test_a_silent_event_stream_ends_when_the_engine_stops_answering(podman: Podman) -> None:
    engine = await EngineClient.connect(str(podman.path), Limits(hello=10, answer=5, event_silence=0.2))
    try:
        async with engine.events({"example.test/none": "x"}) as events:
            podman.pause()
            with pytest.raises(EngineAway):
                async with asyncio.timeout(20):
                    await anext(events)
    finally:
        podman.resume()
        await engine.close()


async def test_a_restarted_engine_is_used_again_and_has_kept_everything(podman: Podman, engine: EngineClient) -> None:
    id = await engine.create("web", body("sleep"))
    await engine.start(id)
    before = await settled(engine, id, "running")
    async with engine.events(LABELS) as events:
        waiting = asyncio.ensure_future(anext(aiter(events)))
        await asyncio.sleep(0)
        podman.stop()
        with pytest.raises(EngineAway):
            async with asyncio.timeout(20):
                while True:
                    await waiting
                    waiting = asyncio.ensure_future(anext(aiter(events)))
    await away(lambda: engine.containers(LABELS))
    await asyncio.to_thread(podman.start)
    [summary] = await engine.containers(LABELS)
    assert (summary.id, summary.state) == (id, "running")
    after = await engine.inspect(id)
    assert after is not None
    assert after.state.started == before.state.started


async def away(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(EngineAway):
        await call()


async def test_a_process_killed_from_outside_is_an_exit(podman: Podman, engine: EngineClient) -> None:
    id = await engine.create("web", body("sleep"))
    await engine.start(id)
    podman.call("POST", f"/v1.41/containers/{id}/kill?signal={signal.SIGKILL.value}")
    assert (await settled(engine, id, "exited")).state.exit_code == 137


async def test_a_paused_container_is_seen_as_such(podman: Podman, engine: EngineClient) -> None:
    id = await engine.create("web", body("sleep"))
    await engine.start(id)
    code, answer = podman.call("POST", f"/v1.41/containers/{id}/pause")
    if code != 204:
        pytest.skip(f"cannot be paused here: {answer}")
    await settled(engine, id, "paused")
    podman.call("POST", f"/v1.41/containers/{id}/unpause")
    await settled(engine, id, "running")
