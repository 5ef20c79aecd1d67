"""Whatever happens to a workload, what `status`, `workloads`, `instances` and `rollout status` print about it is true.

A life is drawn from its seed: deploys, rolls, bad images, pauses, undos, edits by others, cities that go down, and the
end. After each operation and at drawn moments the screens are held against the state of all planes. News from a cell
takes a moment to reach the project, so a statement about a cell has to have been true within that moment; what is
called done has to be true now.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.meta import Json
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count
from tests.scenarios.command import Command, Result
from tests.scenarios.embedded import CITIES, EmbeddedFederation
from tests.scenarios.reality import GROUP, Timeline, condition, image_of, is_going, is_paused
from tests.scenarios.screens import LAG_SECONDS, Screens

LIVES = count(20, 200)
RECOVERY_SECONDS = 45.0  # until a plane that is back is followed again, at most
BEHAVIOUR = Behaviour(start_seconds=0.5, stop_seconds=0.3, slow_stop_seconds=40.0, jitter=1.0)
LIMITS = {"compute.datumapis.com/instances": 6}
IMAGE = "registry.example/hello"
GOOD, BAD = ("1", "2", "3", "slow-stop"), ("crashing", "image-unavailable", "configuration-error")
NEW = "--no-save -y"
LOOKS = ("workloads", "status web", "instances", "rollout status web --no-watch")


class Life:
    """One workload, the person who works on it, and what others do to it meanwhile."""

    def __init__(self, simulation: Simulation, engine: EmbeddedFederation, folder: Path) -> None:
        self.random = simulation.random
        self.simulation = simulation
        self.engine = engine
        server = engine.engine.plane("demo")
        assert server is not None
        self.command = Command(simulation, server, folder)
        self.timeline = Timeline(engine.engine.store, "demo", dict(CITIES))
        self.journal: list[str] = []
        self._down: dict[str, float] = {}  # city to when it went down
        self._unsure_since: float | None = None
        self._unsure_until = 0.0

    # What happens

    async def live(self) -> None:
        ticking = asyncio.create_task(self._tick())
        try:
            await self._deploy()
            for _ in range(self.random.randint(5, 8)):
                for _ in range(2):
                    await self.simulation.advance(
                        self.random.choice((0.0, 0.1, 0.5, 2.0, 8.0, 35.0)) * self.random.random()
                    )
                    self.look()
                await self.random.choice(self._possible())()
                self.look()
                if self.random.random() < 0.3:
                    await self._rest()
            await self._end()
            await self._rest()
        finally:
            ticking.cancel()

    async def _end(self) -> None:
        """Every life ends with somebody who waits for the end, half of them for something that is slow to stop."""
        workload = self.timeline.now.workloads().get("web")
        if workload is None or is_going(workload):
            return
        if self.random.random() < 0.5:
            await self._patch(_with_image(workload, "slow-stop"), "edited")
            await self.simulation.advance(self.random.uniform(0, 200))
            self.look()
        await self._destroy("--wait --timeout=3m")
        self.look()

    def _possible(self) -> list[Callable[[], Awaitable[None]]]:
        acts = [self._city_goes, self._city_returns] if self._down else [self._city_goes]
        workload = self.timeline.now.workloads().get("web")
        if workload is None or is_going(workload):
            return [self._deploy, self._deploy, *acts]
        change = [self._roll, self._scale, self._restart, self._edited, self._moved, self._undo]
        return [*change, *change, self._break, self._pause, self._destroy, *acts]

    async def _tick(self) -> None:
        while True:
            self.timeline.mark(self.simulation.time())
            await asyncio.sleep(0.25)

    async def _rest(self) -> None:
        """Until nothing more can happen."""
        for city in list(self._down):
            await self._up(city)
        await self.simulation.advance(240)
        self.look(at_rest=True)

    async def _say(self, line: str) -> Result:
        result = await self.command(line)
        self.journal.append(f"{self.simulation.time():.1f} {line} -> {result.code}\n{result.out}{result.err}")
        assert "should not happen" not in result.err, self._report("a defect", result)
        self._check_done(result)
        return result

    def _wait(self) -> str:
        return self.random.choice(("--wait --timeout=30s", "--wait --timeout=3m", "--no-wait", "--no-wait"))

    async def _deploy(self) -> None:
        cities = self.random.choice(("DFW", "ORD", "DFW,ORD", "DFW,ORD"))
        image = f"{IMAGE}:{self.random.choice(GOOD)}"
        await self._say(f"deploy web --image={image} --city={cities} --min={self._size()} {NEW} {self._wait()}")

    def _size(self) -> int:
        return self.random.choice((1, 1, 2, 2, 3, 4))

    async def _roll(self) -> None:
        await self._say(f"deploy web --image={IMAGE}:{self.random.choice(GOOD)} {NEW} {self._wait()}")

    async def _break(self) -> None:
        await self._say(f"deploy web --image={IMAGE}:{self.random.choice(BAD)} {NEW} {self._wait()}")

    async def _scale(self) -> None:
        await self._say(f"scale web --min={self._size()} {self._wait().replace('--no-wait', '')}")

    async def _restart(self) -> None:
        await self._say(f"restart web {self._wait().replace('--no-wait', '')}")

    async def _undo(self) -> None:
        await self._say(f"rollout undo web -y {self._wait().replace('--no-wait', '')}")

    async def _pause(self) -> None:
        workload = self.timeline.now.workloads()["web"]
        await self._say(f"rollout {'resume' if is_paused(workload) else 'pause'} web")

    async def _edited(self) -> None:
        """By kubectl, or whatever else."""
        await self._patch(_with_image(self.timeline.now.workloads()["web"], self.random.choice(GOOD)), "edited")

    async def _moved(self) -> None:
        """To other cities."""
        cities = self.random.choice((["DFW"], ["ORD"], ["DFW", "ORD"]))
        placement = {"name": "default", "cityCodes": cities, "scaleSettings": {"minReplicas": self._size()}}
        await self._patch({"spec": {"placements": [placement]}}, f"moved to {cities}")

    async def _patch(self, patch: Json, what: str) -> None:
        self.journal.append(f"{self.simulation.time():.1f} {what}: {patch}")
        await self.engine.project_client("demo").merge_patch(WORKLOAD, "web", "default", patch)

    async def _destroy(self, wait: str | None = None) -> None:
        uid = self.timeline.now.workloads()["web"]["metadata"]["uid"]
        result = await self._say(f"destroy web -y {wait or self._wait().replace('--no-wait', '')}")
        left = [
            item for item in self.timeline.now.instances() if item["metadata"]["labels"][f"{GROUP}/workload-uid"] == uid
        ]
        if "workload/web is gone." in result.out:
            assert left == [], self._report("gone, and yet something of it is there", result)
        elif "did not stop" in result.err:
            running = {item["metadata"]["labels"][f"{GROUP}/city-code"] for item in left}
            named = set(re.findall(r"[A-Z]{3}", result.err.partition("did not stop")[0]))
            assert named == running, self._report("it names other cities than those that have not stopped", result)

    async def _city_goes(self) -> None:
        city = self.random.choice(sorted(CITIES))
        self._down.setdefault(city, self.simulation.time())
        self.journal.append(f"{self.simulation.time():.1f} {city} goes down")
        await self.engine.take_away(CITIES[city])
        self._unsure_since = self._unsure_since or self.simulation.time() - LAG_SECONDS

    async def _city_returns(self) -> None:
        await self._up(self.random.choice(sorted(self._down)))

    async def _up(self, city: str) -> None:
        self.journal.append(f"{self.simulation.time():.1f} {city} is back")
        del self._down[city]
        await self.engine.bring_back(CITIES[city])
        self._unsure_until = self.simulation.time() + RECOVERY_SECONDS

    # What the screens show

    @property
    def _since(self) -> float:
        """Since when news from a cell may not have reached the project."""
        now = self.simulation.time()
        if not self._down and self._unsure_until < now:
            self._unsure_since = None
        return min(now - LAG_SECONDS, self._unsure_since if self._unsure_since is not None else now)

    def look(self, *, at_rest: bool = False) -> None:
        """All screens, in one moment."""
        self.timeline.mark(self.simulation.time())
        self.engine.check()
        screens = Screens(self.timeline, self.simulation, self._since, at_rest=at_rest)
        lies = [
            *screens.of_workloads(self.command.look("workloads").out),
            *screens.of_status(self.command.look("status web")),
            *screens.of_instances(self.command.look("instances").out),
            *screens.of_rollout(self.command.look("rollout status web --no-watch")),
        ]
        if lies:
            text = "\n".join(self.command.look(line).out for line in LOOKS)
            pytest.fail(self._report("\n".join(lies), Result("", 0, text, "")))

    def _report(self, lies: str, result: Result) -> str:
        cells = "\n".join(
            f"{item['metadata']['name']} {image_of(item['spec'])} going={is_going(item)} {condition(item, 'Ready')}"
            for item in self.timeline.now.instances()
        )
        history = "\n".join(self.journal)
        moment = f"seed {self.simulation.seed} at {self.simulation.time():.2f} s"
        return f"{lies}\n\n{moment}\n{result.out}{result.err}\nin the cells:\n{cells}\n\n{history}"

    def _check_done(self, result: Result) -> None:
        if "Rollout complete" in result.out:
            workload = self.timeline.now.workloads()["web"]
            assert self.timeline.now.is_fulfilled(workload), self._report("it is not complete", result)


def _with_image(workload: Json, tag: str) -> Json:
    """The patch that gives it another image."""
    template: Json = workload["spec"]["template"]
    template["spec"]["runtime"]["sandbox"]["containers"][0]["image"] = f"{IMAGE}:{tag}"
    return {"spec": {"template": template}}


@pytest.mark.timeout(180)  # a city that is away for long leaves many moments to look at
@pytest.mark.parametrize("seed", range(1, LIVES + 1))
def test_every_sentence_that_a_user_reads_is_true(seed: int, tmp_path: Path) -> None:
    async def live(simulation: Simulation) -> None:
        engine = EmbeddedFederation(simulation, BEHAVIOUR, limits=LIMITS)
        await engine.start()
        await Life(simulation, engine, tmp_path).live()
        await engine.stop()

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        runner.run(live(loop))
