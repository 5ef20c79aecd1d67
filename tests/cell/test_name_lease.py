"""Only one cluster uses a configured cell name: the Lease on the hub, and what is written without it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import execution_space
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.cell.name_lease import LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, NameLease
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import CELL, CLAIMS, HUB, PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import LEASE, NAMESPACE
from datum_compute.kube.meta import Json, as_dict
from datum_compute.local.engine import compute_engine
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import Faults, calls
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.cell.site import FINALIZERS, GROUP, LABELS, NAMESPACE_NAME, SPEC
from tests.events import warnings

NAME = "dfw-1"
SPACE = execution_space(NAME)


class Process:
    """One compute-manager of a cell."""

    def __init__(self, world: "World", cell: str) -> None:
        self.writes = Writes()
        self.fleet = Fleet()
        self.faults: dict[str, Faults] = {}
        self.registry = CollectorRegistry()
        simulation = world.simulation
        for name, role in {cell: CELL, "hub": HUB, "demo": CLAIMS}.items():
            server = world.engine.serve(name, PROJECT if role == CLAIMS else role)
            self.faults[name] = Faults(InProcess(server), simulation.random)
            plane = Plane(name, role, self.faults[name], writes=self.writes, generator=simulation.random)
            self.fleet.add(plane)
        self.name_lease = NameLease(self.fleet, simulation, NAME, registry=self.registry)
        controllers = cell_controllers(self.fleet, simulation, lambda plane: NAME)
        self.manager = Manager(self.fleet, [self.name_lease, *controllers], simulation)
        self.running = asyncio.create_task(self.manager.run())

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        for controller in self.manager.controllers.values():
            assert controller.crashes == []

    def hub_writes(self) -> int:
        return sum(
            count for write, count in self.writes.counts.items() if write.plane == "hub" and write.kind == "Instance"
        )


class World:
    """One hub, one project, and two cells with one Instance each."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.processes: dict[str, Process] = {}
        roles = {"hub": HUB, "demo": PROJECT, "a": CELL, "b": CELL}
        for name, role in roles.items():
            self.engine.serve(name, role)
        self.hub, self.demo, self.a, self.b = (self.engine.client(name) for name in roles)
        self._run: asyncio.Task[None]

    async def prepare(self) -> None:
        self._run = asyncio.create_task(self.engine.run())
        await self.demo.create(NAMESPACE, NAMESPACE.body("default"))
        await self.hub.create(NAMESPACE, NAMESPACE.body(SPACE))
        for cell in (self.a, self.b):
            for name in ("default", "kube-system"):
                await cell.create(NAMESPACE, NAMESPACE.body(name))
        for client in (self.hub, self.a, self.b):
            await client.create(NAMESPACE, NAMESPACE.body(NAMESPACE_NAME, labels=hub_labels("demo", "default")))

    async def instance(self, cell: Client, deployment: str) -> None:
        """With its deployment on the hub."""
        spec: Json = {
            "workloadRef": {"name": "hello", "uid": "uid-of-hello"},
            "placementName": "main",
            "cityCode": "DFW",
            "template": {"metadata": {"labels": {"app": "hello"}}, "spec": SPEC},
            "scaleSettings": {"minReplicas": 1},
        }
        body = WORKLOAD_DEPLOYMENT.body(deployment, NAMESPACE_NAME)
        await self.hub.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec})
        labels = LABELS | {f"{GROUP}/workload-deployment-name": deployment, f"{GROUP}/instance-index": "0"}
        controller = {"templateHash": "0123456789", "schedulingGates": [{"name": "Quota"}]}
        body = INSTANCE.body(f"{deployment}-0", NAMESPACE_NAME, labels=labels, finalizers=list(FINALIZERS))
        await cell.create(INSTANCE, body | {"spec": SPEC | {"controller": controller}})

    def start(self, cell: str) -> Process:
        self.processes[cell] = Process(self, cell)
        return self.processes[cell]

    async def lease(self) -> Json:
        return as_dict((await self.hub.get(LEASE, NAME, SPACE)).spec_json)

    async def identity(self, cell: Client) -> str:
        return (await cell.get(NAMESPACE, "kube-system")).metadata.uid

    async def copies(self) -> list[str]:
        return sorted(copy.name for copy in (await self.hub.list(INSTANCE)).items)

    async def claims(self) -> list[str]:
        return sorted(claim.name for claim in (await self.demo.list(RESOURCE_CLAIM)).items)

    async def grant(self, name: str) -> None:
        claim = await self.demo.get(RESOURCE_CLAIM, name, "default")
        now = self.simulation.now()
        granted = conditions.condition("Granted", "True", "QuotaAvailable", "granted", generation=1, now=now)
        await self.demo.replace_status(RESOURCE_CLAIM, claim, {"conditions": conditions.to_json([granted])})

    async def stop(self) -> None:
        for process in self.processes.values():
            await process.end()
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)


@pytest.fixture
def world(runner: asyncio.Runner, simulation: Simulation) -> Iterator[World]:
    async def build() -> World:
        world = World(simulation)
        await world.prepare()
        return world

    world = runner.run(build())
    yield world
    runner.run(world.stop())


def that(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return condition()

    return holds


async def test_two_cells_with_one_name_do_not_fight(world: World) -> None:
    await world.instance(world.a, "web")
    await world.instance(world.b, "api")
    first = world.start("a")
    await world.simulation.advance(1)
    second = world.start("b")
    await world.simulation.advance(65)
    assert await world.copies() == ["web-0"]
    assert await world.claims() == ["instance-web-0"]
    assert first.hub_writes() < 10
    assert (await world.lease())["holderIdentity"] == await world.identity(world.a)
    assert (first.name_lease.held, second.name_lease.held) == (True, False)


async def test_a_cell_without_its_name_keeps_working_locally_and_reports_the_holder(world: World) -> None:
    await world.instance(world.b, "api")
    world.start("a")
    await world.simulation.advance(1)
    second = world.start("b")
    await world.simulation.advance(65)
    holder = await world.identity(world.a)
    sentence = (
        f'The cell name "{NAME}" is held by another cluster, whose namespace kube-system has uid {holder}; '
        "give one of the two another discovery.clusterName"
    )
    instance = await world.b.get(INSTANCE, "api-0", NAMESPACE_NAME)
    granted = conditions.find(conditions.of(instance), "QuotaGranted")
    assert granted is not None
    assert (granted.reason, granted.message) == (
        "QuotaMisconfigured",
        "The site cannot ask for quota, because another cluster has its name",
    )
    assert [(event.reason, event.message) for event in await warnings(world.b, "kube-system")] == [
        ("CellNameTaken", sentence)
    ]
    assert second.name_lease.obstacle == sentence
    assert second.registry.get_sample_value("compute_cell_name_held", {"name": NAME}) == 0


async def test_replicas_and_restarts_of_one_cell_share_the_name(world: World) -> None:
    first = world.start("a")
    await world.simulation.advance(1)
    await first.end()
    again = world.start("a")
    await world.simulation.settle()
    assert again.name_lease.held
    assert (await world.lease())["leaseTransitions"] == 0


async def test_a_name_is_taken_over_once_its_lease_has_expired(world: World) -> None:
    await world.instance(world.b, "api")
    first = world.start("a")
    await world.simulation.advance(1)
    second = world.start("b")
    await world.simulation.advance(RETRY_SECONDS)
    await first.end()
    await world.simulation.until(that(lambda: second.name_lease.held), within=LEASE_SECONDS + 1)
    await world.simulation.advance(31)  # failed passes run again by then
    assert await world.copies() == ["api-0"]
    assert await world.claims() == ["instance-api-0"]


async def test_a_holder_without_the_hub_stops_writing_before_another_may_take_over(world: World) -> None:
    first = world.start("a")
    await world.simulation.advance(1)
    first.faults["hub"].take_away()
    await world.simulation.advance(RENEW_SECONDS + RETRY_SECONDS)
    assert not first.name_lease.held
    await world.simulation.advance(3600)
    second = world.start("b")
    await world.simulation.advance(LEASE_SECONDS)
    assert second.name_lease.held
    first.faults["hub"].bring_back()
    await world.simulation.advance(RETRY_SECONDS)
    assert not first.name_lease.held
    assert (await world.lease())["holderIdentity"] == await world.identity(world.b)


async def test_a_site_claims_quota_even_while_its_hub_is_unreachable(world: World) -> None:
    """Nobody can take the name over without the hub either, as far as this cell can know."""
    first = world.start("a")
    await world.simulation.advance(1)
    first.faults["hub"].take_away()
    await world.simulation.advance(LEASE_SECONDS * 2)
    await world.instance(world.a, "web")
    await world.simulation.advance(1)
    assert await world.claims() == ["instance-web-0"]


async def test_a_site_that_starts_without_its_hub_claims_quota(world: World) -> None:
    await world.instance(world.a, "web")
    first = Process(world, "a")
    world.processes["a"] = first
    first.faults["hub"].take_away()
    await world.simulation.advance(30)
    assert not first.name_lease.held
    assert await world.claims() == ["instance-web-0"]


async def test_a_name_that_no_cluster_of_the_hub_has_is_not_held(world: World) -> None:
    await world.hub.delete(NAMESPACE, SPACE)
    await world.instance(world.a, "web")
    first = world.start("a")
    await world.simulation.advance(30)
    assert first.name_lease.obstacle == (
        f'The cell name "{NAME}" is not held: the hub has no namespace {SPACE}; '
        "discovery.clusterName must be the name of the cell's Cluster"
    )
    assert await world.copies() == []


async def test_a_missing_permission_is_named(world: World) -> None:
    first = world.start("a")
    first.faults["hub"].refuse(calls(path="/leases"), Forbidden("not yours"))
    await world.simulation.advance(30)
    assert first.name_lease.obstacle == (
        f'The cell name "{NAME}" is not held: the cell may not write Leases in {SPACE} on the hub; '
        "bind compute-cell-on-hub-execution-space"
    )
    assert [event.reason for event in await warnings(world.a, "kube-system")] == ["CellNameNotHeld"]


async def test_at_rest_only_the_lease_is_renewed(world: World) -> None:
    await world.instance(world.a, "web")
    first = world.start("a")
    await world.simulation.advance(1)
    await world.grant("instance-web-0")
    await world.simulation.advance(30)
    revision, writes = world.engine.store.revision, first.writes.total()
    await world.simulation.advance(3600)
    assert first.writes.total() == writes
    renewals = world.engine.store.revision - revision
    assert renewals == pytest.approx(3600 / RETRY_SECONDS, abs=1)


async def test_a_deleted_lease_is_created_again(world: World) -> None:
    first = world.start("a")
    await world.simulation.advance(1)
    await world.hub.delete(LEASE, NAME, SPACE)
    await world.simulation.advance(RETRY_SECONDS)
    assert first.name_lease.held
    assert (await world.lease())["holderIdentity"] == await world.identity(world.a)
