"""The embedded engine for scenarios: everything in one simulation."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from datum_compute.embedded.engine import Engine
from datum_compute.embedded.log import Log, Row
from datum_compute.embedded.store import CountedUids
from datum_compute.kube.client import Client
from datum_compute.local.federation import HUB_PLANE
from datum_compute.local.federation import Federation as LocalFederation
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime.simulation import Simulation

CITIES = {"DFW": "cell-dfw", "AMS": "cell-ams"}
PROJECTS = ("demo", "other")


class EmbeddedFederation:
    """Built on a log that may already hold rows: that is what a process finds when it starts again."""

    def __init__(self, simulation: Simulation, behaviour: Behaviour, rows: Iterable[Row] = ()) -> None:
        log = Log()
        log.append(list(rows))
        self.simulation = simulation
        self.engine = Engine(log, clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.local = LocalFederation(
            self.engine,
            projects=PROJECTS,
            cities=CITIES,
            clock=simulation,
            generator=simulation.random,
            behaviour=behaviour,
        )
        self.hub = self.local.client(HUB_PLANE)
        self.cells: dict[str, Client] = {city: self.local.client(cell) for city, cell in CITIES.items()}
        self.planes = [*PROJECTS, HUB_PLANE, *CITIES.values()]
        self._run: asyncio.Task[None] | None = None

    def project_client(self, project: str) -> Client:
        return self.local.client(project)

    async def start(self) -> None:
        await self.local.seed()
        self._run = asyncio.create_task(self.local.run(), name="federation")

    async def stop(self) -> None:
        assert self._run is not None
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        self.check()

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float, what: str) -> None:
        try:
            await self.simulation.until(condition, within, what)
        except Exception as error:
            error.add_note(self.report())
            raise
        self.check()

    def check(self) -> None:
        """A pass that crashed is a defect, also when a later one succeeded."""
        for controller in self.local.manager.controllers.values():
            for crash in controller.crashes:
                crash.add_note(self.report())
                raise crash

    def report(self) -> str:
        last = "\n  ".join(self.local.writes.last)
        return f"seed {self.simulation.seed}, at {self.simulation.time():.3f} s; last writes:\n  {last}"
