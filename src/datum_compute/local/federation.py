"""All planes and controllers of a federation in one process. Entry point: `Federation`."""

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any

from datum_compute.api.external import CLUSTER, LOCATION_BINDING
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.propagation import NamespacePropagation, Propagation
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import InProcess
from datum_compute.operator.wiring import cell_controllers, management_controllers
from datum_compute.providers.simulated import Behaviour, SimulatedProvider
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.writes import Writes

HUB_PLANE = "hub"


class Federation:
    """`cities` maps a city code to the name of the cell that serves it. `run` works until it is cancelled."""

    def __init__(
        self,
        engine: Engine,
        *,
        projects: Iterable[str],
        cities: Mapping[str, str],
        clock: Clock,
        generator: random.Random,
        behaviour: Behaviour,
    ) -> None:
        self.engine = engine
        self.projects = tuple(projects)
        self.cities = dict(cities)
        self.writes = Writes()
        fleet = Fleet()
        self.provider = SimulatedProvider(fleet, clock, behaviour)
        self.manager = Manager(
            fleet,
            [
                *management_controllers(fleet, clock),
                *cell_controllers(fleet, clock),
                self.provider,
                NamespacePropagation(fleet, HUB_PLANE),
                Propagation(fleet, HUB_PLANE),
            ],
        )
        roles = {HUB_PLANE: HUB} | dict.fromkeys(self.cities.values(), CELL) | dict.fromkeys(self.projects, PROJECT)
        for name, role in roles.items():
            transport = InProcess(engine.serve(name, role))
            fleet.add(Plane(name, role, transport, writes=self.writes, generator=generator))

    def client(self, plane: str) -> Client:
        return self.engine.client(plane)

    async def seed(self) -> None:
        """What must exist before anybody asks for anything; doing it again changes nothing."""
        for city, cell in self.cities.items():
            await _ensure(self.client(HUB_PLANE), CLUSTER, CLUSTER.body(cell, labels={TOPOLOGY_CITY: city}))
        for project in self.projects:
            await _ensure(self.client(project), NAMESPACE, NAMESPACE.body("default"))
            for city in self.cities:
                await _ensure(self.client(project), LOCATION_BINDING, _location(city))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.engine.run(), name="engine")
            tasks.create_task(self.manager.run(), name="manager")


def _location(city: str) -> Json:
    name = city.lower()
    spec = {
        "locationRef": {"name": name},
        "locationClassName": "datum-managed",
        "displayName": city,
        "topology": {TOPOLOGY_CITY: city},
    }
    return LOCATION_BINDING.body(name) | {"spec": spec}


async def _ensure(client: Client, kind: Kind[Any], body: Json) -> None:
    try:
        await client.create(kind, body)
    except AlreadyExists:
        return
