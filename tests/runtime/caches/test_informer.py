import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from structlog.testing import capture_logs

from datum_compute.kube.client import Client
from datum_compute.kube.errors import (
    ApiError,
    Forbidden,
    Gone,
    NotFound,
    ServerError,
    Timeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import only_metadata
from datum_compute.kube.meta import as_dict, decode, encode
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.runtime.caches.informer import (
    LONGEST_RETRY,
    PAGE,
    RELIST_RETRY_SECONDS,
    RELIST_SECONDS,
    STALL_SECONDS,
    UNSERVED_SECONDS,
    Change,
    Informer,
    State,
)
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import Faults, calls, reads
from datum_compute.runtime.testing.server import GADGET, NAMESPACE, WIDGET, Server, Widget, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writer, Writes
from tests.conftest import count

ELEVEN_MINUTES = 660.0


def synced(setup: "Setup") -> Callable[[], Coroutine[Any, Any, bool]]:
    async def is_synced() -> bool:
        return setup.informer.synced.is_set()

    return is_synced


class Setup:
    """A server, the faults in front of it, and an informer with a writer behind them."""

    def __init__(self, seed: int = 1, through: Callable[[Transport], Transport] = lambda transport: transport) -> None:
        self.server = Server()
        self.faults = Faults(through(InProcess(self.server)), random.Random(seed))
        self.client = Client("p", self.faults)
        self.informer = Informer(self.client, WIDGET, random.Random(seed))
        self.writer = Writer(self.client, {WIDGET.resource: self.informer}, "tester", Writes())  # type: ignore[dict-item]
        self.changes: list[Change[Widget]] = []
        self.informer.subscribe(self.changes.append)

    def versions(self) -> dict[str, str]:
        return {widget.name: widget.metadata.resource_version for widget in self.informer.all()}

    def widget(self, name: str) -> Widget:
        object_ = self.informer.get(NAMESPACE, name)
        assert object_ is not None
        return object_

    async def agrees(self) -> bool:
        return self.informer.synced.is_set() and self.versions() == self.server.versions()

    def take_changes(self) -> list[str]:
        """The changes so far as `+a`, `~a` and `-a`; forgotten afterwards."""
        signs = {(False, True): "+", (True, True): "~", (True, False): "-"}
        changes, self.changes[:] = list(self.changes), []
        return [signs[change.before is not None, change.after is not None] + change.object.name for change in changes]


@pytest.fixture
def setup() -> Setup:
    return Setup()


@asynccontextmanager
async def following(setup: Setup, simulation: Simulation) -> AsyncIterator[None]:
    async with background(setup.informer.run()):
        await simulation.until(setup.agrees, within=0)
        yield


# Listing and following


async def test_the_initial_list_reports_every_object_as_new(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("b")
    setup.server.make("a")
    async with following(setup, simulation):
        assert [widget.name for widget in setup.informer.all()] == ["a", "b"]
        assert all(change.initial for change in setup.changes)
        assert sorted(setup.take_changes()) == ["+a", "+b"]


async def test_changes_arrive_with_the_previous_object(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        setup.server.make("a")
        setup.server.change("a")
        setup.server.remove("a")
        await simulation.settle()
        first, second, third = setup.changes
        assert first.before is None
        assert first.after is second.before is not None
        assert second.after is third.before is not None
        assert third.after is None
        assert third.object is third.before
        assert not any(change.initial for change in setup.changes)
        assert setup.informer.all() == []


async def test_a_late_subscriber_gets_every_cached_object(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a")
    async with following(setup, simulation):
        late: list[Change[Widget]] = []
        end = setup.informer.subscribe(late.append)
        setup.server.change("a")
        await simulation.settle()
        end()
        setup.server.change("a")
        await simulation.settle()
        assert [(change.object.name, change.initial) for change in late] == [("a", True), ("a", False)]


async def test_an_informer_follows_only_its_kind(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        setup.server.make("a", GADGET)
        await simulation.settle()
        assert setup.take_changes() == []


async def test_objects_can_be_read_by_namespace(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a")
    async with following(setup, simulation):
        assert [widget.name for widget in setup.informer.all(NAMESPACE)] == ["a"]
        assert setup.informer.all("elsewhere") == []
        assert setup.informer.get("elsewhere", "a") is None


async def test_an_ended_watch_continues_where_it_was(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        setup.server.end_watches()
        setup.server.make("a")
        await simulation.until(setup.agrees, within=1)
        assert setup.server.list_calls() == 1


# Lists in pages


async def test_a_long_list_is_read_in_pages(setup: Setup, simulation: Simulation) -> None:
    names = [f"w{number:04}" for number in range(2 * PAGE + 1)]
    for name in names:
        setup.server.make(name)
    async with following(setup, simulation):
        assert [widget.name for widget in setup.informer.all()] == names
        assert setup.server.list_calls() == 3


async def test_changes_between_two_pages_are_not_lost(setup: Setup, simulation: Simulation) -> None:
    for number in range(2 * PAGE):
        setup.server.make(f"w{number:04}")
    setup.server.sending.clear()
    async with background(setup.informer.run()):
        await simulation.until(lambda: listed(setup, 1), within=0)
        setup.server.remove("w0000")  # on the page that is on its way
        setup.server.make("new")
        setup.server.change("w0999")
        setup.server.sending.set()
        await simulation.until(setup.agrees, within=1)


async def test_a_list_that_expires_between_two_pages_is_made_again_at_once(
    setup: Setup, simulation: Simulation
) -> None:
    for number in range(2 * PAGE):
        setup.server.make(f"w{number:04}")
    setup.faults.answer(calls("GET"), Gone("the continue token is too old"), nth=2)
    async with background(setup.informer.run()):
        await simulation.until(setup.agrees, within=1)
        assert len(setup.informer) == 2 * PAGE


# Metadata only


async def test_managed_fields_are_not_cached(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a", managedFields=[{"manager": "somebody", "fieldsV1": {"f:spec": {}}}])
    async with following(setup, simulation):
        assert b"somebody" not in encode(setup.widget("a"))


async def test_metadata_only_objects_are_cached_apart_from_whole_ones(simulation: Simulation) -> None:
    server = Server()
    faults = Faults(InProcess(server), random.Random(1))
    plane = Plane("p", "east", faults, writes=Writes(), generator=random.Random(1))
    whole, partial = plane.informer(WIDGET), plane.informer(only_metadata(WIDGET))
    server.make("a", labels={"colour": "red"})
    server.change("a", {"spec": {"size": 3}, "status": {"ready": True}})
    async with background(plane.run()):
        await simulation.settle()
        found, known = whole.get(NAMESPACE, "a"), partial.get(NAMESPACE, "a")
        assert found is not None
        assert known is not None
        assert known.metadata == found.metadata
        assert (as_dict(found.spec_json), as_dict(known.spec_json), as_dict(known.status_json)) == ({"size": 3}, {}, {})
        forms = {call.accept for call in server.calls if "as=PartialObjectMetadata" in call.accept}
        assert len(forms) == 2  # a list of them, and each
        faults.silence_watches()
        changed = await plane.writer("tester").patch(found, {"metadata": {"labels": {"colour": "blue"}}})
        assert whole.get(NAMESPACE, "a") is changed
        known = partial.get(NAMESPACE, "a")
        assert known is not None
        assert (known.metadata, as_dict(known.spec_json)) == (changed.metadata, {})
        await plane.writer("tester").delete(known)
        assert (len(whole), len(partial)) == (0, 0)


# Missed events


async def test_a_relist_reports_missed_deletes(setup: Setup, simulation: Simulation) -> None:
    for name in ("gone", "reborn", "same"):
        setup.server.make(name)
    async with following(setup, simulation):
        setup.take_changes()
        setup.faults.take_away()
        await simulation.settle()
        setup.server.remove("gone")
        setup.server.remove("reborn")
        setup.server.make("reborn")
        setup.server.forget_history()
        setup.faults.bring_back()
        await simulation.until(setup.agrees, within=10)
        assert sorted(setup.take_changes()) == ["-gone", "~reborn"]


@pytest.mark.parametrize("way", ["refused", "in the stream"])
async def test_an_expired_watch_lists_again(setup: Setup, simulation: Simulation, way: str) -> None:
    async with following(setup, simulation):
        setup.faults.drop_event(calls(path="/widgets"))
        setup.server.make("a")
        setup.server.forget_history()
        if way == "refused":
            setup.server.end_watches()
        else:
            setup.server.send(encode({"type": "ERROR", "object": Gone("too old").status()}))
        await simulation.until(setup.agrees, within=1)
        assert setup.take_changes() == ["+a"]
        assert setup.server.list_calls() == 2


async def test_a_silent_stream_is_noticed_and_heals(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        setup.faults.silence_watches()
        setup.faults.restore_watches()
        setup.server.make("a")
        await simulation.until(setup.agrees, within=STALL_SECONDS)
        setup.server.make("b")
        await simulation.until(setup.agrees, within=0)


async def test_with_all_watches_silent_the_copy_is_never_older_than_the_stall_timer(
    setup: Setup, simulation: Simulation
) -> None:
    async with following(setup, simulation):
        setup.faults.silence_watches()
        for name in "abc":
            setup.server.make(name)
            await simulation.until(setup.agrees, within=STALL_SECONDS)


async def test_a_quiet_kind_is_not_taken_for_a_silent_stream(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        await asyncio.sleep(500)
        assert setup.server.list_calls() == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lost", ["make", "change", "remove"])
async def test_a_dropped_event_heals_within_eleven_minutes(simulation: Simulation, seed: int, lost: str) -> None:
    setup = Setup(seed)
    setup.server.make("a")
    setup.server.make("old")
    async with following(setup, simulation):
        await asyncio.sleep(simulation.random.uniform(0, 600))
        setup.faults.drop_event(calls(path="/widgets"))
        match lost:
            case "make":
                setup.server.make("new")
            case "change":
                setup.server.change("a")
            case "remove":
                setup.server.remove("old")
        setup.server.change("a")  # moves the stream past what was lost
        await simulation.settle()
        await simulation.until(setup.agrees, within=ELEVEN_MINUTES)


async def test_a_server_that_never_ends_a_watch_is_still_listed_again(setup: Setup, simulation: Simulation) -> None:
    setup.server.endless = True
    async with following(setup, simulation):
        setup.faults.drop_event(calls(path="/widgets"))
        setup.server.make("a")
        await simulation.until(setup.agrees, within=ELEVEN_MINUTES + 60)


async def test_a_relist_does_not_report_unchanged_objects(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a")
    async with following(setup, simulation):
        setup.take_changes()
        await asyncio.sleep(3600)
        assert setup.server.list_calls() > 5
        assert setup.take_changes() == []


# Kinds that need not be there


@pytest.mark.parametrize("error", [Unauthorized, Forbidden])
async def test_a_best_effort_kind_that_may_not_be_listed_is_an_empty_cache_until_it_may(
    setup: Setup, simulation: Simulation, error: type[ApiError]
) -> None:
    setup.informer.best_effort = True
    setup.server.make("a")
    refusal = setup.faults.refuse(calls("GET", "/widgets"), error("not you"))
    async with background(setup.informer.run()):
        await simulation.until(synced(setup), within=1)
        assert setup.informer.all() == []
        refusal.lift()
        await simulation.until(setup.agrees, within=UNSERVED_SECONDS * 1.1)


async def test_a_best_effort_kind_that_may_no_longer_be_listed_stays_as_it_was_last_seen(
    setup: Setup, simulation: Simulation
) -> None:
    setup.informer.best_effort = True
    setup.server.make("a")
    async with following(setup, simulation):
        setup.faults.refuse(calls("GET", "/widgets"), Forbidden("not you any more"))
        setup.faults.cut_watches()
        await simulation.advance(3600)
        assert [widget.name for widget in setup.informer.all()] == ["a"]


@pytest.mark.parametrize("optional", [False, True])
async def test_a_kind_that_is_not_best_effort_and_may_not_be_listed_keeps_its_cache_from_being_used(
    setup: Setup, simulation: Simulation, optional: bool
) -> None:
    setup.informer.optional = optional  # a refusal does not say that there is no such kind
    setup.faults.refuse(calls("GET", "/widgets"), Forbidden("not you"))
    async with background(setup.informer.run()):
        await simulation.advance(3600)
        assert not setup.informer.synced.is_set()


async def test_whether_a_kind_is_served_is_known_while_it_is_listed(setup: Setup, simulation: Simulation) -> None:
    setup.informer.optional = True
    setup.server.unserved = {"widgets"}
    with capture_logs() as logs:
        async with background(setup.informer.run()):
            await simulation.settle()
            assert (setup.informer.synced.is_set(), setup.informer.served) == (True, False)
            setup.server.answering.clear()
            await asyncio.sleep(UNSERVED_SECONDS * 1.1)
            assert (setup.informer.state, setup.informer.served) == (State.LISTING, False)
            setup.server.unserved.clear()
            setup.server.answering.set()
            await simulation.settle()
            assert setup.informer.served
    assert len([line for line in logs if line["log_level"] == "info"]) == 2


async def test_a_skipped_kind_is_not_an_outage(setup: Setup, simulation: Simulation) -> None:
    setup.informer.best_effort = True
    setup.faults.refuse(calls("GET", "/widgets"), Forbidden("not you"))
    with capture_logs() as logs:
        async with background(setup.informer.run()):
            await simulation.settle()
            assert setup.informer.failures.phase is None
    assert [(line["log_level"], line["phase"]) for line in logs] == [("info", "authorization")]


# Servers restored from a backup


async def test_a_relist_replaces_what_was_cached_when_the_server_was_restored(
    setup: Setup, simulation: Simulation
) -> None:
    setup.server.make("changed")
    setup.server.make("removed")
    backup = setup.server.snapshot()
    setup.server.change("changed")
    setup.server.remove("removed")
    setup.server.make("ghost")
    async with following(setup, simulation):
        setup.take_changes()
        setup.server.restore(backup)
        await simulation.until(setup.agrees, within=STALL_SECONDS + 1)
        assert sorted(setup.take_changes()) == ["+removed", "-ghost", "~changed"]


async def test_a_server_that_was_restored_is_followed_from_where_it_is_now(
    setup: Setup, simulation: Simulation
) -> None:
    setup.server.make("a")
    backup = setup.server.snapshot()
    for _ in range(10):
        setup.server.change("a")
    async with following(setup, simulation):
        setup.server.restore(backup)
        await simulation.until(setup.agrees, within=STALL_SECONDS + 1)
        setup.take_changes()
        setup.server.change("a")
        setup.server.make("b")
        await simulation.until(setup.agrees, within=0)
        setup.server.remove("a")
        await simulation.until(setup.agrees, within=0)
        setup.faults.silence_watches()
        made = await setup.writer.create(WIDGET, WIDGET.body("own", NAMESPACE))
        assert setup.widget("own") is made
        await setup.writer.delete(setup.widget("b"))
        assert await setup.agrees()
        assert setup.take_changes() == ["~a", "+b", "-a", "+own", "-b"]


async def test_a_restored_server_that_overtook_the_cache_is_compared_by_the_next_relist(
    setup: Setup, simulation: Simulation
) -> None:
    for name in ("a", "b"):
        setup.server.make(name)
    backup = setup.server.snapshot()
    setup.server.change("a", {"spec": {"size": 1}})
    setup.server.change("b", {"spec": {"size": 1}})
    setup.server.make("ghost")
    async with following(setup, simulation):
        setup.server.restore(backup)
        setup.server.change("b", {"spec": {"size": 2}})
        setup.server.change("a", {"spec": {"size": 2}})
        for _ in range(20):
            setup.server.make("busy")
            setup.server.remove("busy")
        await simulation.until(setup.agrees, within=ELEVEN_MINUTES)
        assert [as_dict(setup.widget(name).spec_json) for name in ("a", "b")] == [{"size": 2}, {"size": 2}]
        assert setup.informer.rewinds == 1


async def test_a_server_that_was_restored_while_it_was_away_is_listed_when_it_returns(
    setup: Setup, simulation: Simulation
) -> None:
    setup.server.make("a")
    backup = setup.server.snapshot()
    setup.server.change("a")
    setup.server.make("ghost")
    async with following(setup, simulation):
        setup.faults.take_away()
        setup.server.restore(backup)
        await asyncio.sleep(30)
        setup.faults.bring_back()
        await simulation.until(setup.agrees, within=RELIST_RETRY_SECONDS + LONGEST_RETRY)


async def test_an_object_with_the_revision_it_had_before_the_restore_is_still_another(
    setup: Setup, simulation: Simulation
) -> None:
    setup.server.make("a")
    backup = setup.server.snapshot()
    setup.server.change("a", {"spec": {"size": 1}})
    setup.server.make("later")
    async with following(setup, simulation):
        setup.server.restore(backup)
        setup.server.change("a", {"spec": {"size": 2}})
        before = setup.widget("a")
        await simulation.until(setup.agrees, within=STALL_SECONDS + 1)
        assert setup.widget("a").metadata.resource_version == before.metadata.resource_version
        assert as_dict(setup.widget("a").spec_json) == {"size": 2}


async def test_a_list_older_than_what_was_seen_is_counted_and_logged_once(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a")
    backup = setup.server.snapshot()
    setup.server.change("a")
    async with following(setup, simulation):
        with capture_logs() as logs:
            setup.server.restore(backup)
            await asyncio.sleep(3600)
        assert setup.informer.rewinds == 1
        (line,) = [line for line in logs if line["log_level"] == "warning"]
        assert (line["plane"], line["kind"], line["seen"], line["listed"]) == ("p", "Widget", "102", "101")


async def test_a_bookmark_from_before_the_watch_began_lists_again_at_once(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a")
    backup = setup.server.snapshot()
    setup.server.change("a")
    async with following(setup, simulation):
        setup.server.restore(backup)
        await asyncio.sleep(1)
        assert not await setup.agrees()
        setup.server.send(encode({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "101"}}}))
        await simulation.until(setup.agrees, within=1)


async def test_own_writes_answered_while_an_older_list_is_under_way_are_kept(
    setup: Setup, simulation: Simulation
) -> None:
    backup = setup.server.snapshot()
    setup.server.make("ghost")
    async with following(setup, simulation):
        setup.take_changes()
        setup.server.restore(backup)
        setup.server.make("old")
        setup.server.sending.clear()
        setup.server.forget_history()
        await simulation.until(lambda: listed(setup, 2), within=STALL_SECONDS + 1)
        await setup.writer.create(WIDGET, WIDGET.body("new", NAMESPACE))
        setup.server.sending.set()
        await simulation.until(setup.agrees, within=0)
        assert sorted(setup.take_changes()) == ["+new", "+old", "-ghost"]


async def test_an_own_write_answered_by_a_restored_server_while_it_is_listed_hides_nothing(
    setup: Setup, simulation: Simulation
) -> None:
    """The answer is older than the cached object, which is only a memory of what the server has lost."""
    setup.server.make("a")
    backup = setup.server.snapshot()
    for size in range(5):
        setup.server.change("a", {"spec": {"size": size}})
    async with following(setup, simulation):
        setup.take_changes()
        setup.server.restore(backup)
        setup.server.sending.clear()
        setup.server.forget_history()
        await simulation.until(lambda: listed(setup, 2), within=STALL_SECONDS + 1)
        await setup.writer.patch(setup.widget("a"), {"metadata": {"labels": {"own": "yes"}}})
        setup.server.sending.set()
        await simulation.until(setup.agrees, within=0)
        assert set(setup.take_changes()) == {"~a"}


# Versions that are no numbers


class Renumbered:
    """A transport whose server has other resourceVersions than the one it calls."""

    def __init__(self, transport: Transport, outside: Callable[[str], str], inside: Callable[[str], str]) -> None:
        self._transport = transport
        self._outside = outside
        self._inside = inside

    async def call(self, call: Call) -> Answer:
        answer = await self._transport.call(structs.replace(call, body=renumber(call.body, self._inside)))
        return structs.replace(answer, body=renumber(answer.body, self._outside))

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        query = call.query | {"resourceVersion": self._inside(call.query["resourceVersion"])}
        async with self._transport.stream(structs.replace(call, query=query)) as lines:
            yield (renumber(line, self._outside) async for line in lines)


def renumber(body: bytes, version: Callable[[str], str]) -> bytes:
    def renumbered(match: re.Match[bytes]) -> bytes:
        return b'"resourceVersion":"' + version(match[1].decode()).encode() + b'"'

    return re.sub(rb'"resourceVersion":"([^"]+)"', renumbered, body)


@pytest.mark.parametrize(
    ("outside", "inside"),
    [
        (lambda version: f"v-{version}", lambda version: version.removeprefix("v-")),
        (lambda version: "9" + version.zfill(5000), lambda version: version[-20:]),
        (lambda version: "".join("٠١٢٣٤٥٦٧٨٩"[int(digit)] for digit in version), lambda version: str(int(version))),
    ],
    ids=["words", "5000 digits", "digits of another script"],
)
async def test_a_version_may_be_any_string(
    simulation: Simulation, outside: Callable[[str], str], inside: Callable[[str], str]
) -> None:
    setup = Setup(through=lambda transport: Renumbered(transport, outside, inside))
    setup.server.make("a")
    setup.server.make("b")
    async with background(setup.informer.run()):
        await simulation.settle()
        assert setup.take_changes() == ["+a", "+b"]
        setup.server.change("a")
        setup.server.remove("b")
        await setup.writer.create(WIDGET, WIDGET.body("own", NAMESPACE))
        await simulation.settle()
        assert sorted(setup.take_changes()) == ["+own", "-b", "~a"]
        setup.server.forget_history()
        setup.server.end_watches()
        setup.server.change("a")
        setup.server.remove("own")
        await asyncio.sleep(1)
        assert sorted(setup.take_changes()) == ["-own", "~a"]
        await asyncio.sleep(3600)
        assert setup.take_changes() == []
        assert [widget.name for widget in setup.informer.all()] == ["a"]


async def test_a_relist_that_fails_does_not_stop_the_stream(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        setup.server.garbage = [b"no list"] * 10**6
        await asyncio.sleep(RELIST_SECONDS * 1.1 + 60)
        assert len(setup.server.garbage) < 10**6
        setup.server.make("a")
        await simulation.until(setup.agrees, within=LONGEST_RETRY * 1.2)
        assert setup.informer.state is State.WATCHING


class WithoutLists:
    """A server that does not answer lists in time, from the moment on at which it is `tired`."""

    def __init__(self, transport: Transport) -> None:
        self.tired = False
        self._transport = transport
        self.stream = transport.stream

    async def call(self, call: Call) -> Answer:
        if self.tired and reads(call):
            raise Timeout("no answer in time")
        return await self._transport.call(call)


async def test_lists_without_an_answer_do_not_stop_the_stream(simulation: Simulation) -> None:
    servers: list[WithoutLists] = []

    def through(transport: Transport) -> Transport:
        servers.append(WithoutLists(transport))
        return servers[0]

    setup = Setup(through=through)
    async with following(setup, simulation):
        servers[0].tired = True
        setup.faults.take_away()
        await asyncio.sleep(60)
        setup.faults.bring_back()
        await asyncio.sleep(RELIST_SECONDS * 1.1)
        setup.server.make("a")
        await simulation.until(setup.agrees, within=RELIST_RETRY_SECONDS + LONGEST_RETRY)


# Planes that refuse


@pytest.mark.parametrize("error", [Unauthorized, Forbidden, NotFound, ServerError, Unavailable])
async def test_no_refusal_ends_an_informer(setup: Setup, simulation: Simulation, error: type[ApiError]) -> None:
    setup.server.make("a")
    setup.server.refuse = [error("no") for _ in range(20)]
    async with background(setup.informer.run()):
        await simulation.until(setup.agrees, within=120)
        setup.server.refuse = [error("no") for _ in range(20)]
        setup.server.end_watches()
        setup.server.make("b")
        await simulation.until(setup.agrees, within=120)


@pytest.mark.parametrize("garbage", [b"", b"<html>bad gateway</html>", b'{"metadata": {}, "items": 3}'])
async def test_a_malformed_answer_is_requested_again(setup: Setup, simulation: Simulation, garbage: bytes) -> None:
    setup.server.make("a")
    setup.server.garbage = [garbage]
    async with background(setup.informer.run()):
        await simulation.until(setup.agrees, within=10)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b'{"type": "ADDED", "obj',
        b'{"type": "ADDED", "object": 3}',
        b'{"type": "ERROR", "object": {"code": "no number"}}',
        b'{"type": "ERROR", "object": []}',
    ],
)
async def test_a_broken_line_in_a_watch_is_survived(setup: Setup, simulation: Simulation, garbage: bytes) -> None:
    async with following(setup, simulation):
        setup.server.send(garbage)
        setup.server.make("a")
        await simulation.until(setup.agrees, within=10)


@pytest.mark.parametrize("refusal", [Gone("always too old"), Forbidden("no watching"), None])
async def test_a_server_that_ends_every_watch_is_not_called_in_a_hot_loop(
    setup: Setup, simulation: Simulation, refusal: ApiError | None
) -> None:
    setup.server.refuse_watches = refusal
    setup.server.short = refusal is None
    async with background(setup.informer.run()):
        await asyncio.sleep(60)
        assert setup.informer.synced.is_set()
        assert 10 < len(setup.server.calls) < 60


async def test_a_plane_that_is_away_is_tried_every_few_seconds(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a")
    setup.faults.take_away()
    async with background(setup.informer.run()):
        await asyncio.sleep(3600)
        assert not setup.informer.synced.is_set()
        setup.faults.bring_back()
        await simulation.until(setup.agrees, within=6)


async def test_a_lost_connection_is_not_opened_again_in_the_same_instant(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        await asyncio.sleep(100)
        setup.faults.take_away()
        setup.faults.bring_back()
        await simulation.settle()
        assert setup.server.watch_calls() == 1  # everybody else lost theirs too
        await asyncio.sleep(0.15)
        assert setup.server.watch_calls() == 2


# Own writes


async def test_an_own_write_is_seen_at_once(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        setup.faults.silence_watches()
        made = await setup.writer.create(WIDGET, WIDGET.body("a", NAMESPACE))
        assert setup.widget("a") is made
        changed = await setup.writer.patch(made, {"spec": {"size": 2}})
        assert setup.widget("a") is changed
        await setup.writer.delete(changed)
        assert setup.informer.get(NAMESPACE, "a") is None
        assert setup.take_changes() == ["+a", "~a", "-a"]


async def test_an_own_write_is_one_change(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        made = await setup.writer.create(WIDGET, WIDGET.body("a", NAMESPACE))
        await setup.writer.delete(made)
        await simulation.settle()
        assert setup.take_changes() == ["+a", "-a"]


async def test_a_late_event_does_not_undo_an_own_write(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a")
    setup.faults.delay_watches(5, 5)
    async with following(setup, simulation):
        setup.server.change("a")
        own = await setup.writer.patch(setup.widget("a"), {"spec": {"size": 2}})
        await asyncio.sleep(10)
        assert setup.widget("a") is own


async def test_an_answer_older_than_the_stream_is_ignored(setup: Setup, simulation: Simulation) -> None:
    async with following(setup, simulation):
        old = decode(encode(setup.server.make("a")), Widget)
        setup.server.remove("a")
        await simulation.settle()
        setup.informer.fold(old)
        assert setup.informer.all() == []


async def test_an_own_delete_is_not_undone_by_a_late_event(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a")
    setup.faults.delay_watches(5, 5)
    async with following(setup, simulation):
        setup.take_changes()
        setup.server.change("a")
        await setup.writer.delete(setup.widget("a"))
        await asyncio.sleep(10)
        assert setup.take_changes() == ["-a"]


async def test_own_writes_are_not_undone_by_a_list_made_before_them(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("old")
    async with following(setup, simulation):
        setup.take_changes()
        setup.server.sending.clear()
        setup.server.forget_history()
        setup.server.end_watches()
        await simulation.until(lambda: listed(setup, 2), within=1)
        setup.server.change("old")
        await setup.writer.delete(setup.widget("old"))
        await setup.writer.create(WIDGET, WIDGET.body("new", NAMESPACE))
        setup.server.sending.set()
        await asyncio.sleep(10)
        assert setup.take_changes() == ["-old", "+new"]
        assert await setup.agrees()


async def test_an_own_change_is_not_undone_by_a_list_made_before_it(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("old")
    async with following(setup, simulation):
        setup.take_changes()
        setup.server.sending.clear()
        setup.server.forget_history()
        setup.server.end_watches()
        await simulation.until(lambda: listed(setup, 2), within=1)
        await setup.writer.patch(setup.widget("old"), {"spec": {"size": 7}})
        setup.server.sending.set()
        await asyncio.sleep(10)
        assert setup.take_changes() == ["~old"]
        assert await setup.agrees()


async def listed(setup: Setup, times: int) -> bool:
    return setup.server.list_calls() == times


async def test_a_name_deleted_and_created_again_is_the_new_object(setup: Setup, simulation: Simulation) -> None:
    setup.faults.delay_watches(5, 5)
    async with following(setup, simulation):
        first = await setup.writer.create(WIDGET, WIDGET.body("a", NAMESPACE))
        await setup.writer.delete(first)
        second = await setup.writer.create(WIDGET, WIDGET.body("a", NAMESPACE))
        await asyncio.sleep(10)
        assert setup.widget("a") is second


async def test_own_writes_before_the_first_list_do_not_fill_the_cache(setup: Setup, simulation: Simulation) -> None:
    setup.server.make("a")
    made = await setup.writer.create(WIDGET, WIDGET.body("b", NAMESPACE))
    assert setup.informer.all() == []
    async with following(setup, simulation):
        assert setup.widget("b").metadata.uid == made.metadata.uid


# Indexes


def colour(widget: Widget) -> list[str]:
    return [widget.metadata.labels.get("colour", "")]


@pytest.mark.parametrize("declared", ["first", "last"])
async def test_indexes_follow_every_change(setup: Setup, simulation: Simulation, declared: str) -> None:
    def names(value: str) -> list[str]:
        return [widget.name for widget in setup.informer.by("colour", value)]

    if declared == "first":
        setup.informer.index("colour", colour)
    setup.server.make("a", labels={"colour": "red"})
    setup.server.make("b", labels={"colour": "red"})
    setup.server.make("plain")
    async with following(setup, simulation):
        setup.informer.index("colour", colour)
        setup.informer.index("colour", colour)
        assert names("red") == ["a", "b"]
        assert names("") == []
        setup.server.change("a", {"metadata": {"labels": {"colour": "blue"}}})
        await simulation.settle()
        assert (names("red"), names("blue")) == (["b"], ["a"])
        await setup.writer.delete(setup.widget("b"))
        assert names("red") == []


# Defects


def fragile(widget: Widget) -> list[str]:
    if widget.name == "poison":
        raise ZeroDivisionError
    return colour(widget)


def defects(logs: list[Any]) -> list[tuple[str, str, str]]:
    return [(line["plane"], line["kind"], line["phase"]) for line in logs if line["log_level"] == "error"]


@pytest.mark.parametrize("declared", ["first", "last"])
async def test_an_object_that_an_index_fails_on_affects_only_itself(
    setup: Setup, simulation: Simulation, declared: str
) -> None:
    crashed: list[Exception] = []
    with capture_logs() as logs:
        if declared == "first":
            setup.informer.index("colour", fragile, crashed.append)
        for name in ("a", "poison", "z"):
            setup.server.make(name, labels={"colour": "red"})
        async with following(setup, simulation):
            setup.informer.index("colour", fragile, crashed.append)
            assert [widget.name for widget in setup.informer.by("colour", "red")] == ["a", "z"]
            assert setup.take_changes() == ["+a", "+poison", "+z"]
            setup.server.change("poison")
            setup.server.make("later", labels={"colour": "red"})
            await simulation.until(setup.agrees, within=0)
            setup.server.remove("poison")
            await simulation.until(setup.agrees, within=0)
            assert [widget.name for widget in setup.informer.by("colour", "red")] == ["a", "later", "z"]
    assert len(crashed) == setup.informer.failures.defects["Widget", "index"] == 2  # one per version
    assert defects(logs) == [("p", "Widget", "index")]


async def test_a_failing_handler_affects_only_itself(setup: Setup, simulation: Simulation) -> None:
    def failing(change: Change[Widget]) -> None:
        raise ZeroDivisionError

    setup.informer.subscribe(failing)
    late: list[Change[Widget]] = []
    setup.informer.subscribe(late.append)
    setup.server.make("a")
    with capture_logs() as logs:
        async with following(setup, simulation):
            setup.server.change("a")
            setup.server.make("b")
            await simulation.until(setup.agrees, within=0)
            assert setup.take_changes() == ["+a", "~a", "+b"]
            assert [change.object.name for change in late] == ["a", "a", "b"]
            setup.informer.subscribe(failing)
    assert setup.informer.failures.defects == {("Widget", "handler"): 5}
    assert defects(logs) == [("p", "Widget", "handler")]


class Cursed:
    """A transport that fails in a way that no transport should."""

    def __init__(self, transport: Transport) -> None:
        self.cursed = {"list": 0, "watch": 0}
        self._transport = transport

    async def call(self, call: Call) -> Answer:
        self._fail("list")
        return await self._transport.call(call)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        self._fail("watch")
        async with self._transport.stream(call) as lines:
            yield lines

    def _fail(self, what: str) -> None:
        if self.cursed[what]:
            self.cursed[what] -= 1
            raise KeyError("nobody foresaw this")


@pytest.mark.parametrize("phase", ["list", "watch"])
async def test_an_unforeseen_error_is_logged_counted_and_retried(simulation: Simulation, phase: str) -> None:
    cursed: list[Cursed] = []

    def curse(transport: Transport) -> Transport:
        cursed.append(Cursed(transport))
        return cursed[0]

    setup = Setup(through=curse)
    setup.server.make("a")
    cursed[0].cursed[phase] = 10
    with capture_logs() as logs:
        async with background(setup.informer.run()):
            await asyncio.sleep(1)
            assert 1 < setup.informer.failures.defects["Widget", phase] < 10
            await asyncio.sleep(60)
            assert setup.informer.failures.defects == {("Widget", phase): 10}
            setup.server.make("b")
            await simulation.until(setup.agrees, within=0)
            assert setup.informer.state is State.WATCHING
    assert defects(logs) == [("p", "Widget", phase)]


# Everything at once

STEPS = [
    "make", "change", "remove", "own create", "own change", "own delete", "drop event", "silence", "restore",
    "duplicate event", "reorder events", "cut watches", "throttle", "lose list", "away", "back", "forget history",
    "end watches", "refuse", "delay", "no delay", "settle", "wait", "wait long", "back up",
    "restore from backup",
]  # fmt: skip


class Script(Setup):
    """Checks after each step what must hold at any time; at the end that the copy is right."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.informer.index("colour", colour)
        self.backup = self.server.snapshot()
        self.mirror: dict[str, Widget] = {}
        self.writing: list[asyncio.Task[None]] = []
        self.wrong: list[AssertionError] = []
        self.blind = False  # from the first lost event on, an own write may be missed too
        self.informer.subscribe(self.checked)

    def checked(self, change: Change[Widget]) -> None:
        try:
            self.check(change)
        except AssertionError as error:  # which the informer would survive
            self.wrong.append(error)

    def check(self, change: Change[Widget]) -> None:
        assert change.before is self.mirror.pop(change.object.name, None)
        if change.after is not None:
            self.mirror[change.object.name] = change.after
        assert list(self.mirror.values()) == [self.informer.get(NAMESPACE, name) for name in self.mirror]
        for value in ("red", "blue"):
            coloured = sorted(name for name, widget in self.mirror.items() if colour(widget) == [value])
            assert [widget.name for widget in self.informer.by("colour", value)] == coloured

    async def do(self, step: str, name: str) -> None:
        server, faults = self.server, self.faults
        seen = self.informer.get(NAMESPACE, name)
        match step:
            case "make" if not server.has(name):
                server.make(name, labels={"colour": "red"})
            case "change" if server.has(name):
                server.change(name, {"metadata": {"labels": {"colour": "blue"}}})
            case "remove" if server.has(name):
                server.remove(name)
            case "own create":
                self.own(self.writer.create(WIDGET, WIDGET.body(name, NAMESPACE)))
            case "own change" if seen is not None:
                self.own(self.writer.patch(seen, {"metadata": {"labels": {"colour": "red"}}}))
            case "own delete" if seen is not None:
                self.own(self.writer.delete(seen))
            case "drop event":
                self.blind = True
                faults.drop_event(calls(path="/widgets"))
            case "duplicate event":
                faults.duplicate_event(calls(path="/widgets"))
            case "reorder events":
                self.blind = True
                faults.reorder_events(calls(path="/widgets"))
            case "cut watches":
                faults.cut_watches()
            case "throttle":
                faults.answer(calls("GET"), TooManyRequests("patience"))
            case "lose list":
                faults.answer(calls("GET"), Gone("too old"))
            case "silence":
                faults.silence_watches()
            case "restore":
                faults.restore_watches()
            case "away":
                faults.take_away()
            case "back":
                faults.bring_back()
            case "forget history":
                server.forget_history()
            case "end watches":
                server.end_watches()
            case "back up":
                self.backup = server.snapshot()
            case "restore from backup":
                self.blind = True
                server.restore(self.backup)
            case "refuse":
                server.refuse = [ServerError("not now")]
            case "delay":
                faults.delay_watches(0, 3)
            case "no delay":
                faults.delay_watches(0, 0)
            case "settle":
                loop = asyncio.get_running_loop()
                assert isinstance(loop, Simulation)
                await loop.settle()
            case "wait":
                await asyncio.sleep(1)
            case "wait long":
                await asyncio.sleep(200)

    def own(self, write: Coroutine[Any, Any, Widget | None]) -> None:
        """Writes in the background, as a pass of another key would."""
        self.writing.append(asyncio.create_task(self.written(write)))

    async def written(self, write: Coroutine[Any, Any, Widget | None]) -> None:
        try:
            answer = await write
        except ApiError:
            return
        if answer is None or not self.informer.synced.is_set() or self.blind:
            return
        seen = self.informer.get(NAMESPACE, answer.name)
        newer = seen is not None and seen.metadata.revision >= answer.metadata.revision
        assert newer or not self.server.has(answer.name)

    async def quiet(self) -> None:
        await asyncio.gather(*self.writing)
        self.faults.restore_watches()
        self.faults.bring_back()
        self.server.refuse = []


@given(seed=st.integers(0, 1000), steps=st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from("ab")), max_size=40))
@settings(max_examples=count(200, 5000), deadline=None)
def test_after_any_changes_and_faults_the_copy_is_right_once_it_is_quiet(
    seed: int, steps: list[tuple[str, str]]
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Simulation)
        script = Script(seed)
        async with background(script.informer.run()):
            for step, name in steps:
                await script.do(step, name)
            await script.quiet()
            await loop.until(script.agrees, within=ELEVEN_MINUTES + 10)
            assert {name: widget.metadata.resource_version for name, widget in script.mirror.items()} == (
                script.server.versions()
            )
            assert script.wrong == []

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        runner.run(main())


async def test_the_next_list_restores_an_object_whose_delete_somebody_else_answered(
    simulation: Simulation,
) -> None:
    setup = Setup()
    setup.server.make("w")
    async with following(setup, simulation):
        setup.faults.answer(calls("DELETE"), NotFound("404 page not found"))
        await setup.writer.delete(setup.widget("w"))
        assert setup.versions() == {}
        await asyncio.sleep(3600)
        assert setup.versions() == setup.server.versions()
