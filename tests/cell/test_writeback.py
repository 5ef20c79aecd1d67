"""The hub's copies of Instances, and what happens to them while the hub is unreachable."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.writeback import WriteBack
from datum_compute.kube.errors import Cause, Forbidden, NotFound, from_status
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict, controller_reference, encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Request
from datum_compute.runtime.testing.faults import Lasting, calls, writes
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import FINALIZERS, GROUP, LABELS, NAMESPACE_NAME, SPEC, Site, condition_of

INSTANCE_FINALIZER = f"{GROUP}/instance-controller"
SOURCE = f"{GROUP}/source-cluster"
PROVIDER = "provider.example/finalizer"


def _without_quota(runner: asyncio.Runner, simulation: Simulation, *, named: bool) -> Site:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name, named=named, quota=False)

    site = Site(simulation, build)
    runner.run(site.start())
    return site


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Site]:
    """Without quota."""
    site = _without_quota(runner, simulation, named=True)
    yield site
    runner.run(site.stop())


@pytest.fixture
def unnamed(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Site]:
    """A cell without a configured name."""
    site = _without_quota(runner, simulation, named=False)
    yield site
    runner.run(site.stop())


async def _copied(cell: Site) -> None:
    await cell.hub_deployment()
    await cell.create()
    await cell.runs()
    assert await cell.copies() == ["web-0"]


def _hub_writes(cell: Site) -> int:
    return sum(n for write, n in cell.writes.counts.items() if write.plane == "hub")


# Copies of existing Instances


async def test_a_copy_has_ten_labels_the_spec_the_status_and_its_owner(cell: Site) -> None:
    await _copied(cell)
    copy = await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    instance = await cell.instance()
    assert copy.metadata.labels == LABELS | {
        f"{GROUP}/instance-index": "0",
        "meta.datumapis.com/upstream-cluster-name": "cluster-demo",
        "meta.datumapis.com/upstream-namespace": "default",
        SOURCE: "cell-dfw",
    }
    assert (as_dict(copy.spec_json), as_dict(copy.status_json)) == (
        as_dict(instance.spec_json),
        as_dict(instance.status_json),
    )
    owner = copy.metadata.controller
    assert owner is not None
    original = await cell.hub.get(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    assert (owner.uid, owner.controller, owner.block_owner_deletion) == (original.metadata.uid, True, True)
    stamped = {
        f"{GROUP}/upstream-generation": str(instance.metadata.generation),
        f"{GROUP}/upstream-uid": instance.metadata.uid,
    }
    assert (copy.metadata.annotations, copy.metadata.finalizers) == (stamped, ())


async def test_a_gated_instance_is_copied_before_any_status_change(site: Site) -> None:
    await site.create()
    await site.advance(90)
    before = await site.instance()
    assert await site.copies() == []  # the hub has no deployment for it yet
    await site.hub_deployment()
    await site.advance(2)
    assert await site.copies() == ["web-0"]
    assert await site.instance() == before  # nothing about the Instance changed meanwhile
    assert (await site.gates()) == ["Quota"]
    copy = await site.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    assert as_dict(copy.status_json) == as_dict(before.status_json)


async def test_an_unchanged_instance_is_not_written_again(cell: Site) -> None:
    await _copied(cell)
    before = _hub_writes(cell)
    for beat in range(5):
        note = {"metadata": {"labels": {"beat": str(beat)}}}
        await cell.cell.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, note)
        await cell.settle()
    assert _hub_writes(cell) == before


async def test_a_copy_does_not_come_back_after_the_hub_deployment_is_gone(cell: Site) -> None:
    await _copied(cell)
    await cell.hub.delete(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    await cell.advance(5)
    assert await cell.copies() == []
    await cell.report(Available=("False", "Stopping"))
    await cell.advance(600)
    assert await cell.copies() == []


async def test_no_copy_is_made_for_a_hub_deployment_that_only_the_cache_still_has(cell: Site) -> None:
    """It would be garbage-collected at once, and written again."""
    await cell.hub_deployment()
    cell.faults["hub"].silence_watches()
    await cell.hub.delete(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    await cell.create()
    await cell.runs()
    assert cell.fleet.plane("hub").informer(WORKLOAD_DEPLOYMENT).get(NAMESPACE_NAME, "web") is not None
    assert _hub_writes(cell) == 0


@pytest.mark.parametrize("heard", [True, False])
async def test_no_copy_is_made_in_a_hub_namespace_that_is_being_deleted_and_nobody_is_warned(
    cell: Site, heard: bool
) -> None:
    await cell.hub_deployment()
    causes = [Cause("NamespaceTerminating", "namespace ns-1 is being terminated")]
    if heard:
        namespace = await cell.hub.get(NAMESPACE, NAMESPACE_NAME)
        metadata = replace(namespace.metadata, resource_version="1000", deletion_timestamp=cell.simulation.now())
        cell.fleet.plane("hub").informer(NAMESPACE).fold(replace(namespace, metadata=metadata))
    else:
        cell.faults["hub"].refuse(calls("POST", "instances"), Forbidden("it goes", causes=causes))
    await cell.create()
    await cell.runs()
    await cell.advance(30)
    assert await cell.copies() == []
    assert _hub_writes(cell) <= (0 if heard else 2)
    assert cell.manager.controllers["write-back"].results["error"] == 0
    assert (condition_of(await cell.instance(), "Federated"), await cell.events()) == (None, [])


async def test_a_copy_is_never_given_to_an_owner_that_only_a_cache_still_has(cell: Site) -> None:
    """As after a restore of the hub: such a copy would be garbage-collected at once, and written again."""
    await _copied(cell)
    for number in (1, 2):
        cell.faults["hub"].drop_event(calls(path="workloaddeployments"), number)
    await cell.hub.delete(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    await cell.hub_deployment()
    before = _hub_writes(cell)
    await cell.advance(60)
    assert await cell.copies() == ["web-0"]
    assert _hub_writes(cell) - before <= 4
    (owner,) = (await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)).metadata.owner_references
    assert owner.uid == (await cell.hub.get(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)).metadata.uid


async def test_without_a_hub_deployment_nothing_is_written_until_there_is_one(cell: Site) -> None:
    await cell.create()
    assert _hub_writes(cell) == 0
    await cell.hub_deployment()
    assert await cell.copies() == ["web-0"]


async def test_labels_of_others_stay_and_ours_are_repaired(cell: Site) -> None:
    await _copied(cell)
    edited: Json = {"metadata": {"labels": {"theirs": "stays", SOURCE: "cell-dfw", f"{GROUP}/city-code": "forged"}}}
    await cell.hub.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, edited)
    await cell.settle()
    copy = await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    assert copy.metadata.labels["theirs"] == "stays"
    assert copy.metadata.labels[f"{GROUP}/city-code"] == "DFW"


@pytest.mark.parametrize("named", [True, False])
async def test_a_copy_relabelled_with_another_cells_name_is_repaired(named: bool, cell: Site, unnamed: Site) -> None:
    site = cell if named else unnamed
    await _copied(site)
    label = {"metadata": {"labels": {SOURCE: "cell-ord"}}}
    await site.hub.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, label)
    await site.settle()
    assert (await site.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)).metadata.labels[SOURCE] == "cell-dfw"


async def test_a_copy_that_another_cell_deleted_comes_back(cell: Site) -> None:
    await _copied(cell)
    await cell.hub.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, {"metadata": {"labels": {SOURCE: "cell-ord"}}})
    await cell.hub.delete(INSTANCE, "web-0", NAMESPACE_NAME)
    await cell.settle()
    assert await cell.copies() == ["web-0"]


async def test_the_sweep_finds_instances_without_a_copy(cell: Site) -> None:
    await cell.create()
    write_back, plane = WriteBack(cell.fleet, cell_name), cell.fleet.plane("cell")
    assert list(write_back.sweep(plane)) == [Request("cell", NAMESPACE_NAME, "web-0")]
    await cell.hub_deployment()
    assert await cell.copies() == ["web-0"]
    assert list(write_back.sweep(plane)) == []


async def test_an_unowned_copy_is_adopted_and_one_with_another_owner_left_alone(cell: Site) -> None:
    await cell.hub_deployment()
    await cell.hub.create(INSTANCE, INSTANCE.body("web-0", NAMESPACE_NAME) | {"spec": SPEC})
    original = await cell.hub.get(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    body = WORKLOAD_DEPLOYMENT.body("other", NAMESPACE_NAME)
    other = await cell.hub.create(WORKLOAD_DEPLOYMENT, body | {"spec": as_dict(original.spec_json)})
    owner = controller_reference(other)
    body = INSTANCE.body("web-1", NAMESPACE_NAME, ownerReferences=[owner])
    await cell.hub.create(INSTANCE, body | {"spec": SPEC})
    await cell.create("web-0")
    adopted = await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    assert adopted.metadata.controller is not None
    assert adopted.metadata.labels[SOURCE] == "cell-dfw"
    before = _hub_writes(cell)
    await cell.create("web-1")
    assert _hub_writes(cell) == before


async def test_a_hub_namespace_without_identity_labels_gets_no_copy(cell: Site) -> None:
    labels = {"metadata": {"labels": {"meta.datumapis.com/upstream-namespace": None}}}
    await cell.hub.merge_patch(NAMESPACE, NAMESPACE_NAME, "", labels)
    await cell.settle()
    await cell.hub_deployment()
    await cell.create()
    await cell.runs()
    assert await cell.copies() == []
    assert (await cell.condition("Ready"))[0] == "True"  # the site keeps working


async def test_the_hop_to_the_hub_is_measured(runner: asyncio.Runner, simulation: Simulation) -> None:
    registry = CollectorRegistry()

    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name, metrics=Metrics(registry), quota=False)

    cell = Site(simulation, build)
    await cell.start()
    await _copied(cell)
    labels = {"hop": "cell_to_hub"}
    count = registry.get_sample_value("compute_federation_hop_seconds_count", labels)
    assert count
    total = registry.get_sample_value("compute_federation_hop_seconds_sum", labels)
    assert total is not None
    assert 0 <= total < 60  # since the change came in, not since the loop began
    passes = cell.manager.controllers["write-back"].passes
    assert count < passes
    await cell.stop()


# Copies of deleted Instances


async def test_the_copy_is_deleted_with_the_instance(cell: Site) -> None:
    await _copied(cell)
    await cell.delete()
    assert (await cell.copies(), await cell.instances()) == ([], [])


async def test_without_the_hub_an_instance_is_deleted_and_its_copy_on_return(cell: Site) -> None:
    await _copied(cell)
    cell.faults["hub"].take_away()
    await cell.advance(1)
    await cell.delete()
    assert await cell.instances() == []
    await cell.advance(1000)
    assert await cell.copies() == ["web-0"]
    cell.faults["hub"].bring_back()
    await cell.advance(10)  # long before the next sweep
    assert await cell.copies() == []


async def test_a_copy_left_behind_is_swept_at_start(cell: Site) -> None:
    await _copied(cell)
    cell.faults["hub"].take_away()
    await cell.advance(1)
    await cell.delete()
    await cell.restart()
    await cell.advance(1)
    assert await cell.copies() == []


@pytest.mark.parametrize("seed", range(1, 9))
async def test_a_leftover_copy_is_swept_whichever_plane_is_engaged_first(cell: Site, seed: int) -> None:
    """At start hub and cell are engaged in any order."""
    await cell.hub_deployment()
    body = INSTANCE.body("web-7", NAMESPACE_NAME, labels={SOURCE: "cell-dfw"})
    await cell.hub.create(INSTANCE, body | {"spec": SPEC})
    await cell.restart()
    await cell.advance(1)
    assert await cell.copies() == []


async def test_a_leftover_copy_without_an_event_is_swept_within_ten_minutes(cell: Site) -> None:
    await _copied(cell)
    dropped = cell.faults["hub"].drop_event(calls(path="instances"))
    body = INSTANCE.body("web-7", NAMESPACE_NAME, labels={SOURCE: "cell-dfw"})
    await cell.hub.create(INSTANCE, body | {"spec": SPEC})
    await cell.settle()
    assert dropped.fired
    await cell.advance(1400)  # the cache is compared with the server every ten minutes, and so is what it holds
    assert await cell.copies() == ["web-0"]


async def test_a_copy_of_another_cell_is_left_alone(cell: Site) -> None:
    await cell.hub_deployment()
    body = INSTANCE.body("web-7", NAMESPACE_NAME, labels={SOURCE: "cell-ord"})
    await cell.hub.create(INSTANCE, body | {"spec": SPEC})
    await cell.advance(1400)
    await cell.restart()
    await cell.advance(1400)
    assert await cell.copies() == ["web-7"]


def _refuse(cell: Site, code: int) -> Lasting:
    """The hub answers every write with this, until it is lifted."""
    return cell.faults["hub"].refuse(writes, from_status(code, b'{"message": "not you"}', "hub"))


@pytest.mark.parametrize("code", [401, 403, 409, 422, 429, 500, 502, 503, 504])
async def test_whatever_the_hub_answers_an_instance_is_deleted_and_its_copy_swept_later(cell: Site, code: int) -> None:
    await _copied(cell)
    refusal = _refuse(cell, code)
    await cell.delete()
    assert await cell.instances() == []
    await cell.advance(60)
    assert await cell.copies() == ["web-0"]
    refusal.lift()
    await cell.advance(700)
    assert await cell.copies() == []


@pytest.mark.parametrize("code", [401, 403, 422, 429, 500, 503, 504])
async def test_whatever_the_hub_answers_a_site_rolls(cell: Site, code: int) -> None:
    """The next Instance has the name of the one that is being deleted."""
    await cell.deploy(2)
    for name in ("web-0", "web-1"):
        await cell.advance(1)
        await cell.runs(name)
    before = {instance.name: instance.metadata.uid for instance in await cell.instances()}
    refusal = _refuse(cell, code)
    image = {"sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:2"}]}}
    spec = {"spec": {"template": {"spec": {"runtime": image}}}}
    await cell.cell.merge_patch(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME, spec)
    for name in ("web-1", "web-0"):
        await cell.advance(1)
        await cell.runs(name)
    after = {instance.name: instance.metadata.uid for instance in await cell.instances()}
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    assert {(await cell.condition("Ready", name))[0] for name in after} == {"True"}
    refusal.lift()
    await cell.advance(700)
    for name in after:
        copy, instance = await cell.hub.get(INSTANCE, name, NAMESPACE_NAME), await cell.instance(name)
        assert (as_dict(copy.spec_json), as_dict(copy.status_json)) == (
            as_dict(instance.spec_json),
            as_dict(instance.status_json),
        )


@pytest.mark.parametrize(("code", "kind"), [(403, "Forbidden"), (422, "Invalid")])
async def test_a_refused_copy_is_reported_on_its_instance(cell: Site, code: int, kind: str) -> None:
    await cell.hub_deployment()
    refusal = _refuse(cell, code)
    await cell.create()
    await cell.runs()
    sentence = f"The hub refuses to show the instance in its project ({kind}): not you"
    assert await cell.condition("Federated") == ("False", "HubRefused", sentence)
    assert (await cell.condition("Ready"))[0] == "True"  # it runs nevertheless
    before = cell.writes.total("write-back") - _hub_writes(cell)
    await cell.advance(600)
    assert await cell.events() == [("HubRefused", sentence)]
    assert cell.writes.total("write-back") - _hub_writes(cell) == before
    refusal.lift()
    await cell.advance(700)
    assert await cell.copies() == ["web-0"]
    assert condition_of(await cell.instance(), "Federated") is None
    assert condition_of(await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME), "Federated") is None


async def test_a_refusal_that_is_worded_differently_each_time_is_written_once(cell: Site) -> None:
    await cell.hub_deployment()
    tries = 0

    async def refuse(call: Call) -> Answer | None:
        nonlocal tries
        if call.method == "GET" or "/instances" not in call.path:
            return None
        tries += 1
        status = {"kind": "Status", "status": "Failure", "message": f"not you, request {tries}", "code": 403}
        return Answer(403, encode(status))

    cell.faults["hub"].instead = refuse
    await cell.create()
    await cell.runs()
    before = await cell.instance()
    await cell.advance(100)
    assert tries > 5
    assert (await cell.instance()).metadata.resource_version == before.metadata.resource_version


@pytest.mark.parametrize("code", [500, 503])
async def test_an_outage_of_the_hub_says_nothing_about_an_instance(cell: Site, code: int) -> None:
    await cell.hub_deployment()
    _refuse(cell, code)
    await cell.create()
    await cell.runs()
    await cell.advance(100)
    assert condition_of(await cell.instance(), "Federated") is None
    assert await cell.events() == []


async def test_a_refused_deletion_of_a_copy_is_reported_once_on_the_instance(unnamed: Site) -> None:
    await _copied(unnamed)
    _refuse(unnamed, 403)
    await unnamed.delete()
    await unnamed.advance(100)
    sentence = "The hub refuses to delete its copy of instance web-0: not you"
    assert await unnamed.events() == [("HubRefused", sentence)]


async def _held_by_provider(cell: Site) -> None:
    held = {"metadata": {"finalizers": [PROVIDER, *FINALIZERS]}}
    await cell.cell.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, held)


async def test_a_copy_shows_that_its_instance_is_stopping_and_is_deleted_with_it(cell: Site) -> None:
    await _stops_in_sight(cell)


async def test_a_copy_shows_the_stop_even_where_the_finalizer_waits_for_the_hub(unnamed: Site) -> None:
    await _stops_in_sight(unnamed)


async def _stops_in_sight(site: Site) -> None:
    await _copied(site)
    await _held_by_provider(site)
    await site.delete()
    await site.advance(60)
    copy = await site.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    ready = condition_of(copy, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Stopping")
    await site.cell.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, {"metadata": {"finalizers": list(FINALIZERS)}})
    await site.advance(1)
    assert await site.copies() == []
    assert await site.instances() == []


async def test_a_stopping_instance_that_has_no_copy_gets_none(cell: Site) -> None:
    await cell.create()
    await cell.runs()
    await _held_by_provider(cell)
    await cell.delete()
    await cell.hub_deployment()
    await cell.advance(60)
    assert await cell.copies() == []


async def test_a_later_instance_of_the_same_name_gets_a_new_copy(cell: Site) -> None:
    """Its age is that of its Instance, even if the deletion of the previous one went unnoticed."""
    await _copied(cell)
    before = await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    stale = {"metadata": {"annotations": {f"{GROUP}/upstream-uid": "that of an earlier one"}}}
    await cell.hub.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, stale)
    await cell.advance(1)
    after = await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    assert after.metadata.uid != before.metadata.uid
    assert after.metadata.annotations[f"{GROUP}/upstream-uid"] == (await cell.instance()).metadata.uid


async def test_a_refused_deletion_is_reported_once_on_the_deployment_when_the_instance_is_gone(cell: Site) -> None:
    await cell.deploy(1)
    _refuse(cell, 403)
    body = INSTANCE.body("web-7", NAMESPACE_NAME, labels=LABELS | {SOURCE: "cell-dfw"})
    await cell.hub.create(INSTANCE, body | {"spec": SPEC})
    await cell.advance(100)
    sentence = "The hub refuses to delete its copy of instance web-7: not you"
    assert await cell.events("web") == [("HubRefused", sentence)]


async def test_without_a_configured_name_the_finalizer_waits_for_the_hub(unnamed: Site) -> None:
    await _copied(unnamed)
    unnamed.faults["hub"].take_away()
    await unnamed.advance(1)
    await unnamed.delete()
    await unnamed.advance(600)
    assert INSTANCE_FINALIZER in (await unnamed.instance()).metadata.finalizers
    unnamed.faults["hub"].bring_back()
    await unnamed.advance(10)
    assert (await unnamed.copies(), await unnamed.instances()) == ([], [])


async def test_without_a_configured_name_nothing_is_swept(unnamed: Site) -> None:
    await unnamed.hub_deployment()
    body = INSTANCE.body("web-7", NAMESPACE_NAME, labels={SOURCE: "cell-dfw"})
    await unnamed.hub.create(INSTANCE, body | {"spec": SPEC})
    await unnamed.advance(1400)
    await unnamed.restart()
    await unnamed.advance(1400)
    assert await unnamed.copies() == ["web-7"]


async def test_without_a_configured_name_a_copy_missing_in_the_cache_is_still_deleted(unnamed: Site) -> None:
    await unnamed.hub_deployment()
    unnamed.faults["hub"].silence_watches()
    lost = unnamed.faults["hub"].lose_answer(calls("POST", "instances"))
    await unnamed.create()
    assert lost.fired
    assert await unnamed.copies() == ["web-0"]
    await unnamed.delete()
    await unnamed.advance(5)
    assert await unnamed.copies() == []


async def test_an_answer_of_a_gateway_is_not_taken_for_the_hubs(cell: Site) -> None:
    await _copied(cell)
    for number in range(1, 50):
        cell.faults["hub"].answer(calls("DELETE", "instances"), from_status(502, b"<html>", "hub"), number)
    await cell.delete()
    await cell.advance(10)
    assert INSTANCE_FINALIZER not in await _finalizers(cell)


async def test_a_copy_stays_if_only_the_cache_lacks_its_instance(cell: Site) -> None:
    await _copied(cell)
    cell.fleet.plane("cell").informer(INSTANCE).fold_delete(await cell.instance())
    cell.manager.controllers["write-back"].enqueue(Request("cell", NAMESPACE_NAME, "web-0"))
    await cell.settle()
    assert await cell.copies() == ["web-0"]


async def _finalizers(cell: Site) -> tuple[str, ...]:
    try:
        return (await cell.instance()).metadata.finalizers
    except NotFound:
        return ()
