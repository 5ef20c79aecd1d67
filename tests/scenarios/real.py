"""The real engine for scenarios: Kubernetes and Karmada as `make engine-up` runs them, our controllers in this process.

Management and each cell have fleets, caches and identities of their own, as separate processes would.

The planes outlive a test, so each one starts by checking that the one before left nothing behind.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.workload import WORKLOAD
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kubeconfig import load
from datum_compute.local.federation import prepare_project
from datum_compute.operator.wiring import cell_controllers, management_controllers
from datum_compute.platform.entitlement import EntitlementController
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.platform.quota import QuotaBroker
from datum_compute.providers.simulated import SimulatedProvider
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.writes import Writes
from engine.harness import Engine
from engine.identities import Identities
from tests.scenarios.life import BEHAVIOUR

HUB_PLANE = "hub"  # as the controllers call it
CELLS = {"DFW": "pop-dfw", "ORD": "pop-ord"}
PROJECTS = {"demo": "control-plane", "other": "project-b"}
_HUB = "downstream"
_BUILT_INS = ("builtin-entitlement", "builtin-quota")

_LOOK_SECONDS = 0.05


class Process:
    """One operator under an identity of its own on every plane: what would be one `compute-manager`."""

    def __init__(self, who: str, identities: Identities, writes: Writes) -> None:
        self.fleet = Fleet()
        self.transports: list[HttpTransport] = []
        self.manager: Manager
        self._who = who
        self._identities = identities
        self._writes = writes

    def add(self, name: str, plane: str, role: str, serves_as: str = "", switches: Collection[str] = ()) -> None:
        kubeconfig = self._identities.kubeconfig(self._who, plane, serves_as or role, switches)
        transport = HttpTransport(load([kubeconfig]))
        self.transports.append(transport)
        self.fleet.add(Plane(name, role, transport, writes=self._writes, generator=random.Random(1)))


class RealFederation:
    """Controllers over HTTPS on the planes of the engine, under the generated roles. Propagation is Karmada's own."""

    def __init__(self, engine: Engine) -> None:
        self.writes = Writes()
        clock, identities = SystemClock(), Identities(engine)
        management = Process("management", identities, self.writes)
        management.add(HUB_PLANE, _HUB, HUB)
        for name, plane in PROJECTS.items():
            management.add(name, plane, PROJECT, switches=_BUILT_INS)
        management.manager = Manager(
            management.fleet,
            [
                EntitlementController(management.fleet, clock, cities=tuple(CELLS), limits=DEFAULT_LIMITS),
                QuotaBroker(management.fleet, clock),
                *management_controllers(management.fleet, clock, HUB_PLANE),
            ],
        )
        self._processes = [management]
        for cell in CELLS.values():
            process = Process("cell", identities, self.writes)
            process.add(cell, cell, CELL)
            process.add(HUB_PLANE, _HUB, HUB)
            for name, plane in PROJECTS.items():
                process.add(name, plane, CLAIMS, serves_as=PROJECT)
            process.manager = Manager(
                process.fleet,
                [
                    *cell_controllers(process.fleet, clock, lambda plane: plane.name),
                    SimulatedProvider(process.fleet, clock, BEHAVIOUR),
                ],
            )
            self._processes.append(process)
        # The test itself looks everywhere, as the administrator.
        self._admin: list[HttpTransport] = []
        self.hub = self._client(engine, HUB_PLANE, _HUB)
        self.cells = {city: self._client(engine, cell, cell) for city, cell in CELLS.items()}
        self._projects = {name: self._client(engine, name, plane) for name, plane in PROJECTS.items()}
        self._runs: list[asyncio.Task[None]] = []

    def _client(self, engine: Engine, name: str, plane: str) -> Client:
        transport = HttpTransport(load([engine.kubeconfig(plane)]))
        self._admin.append(transport)
        return Client(name, transport)

    def project_client(self, project: str) -> Client:
        return self._projects[project]

    async def start(self) -> None:
        self._runs = [asyncio.create_task(process.manager.run()) for process in self._processes]
        for project, client in self._projects.items():
            await prepare_project(client)
            await self.until(partial(self._offers, client), 60, f"{project} has cities")
        await self.clear()

    async def _offers(self, client: Client) -> bool:
        return len((await client.list(LOCATION_BINDING)).items) == len(CELLS)

    async def clear(self) -> None:
        """Deletes every workload and waits until nothing of it is left on any plane; leftovers are a failure."""
        for client in self._projects.values():
            for workload in (await client.list(WORKLOAD)).items:
                try:
                    await client.delete(WORKLOAD, workload.name, workload.namespace)
                except NotFound:
                    continue
        await self.until(self._is_clear, 90, "nothing is left on any plane")

    async def _is_clear(self) -> bool:
        for client in (*self._projects.values(), self.hub, *self.cells.values()):
            if (await client.list(WORKLOAD_DEPLOYMENT)).items or (await client.list(INSTANCE)).items:
                return False
        for client in self._projects.values():
            if (await client.list(WORKLOAD)).items or (await client.list(RESOURCE_CLAIM)).items:
                return False
        return not (await self.hub.list(PROPAGATION_POLICY)).items

    async def stop(self) -> None:
        await self.clear()
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        for transport in [*self._admin, *(one for process in self._processes for one in process.transports)]:
            await transport.close()
        self._check()

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float, what: str) -> None:
        try:
            async with asyncio.timeout(within):
                while True:
                    if await condition():
                        break
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            last = "\n  ".join(self.writes.last)
            raise AssertionError(f"{what} did not come true within {within} s; last writes:\n  {last}") from None
        self._check()

    def _check(self) -> None:
        for process in self._processes:
            for controller in process.manager.controllers.values():
                for crash in controller.crashes:
                    raise crash
