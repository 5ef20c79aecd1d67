"""Deployments that the hub lacks are removed once their withdrawal is noted, never because they are missing."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import WORK
from datum_compute.cell.deployment import DeploymentController
from datum_compute.cell.metrics import Metrics
from datum_compute.federation.removal import AT_ONCE, GRACE_SECONDS
from datum_compute.federation.withdrawals import Note, annotation, notes_of, with_notes
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import NAMESPACE_NAME, Site
from tests.karmada_objects import SPACE, keep, names_of, serve

SWEEP_SECONDS = DeploymentController.sweep_seconds


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation, metrics: Metrics) -> Iterator[Site]:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name, metrics=metrics, quota=False)

    site = Site(simulation, build)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


async def _running(cell: Site) -> None:
    await cell.deploy(2)
    await cell.runs("web-0")
    await cell.runs("web-1")
    assert await cell.copies() == ["web-0", "web-1"]


async def _forgotten(cell: Site, name: str = "web") -> None:
    """Withdraws the hub object as the federator does, but leaves the copy in the cell."""
    original = await cell.hub.get(WORKLOAD_DEPLOYMENT, name, NAMESPACE_NAME)
    await _note(cell, Note(name, original.metadata.uid))
    await _lost(cell, name)


async def _note(cell: Site, *added: Note) -> None:
    home = await cell.hub.get(NAMESPACE, NAMESPACE_NAME)
    notes = with_notes(notes_of(home.metadata.annotations), added)
    await cell.hub.merge_patch(NAMESPACE, NAMESPACE_NAME, "", {"metadata": {"annotations": annotation(notes)}})


async def _lost(cell: Site, name: str = "web") -> None:
    """Deletes the hub object without a note, as after a restore."""
    await cell.hub.delete(WORKLOAD_DEPLOYMENT, name, NAMESPACE_NAME)
    await cell.advance(1)


async def _release(cell: Site, name: str = "web") -> None:
    patch = {"metadata": {"annotations": {"compute.datumapis.com/release": "true"}}}
    await cell.cell.merge_patch(WORKLOAD_DEPLOYMENT, name, NAMESPACE_NAME, patch)


def _held(registry: CollectorRegistry, reason: str = "unproven") -> float | None:
    return registry.get_sample_value("compute_cell_deployments_held", {"reason": reason})


async def _is_left(cell: Site, name: str = "web") -> bool:
    try:
        return not (await cell.deployment(name)).metadata.deleting
    except NotFound:
        return False


async def test_a_forgotten_deployment_is_removed_with_everything_it_has(
    cell: Site, registry: CollectorRegistry
) -> None:
    await _running(cell)
    await _forgotten(cell)
    await cell.advance(SWEEP_SECONDS + 2 * GRACE_SECONDS)
    assert not await _is_left(cell)
    assert (await cell.instances(), await cell.copies()) == ([], [])
    assert registry.get_sample_value("compute_leftovers_removed_total", {"kind": "cell_deployment"}) == 1


async def test_a_forgotten_deployment_is_checked_as_soon_as_its_original_is_deleted(cell: Site) -> None:
    await _running(cell)
    await _forgotten(cell)
    await cell.advance(GRACE_SECONDS - 2)
    assert await _is_left(cell)
    await cell.advance(2)
    assert not await _is_left(cell)


async def test_the_work_that_would_bring_it_back_is_removed_too(cell: Site) -> None:
    await serve(cell.hub)
    await cell.deploy(annotations=await keep(cell.hub, "of-web", NAMESPACE_NAME))
    await keep(cell.hub, "of-another", NAMESPACE_NAME)
    await _forgotten(cell)
    await cell.advance(GRACE_SECONDS)
    assert not await _is_left(cell)
    assert await names_of(cell.hub, WORK) == ["of-another"]


async def test_a_work_of_another_project_stays(cell: Site) -> None:
    """Even if the copy names that Work."""
    await serve(cell.hub)
    await cell.deploy(annotations=await keep(cell.hub, "of-others", "ns-2"))
    await _forgotten(cell)
    await cell.advance(GRACE_SECONDS)
    assert not await _is_left(cell)
    assert await names_of(cell.hub, WORK) == ["of-others"]


async def test_a_work_that_karmada_is_changing_stays_with_its_copy(cell: Site) -> None:
    """As Karmada does for a new original of the same name."""
    await serve(cell.hub)
    await cell.deploy(annotations=await keep(cell.hub, "of-web", NAMESPACE_NAME))
    await _forgotten(cell)
    changes = 1

    async def change(call: Call) -> None:
        nonlocal changes
        if changes and calls("GET", f"namespaces/{NAMESPACE_NAME}/workloaddeployments")(call):
            changes -= 1
            await cell.hub.merge_patch(WORK, "of-web", SPACE, {"spec": {"of": "a new original"}})

    cell.faults["hub"].instead = change
    await cell.advance(GRACE_SECONDS)
    assert changes == 0
    assert await _is_left(cell)
    assert await names_of(cell.hub, WORK) == ["of-web"]
    await cell.advance(GRACE_SECONDS)  # and when it was none, it is tried again
    assert not await _is_left(cell)
    assert await names_of(cell.hub, WORK) == []


async def test_a_missing_permission_to_delete_works_is_reported_and_retried(cell: Site) -> None:
    await serve(cell.hub)
    await cell.deploy(annotations=await keep(cell.hub, "of-web", NAMESPACE_NAME))
    await _forgotten(cell)

    async def refuse(call: Call) -> Answer | None:
        status = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no right", "code": 403}
        return Answer(403, encode(status)) if calls("DELETE", "works")(call) else None

    cell.faults["hub"].instead = refuse
    with capture_logs() as logs:
        await cell.advance(GRACE_SECONDS)
    assert await _is_left(cell)
    assert [(line["event"], line["copy"]) for line in logs if "leftover" in line["event"]] == [
        ("leftover cannot be removed yet", f"{NAMESPACE_NAME}/web")
    ]
    cell.faults["hub"].instead = None
    await cell.advance(GRACE_SECONDS)
    assert not await _is_left(cell)


@pytest.mark.parametrize("seed", range(1, 9))
async def test_a_deployment_forgotten_while_no_controller_ran_is_removed_soon_after_the_start(
    cell: Site, seed: int
) -> None:
    """At start hub and cell are engaged in any order."""
    await _running(cell)
    await _forgotten(cell)
    await cell.restart()
    await cell.advance(GRACE_SECONDS / 2)
    assert await _is_left(cell)
    await cell.advance(GRACE_SECONDS)
    assert not await _is_left(cell)


async def test_deployments_that_the_hub_has_stay(cell: Site) -> None:
    await _running(cell)
    before = cell.writes.total()
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)
    assert cell.writes.total() == before


async def test_a_copy_that_arrives_before_the_hub_is_cached_stays(cell: Site) -> None:
    cell.faults["hub"].drop_event(calls(path="workloaddeployments"))
    await _running_unseen(cell)
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)


async def _running_unseen(cell: Site) -> None:
    await cell.deploy(1)
    await cell.runs("web-0")


async def test_deployments_that_karmada_did_not_deliver_stay(cell: Site) -> None:
    await cell.deploy(1, on_hub=False)
    await cell.cell.merge_patch(
        WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME, {"metadata": {"labels": {"karmada.io/managed": None}}}
    )
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)


async def test_an_unreachable_hub_removes_nothing(cell: Site) -> None:
    await _running(cell)
    cell.faults["hub"].take_away()
    await _forgotten(cell)
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)
    cell.faults["hub"].bring_back()
    await cell.advance(SWEEP_SECONDS + 2 * GRACE_SECONDS)
    assert not await _is_left(cell)


async def test_a_deployment_that_the_hub_lost_is_held_and_reported_once(
    cell: Site, registry: CollectorRegistry
) -> None:
    """As after the hub was restored from a backup without it."""
    await _running(cell)
    with capture_logs() as logs:
        await _lost(cell)
        await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)
    assert len(await cell.instances()) == 2
    assert _held(registry) == 1
    assert [log["copy"] for log in logs if log["event"] == "deployment without an original is held"] == [
        f"{NAMESPACE_NAME}/web"
    ]
    ((reason, message),) = await cell.events("web")
    assert reason == "Held"
    assert "nothing shows that it was withdrawn" in message
    assert f"kubectl annotate workloaddeployment web -n {NAMESPACE_NAME} compute.datumapis.com/release=true" in message


async def test_a_deployment_that_the_hub_lost_while_the_cell_was_unreachable_is_held(cell: Site) -> None:
    """A cell that starts without the hub knows no originals, and that proves nothing."""
    await _running(cell)
    cell.faults["hub"].take_away()
    await cell.restart(taken_away=["hub"])
    await cell.hub.delete(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    await cell.advance(GRACE_SECONDS)
    cell.faults["hub"].bring_back()
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)
    assert len(await cell.instances()) == 2


async def test_the_grace_period_begins_when_the_hub_answers(cell: Site) -> None:
    await _running(cell)
    await _forgotten(cell)
    await cell.restart(taken_away=["hub"])
    await cell.advance(5 * GRACE_SECONDS)
    cell.faults["hub"].bring_back()
    await cell.advance(GRACE_SECONDS / 2)
    assert await _is_left(cell)
    await cell.advance(2 * GRACE_SECONDS)
    assert not await _is_left(cell)


async def test_a_held_deployment_is_removed_when_an_operator_releases_it(
    cell: Site, registry: CollectorRegistry
) -> None:
    await _running(cell)
    await _lost(cell)
    await cell.advance(2 * GRACE_SECONDS)
    await _release(cell)
    await cell.advance(1)
    assert not await _is_left(cell)
    assert (await cell.instances(), await cell.copies()) == ([], [])
    assert _held(registry) == 0


async def test_a_released_deployment_stays_while_the_hub_has_it(cell: Site) -> None:
    await _running(cell)
    await _release(cell)
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)


async def test_a_held_deployment_is_removed_when_its_withdrawal_is_noted_later(cell: Site) -> None:
    await _running(cell)
    uid = (await cell.hub.get(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)).metadata.uid
    await _lost(cell)
    await cell.advance(2 * GRACE_SECONDS)
    await _note(cell, Note("web", uid))
    await cell.advance(1)
    assert not await _is_left(cell)


async def test_a_held_deployment_is_no_longer_held_when_its_original_returns(
    cell: Site, registry: CollectorRegistry
) -> None:
    await _running(cell)
    spec = (await cell.deployment()).spec_json
    await _lost(cell)
    await cell.advance(2 * GRACE_SECONDS)
    await cell.hub.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", NAMESPACE_NAME) | {"spec": spec})
    await cell.advance(1)
    assert _held(registry) == 0
    assert await _is_left(cell)


async def test_a_held_deployment_of_a_cell_that_left_is_not_counted(cell: Site, registry: CollectorRegistry) -> None:
    await _running(cell)
    await _lost(cell)
    await cell.advance(2 * GRACE_SECONDS)
    assert _held(registry) == 1
    cell.fleet.remove("cell")
    await cell.settle()
    assert _held(registry) == 0


@pytest.mark.parametrize(
    ("note", "goes"),
    [
        (Note("web", "uid-of-an-earlier-one"), False),
        (Note("other", "uid-of-web"), False),
        (Note("web", "", "uid-in-another-project"), False),
        (Note("web", "", "uid-in-the-project"), True),
    ],
)
async def test_only_the_note_of_that_very_deployment_removes_it(cell: Site, note: Note, goes: bool) -> None:
    await cell.deploy(annotations={"compute.datumapis.com/upstream-uid": "uid-in-the-project"})
    await _note(cell, note)
    await _lost(cell)
    await cell.advance(2 * SWEEP_SECONDS)
    assert await _is_left(cell) is not goes


async def test_malformed_notes_remove_nothing(cell: Site) -> None:
    await _running(cell)
    await _forgotten(cell)
    patch = {"metadata": {"annotations": {"compute.datumapis.com/withdrawn": '[{"name": 7'}}}
    await cell.hub.merge_patch(NAMESPACE, NAMESPACE_NAME, "", patch)
    await cell.advance(2 * SWEEP_SECONDS)
    assert await _is_left(cell)


async def test_the_brake_holds_withdrawn_deployments_when_too_many_are_missing_at_once(
    cell: Site, registry: CollectorRegistry
) -> None:
    names = [f"web-{number}" for number in range(AT_ONCE + 2)]
    for name in names:
        await cell.deploy(0, name=name)
    await cell.deploy(0, name="stays")
    for name in names:
        await _forgotten(cell, name)
    await cell.advance(2 * SWEEP_SECONDS)
    assert [name for name in names if await _is_left(cell, name)] == names
    assert _held(registry, "braked") == len(names)

    await _release(cell, names[0])  # which leaves one too many
    await cell.advance(SWEEP_SECONDS)
    assert [name for name in names if await _is_left(cell, name)] == names[1:]
    await _release(cell, names[1])
    await cell.advance(3 * SWEEP_SECONDS)
    assert [name for name in names if await _is_left(cell, name)] == []
    assert await _is_left(cell, "stays")
    assert _held(registry, "braked") == 0


async def test_a_restart_does_not_release_the_brake(cell: Site) -> None:
    names = [f"web-{number}" for number in range(AT_ONCE + 1)]
    for name in names:
        await cell.deploy(0, name=name)
    for name in names:
        await _forgotten(cell, name)
    for _ in range(3):
        await cell.restart()
        await cell.advance(2 * GRACE_SECONDS)
    assert [name for name in names if await _is_left(cell, name)] == names


async def test_a_hub_that_lost_everything_removes_nothing(cell: Site, registry: CollectorRegistry) -> None:
    """As a rebuilt hub: it answers, and has neither the namespace nor its contents."""
    await _running(cell)
    await cell.hub.delete(NAMESPACE, NAMESPACE_NAME)
    await cell.advance(5)
    with pytest.raises(NotFound):
        await cell.hub.get(NAMESPACE, NAMESPACE_NAME)
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)
    assert _held(registry) == 1
    await _release(cell)
    await cell.advance(1)
    assert not await _is_left(cell)


@pytest.mark.parametrize("code", [403, 404, 500])
async def test_an_answer_that_is_no_list_removes_nothing(cell: Site, code: int) -> None:
    await _running(cell)
    await _forgotten(cell)

    async def refuse(call: Call) -> Answer | None:
        status = {"kind": "Status", "status": "Failure", "message": "no", "code": code}
        is_list = calls("GET", f"namespaces/{NAMESPACE_NAME}/workloaddeployments")(call)
        return Answer(code, encode(status)) if is_list else None

    cell.faults["hub"].instead = refuse
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)


async def test_a_deployment_that_returns_to_the_hub_in_time_stays(cell: Site) -> None:
    await _running(cell)
    spec = (await cell.deployment()).spec_json
    await _forgotten(cell)
    await cell.restart()
    await cell.advance(GRACE_SECONDS / 2)
    await cell.hub.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", NAMESPACE_NAME) | {"spec": spec})
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)


@pytest.fixture
def switched_off(runner: asyncio.Runner, simulation: Simulation, metrics: Metrics) -> Iterator[Site]:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name, metrics=metrics, quota=False, remove_leftovers=False)

    site = Site(simulation, build)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


async def test_with_removal_switched_off_only_released_objects_are_removed(
    switched_off: Site, registry: CollectorRegistry
) -> None:
    for name in ("released", "withdrawn"):
        await switched_off.deploy(0, name=name)
        await _forgotten(switched_off, name)
    await switched_off.advance(2 * GRACE_SECONDS)
    assert _held(registry, "switched-off") == 2
    await _release(switched_off, "released")
    await switched_off.advance(3 * SWEEP_SECONDS)
    assert not await _is_left(switched_off, "released")
    assert await _is_left(switched_off, "withdrawn")
