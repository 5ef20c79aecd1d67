import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec import MsgspecError

from datum_compute.kube.calls import WatchEvent
from datum_compute.kube.client import Client
from datum_compute.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    ServerError,
    Timeout,
    TooManyRequests,
    Unavailable,
)
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.meta import Json, as_dict, decode
from datum_compute.kube.transport import Call
from datum_compute.runtime.testing.faults import (
    ENDLESS_VERSION,
    ODD_LABELS,
    ODD_SPEC,
    ODD_STATUS,
    ODD_VERSION,
    Faults,
    Match,
    Spoil,
    calls,
    merged,
    reads,
    watches,
    writes,
)
from datum_compute.runtime.testing.server import GADGET, NAMESPACE, WIDGET, Server, Widget
from datum_compute.runtime.testing.simulation import Simulation


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def faults(server: Server) -> Faults:
    return Faults(InProcess(server), random.Random(1))


@pytest.fixture
def client(faults: Faults) -> Client:
    return Client("p", faults)


class Listener:
    """What a watch has brought so far, and how it ended."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.times: list[float] = []
        self.specs: list[Json] = []
        self.end: Exception | str | None = None
        self.opened = asyncio.Event()
        self.first = asyncio.Event()

    async def listen(self, client: Client, after: int) -> None:
        try:
            async with client.watch(WIDGET, str(after), timeout_seconds=300) as events:
                self.opened.set()
                async for event in events:
                    self.take(event)
            self.end = "ended"
        except Unavailable as error:
            self.end = error

    def take(self, event: WatchEvent[Widget]) -> None:
        self.times.append(asyncio.get_running_loop().time())
        self.specs.append(as_dict(event.object.spec_json) if event.object is not None else {})
        self.names.append(event.object.name if event.object is not None else event.type)
        self.first.set()


@asynccontextmanager
async def listening(client: Client, server: Server) -> AsyncIterator[Listener]:
    listener = Listener()
    task = asyncio.create_task(listener.listen(client, server.revision))
    try:
        await listener.opened.wait()
        yield listener
    finally:
        task.cancel()
        await asyncio.wait([task])


# Calls


async def test_without_faults_calls_pass_through(client: Client, server: Server) -> None:
    made = await client.create(WIDGET, WIDGET.body("a", NAMESPACE))
    assert server.versions() == {"a": made.metadata.resource_version}


async def test_the_nth_matching_call_fails_before_it_reaches_the_server(
    client: Client, server: Server, faults: Faults
) -> None:
    faults.fail(calls("POST", "/widgets"), nth=2)
    await client.create(WIDGET, WIDGET.body("a", NAMESPACE))
    await client.create(GADGET, GADGET.body("a", NAMESPACE))
    await client.list(WIDGET)
    with pytest.raises(Unavailable) as caught:
        await client.create(WIDGET, WIDGET.body("b", NAMESPACE))
    assert caught.value.plane == "p"
    await client.create(WIDGET, WIDGET.body("c", NAMESPACE))
    assert set(server.versions()) == {"a", "c"}


async def test_a_lost_answer_leaves_the_call_done(client: Client, server: Server, faults: Faults) -> None:
    fault = faults.lose_answer(writes)
    await client.list(WIDGET)
    with pytest.raises(Timeout):
        await client.create(WIDGET, WIDGET.body("a", NAMESPACE))
    assert fault.fired
    assert set(server.versions()) == {"a"}


async def test_faults_count_independently(client: Client, server: Server, faults: Faults) -> None:
    armed = [faults.fail(writes, nth=nth) for nth in (1, 3, 5)]
    outcomes = []
    for name in "abcd":
        try:
            await client.create(WIDGET, WIDGET.body(name, NAMESPACE))
            outcomes.append("made")
        except Unavailable:
            outcomes.append("failed")
    assert outcomes == ["failed", "made", "failed", "made"]
    assert [fault.fired for fault in armed] == [True, True, False]


async def test_an_answer_under_way_is_lost_with_its_plane(
    client: Client, server: Server, faults: Faults, simulation: Simulation
) -> None:
    server.answering.clear()
    call = asyncio.create_task(client.create(WIDGET, WIDGET.body("a", NAMESPACE)))
    await simulation.settle()
    faults.take_away()
    server.answering.set()
    with pytest.raises(Timeout):
        await call
    assert server.has("a")


async def test_while_the_plane_is_away_no_call_reaches_it(client: Client, server: Server, faults: Faults) -> None:
    faults.take_away()
    with pytest.raises(Unavailable):
        await client.list(WIDGET)
    with pytest.raises(Unavailable):
        async with client.watch(WIDGET, "1", timeout_seconds=60):
            pass
    assert server.calls == []
    faults.bring_back()
    assert (await client.list(WIDGET)).items == []


async def test_a_plane_can_be_taken_away_with_the_nth_call(client: Client, server: Server, faults: Faults) -> None:
    crash = faults.take_away_after(writes, 2)
    await client.create(WIDGET, WIDGET.body("a", NAMESPACE))
    with pytest.raises(Timeout):
        await client.create(WIDGET, WIDGET.body("b", NAMESPACE))
    assert crash.fired
    assert server.has("b")
    with pytest.raises(Unavailable):
        await client.list(WIDGET)


@pytest.mark.parametrize("error", [Conflict("no"), Gone("no"), TooManyRequests("no"), ServerError("no")])
async def test_the_nth_matching_call_is_answered_with_an_error(
    client: Client, server: Server, faults: Faults, error: ApiError
) -> None:
    fault = faults.answer(writes, error, nth=2)
    await client.create(WIDGET, WIDGET.body("a", NAMESPACE))
    with pytest.raises(type(error)):
        await client.create(WIDGET, WIDGET.body("b", NAMESPACE))
    await client.create(WIDGET, WIDGET.body("c", NAMESPACE))
    assert fault.fired
    assert list(server.versions()) == ["a", "c"]


async def test_every_write_that_reached_the_server_is_recorded(client: Client, faults: Faults) -> None:
    faults.fail(writes, nth=2)
    faults.lose_answer(writes, nth=3)
    for name in "abc":
        with suppress(Unavailable, Timeout):
            await client.create(WIDGET, WIDGET.body(name, NAMESPACE))
    await client.list(WIDGET)
    assert [decode(call.body, Widget).name for call in faults.written] == ["a", "c"]


async def test_calls_are_refused_until_the_refusal_is_lifted(client: Client, server: Server, faults: Faults) -> None:
    refusal = faults.refuse(calls("POST", "/widgets"), Forbidden("not yours"))
    for _ in range(3):
        with pytest.raises(Forbidden, match="not yours"):
            await client.create(WIDGET, WIDGET.body("a", NAMESPACE))
    await client.create(GADGET, GADGET.body("a", NAMESPACE))
    assert refusal.times == 3
    refusal.lift()
    await client.create(WIDGET, WIDGET.body("a", NAMESPACE))
    assert list(server.versions()) == ["a"]


async def test_a_refusal_says_when_to_ask_again_as_a_server_does(client: Client, faults: Faults) -> None:
    faults.refuse(calls(), TooManyRequests("patience", retry_after=10))
    assert (await faults.call(Call("GET", WIDGET.path()))).retry_after == 10
    with pytest.raises(TooManyRequests) as listed:
        await client.list(WIDGET)
    with pytest.raises(TooManyRequests) as watched:
        async with client.watch(WIDGET, "0", timeout_seconds=300):
            pass
    for refused in (listed.value, watched.value):
        assert (refused.retry_after, refused.answered, refused.plane) == (10, True, "p")


@pytest.mark.parametrize(
    ("matches", "slow"),
    [(writes, {"create"}), (reads, {"list"}), (watches, {"watch"}), (calls(), {"create", "list", "watch"})],
)
async def test_a_slowed_call_takes_its_time_and_succeeds(
    client: Client, server: Server, faults: Faults, simulation: Simulation, matches: Match, slow: set[str]
) -> None:
    took = {}
    slowness = faults.slow_down(9, matches)

    began = simulation.time()
    await client.create(WIDGET, WIDGET.body("a", NAMESPACE))
    took["create"] = simulation.time() - began
    began = simulation.time()
    assert len((await client.list(WIDGET)).items) == 1
    took["list"] = simulation.time() - began
    began = simulation.time()
    async with client.watch(WIDGET, "0", timeout_seconds=300):
        took["watch"] = simulation.time() - began

    assert took == {verb: 9 if verb in slow else 0 for verb in took}
    slowness.lift()
    began = simulation.time()
    await client.create(WIDGET, WIDGET.body("b", NAMESPACE))
    await client.list(WIDGET)
    assert simulation.time() == began


async def test_a_poisoned_object_arrives_spoiled_wherever_it_is_sent_and_no_other_does(
    client: Client, server: Server, faults: Faults, simulation: Simulation
) -> None:
    poison = faults.poison(calls(path="/widgets"), "b", merged({"spec": {"size": "huge"}}))
    async with listening(client, server) as listener:
        for name in "abc":
            server.make(name)
        await simulation.settle()
    sizes = {widget.name: as_dict(widget.spec_json).get("size") for widget in (await client.list(WIDGET)).items}
    assert sizes == {"a": None, "b": "huge", "c": None}
    assert as_dict((await client.get(WIDGET, "b", NAMESPACE)).spec_json) == {"size": "huge"}
    assert [(name, spec.get("size")) for name, spec in zip(listener.names, listener.specs, strict=True)] == list(
        sizes.items()
    )
    poison.lift()
    assert as_dict((await client.get(WIDGET, "b", NAMESPACE)).spec_json) == {}


async def test_poison_can_make_an_object_unreadable(client: Client, server: Server, faults: Faults) -> None:
    server.make("a")
    faults.poison(calls(), "a", ODD_LABELS)
    with pytest.raises(ServerError, match="makes no sense"):
        await client.list(WIDGET)


@pytest.mark.parametrize("spoil", [ODD_SPEC, ODD_STATUS])
async def test_poison_can_stay_unnoticed_until_a_part_is_read(
    client: Client, server: Server, faults: Faults, spoil: Spoil
) -> None:
    server.make("a")
    faults.poison(calls(), "a", spoil)
    (widget,) = (await client.list(WIDGET)).items
    with pytest.raises(MsgspecError):
        as_dict(widget.spec_json), as_dict(widget.status_json)


async def test_poison_can_give_an_object_a_version_that_is_no_number(
    client: Client, server: Server, faults: Faults
) -> None:
    server.make("a")
    faults.poison(calls(), "a", ODD_VERSION)
    (widget,) = (await client.list(WIDGET)).items
    assert (widget.metadata.resource_version, widget.metadata.revision) == ("not-a-number", 0)


async def test_poison_can_give_an_object_a_version_too_long_to_parse(
    client: Client, server: Server, faults: Faults
) -> None:
    server.make("a")
    faults.poison(calls(), "a", ENDLESS_VERSION)
    answer = await faults.call(Call("GET", WIDGET.path()))
    (item,) = decode(answer.body, dict[str, Any])["items"]
    with pytest.raises(ValueError, match="digits"):
        int(item["metadata"]["resourceVersion"])


# Watches


@pytest.mark.parametrize("seed", range(5))
async def test_without_faults_a_watch_passes_through(
    client: Client, server: Server, simulation: Simulation, seed: int
) -> None:
    async with listening(client, server) as listener:
        for name in "abc":
            server.make(name)
        await simulation.settle()
        assert listener.names == ["a", "b", "c"]
        server.end_watches()
        await simulation.settle()
        assert listener.end == "ended"


async def test_the_nth_event_is_dropped_and_the_watch_goes_on(
    client: Client, server: Server, faults: Faults, simulation: Simulation
) -> None:
    faults.drop_event(calls(path="/widgets"), nth=2)
    async with listening(client, server) as listener:
        await asyncio.sleep(100)  # brings a bookmark, which is no event
        for name in "abc":
            server.make(name)
        await simulation.settle()
        assert listener.names == ["BOOKMARK", "a", "c"]


async def test_the_nth_event_comes_twice(
    client: Client, server: Server, faults: Faults, simulation: Simulation
) -> None:
    faults.duplicate_event(calls(path="/widgets"), nth=2)
    async with listening(client, server) as listener:
        for name in "abc":
            server.make(name)
        await simulation.settle()
        assert listener.names == ["a", "b", "b", "c"]


async def test_the_nth_event_comes_after_the_next(
    client: Client, server: Server, faults: Faults, simulation: Simulation
) -> None:
    faults.reorder_events(calls(path="/widgets"), nth=2)
    async with listening(client, server) as listener:
        for name in "abcd":
            server.make(name)
        await simulation.settle()
        assert listener.names == ["a", "c", "b", "d"]


async def test_watches_that_are_cut_break_and_can_be_opened_again(
    client: Client, server: Server, faults: Faults, simulation: Simulation
) -> None:
    async with listening(client, server) as listener:
        faults.cut_watches()
        await simulation.settle()
        assert isinstance(listener.end, Unavailable)
    async with listening(client, server) as listener:
        server.make("a")
        await simulation.settle()
        assert listener.names == ["a"]


async def test_a_watch_can_be_refused(client: Client, faults: Faults) -> None:
    faults.answer(calls(path="/widgets"), Gone("too old"))
    with pytest.raises(Gone):
        async with client.watch(WIDGET, "0", timeout_seconds=300):
            pass


async def test_a_silenced_watch_stays_open_and_delivers_nothing(client: Client, server: Server, faults: Faults) -> None:
    async with listening(client, server) as before, listening(client, server) as other:
        faults.silence_watches()
        async with listening(client, server) as meanwhile:
            server.make("a")
            await asyncio.sleep(1000)  # long after the server ended them
            faults.restore_watches()
            async with listening(client, server) as after:
                server.make("b")
                await asyncio.sleep(1)
                assert after.names == ["b"]
        for listener in (before, other, meanwhile):
            assert (listener.names, listener.end) == ([], None)


@pytest.mark.parametrize("seed", range(5))
async def test_delayed_events_stay_in_order(
    client: Client, server: Server, faults: Faults, simulation: Simulation, seed: int
) -> None:
    faults.delay_watches(1, 3)
    async with listening(client, server) as listener:
        names = [f"w{number}" for number in range(20)]
        for name in names:
            server.make(name)
        await asyncio.sleep(0.9)
        assert listener.names == []
        await asyncio.sleep(2.2)
        assert listener.names == names
        assert min(listener.times) >= 1
        assert len(set(listener.times)) > 1


async def test_the_same_generator_delays_the_same_way(server: Server) -> None:
    async def times(seed: int) -> list[float]:
        faults = Faults(InProcess(server), random.Random(seed))
        faults.delay_watches(0, 1)
        start = asyncio.get_running_loop().time()
        async with listening(Client("p", faults), server) as listener:
            server.make(f"{start}")
            await asyncio.sleep(1)
            return [round(moment - start, 6) for moment in listener.times]

    assert await times(1) == await times(1) != await times(2)


@pytest.mark.parametrize("delay", [0, 10])
async def test_open_watches_end_when_the_plane_goes(
    client: Client, server: Server, faults: Faults, simulation: Simulation, delay: float
) -> None:
    faults.delay_watches(delay, delay)
    async with listening(client, server) as listener:
        server.make("a")
        await simulation.settle()
        faults.take_away()
        await simulation.settle()
        assert isinstance(listener.end, Unavailable)
        assert listener.names == ([] if delay else ["a"])
        assert simulation.time() == 0


def test_faults_work_on_the_real_loop() -> None:
    async def main() -> None:
        server = Server()
        faults = Faults(InProcess(server), random.Random(1))
        client = Client("p", faults)
        faults.delay_watches(0.001, 0.002)
        faults.lose_answer(writes)
        async with listening(client, server) as listener:
            with pytest.raises(Timeout):
                await client.create(WIDGET, WIDGET.body("a", NAMESPACE))
            await listener.first.wait()
            assert listener.names == ["a"]
        faults.silence_watches()
        silent = Listener()
        task = asyncio.create_task(silent.listen(client, 1))
        await silent.opened.wait()
        faults.take_away()
        await task
        assert silent.names == []
        assert isinstance(silent.end, Unavailable)

    asyncio.run(main())
