"""One API server as project and cell: each controller works only in the namespaces of its side."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.networking import LOCATION, NETWORK, NETWORK_BINDING
from datum_compute.cell.deployment import DeploymentController
from datum_compute.cell.instance import InstanceController
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import CELL, HUB, PROJECT
from datum_compute.federation.scope import PROJECT_NAMESPACES, is_in_cell
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.local.engine import compute_engine
from datum_compute.platform.locations import CellLocations
from datum_compute.platform.networks import NetworkController
from datum_compute.providers.pods.provider import PodsProvider
from datum_compute.providers.simulated import Behaviour, SimulatedProvider
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.sources import Source
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.providers.site import with_pods

OF_PROJECT, OF_CELL = "default", "ns-1"
LABELS = hub_labels("single", OF_PROJECT)
SPEC: Json = {
    "runtime": {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]},
    },
    "networkInterfaces": [{"network": {"name": "default"}}],
}
BINDING: Json = {"network": {"name": "default"}, "location": {"name": "dfw", "namespace": ""}}
DEPLOYMENT: Json = {
    "workloadRef": {"name": "hello", "uid": "uid-of-hello"},
    "placementName": "main",
    "cityCode": "DFW",
    "template": {"spec": SPEC},
    "scaleSettings": {"minReplicas": 1},
}


class Both:
    """A plane that is project and cell, with one controller of the cell and objects in two namespaces."""

    def __init__(self, simulation: Simulation, build: Callable[[Fleet], Reconciler]) -> None:
        self.simulation = simulation
        with with_pods():
            self.engine = compute_engine(clock=simulation, generator=simulation.random)
            transport = InProcess(self.engine.serve("single", CELL))
        self.client = self.engine.client("single")
        self.writes = Writes()
        self.fleet = Fleet()
        self.plane = Plane("single", PROJECT, transport, writes=self.writes, generator=simulation.random, also=[CELL])
        self.fleet.add(self.plane)
        self.manager = Manager(self.fleet, [build(self.fleet)], simulation)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.client.create(NAMESPACE, NAMESPACE.body(OF_PROJECT))
        await self.client.create(NAMESPACE, NAMESPACE.body(OF_CELL))
        for namespace in (OF_PROJECT, OF_CELL):
            await self.client.create(INSTANCE, INSTANCE.body("other-0", namespace) | {"spec": SPEC})
            await self.client.create(NETWORK_BINDING, NETWORK_BINDING.body("default", namespace) | {"spec": BINDING})
            body = WORKLOAD_DEPLOYMENT.body("web", namespace)
            await self.client.create(WORKLOAD_DEPLOYMENT, body | {"spec": DEPLOYMENT})
        self._tasks = [asyncio.create_task(self.engine.run()), asyncio.create_task(self.manager.run())]
        await self.settle()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.close()

    async def settle(self) -> None:
        await self.simulation.advance(1)
        for controller in self.manager.controllers.values():
            assert controller.crashes == []

    async def label(self) -> None:
        await self.client.merge_patch(NAMESPACE, OF_CELL, "", {"metadata": {"labels": LABELS}})
        await self.settle()

    async def traces(self, namespace: str) -> set[str]:
        """What the controller has done there."""
        found = set()
        instances = (await self.client.list(INSTANCE, namespace)).items
        if any(instance.metadata.finalizers or instance.metadata.generation > 1 for instance in instances):
            found.add("instances are held")
        if len(instances) > 1:
            found.add("instances are made")
        if (await self.client.list(NETWORK, namespace)).items:
            found.add("networks are made")
        return found


CONTROLLERS: dict[str, tuple[Callable[[Fleet], Reconciler], set[str]]] = {
    "deployment": (DeploymentController, {"instances are made", "instances are held"}),
    "instance": (lambda fleet: InstanceController(), {"instances are held"}),
    "simulated": (lambda fleet: SimulatedProvider(Behaviour()), {"instances are held"}),
    "pods": (lambda fleet: PodsProvider(), {"instances are held"}),
    "network": (lambda fleet: NetworkController(), {"networks are made"}),
}


@pytest.fixture(params=CONTROLLERS)
def case(
    request: pytest.FixtureRequest, runner: asyncio.Runner, simulation: Simulation
) -> Iterator[tuple[Both, set[str]]]:
    build, expected = CONTROLLERS[request.param]
    both = Both(simulation, build)
    runner.run(both.start())
    yield both, expected
    runner.run(both.stop())


async def test_a_namespace_belongs_to_the_cell_once_its_labels_say_that_it_came_from_the_hub(
    case: tuple[Both, set[str]],
) -> None:
    both, expected = case
    assert both.writes.total() == 0
    await both.label()
    assert await both.traces(OF_CELL) == expected
    assert await both.traces(OF_PROJECT) == set()


async def test_a_projects_request_does_not_make_a_cell_serve_a_city(
    runner: asyncio.Runner, simulation: Simulation
) -> None:
    both = Both(simulation, lambda fleet: CellLocations())
    await both.start()
    assert (await both.client.list(LOCATION)).items == []
    await both.label()
    assert [location.name for location in (await both.client.list(LOCATION)).items] == ["dfw"]
    await both.stop()


async def test_everything_belongs_to_the_cell_on_a_plane_that_is_only_a_cell(simulation: Simulation) -> None:
    engine = compute_engine(clock=simulation, generator=simulation.random)
    plane = Plane("cell", CELL, InProcess(engine.serve("cell", CELL)), writes=Writes(), generator=simulation.random)
    assert is_in_cell(plane, "anything")
    engine.close()


class Recording:
    """A controller of projects that records its passes."""

    name = "recording"

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(PROJECT, INSTANCE, scope=PROJECT_NAMESPACES),)

    async def reconcile(self, pass_: Pass) -> None:
        self.requests.append(pass_.request)


@pytest.mark.parametrize(
    ("request_", "is_run"),
    [
        (Request("single", OF_PROJECT, "web"), True),
        (Request("single", OF_CELL, "web"), False),
        (Request("single", "", "cluster-wide"), True),
        (Request("single", "gone", "web"), True),
        (Request("hub", OF_CELL, "web"), True),
    ],
)
async def test_controllers_of_projects_leave_namespaces_of_the_cell_alone(
    simulation: Simulation, request_: Request, is_run: bool
) -> None:
    recording = Recording()
    both = Both(simulation, lambda fleet: recording)
    hub = InProcess(both.engine.serve("hub", HUB))
    both.fleet.add(Plane("hub", HUB, hub, writes=both.writes, generator=simulation.random))
    await both.start()
    await both.label()
    both.manager.controllers["recording"].enqueue(request_)
    await both.settle()
    assert recording.requests == ([request_] if is_run else [])
    await both.stop()


async def test_a_namespace_that_no_cache_has_yet_is_read_before_a_project_works_in_it(simulation: Simulation) -> None:
    both = Both(simulation, lambda fleet: Recording())
    await both.start()
    namespace = await both.client.get(NAMESPACE, OF_CELL)
    both.plane.informer(NAMESPACE).fold_delete(namespace)
    assert await PROJECT_NAMESPACES.includes(both.plane, OF_CELL)
    await both.client.merge_patch(NAMESPACE, OF_CELL, "", {"metadata": {"labels": LABELS}})
    assert not await PROJECT_NAMESPACES.includes(both.plane, OF_CELL)
    await both.stop()
