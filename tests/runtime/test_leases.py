import random
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pytest
from structlog.testing import capture_logs

from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Forbidden, NotFound, ServerError, Unauthorized, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import LEASE
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Call
from datum_compute.runtime.caches.failures import REPEAT_SECONDS
from datum_compute.runtime.leases import JITTER, Election, LeaseLost, NotLeading
from datum_compute.runtime.testing.faults import Faults, calls
from datum_compute.runtime.testing.server import NAMESPACE, WIDGET, Server, background
from datum_compute.runtime.testing.simulation import Simulation

LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10, 2
LONGEST_RETRY = RETRY_SECONDS * JITTER
LEASES = calls(path="/leases")


class Skewed:
    """The clock of a machine that is wrong."""

    def __init__(self, simulation: Simulation, seconds: float) -> None:
        self._simulation = simulation
        self._seconds = seconds

    def now(self) -> datetime:
        return self._simulation.now() + timedelta(seconds=self._seconds)


class Candidate:
    def __init__(self, simulation: Simulation, server: Server, identity: str, skew: float = 0.0) -> None:
        self.faults = Faults(InProcess(server), simulation.random)
        client = Client("host", self.faults)
        self.election = Election(client, NAMESPACE, "lead", identity, Skewed(simulation, skew), random.Random(identity))
        self.led: list[float] = []
        self.ended: list[str] = []
        self._simulation = simulation

    async def run(self) -> None:
        while True:
            await self.election.acquire()
            self.led.append(self._simulation.time())
            try:
                await self.election.hold()
            except LeaseLost as error:
                self.ended.append(str(error))


def spec(server: Server) -> Json:
    value: Json = server.get("lead", LEASE)["spec"]
    return value


def that(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return condition()

    return holds


@pytest.fixture
def server(simulation: Simulation) -> Server:
    return Server()


# Taking and keeping it


async def test_the_first_candidate_leads_at_once_and_says_so(simulation: Simulation, server: Server) -> None:
    first = Candidate(simulation, server, "one")
    async with background(first.run()):
        await simulation.settle()
        assert first.election.leading
        assert spec(server) == {
            "holderIdentity": "one",
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": "2026-06-01T12:00:00.000000Z",
            "renewTime": "2026-06-01T12:00:00.000000Z",
            "leaseTransitions": 0,
        }


async def test_a_holder_renews_with_one_call_and_others_wait(simulation: Simulation, server: Server) -> None:
    first, second = Candidate(simulation, server, "one"), Candidate(simulation, server, "two")
    async with background(first.run()):
        await simulation.settle()
        async with background(second.run()):
            await simulation.advance(3600)
            assert first.led == [0.0]
            assert second.led == []
            assert spec(server)["acquireTime"] == "2026-06-01T12:00:00.000000Z"
            assert spec(server)["renewTime"] > "2026-06-01T12:59:57"
    assert {(call.method, call.path) for call in server.calls} == {
        ("GET", f"{LEASE.path(NAMESPACE)}/lead"),
        ("POST", LEASE.path(NAMESPACE)),
        ("PUT", f"{LEASE.path(NAMESPACE)}/lead"),
    }
    renewals = sum(call.method == "PUT" for call in server.calls)
    assert 3600 / LONGEST_RETRY <= renewals <= 3600 / RETRY_SECONDS


@pytest.mark.parametrize("seed", range(20))
async def test_of_many_candidates_one_leads(simulation: Simulation, server: Server, seed: int) -> None:
    candidates = [Candidate(simulation, server, str(number)) for number in range(5)]
    async with background(*(candidate.run() for candidate in candidates)):
        await simulation.advance(60)
        assert [candidate.election.leading for candidate in candidates].count(True) == 1
        assert sum(len(candidate.led) for candidate in candidates) == 1


async def test_fields_that_others_wrote_on_the_lease_stay(simulation: Simulation, server: Server) -> None:
    server.make("lead", LEASE, labels={"team": "east"}, annotations={"note": "kept"})
    server.change("lead", {"spec": {"strategy": "OldestEmulationVersion"}}, LEASE)
    async with background(Candidate(simulation, server, "one").run()):
        await simulation.advance(10)
    lease = server.get("lead", LEASE)
    assert (lease["metadata"]["labels"], lease["metadata"]["annotations"]) == ({"team": "east"}, {"note": "kept"})
    assert lease["spec"]["strategy"] == "OldestEmulationVersion"
    assert lease["spec"]["holderIdentity"] == "one"


# Handing it on


async def test_the_lease_of_a_dead_holder_is_taken_once_it_has_expired(simulation: Simulation, server: Server) -> None:
    first, second = Candidate(simulation, server, "one"), Candidate(simulation, server, "two")
    async with background(first.run()):
        await simulation.settle()
        async with background(second.run()):
            await simulation.advance(60)
            first.faults.take_away()
            died = simulation.time()
            await simulation.until(that(lambda: second.election.leading), within=LEASE_SECONDS + LONGEST_RETRY)
            assert simulation.time() - died > RENEW_SECONDS
            assert spec(server)["leaseTransitions"] == 1
            assert spec(server)["acquireTime"] == spec(server)["renewTime"]


@pytest.mark.parametrize("skew", [-86_400.0, -10.0, 10.0, 86_400.0])
async def test_differing_clocks_change_nothing(simulation: Simulation, server: Server, skew: float) -> None:
    first, second = Candidate(simulation, server, "one"), Candidate(simulation, server, "two", skew)
    async with background(first.run()):
        await simulation.settle()
        async with background(second.run()):
            await simulation.advance(600)
            assert (first.led, second.led) == ([0.0], [])
            first.faults.take_away()
            gone = simulation.time()
            await simulation.until(that(lambda: second.election.leading), within=LEASE_SECONDS + LONGEST_RETRY)
            assert simulation.time() - gone > LEASE_SECONDS - LONGEST_RETRY
            first.faults.bring_back()
            await simulation.advance(600)
            assert (len(first.led), len(second.led)) == (1, 1)


async def test_a_released_lease_is_taken_at_the_next_attempt(simulation: Simulation, server: Server) -> None:
    first, second = Candidate(simulation, server, "one"), Candidate(simulation, server, "two")
    await first.election.acquire()
    async with background(second.run()):
        await simulation.advance(5)
        await first.election.release()
        assert not first.election.leading
        assert (spec(server)["holderIdentity"], spec(server)["leaseDurationSeconds"]) == ("", 1)
        await simulation.until(that(lambda: second.election.leading), within=LONGEST_RETRY)
        assert spec(server)["leaseTransitions"] == 1


async def test_a_lease_of_another_is_not_released(simulation: Simulation, server: Server) -> None:
    first, second = Candidate(simulation, server, "one"), Candidate(simulation, server, "two")
    async with background(first.run()):
        await simulation.settle()
        before = server.versions(LEASE)
        await second.election.release()
        assert server.versions(LEASE) == before


async def test_the_duration_set_by_the_holder_counts(simulation: Simulation, server: Server) -> None:
    server.make("lead", LEASE)
    server.change("lead", {"spec": {"holderIdentity": "slow", "leaseDurationSeconds": 120, "renewTime": "x"}}, LEASE)
    first = Candidate(simulation, server, "one")
    async with background(first.run()):
        await simulation.advance(119)
        assert first.led == []
        await simulation.advance(2 + LONGEST_RETRY)
        assert first.election.leading


async def test_a_lease_that_was_deleted_leaves_its_holder_the_rest_of_its_time(
    simulation: Simulation, server: Server
) -> None:
    first, second = Candidate(simulation, server, "one"), Candidate(simulation, server, "two")
    async with background(first.run()):
        await simulation.settle()
        async with background(second.run()):
            await simulation.advance(30)
            server.remove("lead", LEASE)
            await simulation.advance(60)
            assert (first.led, second.led) == ([0.0], [])
            assert spec(server)["holderIdentity"] == "one"
            assert spec(server)["acquireTime"] == "2026-06-01T12:00:00.000000Z"


# Losing it


async def test_the_deadline_counts_from_the_sending_of_the_last_renewal(simulation: Simulation, server: Server) -> None:
    """Its answer may be late, and the time until it came belongs to the others."""
    first = Candidate(simulation, server, "one")
    async with background(first.run()):
        await simulation.settle()
        server.answering.clear()
        await simulation.advance(LONGEST_RETRY)
        sent = simulation.time()
        await simulation.advance(RENEW_SECONDS / 2 - LONGEST_RETRY)
        server.answering.set()
        await simulation.settle()
        assert first.election.leading
        first.faults.take_away()
        await simulation.until(that(lambda: bool(first.ended)), within=RENEW_SECONDS)
        assert simulation.time() <= sent + RENEW_SECONDS


async def test_a_holder_that_cannot_renew_stops_before_another_may_start(
    simulation: Simulation, server: Server
) -> None:
    first = Candidate(simulation, server, "one")
    async with background(first.run()):
        await simulation.settle()
        first.faults.take_away()
        await simulation.advance(RENEW_SECONDS - 0.001)
        assert first.ended == []
        await simulation.advance(0.001)
        assert not first.election.leading
        assert first.ended == [
            "lease default/lead could not be renewed for 10 s; another replica may take over",
        ]


async def test_a_call_that_hangs_leaves_time_for_another(simulation: Simulation, server: Server) -> None:
    first = Candidate(simulation, server, "one")
    async with background(first.run()):
        await simulation.settle()
        server.answering.clear()
        await simulation.advance(LONGEST_RETRY + RENEW_SECONDS / 2)
        server.answering.set()
        await simulation.advance(600)
        assert first.led == [0.0]


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_lost_answer_does_not_cost_the_lease(simulation: Simulation, server: Server, nth: int) -> None:
    """The write may have happened all the same; the next look shows it."""
    first = Candidate(simulation, server, "one")
    fault = first.faults.lose_answer(LEASES, nth)
    async with background(first.run()):
        await simulation.advance(60)
        assert fault.fired
        assert len(first.led) == 1
        assert first.election.leading


async def test_a_holder_that_sees_another_ends_at_once(simulation: Simulation, server: Server) -> None:
    first = Candidate(simulation, server, "one")
    async with background(first.run()):
        await simulation.settle()
        server.change("lead", {"spec": {"holderIdentity": "usurper"}}, LEASE)
        await simulation.advance(LONGEST_RETRY)
        assert first.ended == ["lease default/lead is held by usurper now"]
        assert not first.election.leading


async def test_a_lease_that_cannot_be_decoded_has_no_holder(simulation: Simulation, server: Server) -> None:
    server.make("lead", LEASE)
    server.change("lead", {"spec": {"holderIdentity": 7}}, LEASE)
    first = Candidate(simulation, server, "one")
    async with background(first.run()):
        await simulation.advance(60)
        assert first.led == []
        server.remove("lead", LEASE)
        await simulation.advance(LONGEST_RETRY)
        assert first.election.leading


# The guard


def write(path: str = WIDGET.path(NAMESPACE)) -> Call:
    return Call("POST", path)


async def test_only_the_leader_may_write(simulation: Simulation, server: Server) -> None:
    first, second = Candidate(simulation, server, "one"), Candidate(simulation, server, "two")
    async with background(first.run()):
        await simulation.settle()
        async with background(second.run()):
            await simulation.settle()
            first.election.check(write())
            with pytest.raises(NotLeading, match="two does not hold lease default/lead; nothing was written"):
                second.election.check(write())


async def test_a_replica_that_does_not_lead_may_write_only_its_own_lease(
    simulation: Simulation, server: Server
) -> None:
    election = Candidate(simulation, server, "one").election
    election.check(write(LEASE.path(NAMESPACE)))
    election.check(write(LEASE.path(NAMESPACE, "lead")))
    for path in (LEASE.path(NAMESPACE, "leader"), LEASE.path("other", "lead")):
        with pytest.raises(NotLeading):
            election.check(write(path))


async def test_the_guard_closes_by_itself_when_nothing_else_runs(simulation: Simulation, server: Server) -> None:
    """A process that was stopped for a minute must not write before it notices."""
    election = Candidate(simulation, server, "one").election
    await election.acquire()
    election.check(write())
    await simulation.advance(RENEW_SECONDS)
    with pytest.raises(NotLeading):
        election.check(write())


# What it is given


@pytest.mark.parametrize(
    ("lease", "renew", "retry"), [(10, 10, 2), (15, 10, 10), (15, 2.4, 2), (15, 10, 0), (15, 16, 2)]
)
def test_times_that_leave_no_margin_are_refused(lease: int, renew: float, retry: float) -> None:
    with pytest.raises(ValueError, match="must be longer"):
        Election(_nobody(), NAMESPACE, "lead", "one", _Unused(), random.Random(1), lease, renew, retry)


def test_a_candidate_needs_an_identity() -> None:
    with pytest.raises(ValueError, match="lease default/lead needs an identity"):
        Election(_nobody(), NAMESPACE, "lead", "", _Unused(), random.Random(1))


def _nobody() -> Client:
    return Client("host", InProcess(Server()))


class _Unused:
    def now(self) -> datetime:
        raise AssertionError


# What the log says


@pytest.mark.parametrize(
    ("error", "phase", "check"),
    [
        (Unavailable("refused"), "connect", "address"),
        (Unauthorized("expired"), "authentication", "token"),
        (Forbidden("no"), "authorization", "get, create and update leases"),
        (NotFound("no such namespace"), "lease", f"namespace {NAMESPACE}"),
        (ServerError("oops"), "lease", "log of the server"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ApiError) else str(value),
)
async def test_a_lease_that_cannot_be_taken_is_one_warning_that_says_what_to_check(
    simulation: Simulation, server: Server, error: ApiError, phase: str, check: str
) -> None:
    first = Candidate(simulation, server, "one")
    if phase == "connect":
        first.faults.take_away()
    else:
        first.faults.refuse(calls("POST" if isinstance(error, NotFound) else "", "/leases"), error)
    with capture_logs() as logs:
        async with background(first.run()):
            await simulation.advance(REPEAT_SECONDS - 10)
            warnings = [line for line in logs if line["log_level"] == "warning"]
            assert [(line["lease"], line["phase"]) for line in warnings] == [(f"{NAMESPACE}/lead", phase)]
            assert check in warnings[0]["check"]
            await simulation.advance(REPEAT_SECONDS)
    assert len([line for line in logs if line["log_level"] == "warning"]) == 2


async def test_waiting_for_another_leader_is_not_a_warning(simulation: Simulation, server: Server) -> None:
    first, second = Candidate(simulation, server, "one"), Candidate(simulation, server, "two")
    with capture_logs() as logs:
        async with background(first.run(), second.run()):
            await simulation.advance(60)
    assert [line for line in logs if line["log_level"] == "warning"] == []
