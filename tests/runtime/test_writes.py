import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from datum_compute.embedded.storage.log import Log
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, Conflict, NotFound, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE as CORE_NAMESPACE
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import as_dict
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.caches.informer import Informer
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import Faults, writes
from datum_compute.runtime.testing.server import GADGET, NAMESPACE, WIDGET, Server, Widget, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Write, Writer, Writes


class Setup:
    """A plane whose watches are silent from the start, so that only own writes change its cache."""

    def __init__(self) -> None:
        self.server = Server()
        self.faults = Faults(InProcess(self.server), random.Random(1))
        self.faults.silence_watches()
        self.ledger = Writes()
        self.plane = Plane("p", "east", self.faults, writes=self.ledger, generator=random.Random(1))
        self.widgets: Informer[Widget] = self.plane.informer(WIDGET)
        self.writer: Writer = self.plane.writer("tester")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with background(self.plane.run()):
            await self.plane.synced()
            yield

    def cached(self, name: str = "w") -> Widget | None:
        return self.widgets.get(NAMESPACE, name)

    def seen(self, name: str = "w") -> Widget:
        found = self.cached(name)
        assert found is not None
        return found

    def counted(self) -> dict[str, int]:
        return {f"{write.verb} {write.kind}": n for write, n in self.ledger.counts.items()}


@pytest.fixture
def setup() -> Setup:
    return Setup()


# Counting


async def test_writes_are_counted_by_plane_controller_verb_and_kind(setup: Setup) -> None:
    other = Plane("q", "east", InProcess(Server()), writes=setup.ledger, generator=random.Random(1))
    async with setup.running():
        widget = await setup.writer.create(WIDGET, WIDGET.body("w", NAMESPACE))
        await setup.writer.patch(widget, {"spec": {"size": 1}})
        await setup.writer.patch(widget, {"spec": {"size": 2}})
        await setup.plane.writer("another").status(setup.seen(), {"ready": 1})
        await setup.writer.delete(widget)
        await other.writer("tester").create(GADGET, GADGET.body("g", NAMESPACE))
    assert setup.ledger.counts == {
        Write("p", "tester", "create", "Widget"): 1,
        Write("p", "tester", "patch", "Widget"): 2,
        Write("p", "another", "status", "Widget"): 1,
        Write("p", "tester", "delete", "Widget"): 1,
        Write("q", "tester", "create", "Gadget"): 1,
    }
    assert (setup.ledger.total(), setup.ledger.total("tester"), setup.ledger.total("nobody")) == (6, 5, 0)


async def test_a_write_that_fails_is_counted_too(setup: Setup) -> None:
    setup.faults.fail(writes)
    with pytest.raises(Unavailable):
        await setup.writer.create(WIDGET, WIDGET.body("w", NAMESPACE))
    assert setup.counted() == {"create Widget": 1}


async def test_the_last_fifty_writes_are_available_as_sentences(setup: Setup) -> None:
    for number in range(60):
        await setup.writer.create(WIDGET, WIDGET.body(f"w{number}", NAMESPACE))
    assert len(setup.ledger.last) == 50
    assert setup.ledger.last[-1] == "tester: create Widget default/w59 on p"


# Status


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ready": 1, "zone": "x"}, {"zone": "x", "ready": 1}),
        ({"conditions": [{"type": "A"}, {"type": "B"}]}, {"conditions": [{"type": "A"}, {"type": "B"}]}),
    ],
)
async def test_an_unchanged_status_is_not_written(
    setup: Setup, before: dict[str, object], after: dict[str, object]
) -> None:
    setup.server.make("w")
    setup.server.change("w", {"status": before})
    async with setup.running():
        assert await setup.writer.status(setup.seen(), after) is setup.seen()
        assert setup.server.written == []
        assert setup.counted() == {}


@pytest.mark.parametrize("before", [None, {"ready": 0}, {"ready": 1, "extra": True}])
async def test_a_status_that_differs_is_replaced_as_a_whole(setup: Setup, before: dict[str, object] | None) -> None:
    setup.server.make("w")
    setup.server.change("w", {"status": before})
    async with setup.running():
        after = await setup.writer.status(setup.seen(), {"ready": 1})
        assert as_dict(after.status_json) == {"ready": 1}
        assert setup.seen() is after
        assert setup.server.written == [("PUT", WIDGET.path(NAMESPACE, "w", "status"))]


async def test_a_status_decided_on_an_old_copy_is_refused(setup: Setup) -> None:
    setup.server.make("w")
    async with setup.running():
        setup.server.change("w")
        with pytest.raises(Conflict):
            await setup.writer.status(setup.seen(), {"ready": 1})


async def test_a_status_is_removed_once(setup: Setup) -> None:
    setup.server.make("w")
    setup.server.change("w", {"status": {"ready": 1}})
    async with setup.running():
        after = await setup.writer.clear_status(setup.seen())
        assert as_dict(after.status_json) == {}
        assert await setup.writer.clear_status(setup.seen()) is setup.seen()
        assert setup.server.written == [("PUT", WIDGET.path(NAMESPACE, "w", "status"))]


# Patches


async def test_ensure_creates_an_object_or_reads_the_one_that_is_there(setup: Setup) -> None:
    async with setup.running():
        made = await setup.writer.ensure(WIDGET, WIDGET.body("new", NAMESPACE) | {"spec": {"size": 1}})
        found = await setup.writer.ensure(WIDGET, WIDGET.body("new", NAMESPACE) | {"spec": {"size": 2}})
    assert found == made
    assert setup.server.get("new")["spec"] == {"size": 1}


async def test_a_patch_that_replaces_lists_is_refused_on_an_old_copy(setup: Setup) -> None:
    setup.server.make("w")
    async with setup.running():
        setup.server.change("w")
        with pytest.raises(Conflict):
            await setup.writer.patch_if_unchanged(setup.seen(), {"spec": {"list": [1]}})
        await setup.writer.patch(setup.seen(), {"spec": {"size": 1}})
        after = await setup.writer.patch_if_unchanged(setup.seen(), {"spec": {"list": [1]}})
        assert as_dict(after.spec_json)["list"] == [1]


async def test_a_patch_meant_for_an_object_does_not_hit_a_later_one_of_its_name(
    setup: Setup, simulation: Simulation
) -> None:
    engine = compute_engine(Log())
    engine.serve("p", PROJECT)
    both: list[tuple[Client, Kind[Any], str]] = [
        (setup.plane.client, WIDGET, NAMESPACE),
        (engine.client("p"), CORE_NAMESPACE, ""),
    ]
    async with background(engine.run()):
        for client, kind, namespace in both:
            writer = Writer(client, {}, "tester", Writes())
            old = await writer.create(kind, kind.body("w", namespace))
            await writer.patch(old, {"metadata": {"labels": {"for": "old"}}})
            await writer.delete(old)
            await simulation.settle()
            new = await writer.create(kind, kind.body("w", namespace))
            with pytest.raises(Conflict) as caught:
                await writer.patch(old, {"metadata": {"labels": {"for": "old"}}})
            assert caught.value.plane == "p"
            assert (await client.get(kind, "w", namespace)).metadata == new.metadata
    engine.close()


async def test_a_failed_write_leaves_the_cache_alone(setup: Setup) -> None:
    setup.server.make("w")
    async with setup.running():
        before = setup.seen()
        with pytest.raises(AlreadyExists):
            await setup.writer.create(WIDGET, WIDGET.body("w", NAMESPACE))
        assert setup.seen() is before


async def test_answers_of_a_kind_that_is_not_cached_are_only_returned(setup: Setup) -> None:
    async with setup.running():
        gadget = await setup.writer.create(GADGET, GADGET.body("g", NAMESPACE))
        await setup.writer.delete(gadget)
        assert not setup.server.has("g", GADGET)


# Finalizers


async def test_a_finalizer_is_added_next_to_others_and_only_once(setup: Setup) -> None:
    setup.server.make("w", finalizers=["theirs"])
    async with setup.running():
        after = await setup.writer.add_finalizer(setup.seen(), "ours")
        assert after.metadata.finalizers == ("theirs", "ours")
        assert setup.seen() is after
        assert await setup.writer.add_finalizer(after, "ours") is after
        assert setup.counted() == {"patch Widget": 1}


async def test_a_finalizer_added_to_an_old_copy_is_refused(setup: Setup) -> None:
    setup.server.make("w")
    async with setup.running():
        setup.server.change("w", {"metadata": {"finalizers": ["theirs"]}})
        with pytest.raises(Conflict):
            await setup.writer.add_finalizer(setup.seen(), "ours")


async def test_removing_finalizers_leaves_those_of_others(setup: Setup) -> None:
    setup.server.make("w", finalizers=["ours", "theirs", "ours-too"])
    setup.server.remove("w")
    async with setup.running():
        await setup.writer.remove_finalizers(setup.seen(), "ours", "ours-too", "absent")
        assert setup.seen().metadata.finalizers == ("theirs",)
        await setup.writer.remove_finalizers(setup.seen(), "ours")
        assert setup.counted() == {"patch Widget": 1}


async def test_an_object_that_lost_its_last_finalizer_leaves_the_cache(setup: Setup) -> None:
    setup.server.make("w", finalizers=["ours"])
    setup.server.remove("w")
    async with setup.running():
        await setup.writer.remove_finalizers(setup.seen(), "ours")
        assert setup.cached() is None
        assert not setup.server.has("w")


async def test_an_object_in_its_grace_period_is_not_taken_for_gone(setup: Setup) -> None:
    setup.server.make("w", finalizers=["ours"])
    setup.server.remove("w")
    setup.server.change("w", {"metadata": {"deletionGracePeriodSeconds": 30}})
    async with setup.running():
        await setup.writer.remove_finalizers(setup.seen(), "ours")
        assert setup.server.has("w")
        assert setup.seen().metadata.finalizers == ()


async def test_an_object_that_is_not_being_deleted_stays_without_its_finalizers(setup: Setup) -> None:
    setup.server.make("w", finalizers=["ours"])
    async with setup.running():
        await setup.writer.remove_finalizers(setup.seen(), "ours")
        assert setup.seen().metadata.finalizers == ()


async def test_removing_finalizers_of_a_deleted_object_succeeds(setup: Setup) -> None:
    setup.server.make("w", finalizers=["ours"])
    async with setup.running():
        seen = setup.seen()
        setup.server.change("w", {"metadata": {"finalizers": None}})
        setup.server.remove("w")
        await setup.writer.remove_finalizers(seen, "ours")


# Deleting


async def test_a_delete_names_the_uid_it_means(setup: Setup) -> None:
    setup.server.make("w")
    async with setup.running():
        old = setup.seen()
        await setup.writer.delete(old)
        assert setup.cached() is None
        [call] = [call for call in setup.server.calls if call.method == "DELETE"]
        assert msgspec.json.decode(call.body)["preconditions"] == {"uid": old.metadata.uid}
        setup.server.make("w")
        with pytest.raises(Conflict):
            await setup.writer.delete(old)
        assert setup.server.has("w")


async def test_a_delete_that_waits_for_finalizers_shows_in_the_cache(setup: Setup) -> None:
    setup.server.make("w", finalizers=["theirs"])
    async with setup.running():
        await setup.writer.delete(setup.seen())
        assert setup.seen().metadata.deleting


async def test_deleting_a_missing_object_succeeds_and_removes_it_from_the_cache(setup: Setup) -> None:
    setup.server.make("w")
    async with setup.running():
        setup.server.remove("w")
        await setup.writer.delete(setup.seen())
        assert setup.cached() is None


async def test_a_delete_by_name_removes_objects_that_no_cache_has(setup: Setup) -> None:
    async with setup.running():
        setup.server.make("w")
        await setup.writer.delete_named(WIDGET, "w", NAMESPACE)
        assert not setup.server.has("w")
        await setup.writer.delete_named(WIDGET, "w", NAMESPACE)
        assert setup.counted() == {"delete Widget": 2}


async def test_a_patch_of_a_missing_object_is_not_found(setup: Setup) -> None:
    setup.server.make("w")
    async with setup.running():
        setup.server.remove("w")
        with pytest.raises(NotFound):
            await setup.writer.patch(setup.seen(), {"spec": {"size": 1}})


async def test_later_changes_by_others_still_arrive(setup: Setup, simulation: Simulation) -> None:
    setup.faults.restore_watches()
    async with setup.running():
        widget = await setup.writer.create(WIDGET, WIDGET.body("w", NAMESPACE))
        setup.server.change("w")
        await simulation.settle()
        assert setup.seen().metadata.revision > widget.metadata.revision
        setup.server.remove("w")
        await simulation.settle()
        assert setup.cached() is None
