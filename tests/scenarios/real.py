"""The real engine for scenarios: Kubernetes and Karmada as `make engine-up` runs them, our controllers in this process.

Management and each cell have fleets, caches and identities of their own, as separate processes would.

The planes outlive a test, so each one starts by checking that the one before left nothing behind.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.networking import LOCATION, LOCATION_BINDING, NETWORK_BINDING, SUBNET_CLAIM
from datum_compute.api.permissions import Who
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.workload import WORKLOAD
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT
from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, ApiError, NotFound
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kubeconfig import load
from datum_compute.local.federation import prepare_project
from datum_compute.operator.wiring import cell_controllers, management_controllers
from datum_compute.platform.entitlement import EntitlementController
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.platform.locations import location
from datum_compute.platform.networks import NetworkController
from datum_compute.platform.quota import QuotaBroker
from datum_compute.providers.simulated import SimulatedProvider
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.writes import Writes
from engine.harness import Engine
from tests.scenarios.federation import Federation
from tests.scenarios.life import BEHAVIOUR

CELLS = {"DFW": "pop-dfw", "ORD": "pop-ord"}
PROJECTS = {"demo": "control-plane", "other": "project-b"}
HUB_PLANE = "hub"

# Planes of the engine by the names under which controllers and scenarios know them.
PLANES = {HUB_PLANE: "downstream", **PROJECTS, **{cell: cell for cell in CELLS.values()}}

_LOOK_SECONDS = 0.05
_PATIENCE = 3  # scenarios say how long something takes when nothing else is going on; machines are busy
_RECOVERY_SECONDS = 90  # after an outage Karmada itself takes a minute to notice


class Process:
    """One operator under an identity of its own on every plane: what would be one `compute-manager`."""

    def __init__(self, who: Who, engine: Engine, writes: Writes) -> None:
        self.fleet = Fleet()
        self.manager: Manager
        self._who = who
        self._engine = engine
        self._writes = writes
        self._transports: list[HttpTransport] = []
        self._run: asyncio.Task[None]

    def add(self, name: str, role: str) -> None:
        transport = HttpTransport(load([self._engine.kubeconfig(PLANES[name], self._who.value)]))
        self._transports.append(transport)
        self.fleet.add(Plane(name, role, transport, writes=self._writes, generator=random.Random(1)))

    def start(self, reconcilers: list[Reconciler]) -> None:
        self.manager = Manager(self.fleet, reconcilers)
        self._run = asyncio.create_task(self.manager.run())

    async def kill(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        for transport in self._transports:
            await transport.close()

    def check(self) -> None:
        """A pass that crashed is a defect, also when a later one succeeded."""
        for controller in self.manager.controllers.values():
            for crash in controller.crashes:
                raise crash


class RealFederation:
    """Controllers over HTTPS on the planes of the engine, under the generated roles. Propagation is Karmada's own."""

    def __init__(self, engine: Engine) -> None:
        self.writes = Writes()
        self._engine = engine
        self._processes: list[Process] = []
        self._away: set[str] = set()
        self._had_outage = False
        # The test itself looks everywhere as the administrator, and acts as a user.
        self._transports: list[HttpTransport] = []
        self.hub = self._client(HUB_PLANE)
        self.cells = {city: self._client(cell) for city, cell in CELLS.items()}
        self._projects = {name: self._client(name) for name in PROJECTS}
        self._users = {name: self._client(name, Who.USER.value) for name in PROJECTS}

    def _client(self, name: str, who: str = "") -> Client:
        transport = HttpTransport(load([self._engine.kubeconfig(PLANES[name], who)]))
        self._transports.append(transport)
        return Client(name, transport)

    def project_client(self, project: str) -> Client:
        return self._projects[project]

    def user_client(self, project: str) -> Client:
        return self._users[project]

    async def start(self) -> None:
        for city, cell in self.cells.items():
            with suppress(AlreadyExists):
                await cell.create(LOCATION, location(city))
        self._start_processes()
        for project, client in self._projects.items():
            await prepare_project(client)
            await self.until(partial(self._offers, client), 60, f"{project} has cities")
        await self.clear()

    def _start_processes(self) -> None:
        clock = SystemClock()
        management = Process(Who.MANAGEMENT, self._engine, self.writes)
        for name, role in {HUB_PLANE: HUB, **dict.fromkeys(PROJECTS, PROJECT)}.items():
            management.add(name, role)
        management.start(
            [
                EntitlementController(management.fleet, clock, cities=tuple(CELLS), limits=DEFAULT_LIMITS),
                QuotaBroker(management.fleet, clock),
                *management_controllers(management.fleet, clock, HUB_PLANE, networking=True),
            ]
        )
        self._processes = [management]
        for cell in CELLS.values():
            process = Process(Who.CELL, self._engine, self.writes)
            for name, role in {cell: CELL, HUB_PLANE: HUB, **dict.fromkeys(PROJECTS, CLAIMS)}.items():
                process.add(name, role)
            process.start(
                [
                    NetworkController(process.fleet, clock),
                    *cell_controllers(process.fleet, clock, lambda plane: plane.name, networking=True),
                    SimulatedProvider(process.fleet, clock, replace(BEHAVIOUR, wait_for_addresses=True)),
                ]
            )
            self._processes.append(process)

    async def _offers(self, client: Client) -> bool:
        return len((await client.list(LOCATION_BINDING)).items) == len(CELLS)

    async def restart(self) -> None:
        """All our processes die where they stand and are started again."""
        await self._end_processes()
        self._start_processes()

    async def _end_processes(self) -> None:
        ended, self._processes = self._processes, []
        for process in ended:
            await process.kill()
        for process in ended:
            process.check()

    async def take_away(self, plane: str) -> None:
        """Ends the plane's API server as a crash would."""
        self._away.add(plane)
        self._had_outage = True
        await asyncio.to_thread(self._engine.kill, _server(plane))

    async def bring_back(self, plane: str) -> None:
        await asyncio.to_thread(self._engine.start, _server(plane))
        self._away.discard(plane)

    async def suspend(self, project: str) -> None:
        """Management no longer works on it; cells go on, since what they run is theirs."""
        self._processes[0].fleet.remove(project)

    async def resume(self, project: str) -> None:
        self._processes[0].add(project, PROJECT)

    async def clear(self) -> None:
        """Deletes every workload and waits until nothing of it is left on any plane; leftovers are a failure."""
        for client in self._projects.values():
            for workload in (await client.list(WORKLOAD)).items:
                with suppress(NotFound):
                    await client.delete(WORKLOAD, workload.name, workload.namespace)
        await self.until(self._is_clear, 60, "nothing is left on any plane")

    async def _is_clear(self) -> bool:
        for client in (*self._projects.values(), self.hub, *self.cells.values()):
            if (await client.list(WORKLOAD_DEPLOYMENT)).items or (await client.list(INSTANCE)).items:
                return False
        for client in self._projects.values():
            if (await client.list(WORKLOAD)).items or (await client.list(RESOURCE_CLAIM)).items:
                return False
        for client in self.cells.values():
            if (await client.list(NETWORK_BINDING)).items or (await client.list(SUBNET_CLAIM)).items:
                return False
        return not (await self.hub.list(PROPAGATION_POLICY)).items

    async def stop(self) -> None:
        """Leaves the planes as it found them, also after a scenario that failed."""
        try:
            for plane in sorted(self._away):
                await self.bring_back(plane)
            if self._had_outage:
                await self._recover()
            await self.clear()
            await self._end_processes()
        finally:
            for process in self._processes:
                await process.kill()
            for transport in self._transports:
                await transport.close()

    async def _recover(self) -> None:
        """Until a workload goes its whole way again: the next test must not find Karmada still waiting to try again."""
        project = Federation(self).project()
        await project.deploy("canary", list(CELLS))
        await project.until_ready("canary", len(CELLS), _RECOVERY_SECONDS)

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float, what: str) -> None:
        last_error = ""
        try:
            async with asyncio.timeout(within * _PATIENCE):
                while True:
                    try:
                        if await condition():
                            break
                        last_error = ""
                    except ApiError as error:
                        if not error.retryable:
                            raise
                        last_error = f" ({error})"  # a plane that is away, or on its way back
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            writes = "\n  ".join(self.writes.last)
            failure = f"{what} did not come true within {within * _PATIENCE} s{last_error}; last writes:\n  {writes}"
            raise AssertionError(failure) from None
        for process in self._processes:
            process.check()


def _server(plane: str) -> str:
    """The process that serves it."""
    return f"{PLANES[plane]}-apiserver"
