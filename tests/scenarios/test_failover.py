"""Two management replicas, one of which leads: it hands over, and if it is killed, nothing is lost."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from datum_compute.api.accounts import NAMESPACE
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import WORKLOAD_NAME
from datum_compute.api.permissions import MANAGEMENT_LEASE
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.kube.client import Client
from datum_compute.kube.kinds import LEASE
from datum_compute.kube.meta import as_dict
from datum_compute.platform.grants import DEFAULT_LIMITS
from tests.conftest import ENGINE, LONG
from tests.scenarios.federation import Federation
from tests.scenarios.managers import MANAGEMENT, Managers, Running
from tests.scenarios.real import RealFederation

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not ENGINE, reason="needs the real engine: make test-engine")]

LOAD_SECONDS = 120.0
KILL_SECONDS = 10.0
KILLS = 5  # at the least: a lease that nobody lets go of is taken over after 15 s, so not every 10 s finds a leader
REPLICAS = ("management-a", "management-b")
CITIES = ("DFW", "ORD")
AFTERWARDS = 180.0


@pytest.fixture
def pair(federation: Federation, managers: Managers) -> Iterator["Pair"]:
    """In place of the one manager that other scenarios have."""
    managers.end(MANAGEMENT)
    pair = Pair(managers)
    try:
        pair.start()
        yield pair
    finally:
        pair.close()
        managers.start()


class Pair:
    def __init__(self, managers: Managers) -> None:
        self._managers = managers
        self._running: dict[str, Running] = {}
        self.kills = 0

    def start(self) -> None:
        self._running = self._managers.replicas(*REPLICAS)
        for manager in self._running.values():
            manager.until_ready()

    def leader(self) -> str:
        leading = [name for name, manager in self._running.items() if manager.leads()]
        assert len(leading) < 2, "two lead at once"
        return leading[0] if leading else ""

    def kill_leader(self) -> None:
        """Nothing is killed while a dead leader's lease has not run out yet. What has ended is started again."""
        if leader := self.leader():
            self._running[leader].close()
            self.kills += 1
        ended = [name for name, manager in self._running.items() if manager.process.poll() is not None]
        self._running |= self._managers.replicas(*ended)

    def stop(self, name: str) -> int:
        """As whoever runs it would; returns how it ended."""
        return self._running.pop(name).terminate()

    def check(self) -> None:
        for manager in self._running.values():
            assert manager.process.poll() is None, manager.last_lines()
            assert not manager.total("controller_runtime_reconcile_panics_total"), manager.last_lines()

    def close(self) -> None:
        for manager in self._running.values():
            manager.close()


class Load:
    """Creates, changes and deletes workloads until it is told to stop; knows what there should be then."""

    def __init__(self, federation: Federation) -> None:
        self._project = federation.project()
        self._random = random.Random(1)
        self._made = 0
        self.operations = 0
        self.expected: dict[str, int] = {}  # replicas by workload

    async def run(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            await self._one()
            self.operations += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), 0.5)

    async def _one(self) -> None:
        project, names = self._project, sorted(self.expected)
        match self._random.choice(["make", "change", "scale", "remove"]) if len(names) > 3 else "make":
            case "make" if len(names) < 12:
                self._made += 1
                name = f"load-{self._made}"
                await project.deploy(name, [_city(name)])
                self.expected[name] = 1
            case "change":
                await project.set_image(self._random.choice(names), f"registry.example/hello:{self.operations}")
            case "scale":
                name = self._random.choice(names)
                self.expected[name] = 3 - self.expected[name]
                await project.place(name, [_city(name)], self.expected[name])
            case _:
                name = self._random.choice(names)
                await project.delete(name)
                del self.expected[name]


def _city(name: str) -> str:
    return CITIES[int(name.rpartition("-")[2]) % len(CITIES)]


async def _until_led(federation: Federation, pair: Pair) -> str:
    found: list[str] = []

    async def led() -> bool:
        found[:] = [await asyncio.to_thread(pair.leader)]
        return bool(found[0])

    await federation.until(led, "one leads")
    return found[0]


async def _by_workload(client: Client, names: dict[str, int]) -> dict[str, int]:
    """How many Instances each has, also those that it should not have."""
    counts = dict.fromkeys(names, 0)
    for instance in (await client.list(INSTANCE)).items:
        workload = instance.metadata.labels.get(WORKLOAD_NAME, f"? {instance.name}")
        counts[workload] = counts.get(workload, 0) + 1
    return counts


async def test_a_leader_renews_its_lease_and_hands_it_over_when_it_is_stopped(
    federation: Federation, pair: Pair
) -> None:
    project = federation.project()
    first = await _until_led(federation, pair)
    renewals: set[str] = set()

    async def renewed() -> bool:
        lease = await project.client.get(LEASE, MANAGEMENT_LEASE, NAMESPACE)
        renewals.add(as_dict(lease.spec_json)["renewTime"])
        return len(renewals) > 2

    await federation.until(renewed, "the lease is renewed")
    assert pair.leader() == first
    assert await asyncio.to_thread(pair.stop, first) == 0
    assert await _until_led(federation, pair) != first
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    await asyncio.to_thread(pair.check)


@pytest.mark.skipif(not LONG, reason="takes two minutes and more: make test-engine-long")
@pytest.mark.timeout(900)
async def test_a_leader_killed_every_ten_seconds_under_load_loses_doubles_and_leaves_nothing(
    federation: Federation, pair: Pair
) -> None:
    assert isinstance(federation.engine, RealFederation)
    project, load, stopped = federation.project(), Load(federation), asyncio.Event()
    await federation.engine.allow({resource: 10 * limit for resource, limit in DEFAULT_LIMITS.items()})

    await _until_led(federation, pair)
    working = asyncio.create_task(load.run(stopped))
    try:
        for _ in range(int(LOAD_SECONDS / KILL_SECONDS)):
            await asyncio.sleep(KILL_SECONDS)
            await asyncio.to_thread(pair.kill_leader)
    finally:
        stopped.set()
        await working
    assert pair.kills >= KILLS
    expected = load.expected

    for name, replicas in expected.items():
        await project.until_ready(name, replicas, AFTERWARDS)

    async def exact() -> bool:
        home = await project.hub_namespace()
        copies = (await federation.hub.list(WORKLOAD_DEPLOYMENT, home)).items
        policies = (await federation.hub.list(PROPAGATION_POLICY, home)).items
        cells = [await _by_workload(federation.cell(city).client, {}) for city in CITIES]
        claims = (await project.client.list(RESOURCE_CLAIM)).items
        return (
            {copy.name for copy in copies} == {f"{name}-main-{_city(name).lower()}" for name in expected}
            and {item.name for item in policies} == {f"city-{_city(name).lower()}" for name in expected}
            and cells[0] | cells[1] == expected
            and not cells[0].keys() & cells[1].keys()
            and await _by_workload(federation.hub, expected) == expected
            and await _by_workload(project.client, expected) == expected
            and len(claims) == sum(expected.values())
        )

    await federation.until(exact, f"all planes have exactly {expected}", AFTERWARDS)
    await asyncio.to_thread(pair.check)
    print(f"{load.operations} operations, {pair.kills} leaders killed, {len(expected)} workloads left")

    for name in expected:
        await project.delete(name)

    async def nothing_left() -> bool:
        for client in (project.client, federation.hub, *(federation.cell(city).client for city in CITIES)):
            if (await client.list(WORKLOAD_DEPLOYMENT)).items or (await client.list(INSTANCE)).items:
                return False
        return not (await project.client.list(RESOURCE_CLAIM)).items

    await federation.until(nothing_left, "nothing is left of any of them", AFTERWARDS)
