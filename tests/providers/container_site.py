"""Cells whose Instances run in an engine in memory; the test plays everybody else. Entry points: `Site`, `Notes`."""

from collections.abc import Sequence
from typing import Any

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CITY_CODE, LOCAL, PLACEMENT_NAME, WORKLOAD_NAME
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.lines import Line, Origin
from datum_compute.federation.roles import CELL
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.providers.containers.provider import ContainersProvider
from datum_compute.providers.containers.shape import Owner
from datum_compute.providers.engine.interface import ContainerEngine, EngineAway
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness
from tests.providers.engine_boxes import Box, Dialect, Image
from tests.providers.engine_model import EngineModel

COMPUTE = "compute.datumapis.com/instance-controller"
HASH = "0123456789"
ID = "abcdef0123456789abcdef0123456789"
OWNER = Owner(ID, "/home/user/.compute")
IMAGE = "hello:1"
WEB: Json = {"name": "web", "image": IMAGE, "ports": [{"name": "http", "port": 8080}]}
HELPER: Json = {"name": "helper", "image": IMAGE}


class Notes:
    """A sink that notes everything."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, str, str]] = []  # instance, generation, container
        self.ends: list[tuple[str, str, str]] = []
        self.lines: list[tuple[str, str]] = []  # instance, text
        self.silences: list[tuple[str, str]] = []
        self._latest: dict[Origin, list[Line]] = {}

    def started(self, origin: Origin, time: int) -> None:
        self.starts.append((origin.instance, origin.generation, origin.container))

    def ended(self, origin: Origin, time: int) -> None:
        self.ends.append((origin.instance, origin.generation, origin.container))

    def add(self, origin: Origin, lines: Sequence[Line]) -> None:
        self._latest.setdefault(origin, []).extend(lines)
        self.lines += [(origin.instance, line.text) for line in lines]

    def latest(self, origin: Origin, count: int) -> Sequence[Line]:
        return self._latest.get(origin, [])[-count:]

    def silent(self, city: str, reason: str) -> None:
        self.silences.append((city, reason))


class Site(ControllerHarness):
    """`connect` reaches the model, unless `hidden` is set."""

    def __init__(self, simulation: Simulation, model: EngineModel, cells: Sequence[str] = ("cell",)) -> None:
        self.model = model
        self.notes = Notes()
        self.hidden = False
        self.asked_for: list[str] = []  # images for which credentials were asked
        super().__init__(simulation, dict.fromkeys(cells, CELL), self.build)
        self.cell = cells[0]
        self.client = self.engine.client(self.cell)

    def build(self, fleet: Fleet) -> ContainersProvider:
        self.provider = ContainersProvider(self._connect, OWNER, self.clock, self.notes, self._credentials)
        return self.provider

    async def _connect(self) -> ContainerEngine:
        if self.hidden or self.model.away:
            raise EngineAway("no container engine answers")
        return self.model

    async def _credentials(self, image: str) -> str:
        self.asked_for.append(image)
        return f"key for {image}"

    async def start(self) -> None:
        for cell in self._planes:
            labels = hub_labels("demo", "default")
            await self.engine.client(cell).create(NAMESPACE, NAMESPACE.body("ns", labels=labels))
        await self.run()

    async def crash(self) -> None:
        """The process ends without a chance to clean up, and another begins."""
        await self.replace(self.build)
        await self.start_controllers()

    # Compute

    async def create(
        self, *containers: Json, name: str = "web-0", gates: Sequence[str] = (), cell: str = "", **spec: Any
    ) -> Instance:
        body = INSTANCE.body(
            name,
            "ns",
            finalizers=[COMPUTE],
            labels={WORKLOAD_NAME: "web", PLACEMENT_NAME: "default", CITY_CODE: "DFW", "app": "web"},
        )
        runtime = {
            "resources": {"instanceType": "datumcloud/d1-standard-2"},
            "sandbox": {"containers": list(containers) or [WEB]},
        }
        made = {
            "runtime": runtime,
            "networkInterfaces": [{"network": {"name": "default"}}],
            "controller": {"templateHash": HASH, "schedulingGates": [{"name": gate} for gate in gates]},
        } | spec
        instance = await self.engine.client(cell or self.cell).create(INSTANCE, body | {"spec": made})
        await self.settle()
        return instance

    async def patch(self, patch: Json, name: str = "web-0") -> None:
        await self.client.merge_patch(INSTANCE, name, "ns", patch)
        await self.settle()

    async def delete(self, name: str = "web-0") -> None:
        await self.client.delete(INSTANCE, name, "ns")
        await self.settle()

    async def gone(self, name: str = "web-0") -> None:
        """Compute removes its own finalizer, once the provider has removed its own."""
        instance = await self.instance(name)
        assert instance.metadata.finalizers == (COMPUTE,)
        await self.patch({"metadata": {"finalizers": None}}, name)

    # Reading

    async def instance(self, name: str = "web-0") -> Instance:
        return await self.client.get(INSTANCE, name, "ns")

    async def report(self, name: str = "web-0") -> tuple[str, str, str]:
        """Status, reason and message of Available; Programmed says the same."""
        status = (await self.instance(name)).status
        assert status is not None
        found = {condition.type: condition for condition in status.conditions}
        available, programmed = found["Available"], found["Programmed"]
        assert (available.status, available.message) == (programmed.status, programmed.message)
        return available.status, available.reason, available.message

    async def programmed(self) -> str:
        status = (await self.instance()).status
        assert status is not None
        return next(condition.reason for condition in status.conditions if condition.type == "Programmed")

    async def addresses(self) -> tuple[str, str]:
        status = (await self.instance()).status
        assert status is not None
        if not status.network_interfaces:
            return "", ""
        assignments = status.network_interfaces[0].assignments
        return assignments.network_ip, assignments.external_ip

    @property
    def boxes(self) -> list[Box]:
        """Containers of ours, in the order in which they were created."""
        return [box for box in self.model.boxes.values() if box.labels.get(LOCAL) == ID]

    @property
    def box(self) -> Box:
        [box] = self.boxes
        return box

    async def until_available(self) -> None:
        await self.simulation.advance(1.0)
        assert await self.report() == ("True", "Available", "The instance is available")


def model_of(dialect: Dialect, simulation: Simulation) -> EngineModel:
    model = EngineModel(dialect, simulation.now)
    model.images[IMAGE] = Image()
    return model
