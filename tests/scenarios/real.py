"""The real engine for scenarios: Kubernetes and Karmada as `make engine-up` runs them, our controllers in this process.

The planes outlive a test, so each one starts by checking that the one before left nothing behind.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

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
from tests.scenarios.life import BEHAVIOUR

KUBECONFIGS = Path(__file__).parents[2] / ".engine" / "kubeconfigs"
HUB_PLANE = "hub"
CELLS = {"DFW": "pop-dfw", "ORD": "pop-ord"}
PROJECTS = {"demo": "control-plane", "other": "project-b"}
_PLANES = {HUB_PLANE: ("downstream", HUB), **{cell: (cell, CELL) for cell in CELLS.values()}}

_LOOK_SECONDS = 0.05


class RealFederation:
    """Controllers over HTTPS on the planes of the engine. Propagation is Karmada's own."""

    def __init__(self) -> None:
        self._transports: list[HttpTransport] = []
        self.writes = Writes()
        clock, fleet = SystemClock(), Fleet()
        self._manager = Manager(
            fleet,
            [
                EntitlementController(fleet, clock, cities=tuple(CELLS), limits=DEFAULT_LIMITS),
                QuotaBroker(fleet, clock),
                *management_controllers(fleet, clock, HUB_PLANE),
                *cell_controllers(fleet, clock, lambda cell: cell.name),
                SimulatedProvider(fleet, clock, BEHAVIOUR),
            ],
        )
        for name, (file, role) in _PLANES.items():
            fleet.add(self._plane(name, file, role))
        for name, file in PROJECTS.items():
            fleet.add(self._plane(name, file, PROJECT, also=(CLAIMS,)))
        self.hub = self._client(HUB_PLANE, _PLANES[HUB_PLANE][0])
        self.cells = {city: self._client(cell, cell) for city, cell in CELLS.items()}
        self._projects = {name: self._client(name, file) for name, file in PROJECTS.items()}
        self._run: asyncio.Task[None] | None = None

    def _transport(self, file: str) -> HttpTransport:
        transport = HttpTransport(load([KUBECONFIGS / f"{file}.yaml"]))
        self._transports.append(transport)
        return transport

    def _plane(self, name: str, file: str, role: str, also: tuple[str, ...] = ()) -> Plane:
        transport = self._transport(file)
        return Plane(name, role, transport, writes=self.writes, generator=random.Random(1), also=also)

    def _client(self, name: str, file: str) -> Client:
        return Client(name, self._transport(file))

    def project_client(self, project: str) -> Client:
        return self._projects[project]

    async def start(self) -> None:
        self._run = asyncio.create_task(self._manager.run(), name="controllers")
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
        assert self._run is not None
        await self.clear()
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        for transport in self._transports:
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
        for controller in self._manager.controllers.values():
            for crash in controller.crashes:
                raise crash
