"""Whatever happens to engine and process, in any order: in the end everything runs once, and nothing is left over."""

import asyncio
import random

import pytest

from datum_compute.api.instance import INSTANCE
from datum_compute.kube.errors import NotFound
from datum_compute.providers.engine.interface import Refused
from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import count
from tests.providers.container_site import HELPER, IMAGE, WEB, Site, model_of
from tests.providers.engine_boxes import Dialect, Image
from tests.providers.engine_model import Mishap

AVAILABLE = ("True", "Available", "The instance is available")
CALLS = ("create", "start", "stop", "remove", "inspect", "containers", "create_network", "has_image", "events", "pull")
NAMES = ("web-0", "web-1", "web-2")
FAR = "registry.example/hello:latest"


class Storm:
    """Draws what happens from a seed."""

    def __init__(self, site: Site, draw: random.Random) -> None:
        self._site = site
        self._draw = draw
        self._there: set[str] = set()

    async def blow(self, steps: int) -> None:
        site, draw = self._site, self._draw
        for _ in range(steps):
            boxes = [box for box in site.boxes if box.status in ("running", "paused")]
            match draw.choice(["trouble", "trouble", "crash", "restart", "end", "remove", "hide", "create", "delete"]):
                case "trouble":
                    mishap = draw.choice([*Mishap, Refused(500, "odd"), Refused(500, "no space left on device")])
                    site.model.trouble(draw.choice(CALLS), mishap)
                case "crash":
                    await site.crash()
                case "restart":
                    site.model.restart()
                case "end" if boxes:
                    site.model.end(draw.choice(boxes).name, draw.choice([0, 1, 137]))
                case "remove" if boxes:
                    box = draw.choice(boxes)
                    if not any(other.network_owner == box.id for other in site.boxes):
                        site.model.remove_by_hand(box.name)
                case "hide":
                    site.model.away = not site.model.away
                    site.model.end_events()
                case "create":
                    await self._create(draw.choice(NAMES))
                case "delete" if self._there:
                    name = draw.choice(sorted(self._there))
                    self._there.discard(name)
                    await site.client.delete(INSTANCE, name, "ns")
            await site.simulation.advance(draw.choice([0, 0.1, 1, 5, 40, 70]))
            await self.let_go()
        site.model.away = False

    async def _create(self, name: str) -> None:
        try:
            await self._site.instance(name)
        except NotFound:
            helper = [HELPER] if name == "web-1" else []
            image = FAR if name == "web-2" else IMAGE
            await self._site.create(WEB | {"image": image}, *helper, name=name)
            self._there.add(name)

    async def let_go(self) -> None:
        """Compute removes its own finalizer from what the provider released."""
        for name in NAMES:
            try:
                instance = await self._site.instance(name)
            except NotFound:
                continue
            if instance.metadata.deleting and len(instance.metadata.finalizers) == 1:
                await self._site.gone(name)

    async def check(self) -> None:
        site = self._site
        for name in NAMES:
            await self._create(name)
        await site.simulation.advance(900)
        await self.let_go()
        for name in NAMES:
            await self._create(name)
        await site.simulation.advance(100)
        assert [await site.report(name) for name in NAMES] == [AVAILABLE] * 3
        assert sorted(box.status for box in site.boxes) == ["running"] * 4
        uids = {(await site.instance(name)).metadata.uid for name in NAMES}
        assert {box.labels["compute.datumapis.com/instance-uid"] for box in site.boxes} == uids
        for name in NAMES:
            await site.delete(name)
        await site.simulation.advance(60)
        assert site.boxes == []
        await self.let_go()
        writes = site.writes.total()
        await site.simulation.advance(1300)
        assert (site.boxes, site.writes.total()) == ([], writes)


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("seed", range(count(8, 150)))
def test_after_any_storm_everything_runs_once(dialect: Dialect, seed: int) -> None:
    async def run(simulation: Simulation) -> None:
        model = model_of(dialect, simulation)
        model.registry[FAR] = Image()
        model.pull_pauses = (1.0, 2.0)
        site = Site(simulation, model)
        await site.start()
        storm = Storm(site, random.Random(seed))
        await storm.blow(25)
        await storm.check()
        await site.stop()

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        runner.run(run(loop))
