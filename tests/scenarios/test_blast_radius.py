"""Trouble on one plane affects only what needs that plane: everything else continues as usual.

Twelve projects and four cells, each project with its workloads in one city. They need the plane of their project, the
hub and the cell of their city; a cell heals what it runs without any other plane, deployments are made without the hub,
and a project opens with the root alone. What does not need the plane in trouble may take at most a second longer than
without the trouble, no check of the process fails, and what does need it is done when the trouble is over.

In a short run only three of the projects are at work: the one in trouble, one in its cell, and one in another cell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from functools import cache, partial
from typing import TypeVar

import pytest
from msgspec import Struct

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.names import deployment_name, instance_name
from datum_compute.api.services import PROJECT
from datum_compute.embedded.storage.log import Row
from datum_compute.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from datum_compute.local.federation import HUB_PLANE, ROOT_PLANE
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime.telemetry.health import Check, all_tried, engaged, examine, latched
from datum_compute.runtime.testing.faults import (
    ENDLESS_VERSION,
    ODD_LABELS,
    ODD_SPEC,
    ODD_STATUS,
    ODD_VERSION,
    Faults,
    Match,
    Spoil,
    calls,
    writes,
)
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import LONG, count
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation, Project, is_ready
from tests.scenarios.restorable import RestorableFederation

pytestmark = pytest.mark.timeout(300)  # in a long run each is heavy

CITIES = {"AMS": "cell-ams", "DFW": "cell-dfw", "ORD": "cell-ord", "SIN": "cell-sin"}
CITY_OF = {f"project-{number:02}": sorted(CITIES)[number % 4] for number in range(12)}
TARGET = next(iter(CITY_OF))  # the project in trouble, or the one that is hit when its cell or one of its objects is
AT_WORK = [project for project in CITY_OF if LONG or project in (TARGET, "project-01", "project-04")]
PLANES = {"root": ROOT_PLANE, "hub": HUB_PLANE, "project": TARGET, "cell": CITIES[CITY_OF[TARGET]]}
BEHAVIOUR = Behaviour(start_seconds=0.3, stop_seconds=0.2)

LATER = 1.0  # what does not need the plane in trouble may take this much longer
SOAK_SECONDS = 60.0  # until pauses are as long as they get
SLOW_SECONDS = 9.0  # calls that are answered just in time
OVER_SECONDS = 60.0  # within which what needs the plane is done, once the trouble is over
HEALED_SECONDS = 660.0  # the same when events were lost: until the caches have listed again
STUCK_SECONDS = 600.0
BURDEN = count(40, 100)  # workloads that the target asks for meanwhile: what waits for a plane takes no place of others

End = Callable[[], None]
T = TypeVar("T")


class Trouble(Struct, frozen=True):
    """How it begins on a plane, which returns how it ends, and what it costs: the plane, one object, or nothing."""

    begin: Callable[[EmbeddedFederation, str], End]
    costs: str = "plane"
    over_within: float = OVER_SECONDS


def away(federation: EmbeddedFederation, plane: str) -> End:
    faults = federation.local.faults[plane]
    faults.take_away()
    return faults.bring_back


def slow(federation: EmbeddedFederation, plane: str) -> End:
    faults = federation.local.faults[plane]
    slowness = faults.slow_down(SLOW_SECONDS, calls())
    faults.delay_watches(SLOW_SECONDS, SLOW_SECONDS)

    def end() -> None:
        slowness.lift()
        faults.delay_watches(0, 0)

    return end


def silent(federation: EmbeddedFederation, plane: str) -> End:
    faults = federation.local.faults[plane]
    faults.silence_watches()

    def end() -> None:
        faults.restore_watches()
        faults.cut_watches()

    return end


def cut(federation: EmbeddedFederation, plane: str) -> End:
    """Every second."""

    async def again_and_again() -> None:
        while True:
            federation.local.faults[plane].cut_watches()
            await asyncio.sleep(1)

    cutting = asyncio.create_task(again_and_again())

    def end() -> None:
        cutting.cancel()

    return end


def now_and_then(
    strike: Callable[[Faults, Match, int], object], matches: Match, over_within: float = OVER_SECONDS
) -> Trouble:
    """What happens to one call or event, to many of them."""

    def begin(federation: EmbeddedFederation, plane: str) -> End:
        is_over = False
        for nth in range(1, 150, 3):
            strike(federation.local.faults[plane], lambda call: not is_over and matches(call), nth)

        def end() -> None:
            nonlocal is_over
            is_over = True

        return end

    return Trouble(begin, over_within=over_within)


def refusing(error: ApiError) -> Trouble:
    def begin(federation: EmbeddedFederation, plane: str) -> End:
        faults = federation.local.faults[plane]
        refusal = faults.refuse(calls(), error)
        faults.cut_watches()
        return refusal.lift

    return Trouble(begin)


def poisoned(spoil: Spoil, costs: str = "object") -> Trouble:
    """One object of the target's: its Project, the copy of its deployment, its Workload, or its Instance."""
    deployment = deployment_name(named("before", TARGET), "", "main", CITY_OF[TARGET])
    names = {
        ROOT_PLANE: ("/projects", TARGET),
        HUB_PLANE: ("/workloaddeployments", deployment),
        PLANES["project"]: ("/workloads", named("before", TARGET)),
        PLANES["cell"]: ("/instances", instance_name(deployment, 0)),
    }

    def begin(federation: EmbeddedFederation, plane: str) -> End:
        faults = federation.local.faults[plane]
        path, name = names[plane]
        poison = faults.poison(calls(path=path), name, spoil)
        faults.cut_watches()

        def end() -> None:
            poison.lift()
            faults.cut_watches()

        return end

    return Trouble(begin, costs)


def clock_off_by(seconds: float) -> Trouble:
    def begin(federation: EmbeddedFederation, plane: str) -> End:
        clock = federation.clock(plane)
        clock.ahead = seconds

        def end() -> None:
            clock.ahead = 0

        return end

    return Trouble(begin, costs="nothing")


def named(what: str, project: str) -> str:
    """A workload's name, different in each project: poison goes by names."""
    return f"{what}-{project[-2:]}"


TROUBLES = {
    "away": Trouble(away),
    "slow": Trouble(slow),
    "silent": Trouble(silent),
    "cut": Trouble(cut),
    "calls-fail": now_and_then(Faults.fail, calls()),
    "answers-lost": now_and_then(Faults.lose_answer, writes),
    "409": now_and_then(lambda faults, matches, nth: faults.answer(matches, Conflict("changed"), nth), writes),
    "events-lost": now_and_then(Faults.drop_event, calls(), over_within=HEALED_SECONDS),
    "events-twice": now_and_then(Faults.duplicate_event, calls()),
    "events-late": now_and_then(Faults.reorder_events, calls(), over_within=HEALED_SECONDS),
    "401": refusing(Unauthorized("who are you")),
    "403": refusing(Forbidden("not you")),
    "404": refusing(NotFound("404 page not found")),
    "429": refusing(TooManyRequests("patience", retry_after=30)),
    "500": refusing(ServerError("broken")),
    "503": refusing(Unavailable("no healthy upstream")),
    "503-with-a-pause": refusing(Unavailable("busy", retry_after=30)),
    "endless-version": poisoned(ENDLESS_VERSION),
    "odd-version": poisoned(ODD_VERSION),
    "odd-labels": poisoned(ODD_LABELS, costs="plane"),
    "odd-spec": poisoned(ODD_SPEC),
    "odd-status": poisoned(ODD_STATUS),
    "clock-ahead": clock_off_by(301),
    "clock-behind": clock_off_by(-301),
}


def needing(plane: str, planes_of: Callable[[str], Collection[str]], costs: str) -> set[str]:
    """The projects whose work has to wait: `planes_of` says what it needs in each."""
    match costs:
        case "nothing":
            return set()
        case "object":
            return {TARGET}
    return {project for project in AT_WORK if plane in planes_of(project)}


def for_all(project: str) -> set[str]:
    return {project, HUB_PLANE, CITIES[CITY_OF[project]]}


def for_deployments(project: str) -> set[str]:
    return {project}


def for_healing(project: str) -> set[str]:
    return {project, CITIES[CITY_OF[project]]}  # a new Instance asks the project for quota


def embedded(simulation: Simulation, rows: Iterable[Row] = ()) -> EmbeddedFederation:
    plenty = {resource: 1000 * limit for resource, limit in DEFAULT_LIMITS.items()}
    return EmbeddedFederation(simulation, BEHAVIOUR, rows, limits=plenty, projects=tuple(CITY_OF), cities=CITIES)


class World:
    def __init__(self, simulation: Simulation, engine: EmbeddedFederation | RestorableFederation) -> None:
        self.simulation = simulation
        self.engine = engine
        self.federation = Federation(engine)
        self.checks: dict[str, Check] = {}

    async def start(self) -> None:
        await self.resume()
        await self.deploy("before", AT_WORK)

    async def resume(self) -> None:
        """Starts on what an earlier process stored, which includes the workloads from before."""
        await self.engine.start()
        own = {ROOT_PLANE, HUB_PLANE, *CITIES.values()}
        for name, manager in self.engine.managers().items():
            known = own & {plane.name for plane in manager.fleet.known()}
            self.checks |= {f"{name}/{check}": run for check, run in manager.live_checks().items()} | {
                f"{name}/caches-synced": latched(engaged(manager.fleet, *known)),
                f"{name}/planes-tried": latched(all_tried(manager.fleet)),
            }
        await self.check()

    async def check(self) -> None:
        """No process has ended, and no probe would fail."""
        self.engine.check()
        assert self.engine.running
        assert [outcome for outcome in await examine(self.checks) if outcome.problem] == []

    def project(self, name: str) -> Project:
        return self.federation.project(name)

    async def until_all(
        self, projects: Collection[str], condition: Callable[[str], Awaitable[bool]], within: float
    ) -> None:
        left = set(projects)

        async def done() -> bool:
            left.difference_update([project for project in sorted(left) if await condition(project)])
            return not left

        try:
            await self.engine.until(done, within, "all projects")
        except Exception as error:
            error.add_note(f"left: {sorted(left)}")
            raise

    # What users do, and how long it takes

    async def deploy(self, what: str, projects: Collection[str]) -> None:
        await self.ask_for(what, projects)
        await self.until_all(projects, partial(self.is_available, what), STUCK_SECONDS)

    async def ask_for(self, what: str, projects: Collection[str]) -> None:
        for project in projects:
            await self.project(project).deploy(named(what, project), [CITY_OF[project]])

    async def is_available(self, what: str, project: str) -> bool:
        return await self.project(project).is_ready(named(what, project), 1)

    async def roll(self, projects: Collection[str]) -> None:
        for project in projects:
            await self.project(project).set_image(named("before", project), "registry.example/hello:2")
        await self.until_all(projects, partial(self.is_available, "before"), STUCK_SECONDS)

    async def delete(self, what: str, projects: Collection[str]) -> None:
        for project in projects:
            await self.project(project).delete(named(what, project))

        async def gone(project: str) -> bool:
            cell = self.federation.cell(CITY_OF[project])
            name = named(what, project)
            return await self.project(project).workload(name) is None and not await cell.instances(name)

        await self.until_all(projects, gone, STUCK_SECONDS)

    async def heal(self, projects: Collection[str]) -> None:
        """Cells replace an Instance that somebody deleted."""
        lost = {}
        for project in projects:
            cell = self.federation.cell(CITY_OF[project])
            [instance] = await cell.instances(named("before", project))
            lost[project] = instance.metadata.uid
            await cell.client.delete(INSTANCE, instance.name, instance.namespace)

        async def healed(project: str) -> bool:
            found = await self.federation.cell(CITY_OF[project]).instances(named("before", project))
            return [is_ready(item) and item.metadata.uid != lost[project] for item in found] == [True]

        await self.until_all(projects, healed, STUCK_SECONDS)

    async def make_deployments(self, what: str, projects: Collection[str]) -> None:
        """Workloads become deployments, whether a hub takes them or not."""
        await self.ask_for(what, projects)

        async def made(project: str) -> bool:
            found = await self.engine.project_client(project).list(WORKLOAD_DEPLOYMENT)
            return any(item.spec.workload_ref.name == named(what, project) for item in found.items)

        await self.until_all(projects, made, STUCK_SECONDS)

    async def open_project(self, name: str) -> None:
        await self.ask_for_project(name)
        await self.until_open(name, STUCK_SECONDS)

    async def ask_for_project(self, name: str) -> None:
        await self.engine.root.create(PROJECT, PROJECT.body(name) | {"spec": {}})

    async def until_open(self, name: str, within: float) -> None:
        await self.engine.until(partial(self.engine.is_open, name), within, f"{name} is open")

    async def timed(self, work: Awaitable[None]) -> float:
        began = self.simulation.time()
        await work
        return self.simulation.time() - began


async def day(world: World, plane: str = "", costs: str = "nothing") -> dict[str, float]:
    """How long everything takes that does not need the plane."""
    hit = partial(needing, plane, costs=costs)
    free, healing, making = (
        [project for project in AT_WORK if project not in hit(planes_of)]
        for planes_of in (for_all, for_healing, for_deployments)
    )
    took = {
        "create": await world.timed(world.deploy("during", free)),
        "roll": await world.timed(world.roll(free)),
        "heal": await world.timed(world.heal(healing)),
        "make deployments": await world.timed(world.make_deployments("late", making)),
        "delete": await world.timed(world.delete("during", free)),
    }
    await world.ask_for("late", [project for project in AT_WORK if project not in making])
    if costs != "plane" or plane != ROOT_PLANE:
        took["open a project"] = await world.timed(world.open_project("newcomer"))
    return took


def simulated(run: Callable[[Simulation], Coroutine[None, None, T]]) -> T:
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(1)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        return runner.run(run(loop))


@cache
def stored() -> tuple[list[Row], float]:
    """The log of a federation with the workloads from before, and when it ended: every trouble starts from there."""

    async def run(simulation: Simulation) -> tuple[list[Row], float]:
        engine = embedded(simulation)
        await World(simulation, engine).start()
        await simulation.advance(SOAK_SECONDS)
        await engine.stop()
        return list(engine.engine.log.rows()), simulation.time()

    return simulated(run)


async def resumed(simulation: Simulation, before: tuple[list[Row], float]) -> tuple[World, EmbeddedFederation]:
    rows, seconds = before
    await simulation.advance(seconds)
    engine = embedded(simulation, rows)
    world = World(simulation, engine)
    await world.resume()
    await world.until_all(AT_WORK, partial(world.is_available, "before"), STUCK_SECONDS)
    return world, engine


@cache
def undisturbed() -> dict[str, float]:
    before = stored()

    async def run(simulation: Simulation) -> dict[str, float]:
        world, _ = await resumed(simulation, before)
        took = await day(world)
        await world.engine.stop()
        return took

    return simulated(run)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("role", PLANES)
def test_trouble_on_one_plane_affects_only_what_needs_it(role: str, trouble: str) -> None:
    before = stored()

    async def run(simulation: Simulation) -> dict[str, float]:
        plane, kind = PLANES[role], TROUBLES[trouble]
        world, engine = await resumed(simulation, before)
        end = kind.begin(engine, plane)
        await world.ask_for_project("early")
        for number in range(BURDEN if LONG or trouble == "slow" else 0):
            await world.project(TARGET).deploy(f"burden-{number}", [CITY_OF[TARGET]])
        await simulation.advance(SOAK_SECONDS)
        await world.check()
        took = await day(world, plane, kind.costs)
        await world.check()

        end()
        waiting = sorted(needing(plane, for_all, kind.costs))
        await world.until_all(waiting, partial(world.is_available, "late"), kind.over_within)
        await world.until_open("early", kind.over_within)
        await world.check()
        await engine.stop()
        return took

    assert late(simulated(run), undisturbed()) == {}


@cache
def after_restore_of(plane: str) -> dict[str, float]:
    async def run(simulation: Simulation) -> dict[str, float]:
        engine = RestorableFederation(simulation, projects=tuple(CITY_OF), cities=CITIES)
        world = World(simulation, engine)
        await world.start()
        backup = engine.planes.snapshot(plane) if plane else ()
        await world.deploy("lost", AT_WORK)
        if plane:
            await engine.planes.restore(plane, backup)
        took = await day(world, plane, "plane" if plane else "nothing")
        await world.check()

        waiting = sorted(needing(plane, for_all, "plane"))
        await world.until_all(waiting, partial(world.is_available, "late"), OVER_SECONDS)
        await world.check()
        await engine.stop()
        return took

    return simulated(run)


@pytest.mark.parametrize("role", PLANES)
def test_a_plane_restored_to_an_earlier_moment_affects_only_what_needs_it(role: str) -> None:
    assert late(after_restore_of(PLANES[role]), after_restore_of("")) == {}


def late(took: dict[str, float], usual: dict[str, float]) -> dict[str, float]:
    """What took more than a second longer than usual, and how much."""
    later = {what: round(seconds - usual[what], 3) for what, seconds in took.items()}
    return {what: seconds for what, seconds in later.items() if seconds > LATER}
