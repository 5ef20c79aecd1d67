"""Images are pulled once for all who wait, with measured progress, and again after failures."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.providers.engine.interface import Refused
from datum_compute.runtime.testing.simulation import Simulation
from tests.events import warnings
from tests.providers.container_site import HELPER, IMAGE, WEB, Site, model_of
from tests.providers.engine_boxes import Dialect, Image
from tests.providers.engine_model import EngineModel, Mishap

AVAILABLE = ("True", "Available", "The instance is available")
FAR = "registry.example/hello:1"
MOVING = "registry.example/hello:latest"


@pytest.fixture(params=list(Dialect))
def model(request: pytest.FixtureRequest, simulation: Simulation) -> EngineModel:
    return model_of(request.param, simulation)


@pytest.fixture
def site(runner: asyncio.Runner, simulation: Simulation, model: EngineModel) -> Iterator[Site]:
    site = Site(simulation, model)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


def web(image: str) -> dict[str, object]:
    return WEB | {"image": image}


async def test_an_image_that_was_built_here_runs_without_a_registry(site: Site) -> None:
    for name in ("hello:dev", "hello", "localhost/hello:dev", FAR):
        site.model.images[name] = Image()
        await site.create(web(name), name=name.replace("/", "-").replace(":", "-").replace(".", "-"))
    assert [box.status for box in site.boxes] == ["running"] * 4
    assert site.model.pulls == []


async def test_an_image_that_is_not_there_is_pulled_with_credentials(site: Site) -> None:
    site.model.registry[FAR] = Image()
    await site.create(web(FAR))
    await site.until_available()
    assert site.model.pulls == [(FAR, f"key for {FAR}")]
    assert site.asked_for == [FAR]


async def test_however_many_wait_there_is_one_pull_per_image_and_two_at_once(
    site: Site, simulation: Simulation
) -> None:
    site.model.pull_pauses = (4.0,)
    images = [f"registry.example/hello:{number}" for number in range(3)]
    for number in range(6):
        site.model.registry[images[number % 3]] = Image()
        await site.create(web(images[number % 3]), name=f"web-{number}")
    assert [image for image, _ in site.model.pulls] == images[:2]
    assert (await site.report("web-2"))[2] == f"The image {images[2]} is being pulled"
    await simulation.advance(4)
    assert [image for image, _ in site.model.pulls] == images
    await simulation.advance(6)
    assert len(site.model.pulls) == 3
    assert [await site.report(f"web-{number}") for number in range(6)] == [AVAILABLE] * 6


async def test_progress_is_reported_in_large_steps(site: Site, simulation: Simulation) -> None:
    site.model.registry[FAR] = Image()
    site.model.pull_pauses = (0.5,) * 200
    await site.create(web(FAR))
    messages = []
    for _ in range(101):
        message = (await site.report())[2]
        if message not in messages:
            messages.append(message)
        await simulation.advance(1)
    pulled = f"The image {FAR} is being pulled"
    assert messages[0] == pulled
    assert messages[1:-1] == [f"{pulled} ({percent} %)" for percent in range(10, 101, 10)][: len(messages) - 2]
    assert len(messages) >= 10
    assert site.writes.total() <= 3 + 10 + 1
    await simulation.advance(2)
    assert await site.report() == AVAILABLE


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("manifest unknown", "the registry does not have it"),
        ("unauthorized: authentication required", "the registry wants credentials"),
        ("dial tcp: lookup registry.example: no such host", "the registry does not answer"),
        ("invalid reference format", "the name is not valid"),
    ],
)
async def test_a_pull_that_fails_is_reported_and_made_again(
    site: Site, simulation: Simulation, error: str, reason: str
) -> None:
    site.model.pull_errors[FAR] = error
    site.model.registry[FAR] = Image()
    await site.create(web(FAR))
    failed = ("Unknown", "ImageUnavailable", f"The image {FAR} cannot be pulled: {reason}")
    assert await site.report() == failed
    writes = site.writes.total()
    times = [1]
    for _ in range(160):
        await simulation.advance(1)
        assert await site.report() == failed
        times.append(len(site.model.pulls))
    assert [times[seconds] for seconds in (9, 11, 29, 31, 69, 71, 149, 151)] == [1, 2, 2, 3, 3, 4, 4, 5]
    assert site.writes.total() == writes
    del site.model.pull_errors[FAR]
    await simulation.advance(160)
    assert await site.report() == AVAILABLE


async def test_an_image_that_was_not_built_here_is_said_to_be_missing_here(site: Site, simulation: Simulation) -> None:
    site.model.pull_errors["localhost/nope:1"] = "dial tcp: connection refused"
    await site.create(web("localhost/nope:1"))
    for _ in range(2):
        assert (await site.report())[2] == "The image localhost/nope:1 cannot be pulled: it is not on this machine"
        await simulation.advance(10)  # it is pulled again


async def test_a_pull_that_is_refused_or_breaks_is_made_again(site: Site, simulation: Simulation) -> None:
    site.model.registry[FAR] = Image()
    site.model.trouble("pull", Refused(404, "manifest unknown"))
    site.model.trouble("pull", Mishap.BROKEN)
    await site.create(web(FAR))
    assert (await site.report())[2] == f"The image {FAR} cannot be pulled: the registry does not have it"
    await simulation.advance(11)
    assert (await site.report())[2] == f"The image {FAR} cannot be pulled: the registry does not answer"
    await simulation.advance(25)
    assert await site.report() == AVAILABLE


async def test_a_pull_that_brings_nothing_is_not_made_again_at_once(site: Site, simulation: Simulation) -> None:
    site.model.registry[FAR] = Image()
    lacks = site.model._image
    site.model._image = lambda reference: None if reference == FAR else lacks(reference)  # type: ignore[method-assign]
    await site.create(web(FAR))
    await simulation.advance(5)
    assert len(site.model.pulls) == 1
    assert (await site.report())[1] == "ImageUnavailable"


async def test_a_moving_tag_is_pulled_anew_for_each_new_instance(site: Site, simulation: Simulation) -> None:
    site.model.images[MOVING] = site.model.registry[MOVING] = Image()
    await site.create(web(MOVING))
    assert len(site.model.pulls) == 1
    site.model.remove_by_hand(site.box.name)  # the same Instance
    await site.settle()
    assert site.box.status == "running"
    assert len(site.model.pulls) == 1
    await site.create(web(MOVING), name="web-1")
    assert len(site.model.pulls) == 2


async def test_the_image_of_this_machine_is_used_where_a_newer_one_cannot_be_pulled(
    site: Site, simulation: Simulation
) -> None:
    site.model.images[MOVING] = Image()
    site.model.pull_errors[MOVING] = "dial tcp: connection refused"
    await site.create(web(MOVING))
    await site.until_available()
    await simulation.advance(600)
    assert [(event.reason, event.message, event.count) for event in await warnings(site.client, "web-0", "ns")] == [
        (
            "ImageUnavailable",
            f"The image {MOVING} of this machine is used; a newer one could not be pulled: "
            "the registry does not answer",
            1,
        )
    ]
    assert len(site.model.pulls) == 1


async def test_all_images_of_an_instance_are_pulled_side_by_side(site: Site, simulation: Simulation) -> None:
    site.model.pull_pauses = (3.0,)
    site.model.registry |= {FAR: Image(), "helper:1": Image()}
    await site.create(web(FAR), HELPER | {"image": "helper:1"})
    assert len(site.model.pulls) == 2
    await simulation.advance(5)
    assert await site.report() == AVAILABLE


async def test_a_pull_ends_with_the_process(site: Site, simulation: Simulation) -> None:
    site.model.registry[FAR] = Image()
    site.model.pull_pauses = (30.0,)
    await site.create(web(FAR))
    await site.crash()
    assert len(site.model.pulls) == 2
    await simulation.advance(32)
    assert await site.report() == AVAILABLE


async def test_an_instance_that_is_deleted_during_a_pull_leaves_nothing_behind(
    site: Site, simulation: Simulation
) -> None:
    site.model.registry[FAR] = Image()
    site.model.pull_pauses = (30.0,)
    await site.create(web(FAR))
    await site.delete()
    await site.gone()
    await simulation.advance(60)
    assert site.boxes == []
    assert IMAGE in site.model.images
