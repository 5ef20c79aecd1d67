"""Containers outlive the process that made them, the engine goes and comes back, and nothing is lost or doubled."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, pairwise

import pytest
from structlog.testing import capture_logs

from datum_compute.api.labels import CONTAINERS_FINALIZER as FINALIZER
from datum_compute.federation.sessions import Command, Unstartable
from datum_compute.kube import conditions
from datum_compute.providers.containers.removal import remove_all, stop_all
from datum_compute.runtime.testing.simulation import Simulation
from tests.providers import engine_model
from tests.providers.container_site import HELPER, ID, IMAGE, OWNER, WEB, Site, model_of
from tests.providers.engine_boxes import Dialect, Image
from tests.providers.engine_model import EngineModel, Mishap

AVAILABLE = ("True", "Available", "The instance is available")
AWAY = (
    "Unknown",
    "Unknown",
    "The site cannot tell the state of the instance: the container engine does not answer",
)
UID = "compute.datumapis.com/instance-uid"


@pytest.fixture(params=list(Dialect))
def model(request: pytest.FixtureRequest, simulation: Simulation) -> EngineModel:
    return model_of(request.param, simulation)


@pytest.fixture
def site(runner: asyncio.Runner, simulation: Simulation, model: EngineModel) -> Iterator[Site]:
    site = Site(simulation, model)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


# The process ends


async def test_what_runs_is_adopted_as_it_is(site: Site, simulation: Simulation) -> None:
    await site.create(WEB, HELPER)
    await site.until_available()
    await simulation.advance(5)
    before = [(box.id, box.starts) for box in site.boxes]
    await site.crash()
    assert [(box.id, box.starts) for box in site.boxes] == before
    assert await site.report() == AVAILABLE
    assert site.writes.total() == 0
    await simulation.advance(3600)
    assert site.writes.total() == 0


async def test_what_was_created_and_never_started_is_started(site: Site) -> None:
    site.model.trouble("start", Mishap.LOST)
    await site.create()
    created = site.box
    assert created.status == "created"
    await site.crash()
    assert (site.box.id, site.box.status) == (created.id, "running")


async def test_what_ended_while_nobody_watched_is_started_and_did_not_crash(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    before = await site.instance()
    await simulation.advance(5)
    site.model.deaf = True
    site.model.end(site.box.name, 3)
    await site.crash()
    await simulation.advance(5)
    assert (site.box.status, site.box.starts) == ("running", 2)
    assert await site.report() == AVAILABLE
    after = await site.instance()
    assert conditions.of(after) == conditions.of(before), "a rollout would take it for broken, and replace it"


async def test_what_goes_on_and_dies_at_once_is_reported(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    site.model.deaf = True
    site.model.end(site.box.name, 3)
    site.box.image = Image(exits=3, run_seconds=0.5)
    await site.crash()
    await simulation.advance(2)
    assert (await site.report())[1] == "InstanceCrashing"


async def test_containers_that_were_stopped_come_back_and_did_not_crash(site: Site, simulation: Simulation) -> None:
    await site.create(WEB, HELPER)
    await site.create(name="web-1")
    await site.until_available()
    site._tasks.pop().cancel()
    await simulation.settle()
    assert await stop_all(site.model, OWNER) == 3
    assert {box.status for box in site.boxes} == {"exited"}
    assert await stop_all(site.model, OWNER) == 0
    ids = [box.id for box in site.boxes]
    site._begin(site.build)
    await site.start_controllers()
    assert [(box.id, box.status) for box in site.boxes] == [(id, "running") for id in ids]
    await simulation.advance(1)
    assert (await site.report(), await site.report("web-1")) == (AVAILABLE, AVAILABLE)
    assert (await site.addresses())[1] == f"127.0.0.1:{site.boxes[0].ports['8080/tcp']}"


async def test_eight_containers_stop_at_once(site: Site, simulation: Simulation) -> None:
    site.model.images[IMAGE] = Image(stop_seconds=2)
    for number in range(17):
        await site.create(name=f"web-{number}")
    begun = simulation.time()
    assert await stop_all(site.model, OWNER) == 17
    assert simulation.time() - begun == 6


async def test_eight_containers_start_at_once(site: Site, simulation: Simulation) -> None:
    busy, most = 0, 0
    start = site.model.start

    async def slow(id: str) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(5)
        busy -= 1
        await start(id)

    site.model.start = slow  # type: ignore[method-assign]
    for number in range(20):
        await site.create(name=f"web-{number}")
    await simulation.advance(20)
    assert most == 8
    assert [box.status for box in site.boxes] == ["running"] * 20


async def test_everything_of_ours_is_removed_and_nothing_else(site: Site, simulation: Simulation) -> None:
    await site.create(WEB, HELPER)
    other = {"Image": IMAGE, "Labels": {"compute.datumapis.com/local": "f" * 32, "app": "other"}}
    foreign = site.model._create("datum-abcdef01-demo-web-0-ffffffff", other)
    site.model.networks_there["datum-abcdef01-ams-of-another"] = {}
    await site.until_available()
    site._tasks.pop().cancel()
    await simulation.settle()
    removal = await remove_all(site.model, OWNER)
    assert (removal.containers, removal.networks, removal.images) == (2, 1, (IMAGE,))
    assert list(site.model.boxes.values()) == [foreign]
    assert list(site.model.networks_there) == ["datum-abcdef01-ams-of-another"]


async def test_an_engine_that_ignores_a_filter_has_nothing_of_others_removed(
    site: Site, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.create()
    await site.create(name="web-1")
    await site.until_available()
    second = site.boxes[1]
    foreign = site.model._create("web", {"Image": IMAGE, "Labels": {UID: site.boxes[0].labels[UID]}})
    site.model.networks_there["bridge"] = {}
    monkeypatch.setattr(engine_model, "fits", lambda wanted, labels: True)
    await site.crash()
    assert (site.boxes[1].id, len(site.boxes)) == (second.id, 2)
    await site.delete()
    await simulation.advance(5)
    assert list(site.model.boxes.values()) == [second, foreign]
    await site.gone()
    site._tasks.pop().cancel()
    await simulation.settle()
    removal = await remove_all(site.model, OWNER)
    assert (removal.containers, removal.networks) == (1, 1)
    assert list(site.model.boxes.values()) == [foreign]
    assert list(site.model.networks_there) == ["bridge"]


# A process that ends after any call


class Stopped:
    """Stops the process when the engine has done the nth call, before anybody hears of it."""

    def __init__(self, model: EngineModel, number: int) -> None:
        self.number = number
        self.fired = asyncio.Event()
        model.after_call = self._count

    def _count(self, call: str) -> None:
        self.number -= 1
        if self.number == 0:
            self.fired.set()
            raise asyncio.CancelledError


async def _deploy(site: Site) -> None:
    await site.create(WEB, HELPER)
    await site.simulation.advance(3)


async def _pull(site: Site) -> None:
    site.model.registry["far:1"] = Image()
    site.model.pull_pauses = (1.0, 1.0)
    await site.create(WEB | {"image": "far:1"})
    await site.simulation.advance(5)


async def _crash(site: Site) -> None:
    await _deploy(site)
    site.model.end(site.boxes[0].name, 3)
    await site.simulation.advance(5)


async def _delete(site: Site) -> None:
    await _deploy(site)
    await site.delete()
    await site.simulation.advance(5)


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize(("story", "containers"), [(_deploy, 2), (_pull, 1), (_crash, 2), (_delete, 0)])
def test_a_process_that_ends_after_any_call_loses_and_doubles_nothing(
    dialect: Dialect, story: Callable[[Site], Awaitable[None]], containers: int
) -> None:
    async def run(simulation: Simulation, number: int) -> bool:
        site = Site(simulation, model_of(dialect, simulation))
        await site.start()
        stopped = Stopped(site.model, number)

        async def end() -> None:
            await stopped.fired.wait()
            site.model.after_call = lambda call: None
            await site.crash()

        ending = asyncio.create_task(end())
        await story(site)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        await simulation.advance(90)
        if containers:
            assert await site.report() == AVAILABLE
            assert [box.status for box in site.boxes] == ["running"] * containers
            assert len({box.name for box in site.boxes}) == containers
            if containers == 2:
                assert site.boxes[1].network_owner == site.boxes[0].id
        else:
            assert site.boxes == []
            await site.gone()
        before = site.writes.total()
        await simulation.advance(700)
        assert site.writes.total() == before
        await site.stop()
        return stopped.fired.is_set()

    for number in count(1):
        with asyncio.Runner(loop_factory=lambda seed=number: Simulation.seeded(seed)) as runner:  # type: ignore[misc]
            loop = runner.get_loop()
            assert isinstance(loop, Simulation)
            if not runner.run(run(loop, number)):
                break
    assert number > 10


# Strays


def stray(site: Site, uid: str = "gone", **labels: str) -> str:
    """A container with our id, made by a call that nobody waited for."""
    body = {"Image": IMAGE, "Labels": {"compute.datumapis.com/local": ID, UID: uid} | labels}
    return site.model._create("late", body).id


async def test_a_stray_is_removed_after_30_seconds(site: Site, simulation: Simulation) -> None:
    await site.create()
    id = stray(site)
    with capture_logs() as logs:
        await simulation.advance(29)
        assert id in site.model.boxes
        await simulation.advance(2)
    assert id not in site.model.boxes
    assert [line["container"] for line in logs if line["event"] == "stray container removed"] == ["late"]
    assert await site.report() == AVAILABLE


async def test_strays_that_no_event_reported_are_found_by_the_next_list(site: Site, simulation: Simulation) -> None:
    site.model.deaf = True
    id = stray(site)
    await simulation.advance(570)
    assert id in site.model.boxes
    await simulation.advance(100)
    assert id not in site.model.boxes


async def test_a_container_without_our_id_is_never_touched(site: Site, simulation: Simulation) -> None:
    labels = {"compute.datumapis.com/local": "f" * 32, UID: "gone"}
    other = site.model._create("other", {"Image": IMAGE, "Labels": labels})
    site.model.emit("start", other.id, labels | {"compute.datumapis.com/local": ID})  # a lie
    await simulation.advance(3600)
    assert other.id in site.model.boxes


async def test_a_create_that_nobody_waited_for_leaves_nothing_behind(site: Site, simulation: Simulation) -> None:
    site.model.trouble("create", Mishap.LATE)
    await site.create()
    await site.delete()
    await simulation.advance(60)  # nobody answers the create
    await simulation.advance(200)
    assert site.boxes == []
    await site.gone()


async def test_nothing_is_a_stray_while_a_cell_is_not_known(simulation: Simulation, model: EngineModel) -> None:
    site = Site(simulation, model, cells=("cell", "other"))
    await site.start()
    await site.create(cell="other", name="far-0")
    await simulation.advance(3)
    far = site.box
    await site.replace(site.build)
    site.faults["other"].take_away()
    await site.start_controllers()
    await simulation.advance(300)
    assert far.status == "running"
    site.faults["other"].bring_back()
    await simulation.advance(300)
    assert site.box is far
    await site.stop()


# The engine goes


async def test_an_engine_that_is_away_for_a_moment_changes_nothing(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    before = site.writes.total()
    site.model.away = True
    site.model.end_events()
    await simulation.advance(12)
    site.model.away = False
    await simulation.advance(60)
    assert site.writes.total() == before
    assert site.box.starts == 1


@pytest.mark.parametrize("way", ["away", "silent"])
async def test_an_engine_that_stays_away_is_reported(site: Site, simulation: Simulation, way: str) -> None:
    await site.create()
    await site.until_available()
    setattr(site.model, way, True)
    site.model.end_events()
    await simulation.advance(29)
    assert await site.report() == AVAILABLE
    await simulation.advance(13)
    assert await site.report() == AWAY
    assert await site.addresses() != ("", "")
    assert site.notes.silences == [("DFW", "the container engine does not answer")]
    before = site.writes.total()
    await simulation.advance(600)
    assert site.writes.total() == before
    setattr(site.model, way, False)
    await simulation.advance(41)
    assert await site.report() == AVAILABLE
    assert site.notes.silences[1:] == [("DFW", "")]
    assert site.box.starts == 1


async def test_an_engine_is_tried_again_after_1_to_30_seconds(site: Site, simulation: Simulation) -> None:
    await simulation.advance(60)
    site.model.away = True
    tries: list[float] = []
    connect = site._connect

    async def noted() -> EngineModel:
        tries.append(simulation.time())
        return await connect()  # type: ignore[return-value]

    site.provider._link._connect = noted
    site.model.end_events()
    await simulation.advance(200)
    gaps = [round(later - earlier, 3) for earlier, later in pairwise(tries)]
    assert gaps == [2, 4, 8, 16, 30, 30, 30, 30, 30][: len(gaps)]
    assert len(gaps) >= 7


async def test_a_restarted_engine_has_everything_started_again_without_a_crash(
    site: Site, simulation: Simulation
) -> None:
    await site.create(WEB, HELPER)
    await site.until_available()
    ids = [box.id for box in site.boxes]
    await simulation.advance(20)
    site.model.restart()
    await site.settle()
    assert [(box.id, box.status) for box in site.boxes] == [(id, "running") for id in ids]
    assert await site.report() == AVAILABLE
    await simulation.advance(5)
    assert await site.report() == AVAILABLE
    assert (await site.addresses())[1] == f"127.0.0.1:{site.boxes[0].ports['8080/tcp']}"


async def test_an_engine_that_comes_back_empty_gets_new_containers(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    site.model.boxes.clear()
    site.model.networks_there.clear()
    site.model.end_events()
    await simulation.advance(5)
    assert await site.report() == AVAILABLE
    assert site.box.status == "running"


async def test_a_deletion_waits_for_the_engine(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    site.model.away = True
    site.model.end_events()
    await site.delete()
    await simulation.advance(600)
    assert await site.report() == ("False", "Stopping", "The instance is stopping")
    assert FINALIZER in (await site.instance()).metadata.finalizers
    site.model.away = False
    await simulation.advance(31)
    assert site.boxes == []
    await site.gone()


async def test_an_engine_that_was_never_there_is_waited_for(simulation: Simulation, model: EngineModel) -> None:
    site = Site(simulation, model)
    site.hidden = True
    await site.start()
    await site.create()
    assert (await site.report())[1] == "Pending"
    await simulation.advance(31)
    assert await site.report() == AWAY
    site.hidden = False
    await simulation.advance(32)
    assert await site.report() == AVAILABLE
    await site.stop()


@pytest.mark.parametrize("call", ["create", "start", "create_network", "inspect", "containers"])
@pytest.mark.parametrize("mishap", list(Mishap))
async def test_a_call_that_is_not_answered_is_made_good(
    site: Site, simulation: Simulation, call: str, mishap: Mishap
) -> None:
    site.model.trouble(call, mishap)
    await site.create(WEB, HELPER)
    await simulation.advance(180)
    assert await site.report() == AVAILABLE
    assert [box.status for box in site.boxes] == ["running", "running"]


@pytest.mark.parametrize("call", ["stop", "remove", "containers"])
@pytest.mark.parametrize("mishap", list(Mishap))
async def test_a_deletion_whose_calls_are_not_answered_is_made_good(
    site: Site, simulation: Simulation, call: str, mishap: Mishap
) -> None:
    await site.create(WEB, HELPER)
    await simulation.advance(20)
    site.model.trouble(call, mishap)
    await site.delete()
    await simulation.advance(180)
    assert site.boxes == []
    await site.gone()


# Events


async def test_lost_events_are_made_up_for_by_lists(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    site.model.deaf = True
    site.model.end(site.box.name, 3)
    await simulation.advance(590)
    assert site.box.status == "exited"
    await simulation.advance(15)
    assert site.box.status == "running"


async def test_a_stream_that_ends_is_opened_again_and_followed_by_a_list(site: Site, simulation: Simulation) -> None:
    await site.create()
    await simulation.advance(20)
    site.model.deaf = True
    site.model.remove_by_hand(site.box.name)
    site.model.deaf = False
    site.model.end_events()
    await site.settle()
    assert site.box.status == "running"


async def test_events_that_lie_are_only_reasons_to_look(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    before, writes = site.box.starts, site.writes.total()
    for action in ("die", "destroy", "remove", "oom", "kill", "unheard-of"):
        site.model.emit(action, site.box.id, site.box.labels)
        site.model.emit(action, "nobody", {"compute.datumapis.com/local": ID})
    await simulation.advance(60)
    assert (site.box.starts, site.writes.total()) == (before, writes)


async def test_a_stream_that_always_ends_does_not_keep_the_process_busy(site: Site, simulation: Simulation) -> None:
    await site.create()
    for _ in range(300):
        site.model.end_events()
        await simulation.advance(1)
    assert site.model.calls.count("events") < 30
    assert await site.report() == AVAILABLE


# Logs and commands


async def test_lines_reach_the_sink_over_restarts_and_removals(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    site.model.write(site.box.name, "one\n")
    await simulation.advance(1)
    site.model.end(site.box.name, 3)
    await simulation.advance(3)
    site.model.write(site.box.name, "two\n")
    await simulation.advance(1)
    site.model.remove_by_hand(site.box.name)
    await simulation.advance(3)
    site.model.write(site.box.name, "three\n")
    await simulation.advance(3)
    assert [text for _, text in site.notes.lines] == ["one", "two", "three"]
    uid = (await site.instance()).metadata.uid
    assert site.notes.starts == [("web-0", uid, "web")] * 3
    assert site.notes.ends == []
    await site.delete()
    assert site.notes.ends == [("web-0", uid, "web")]
    await simulation.advance(10)
    assert site.provider._logs.followed == frozenset()


async def test_lines_of_a_run_that_nobody_saw_running_reach_the_sink(site: Site, simulation: Simulation) -> None:
    start = site.model.start

    async def failing(id: str) -> None:
        await start(id)
        site.model.write(site.box.name, "no such file\n")
        site.model.end(site.box.name, 3)

    site.model.start = failing  # type: ignore[method-assign]
    await site.create()
    await simulation.advance(0.5)
    assert ("web-0", "no such file") in site.notes.lines


async def run(site: Site, *, uid: str = "", container: str = "", name: str = "web-0") -> bytes:
    uid = uid or (await site.instance()).metadata.uid
    session = await site.provider.run("cell", "ns", name, uid, Command(["echo", "hi"], container))
    text = b"".join([data async for _, data in session.output()])
    await session.close()
    return text


async def test_commands_run_in_a_container(site: Site) -> None:
    await site.create()
    await site.until_available()
    assert await run(site) == b"hi\n"
    assert await run(site, container="web") == b"hi\n"


async def test_a_command_needs_a_container_that_runs(site: Site, simulation: Simulation) -> None:
    await site.create(WEB, HELPER)
    await site.until_available()
    with pytest.raises(Unstartable, match="several containers; choose one of web, helper"):
        await run(site)
    with pytest.raises(Unstartable, match="has no container other; it has web, helper") as absent:
        await run(site, container="other")
    assert absent.value.code == 404
    with pytest.raises(Unstartable, match="instance web-0 does not run here"):
        await run(site, uid="another")
    with pytest.raises(Unstartable, match="instance web-9 does not run here"):
        await run(site, name="web-9")
    site.model.pause(site.boxes[1].name)
    await site.settle()
    with pytest.raises(Unstartable, match="container helper of instance web-0 is not running: The instance was paused"):
        await run(site, container="helper")
    site.model.away = True
    site.model.end_events()
    with pytest.raises(Unstartable, match="does not answer") as away:
        await run(site, container="web")
    assert away.value.code == 503


def test_an_owner_knows_its_own() -> None:
    assert OWNER.owns({"compute.datumapis.com/local": ID})
    assert not OWNER.owns({"compute.datumapis.com/local": ID[:8]})
    assert not OWNER.owns({})
