"""The engine in memory behaves like those it stands for, in what the provider relies on."""

import asyncio

import pytest

from datum_compute.providers.engine.interface import ContainerEngine, EngineAway, Refused
from datum_compute.providers.engine.streams import Frames, split_time
from datum_compute.runtime.testing.simulation import Simulation
from tests.providers.engine_boxes import Dialect, Image
from tests.providers.engine_model import EngineModel, Mishap

LABELS = {"local": "me"}
BODY = {
    "Image": "app:1",
    "Labels": LABELS,
    "HostConfig": {"NetworkMode": "city", "PortBindings": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "0"}]}},
}


@pytest.fixture(params=list(Dialect))
def model(request: pytest.FixtureRequest, simulation: Simulation) -> EngineModel:
    model = EngineModel(request.param, simulation.now)
    model.images["app:1"] = Image()
    model.networks_there["city"] = {}
    return model


async def test_a_container_lives(model: EngineModel) -> None:
    engine: ContainerEngine = model
    id = await engine.create("web", BODY)
    await engine.start(id)
    [summary] = await engine.containers(LABELS)
    assert (summary.name, summary.state) == ("web", "running")
    found = await engine.inspect("web")
    assert found is not None
    assert found.ports["8080/tcp"] >= 32768
    assert found.addresses["city"].startswith("10.")
    await engine.stop(id, 10)
    model.start_by_hand("web")
    again = await engine.inspect(id)
    assert again is not None
    assert (again.ports == found.ports) == (model.dialect is Dialect.PODMAN)
    await engine.remove(id)
    await engine.remove(id)
    assert await engine.inspect(id) is None


async def test_a_taken_name_is_refused(model: EngineModel) -> None:
    await model.create("web", BODY)
    with pytest.raises(Refused) as refused:
        await model.create("web", BODY)
    assert refused.value.code == (409 if model.dialect is Dialect.DOCKER else 500)


async def test_a_call_that_nobody_answers_may_still_have_happened(model: EngineModel, simulation: Simulation) -> None:
    model.trouble("create", Mishap.UNANSWERED)
    with pytest.raises(EngineAway):
        await model.create("web", BODY)
    assert simulation.time() == 60
    assert model.box("web").status == "created"


async def test_a_late_call_happens_after_nobody_answered(model: EngineModel, simulation: Simulation) -> None:
    model.trouble("create", Mishap.LATE)
    with pytest.raises(EngineAway):
        await model.create("web", BODY)
    assert model.boxes == {}
    await simulation.advance(2)
    assert model.box("web").status == "created"


async def test_events_are_heard_from_the_moment_of_entering(model: EngineModel) -> None:
    async with model.events(LABELS) as events:
        await model.create("web", BODY)
        assert (await anext(events)).action == "create"
        model.deaf = True
        model.remove_by_hand("web")
        model.end_events()
        with pytest.raises(EngineAway):
            await anext(events)


async def test_a_log_ends_with_its_container(model: EngineModel) -> None:
    id = await model.create("web", BODY)
    await model.start(id)
    model.write("web", "one\n")
    frames = Frames()
    lines: list[bytes] = []

    async def read() -> None:
        async for chunk in model.logs(id, 10):
            lines.extend(split_time(piece)[1] for _, piece, _ in frames.feed(chunk))

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(1)
    model.write("web", "two\n")
    model.end("web", 3)
    await reading
    assert lines == [b"one\n", b"two\n"]


async def test_the_owner_of_a_network_goes_last(model: EngineModel) -> None:
    first = await model.create("web", BODY)
    shared = {"Image": "app:1", "HostConfig": {"NetworkMode": f"container:{first}"}}
    with pytest.raises(Refused):
        await model.start(await model.create("web.side", shared))
    await model.start(first)
    await model.start("web.side")
    with pytest.raises(Refused):
        await model.remove(first)
    await model.remove("web.side")
    await model.remove(first)
