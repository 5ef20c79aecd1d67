"""Requests are counted by role, and whatever a server answers, the number of series is bounded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Unavailable, from_status
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime.telemetry.calls import Calls, Counted
from datum_compute.runtime.telemetry.table import CODES, NO_ANSWER, OTHER
from datum_compute.runtime.testing.server import NAMESPACE, WIDGET, Server
from datum_compute.runtime.testing.simulation import Simulation

GET = Call("GET", "/api")


class Scripted:
    """Answers every call with one code, after a while; 0 for no answer."""

    def __init__(self, code: int, simulation: Simulation) -> None:
        self.code = code
        self._simulation = simulation

    async def call(self, call: Call) -> Answer:
        await self._simulation.advance(3)
        if not self.code:
            raise Unavailable("nobody is there")
        return Answer(self.code, b"{}")

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.code >= 300:
            raise from_status(self.code, b"{}", "")

        async def lines() -> AsyncIterator[bytes]:
            yield b"{}"

        yield lines()


@pytest.mark.parametrize(("code", "label"), [(200, "200"), (409, "409"), (418, OTHER), (999, OTHER), (0, NO_ANSWER)])
async def test_a_call_is_counted_by_its_outcome_and_timed(simulation: Simulation, code: int, label: str) -> None:
    calls = Calls()
    transport = Counted(Scripted(code, simulation), calls, "east")
    try:
        await transport.call(GET)
    except ApiError:
        assert not code
    assert calls.counts == {(label, "GET", "east"): 1}
    assert (calls.seconds["GET", "east"].count, calls.seconds["GET", "east"].total) == (1, 3)


async def test_a_watch_is_counted_when_it_is_open_not_when_it_ends(simulation: Simulation) -> None:
    calls = Calls()
    async with Counted(Scripted(200, simulation), calls, "east").stream(GET) as lines:
        assert calls.counts == {("200", "GET", "east"): 1}
        await simulation.advance(100)
        assert [line async for line in lines] == [b"{}"]
    assert calls.counts == {("200", "GET", "east"): 1}
    assert calls.seconds["WATCH", "east"].total == 0


async def test_a_refused_watch_is_counted_by_its_code(simulation: Simulation) -> None:
    calls = Calls()
    with pytest.raises(ApiError):
        async with Counted(Scripted(403, simulation), calls, "east").stream(GET):
            pass
    assert calls.counts == {("403", "GET", "east"): 1}


async def test_methods_that_no_client_sends_make_no_series(simulation: Simulation) -> None:
    calls = Calls()
    await Counted(Scripted(200, simulation), calls, "east").call(Call("BREW", "/api"))
    assert calls.counts == {}


async def test_every_code_a_server_can_send_fits_the_table(simulation: Simulation) -> None:
    calls = Calls()
    for code in range(200, 600):
        calls.count("east", "GET", "GET", str(code), 0)
    assert {code for code, _, _ in calls.counts} <= set(CODES)


async def test_a_client_works_through_it(simulation: Simulation) -> None:
    server, calls = Server(), Calls()
    server.make("bread")
    client = Client("a", Counted(InProcess(server), calls, "east"))
    assert (await client.get(WIDGET, "bread", NAMESPACE)).name == "bread"
    assert await client.find(WIDGET, "cake", NAMESPACE) is None
    assert calls.counts == {("200", "GET", "east"): 1, ("404", "GET", "east"): 1}
