"""The embedded engine for scenarios: everything in one simulation."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.embedded.storage.log import Log, Row
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.lives import Recorder
from datum_compute.federation.roles import CELL
from datum_compute.kube.client import Client
from datum_compute.kube.tracing import Tracer
from datum_compute.kube.transport import Transport
from datum_compute.local.engine import compute_engine
from datum_compute.local.federation import HUB_PLANE, ROOT_PLANE, simulated
from datum_compute.local.federation import Federation as LocalFederation
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime import Pass
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.clock import ShiftedClock
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.simulation import Simulation

CITIES = {"DFW": "cell-dfw", "ORD": "cell-ord"}
PROJECTS = ("demo", "other")


class FaultyFederation(LocalFederation):
    """The same federation, with a fault injector between each plane and the controllers."""

    faults: dict[str, Faults]

    def project_plane(self, name: str) -> Plane:
        """A project as the discovery of projects would engage it."""
        return self._project_plane(name)

    def cell_plane(self, name: str) -> Plane:
        """A cell that joins later."""
        return self._plane(name, CELL)

    def transport(self, plane: str, role: str) -> Transport:
        self.__dict__.setdefault("faults", {})[plane] = Faults(super().transport(plane, role), self._generator)
        return self.faults[plane]


class EmbeddedFederation:
    """Built on a log that may already hold rows: that is what a process finds when it starts again."""

    def __init__(
        self,
        simulation: Simulation,
        behaviour: Behaviour,
        rows: Iterable[Row] = (),
        limits: Mapping[str, int] = DEFAULT_LIMITS,
        projects: Sequence[str] = PROJECTS,
        cities: Mapping[str, str] = CITIES,
        names: Mapping[str, str] = {},
        tracer: Tracer | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        log = Log()
        log.append(list(rows))
        self.simulation = simulation
        self._clocks: dict[str, ShiftedClock] = {}
        self.engine = compute_engine(
            log, clock=simulation, clock_of=self.clock, uids=CountedUids(), generator=simulation.random
        )
        self._new_local = partial(
            FaultyFederation,
            self.engine,
            projects=projects,
            cities=cities,
            names=names,
            limits=limits,
            clock=simulation,
            generator=simulation.random,
            tracer=tracer,
        )
        self._behaviour = behaviour
        self.recorder = recorder
        self.local = self._new_local(provider=simulated(behaviour, recorder))
        self.root = self.local.client(ROOT_PLANE)
        self.hub = self.local.client(HUB_PLANE)
        self.cells: dict[str, Client] = {city: self.local.client(cell) for city, cell in cities.items()}
        self.projects = projects
        self.planes = [ROOT_PLANE, *projects, HUB_PLANE, *cities.values()]
        self._run: asyncio.Task[None] | None = None

    def use(self, provider: Reconciler) -> None:
        """Lets another provider run the Instances. To be called before the start."""
        self.local = self._new_local(provider=provider)

    def clock(self, plane: str) -> ShiftedClock:
        """The clock of a plane's server: set `ahead` to let it differ from everybody else's."""
        return self._clocks.setdefault(plane, ShiftedClock(self.simulation))

    def project_client(self, project: str) -> Client:
        return self.local.client(project)

    def user_client(self, project: str) -> Client:
        return self.local.client(project)  # there are no roles to be had here

    async def start(self) -> None:
        """Returns when every project offers its cities: what a user would find."""
        await self.local.seed()
        self._run = asyncio.create_task(self.local.run(), name="federation")
        for project in self.projects:
            await self.until(partial(self.local.is_ready, project), 30, f"project {project} is ready")
            await self.local.prepare(project)
            await self.until(partial(self._offers, project), 30, f"{project} has cities")

    async def is_open(self, project: str) -> bool:
        return await self.local.is_ready(project)

    def managers(self) -> dict[str, Manager]:
        """All processes by name."""
        return {"all": self.local.manager}

    async def _offers(self, project: str) -> bool:
        return len((await self.project_client(project).list(LOCATION_BINDING)).items) == len(self.cells)

    async def stop(self) -> None:
        self.kill()
        assert self._run is not None
        await asyncio.gather(self._run, return_exceptions=True)
        self.check()

    @property
    def running(self) -> bool:
        return self._run is not None and not self._run.done()

    async def take_away(self, plane: str) -> None:
        self.local.faults[plane].take_away()

    async def bring_back(self, plane: str) -> None:
        self.local.faults[plane].bring_back()

    async def restart(self) -> None:
        await self.stop()
        self.local = self._new_local(provider=simulated(self._behaviour, self.recorder))
        self._run = asyncio.create_task(self.local.run(), name="federation")

    async def suspend(self, project: str) -> None:
        self.local.manager.fleet.remove(project)

    async def resume(self, project: str) -> None:
        self.local.manager.fleet.add(self.local.project_plane(project))

    def stop_controllers(self, *names: str) -> None:
        """They are there and do nothing any more, as in a process that does not run."""
        for name in names:
            self.local.manager.controllers[name]._reconciler.reconcile = _nothing  # type: ignore[method-assign]

    def kill(self) -> None:
        """Ends every task where it stands, as the death of the process would."""
        assert self._run is not None
        self._run.cancel()

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float, what: str) -> None:
        try:
            await self.simulation.until(condition, within, what)
        except Exception as error:
            error.add_note(self.report())
            raise
        self.check()

    def check(self) -> None:
        """A pass that crashed is a defect, also when a later one succeeded; so is a fight among ourselves."""
        assert not self.local.writes.damped, self.report()
        for controller in self.local.manager.controllers.values():
            for crash in controller.crashes:
                crash.add_note(self.report())
                raise crash

    def report(self) -> str:
        last = "\n  ".join(self.local.writes.last)
        return f"seed {self.simulation.seed}, at {self.simulation.time():.3f} s; last writes:\n  {last}"


async def _nothing(pass_: Pass) -> None:
    """What a controller does that does not run."""
