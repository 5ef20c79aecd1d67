"""All planes and controllers of a federation in one process. Entry points: `Federation`, `simulated`."""

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION, NETWORK
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.services import READY, SERVICE_ENTITLEMENT, SERVICE_OBJECT
from datum_compute.embedded.engine import Engine
from datum_compute.federation.lives import Recorder
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT, ROOT
from datum_compute.karmada.cluster_readiness import ClusterReadiness
from datum_compute.karmada.execution_spaces import ExecutionSpaces
from datum_compute.karmada.propagation import NamespacePropagation, Propagation
from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json
from datum_compute.kube.tracing import Tracer
from datum_compute.kube.transport import Transport
from datum_compute.operator.controllers import cell_controllers, management_controllers
from datum_compute.operator.discovery import ProjectDiscovery
from datum_compute.platform.addresses import AddressController
from datum_compute.platform.entitlement import EntitlementController
from datum_compute.platform.locations import location
from datum_compute.platform.networks import NetworkController
from datum_compute.platform.projects import ProjectController
from datum_compute.platform.quota import QuotaBroker
from datum_compute.providers.former import FormerProviders
from datum_compute.providers.simulated import Behaviour, SimulatedProvider
from datum_compute.runtime import Clock, Fleet, Manager, Plane, Reconciler, Writes

ROOT_PLANE = "root"
HUB_PLANE = "hub"


class Federation:
    """`cities` maps a city code to the name of the cell that serves it, `names` to what people call it.

    `provider` runs the Instances of all cells, also those that another one ran before. `run` works until cancelled.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        projects: Iterable[str],
        cities: Mapping[str, str],
        limits: Mapping[str, int],
        clock: Clock,
        generator: random.Random,
        provider: Reconciler,
        names: Mapping[str, str] = {},
        tracer: Tracer | None = None,
    ) -> None:
        self.engine = engine
        self.projects = tuple(projects)
        self.cities = dict(cities)
        self.writes = Writes(clock)
        self._generator = generator
        fleet = Fleet()
        discovery = ProjectDiscovery(fleet, self._project_plane)
        self.manager = Manager(
            fleet,
            [
                ProjectController(self._open_project, engine.leave),
                discovery,
                EntitlementController(cities=tuple(self.cities), names=names, limits=limits),
                QuotaBroker(),
                NetworkController(),
                AddressController(),
                *management_controllers(fleet, HUB_PLANE, networking=True),
                *cell_controllers(fleet, clock, lambda cell: cell.name, networking=True, is_gone=discovery.is_gone),
                provider,
                FormerProviders(provider.name.removesuffix("-provider")),
                NamespacePropagation(fleet, HUB_PLANE, engine.has_deleted),
                Propagation(fleet, HUB_PLANE, engine.has_deleted),
                ClusterReadiness(fleet),
                ExecutionSpaces(),
            ],
            clock,
            tracer=tracer,
        )
        for name, role in {ROOT_PLANE: ROOT, HUB_PLANE: HUB, **dict.fromkeys(self.cities.values(), CELL)}.items():
            fleet.add(self._plane(name, role))

    def client(self, plane: str) -> Client:
        return self.engine.client(plane)

    def transport(self, plane: str, role: str) -> Transport:
        """How the controllers reach a plane; tests put faults here."""
        return InProcess(self.engine.serve(plane, role))

    def _plane(self, name: str, role: str, also: Iterable[str] = ()) -> Plane:
        transport = self.transport(name, role)
        return Plane(name, role, transport, writes=self.writes, generator=self._generator, also=also)

    def _project_plane(self, name: str) -> Plane:
        return self._plane(name, PROJECT, also=[CLAIMS])

    def _open_project(self, name: str) -> Client:
        self.engine.serve(name, PROJECT)
        return self.client(name)

    async def seed(self) -> None:
        """Creates what must exist before anybody uses it; doing it again changes nothing."""
        for plane in (ROOT_PLANE, HUB_PLANE, *self.cities.values()):  # as every Kubernetes has it
            await _ensure(self.client(plane), NAMESPACE, NAMESPACE.body("default"))
        for city, cell in self.cities.items():
            await _ensure(self.client(HUB_PLANE), CLUSTER, CLUSTER.body(cell, labels={TOPOLOGY_CITY: city}))
            await _ensure(self.client(cell), LOCATION, location(city))
        for project in self.projects:
            await _ensure(self.client(ROOT_PLANE), PROJECT_KIND, PROJECT_KIND.body(project) | {"spec": {}})

    async def prepare(self, project: str) -> None:
        await prepare_project(self.client(project))

    async def is_ready(self, project: str) -> bool:
        found = await self.client(ROOT_PLANE).get(PROJECT_KIND, project)
        return found.status is not None and conditions.is_true(found.status.conditions, READY)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.engine.run(), name="engine")
            tasks.create_task(self.manager.run(), name="manager")


def simulated(behaviour: Behaviour, recorder: Recorder | None = None) -> SimulatedProvider:
    """Simulates Instances; they wait for their addresses, which are assigned here."""
    return SimulatedProvider(replace(behaviour, wait_for_addresses=True), recorder)


async def prepare_project(client: Client) -> None:
    """Requests compute in a project that is Ready, and creates the default network of workloads."""
    entitlement = SERVICE_ENTITLEMENT.body(SERVICE_OBJECT) | {"spec": {"serviceRef": {"name": SERVICE_OBJECT}}}
    await _ensure(client, SERVICE_ENTITLEMENT, entitlement)
    await _ensure(client, NETWORK, NETWORK.body("default", "default") | {"spec": {"ipam": {"mode": "Auto"}}})


async def _ensure(client: Client, kind: Kind[Any], body: Json) -> None:
    try:
        await client.create(kind, body)
    except AlreadyExists:
        return
