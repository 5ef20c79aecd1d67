import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from datum_compute.kube.client import Client
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import LEASE
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.leases import JITTER, Election, LeaseLost, NotLeading
from datum_compute.runtime.manager import GRACE_SECONDS, Manager
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.server import NAMESPACE, WIDGET, Server
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.conftest import count

LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10, 2
LONGEST_RETRY = RETRY_SECONDS * JITTER
TAKEOVER = LEASE_SECONDS + LONGEST_RETRY  # the last renewal is seen up to one look late


class Signer:
    """Writes the name of its replica on every widget, as often and as slowly as the test says."""

    name = "signer"

    def __init__(self, by: str) -> None:
        self._by = by
        self.times, self.pause = 1, 0.0
        self.stubborn = False  # goes on writing when it is cancelled, and when a write is refused
        self.tried: list[float] = []
        self.started: list[str] = []
        self.finished: list[str] = []

    def sources(self) -> Sequence[Source[Any]]:
        return (Source("east", WIDGET, itself),)

    async def reconcile(self, pass_: Pass) -> None:
        request = pass_.request
        self.started.append(request.name)
        for number in range(self.times):
            try:
                if self.pause:
                    await asyncio.sleep(self.pause)
                await self._sign(pass_, number)
            except (asyncio.CancelledError, NotLeading):
                if not self.stubborn:
                    raise
        self.finished.append(request.name)

    async def _sign(self, pass_: Pass, number: int) -> None:
        widget = pass_.get(WIDGET)
        if widget is not None and self._is_news(widget.spec_json, number):
            self.tried.append(asyncio.get_running_loop().time())
            await pass_.write.patch(widget, {"spec": {"by": self._by, "number": number}})

    def _is_news(self, spec: msgspec.Raw, number: int) -> bool:
        before = msgspec.json.decode(spec) if bytes(spec) else {}
        return before.get("by") != self._by or self.times > 1


class Replica:
    """One process. `way` is between it and the objects, `host` between it and its lease."""

    def __init__(self, simulation: Simulation, server: Server, name: str) -> None:
        self.name = name
        self.way = Faults(InProcess(server), simulation.random)
        self.host = Faults(InProcess(server), simulation.random)
        self.fleet = Fleet()
        self.fleet.add(Plane("a", "east", self.way, writes=Writes(), generator=simulation.random))
        client = Client("host", self.host)
        self.election = Election(client, NAMESPACE, "lead", name, simulation, simulation.random)
        self.signer = Signer(name)
        self.manager = Manager(self.fleet, [self.signer], simulation, election=self.election)
        self.task = asyncio.create_task(self.manager.run(), name=name)

    async def kill(self) -> None:
        """A power cut: nothing it sends arrives any more, without notice."""
        self.way.take_away()
        self.host.take_away()
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class World:
    """Two replicas; the first leads and the second waits with its caches filled."""

    def __init__(self, simulation: Simulation, server: Server) -> None:
        self.simulation = simulation
        self.server = server
        self.replicas: list[Replica] = []

    async def start(self) -> tuple[Replica, Replica]:
        leader = self._add("one")
        await self.simulation.settle()
        standby = self._add("two")
        await self.simulation.settle()
        assert (leader.election.leading, standby.election.leading) == (True, False)
        return leader, standby

    def _add(self, name: str) -> Replica:
        replica = Replica(self.simulation, self.server, name)
        self.replicas.append(replica)
        return replica

    async def stop(self) -> None:
        for replica in self.replicas:
            await replica.end()

    def signatures(self) -> list[str]:
        """Whose writes the server took, in its order; a new holder of the lease is `lease:` and its name."""
        signatures: list[str] = []
        holder = ""
        for object_ in self.server.history():
            spec = object_.get("spec", {})
            if "by" in spec:
                signatures.append(spec["by"])
            elif (new := spec.get("holderIdentity", "")) not in ("", holder):
                holder = new
                signatures.append(f"lease:{holder}")
        return signatures


@pytest.fixture
def server(simulation: Simulation) -> Server:
    return Server()


@pytest.fixture
def world(simulation: Simulation, server: Server) -> World:
    return World(simulation, server)


def that(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return condition()

    return holds


# Waiting


async def test_only_the_leader_runs_passes(world: World, server: Server) -> None:
    server.make("w")
    leader, standby = await world.start()
    assert (leader.signer.finished, standby.signer.started) == (["w", "w"], [])
    assert world.signatures() == ["lease:one", "one"]
    await world.stop()


async def test_a_standby_queues_each_object_once(world: World, server: Server, simulation: Simulation) -> None:
    for name in ("v", "w"):
        server.make(name)
    leader, standby = await world.start()
    leader.way.silence_watches()
    for _ in range(200):
        server.change("w")
        await simulation.settle()
    assert len(standby.manager.controllers["signer"].queue) == 2
    await world.stop()


# Taking over


async def test_the_standby_of_a_leader_that_died_acts_within_the_lease_time_on_warm_caches(
    world: World, server: Server, simulation: Simulation
) -> None:
    server.make("w")
    leader, _ = await world.start()
    await simulation.advance(60)
    await leader.kill()
    reads = len([call for call in server.calls if call.path == WIDGET.path()])
    await simulation.until(that(lambda: server.get("w")["spec"]["by"] == "two"), within=TAKEOVER)
    assert world.signatures() == ["lease:one", "one", "lease:two", "two"]
    assert len([call for call in server.calls if call.path == WIDGET.path()]) == reads  # neither list nor new watch
    await world.stop()


async def test_a_change_that_was_not_handled_is_handled_by_the_next_pass(
    world: World, server: Server, simulation: Simulation
) -> None:
    leader, _ = await world.start()
    await leader.kill()
    server.make("meanwhile")
    await simulation.until(that(lambda: "by" in server.get("meanwhile").get("spec", {})), within=TAKEOVER)
    await world.stop()


async def test_after_a_stop_the_standby_leads_at_its_next_attempt(
    world: World, server: Server, simulation: Simulation
) -> None:
    server.make("w")
    leader, standby = await world.start()
    leader.manager.stop()
    await leader.task
    await simulation.until(that(lambda: server.get("w")["spec"]["by"] == "two"), within=LONGEST_RETRY)
    assert standby.election.leading
    await world.stop()


async def test_a_cancelled_replica_releases_its_lease_too(world: World, server: Server, simulation: Simulation) -> None:
    leader, _ = await world.start()
    await leader.end()
    assert server.get("lead", LEASE)["spec"]["holderIdentity"] == ""
    await world.stop()


# Losing the lease


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("seed", range(count(4, 100)))
async def test_a_leader_cut_off_from_its_lease_writes_nothing_after_it_could_be_taken(
    world: World, server: Server, simulation: Simulation, seed: int, stubborn: bool
) -> None:
    """It still reaches the objects, and is in the middle of a pass that would write for another minute."""
    server.make("w")
    leader, standby = await world.start()
    leader.signer.times, leader.signer.pause, leader.signer.stubborn = 300, 0.2, stubborn
    server.change("w", {"spec": {"asked": 1}})
    await simulation.advance(simulation.random.uniform(0, 10))
    leader.host.take_away()
    with pytest.raises(LeaseLost):
        await leader.task
    lost = simulation.time()
    assert leader.signer.started.count("w") > leader.signer.finished.count("w")  # it was in mid-pass
    await simulation.until(that(lambda: standby.election.leading), within=TAKEOVER)
    taken_at = simulation.time()
    assert taken_at > lost
    await simulation.advance(60)
    assert (max(leader.signer.tried) > taken_at) is stubborn
    signatures = world.signatures()
    taken = signatures.index("lease:two")
    assert signatures[taken - 1] == "one"
    assert set(signatures[taken + 1 :]) == {"two"}
    await world.stop()


async def test_a_hanging_pass_does_not_keep_a_replica_running_that_lost_its_lease(
    world: World, server: Server, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = asyncio.Event()

    async def deaf(request: Request, pass_: Pass) -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    leader, standby = await world.start()
    monkeypatch.setattr(leader.signer, "reconcile", deaf)
    server.make("w")
    await simulation.settle()
    leader.host.take_away()
    with pytest.raises(LeaseLost):
        await leader.task
    await simulation.until(that(lambda: standby.election.leading), within=TAKEOVER)
    over.set()
    await world.stop()


async def test_a_replica_that_does_not_lead_cannot_write_in_any_way(
    world: World, server: Server, simulation: Simulation
) -> None:
    server.make("w")
    _, standby = await world.start()
    plane = standby.fleet.plane("a")
    [widget] = plane.informer(WIDGET).all()
    before = len(server.written)
    plane.events.normal("signer", widget, "Signed", "by two", now=simulation.now())
    await simulation.settle()
    assert plane.events.dropped == {"refused": 1}
    assert len(server.written) == before
    await world.stop()


# Stopping


async def test_a_stop_lets_running_passes_finish_and_starts_no_more(
    world: World, server: Server, simulation: Simulation
) -> None:
    leader, _ = await world.start()
    leader.signer.times, leader.signer.pause = 5, 1.0
    server.make("v")
    await simulation.settle()
    leader.manager.stop()
    await simulation.settle()
    server.make("w")
    await leader.task
    assert (leader.signer.started, leader.signer.finished) == (["v"], ["v"])
    assert simulation.time() == 5.0
    assert server.get("lead", LEASE)["spec"]["holderIdentity"] == ""
    await world.stop()


async def test_a_pass_that_does_not_finish_is_cancelled_after_the_grace(
    world: World, server: Server, simulation: Simulation
) -> None:
    leader, _ = await world.start()
    leader.signer.times, leader.signer.pause = 5, 60.0
    server.make("w")
    await simulation.settle()
    leader.manager.stop()
    await leader.task
    assert simulation.time() == GRACE_SECONDS
    assert (leader.signer.started, leader.signer.finished) == (["w"], [])
    await world.stop()


async def test_the_lease_is_renewed_while_passes_finish(world: World, server: Server, simulation: Simulation) -> None:
    leader, standby = await world.start()
    leader.signer.times, leader.signer.pause = 9, 1.0
    server.make("w")
    await simulation.settle()
    leader.manager.stop()
    await simulation.advance(8)
    assert (leader.election.leading, standby.election.leading) == (True, False)
    await leader.task
    assert leader.signer.finished == ["w"]
    await world.stop()


async def test_a_lease_lost_while_passes_finish_ends_them(world: World, server: Server, simulation: Simulation) -> None:
    leader, _ = await world.start()
    await simulation.advance(1)
    leader.signer.times, leader.signer.pause = 100, 1.0
    server.make("w")
    await simulation.advance(5)
    leader.host.take_away()
    await simulation.advance(4)
    leader.manager.stop()
    with pytest.raises(LeaseLost):
        await leader.task
    assert leader.signer.finished == []
    await world.stop()


async def test_a_standby_stops_at_once_and_takes_no_lease(world: World, simulation: Simulation) -> None:
    leader, standby = await world.start()
    standby.manager.stop()
    await standby.task
    assert simulation.time() == 0.0
    assert leader.election.leading
    await world.stop()


# Without an election


async def test_without_an_election_a_manager_works_at_once_and_stops_the_same_way(
    server: Server, simulation: Simulation
) -> None:
    server.make("w")
    fleet = Fleet()
    fleet.add(Plane("a", "east", InProcess(server), writes=Writes(), generator=simulation.random))
    signer = Signer("alone")
    manager = Manager(fleet, [signer], simulation)
    running = asyncio.create_task(manager.run())
    await simulation.settle()
    assert manager.working
    assert server.get("w")["spec"]["by"] == "alone"
    manager.stop()
    await running


async def test_a_defect_in_the_fleet_ends_the_manager(simulation: Simulation) -> None:
    class Broken(Fleet):
        async def run(self) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await Manager(Broken(), [], simulation).run()
