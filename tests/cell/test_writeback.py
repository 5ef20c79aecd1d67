"""controllers.md 7.4, 7.5 and R22: the copies on the hub, and what happens to them when the hub is away."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client import CollectorRegistry

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.cell.instance import NAME, InstanceController
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.quota import Disabled
from datum_compute.cell.writeback import WriteBack
from datum_compute.kube.errors import NotFound, from_status
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, encode, owner_reference, plain
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.faults import calls
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Request
from datum_compute.runtime.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import GROUP, LABELS, NAMESPACE_NAME, SPEC, Site

INSTANCE_FINALIZER = f"{GROUP}/instance-controller"
SOURCE = f"{GROUP}/source-cluster"


def _without_quota(runner: asyncio.Runner, simulation: Simulation, *, named: bool) -> Site:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        write_back = WriteBack(fleet, cell_name, NAME, named=named)
        return [InstanceController(fleet, simulation, Disabled(), write_back)]

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
    """A cell that was not given a name of its own."""
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


# 7.4


async def test_7_4_a_copy_has_ten_labels_the_spec_the_status_and_its_owner(cell: Site) -> None:
    await _copied(cell)
    copy = await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    instance = await cell.instance()
    assert copy.metadata.labels == LABELS | {
        f"{GROUP}/instance-index": "0",
        "meta.datumapis.com/upstream-cluster-name": "cluster-demo",
        "meta.datumapis.com/upstream-namespace": "default",
        SOURCE: "cell-dfw",
    }
    assert (plain(copy.spec_json), plain(copy.status_json)) == (plain(instance.spec_json), plain(instance.status_json))
    owner = copy.metadata.controller
    assert owner is not None
    original = await cell.hub.get(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    assert (owner.uid, owner.controller, owner.block_owner_deletion) == (original.metadata.uid, True, True)
    assert (copy.metadata.annotations, copy.metadata.finalizers) == ({}, ())


async def test_row_18_a_gated_instance_without_transitions_is_on_the_hub(site: Site) -> None:
    await site.hub_deployment()
    await site.create()
    await site.advance(1)
    assert await site.copies() == ["web-0"]
    assert (await site.gates()) == ["Quota"]


async def test_row_19_an_unchanged_instance_is_not_written_again(cell: Site) -> None:
    await _copied(cell)
    before = _hub_writes(cell)
    for beat in range(5):
        note = {"metadata": {"labels": {"beat": str(beat)}}}
        await cell.cell.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, note)
        await cell.settle()
    assert _hub_writes(cell) == before


async def test_row_33_a_copy_does_not_come_back_after_the_hub_deployment_is_gone(cell: Site) -> None:
    await _copied(cell)
    await cell.hub.delete(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    await cell.advance(5)
    assert await cell.copies() == []
    await cell.report(Available=("False", "Stopping"))
    await cell.advance(600)
    assert await cell.copies() == []


async def test_7_4_without_a_hub_deployment_nothing_is_written_until_there_is_one(cell: Site) -> None:
    await cell.create()
    assert _hub_writes(cell) == 0
    await cell.hub_deployment()
    assert await cell.copies() == ["web-0"]


async def test_7_4_foreign_labels_stay_and_what_is_ours_is_put_right(cell: Site) -> None:
    await _copied(cell)
    edited: Json = {"metadata": {"labels": {"theirs": "stays", SOURCE: "cell-dfw", f"{GROUP}/city-code": "forged"}}}
    await cell.hub.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, edited)
    await cell.settle()
    copy = await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    assert copy.metadata.labels["theirs"] == "stays"
    assert copy.metadata.labels[f"{GROUP}/city-code"] == "DFW"


async def test_7_4_an_unowned_copy_is_adopted_and_one_of_somebody_else_left_alone(cell: Site) -> None:
    await cell.hub_deployment()
    await cell.hub.create(INSTANCE, INSTANCE.body("web-0", NAMESPACE_NAME) | {"spec": SPEC})
    original = await cell.hub.get(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    body = WORKLOAD_DEPLOYMENT.body("other", NAMESPACE_NAME)
    other = await cell.hub.create(WORKLOAD_DEPLOYMENT, body | {"spec": plain(original.spec_json)})
    owner = owner_reference(WORKLOAD_DEPLOYMENT.api_version, "WorkloadDeployment", other.metadata, controller=True)
    body = INSTANCE.body("web-1", NAMESPACE_NAME, ownerReferences=[owner])
    await cell.hub.create(INSTANCE, body | {"spec": SPEC})
    await cell.create("web-0")
    adopted = await cell.hub.get(INSTANCE, "web-0", NAMESPACE_NAME)
    assert adopted.metadata.controller is not None
    assert adopted.metadata.labels[SOURCE] == "cell-dfw"
    before = _hub_writes(cell)
    await cell.create("web-1")
    assert _hub_writes(cell) == before


async def test_7_4_a_hub_namespace_that_does_not_say_whose_it_is_gets_no_copy(cell: Site) -> None:
    labels = {"metadata": {"labels": {"meta.datumapis.com/upstream-namespace": None}}}
    await cell.hub.merge_patch(NAMESPACE, NAMESPACE_NAME, "", labels)
    await cell.settle()
    await cell.hub_deployment()
    await cell.create()
    await cell.runs()
    assert await cell.copies() == []
    assert (await cell.told("Ready"))[0] == "True"  # the site goes on


async def test_the_hop_to_the_hub_is_measured(runner: asyncio.Runner, simulation: Simulation) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)

    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return [InstanceController(fleet, simulation, Disabled(), WriteBack(fleet, cell_name, NAME), metrics=metrics)]

    cell = Site(simulation, build)
    await cell.start()
    await _copied(cell)
    labels = {"hop": "cell_to_hub"}
    count = registry.get_sample_value("compute_federation_hop_seconds_count", labels)
    assert count
    total = registry.get_sample_value("compute_federation_hop_seconds_sum", labels)
    assert total is not None
    assert 0 <= total < 60  # since the change came in, not since the loop began
    passes = cell.manager.controllers["instance"].passes
    assert count < passes
    await cell.stop()


# 7.5 and R22


async def test_7_5_the_copy_goes_with_the_instance(cell: Site) -> None:
    await _copied(cell)
    await cell.delete()
    assert (await cell.copies(), await cell.instances()) == ([], [])


async def test_row_48_without_the_hub_an_instance_goes_and_its_copy_is_removed_on_return(cell: Site) -> None:
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


async def test_r22_a_copy_left_behind_is_swept_at_start(cell: Site) -> None:
    await _copied(cell)
    cell.faults["hub"].take_away()
    await cell.advance(1)
    await cell.delete()
    await cell.restart()
    await cell.advance(1)
    assert await cell.copies() == []


@pytest.mark.parametrize("seed", range(1, 9))
async def test_r22_whichever_plane_is_met_first(cell: Site, seed: int) -> None:
    """At start hub and cell are engaged in any order."""
    await cell.hub_deployment()
    body = INSTANCE.body("web-7", NAMESPACE_NAME, labels={SOURCE: "cell-dfw"})
    await cell.hub.create(INSTANCE, body | {"spec": SPEC})
    await cell.restart()
    await cell.advance(1)
    assert await cell.copies() == []


async def test_r22_a_copy_of_which_no_event_told_is_swept_within_ten_minutes(cell: Site) -> None:
    await _copied(cell)
    dropped = cell.faults["hub"].drop_event(calls(path="instances"))
    body = INSTANCE.body("web-7", NAMESPACE_NAME, labels={SOURCE: "cell-dfw"})
    await cell.hub.create(INSTANCE, body | {"spec": SPEC})
    await cell.settle()
    assert dropped.fired
    await cell.advance(1400)  # the cache is compared with the server every ten minutes, and so is what it holds
    assert await cell.copies() == ["web-0"]


async def test_r22_a_copy_of_another_cell_is_left_alone(cell: Site) -> None:
    await cell.hub_deployment()
    body = INSTANCE.body("web-7", NAMESPACE_NAME, labels={SOURCE: "cell-ord"})
    await cell.hub.create(INSTANCE, body | {"spec": SPEC})
    await cell.advance(1400)
    await cell.restart()
    await cell.advance(1400)
    assert await cell.copies() == ["web-7"]


@pytest.mark.parametrize("code", [403, 422])
async def test_7_5_a_refusal_by_the_hub_keeps_the_finalizer(cell: Site, code: int) -> None:
    await _copied(cell)

    async def refuse(call: Call) -> Answer | None:
        said = {"kind": "Status", "status": "Failure", "message": "not you", "code": code}
        return Answer(code, encode(said)) if call.method == "DELETE" else None

    cell.faults["hub"].instead = refuse
    await cell.delete()
    assert INSTANCE_FINALIZER in (await cell.instance()).metadata.finalizers
    cell.faults["hub"].instead = None
    await cell.advance(60)
    with pytest.raises(NotFound):
        await cell.instance()


async def test_r22_without_a_name_of_its_own_the_finalizer_waits_for_the_hub(unnamed: Site) -> None:
    await _copied(unnamed)
    unnamed.faults["hub"].take_away()
    await unnamed.advance(1)
    await unnamed.delete()
    await unnamed.advance(600)
    assert INSTANCE_FINALIZER in (await unnamed.instance()).metadata.finalizers
    unnamed.faults["hub"].bring_back()
    await unnamed.advance(10)
    assert (await unnamed.copies(), await unnamed.instances()) == ([], [])


async def test_r22_without_a_name_of_its_own_nothing_is_swept(unnamed: Site) -> None:
    await unnamed.hub_deployment()
    body = INSTANCE.body("web-7", NAMESPACE_NAME, labels={SOURCE: "cell-dfw"})
    await unnamed.hub.create(INSTANCE, body | {"spec": SPEC})
    await unnamed.advance(1400)
    await unnamed.restart()
    await unnamed.advance(1400)
    assert await unnamed.copies() == ["web-7"]


async def test_r22_without_a_name_a_copy_that_the_cache_missed_is_found_all_the_same(unnamed: Site) -> None:
    await unnamed.hub_deployment()
    unnamed.faults["hub"].silence_watches()
    lost = unnamed.faults["hub"].lose_answer(calls("POST", "instances"))
    await unnamed.create()
    assert lost.fired
    assert await unnamed.copies() == ["web-0"]
    await unnamed.delete()
    await unnamed.advance(5)
    assert await unnamed.copies() == []


async def test_row_48_a_gateway_that_speaks_for_the_hub_is_no_hub(cell: Site) -> None:
    await _copied(cell)
    for number in range(1, 50):
        cell.faults["hub"].answer(calls("DELETE", "instances"), from_status(502, b"<html>", "hub"), number)
    await cell.delete()
    await cell.advance(10)
    assert INSTANCE_FINALIZER not in await _finalizers(cell)


async def test_a_copy_whose_instance_only_the_cache_lacks_stays(cell: Site) -> None:
    await _copied(cell)
    cell.fleet.plane("cell").informer(INSTANCE).fold_delete(await cell.instance())
    cell.manager.controllers["instance"].enqueue(Request("cell", NAMESPACE_NAME, "web-0"))
    await cell.settle()
    assert await cell.copies() == ["web-0"]


async def _finalizers(cell: Site) -> tuple[str, ...]:
    try:
        return (await cell.instance()).metadata.finalizers
    except NotFound:
        return ()
