"""What Karmada leaves behind: a deployment goes when the hub says so, and never because it is silent (invariant 13)."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from structlog.testing import capture_logs

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import WORK
from datum_compute.cell.deployment import DeploymentController
from datum_compute.cell.instance import NAME, InstanceController
from datum_compute.cell.leftovers import GRACE_SECONDS
from datum_compute.cell.quota import Disabled
from datum_compute.cell.writeback import WriteBack
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.faults import calls
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import NAMESPACE_NAME, Site
from tests.karmada import SPACE, keep, names_of, serve

SWEEP_SECONDS = DeploymentController.sweep_seconds


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Site]:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        write_back = WriteBack(fleet, cell_name, NAME)
        return [
            DeploymentController(fleet, simulation),
            InstanceController(fleet, simulation, Disabled(), write_back),
        ]

    site = Site(simulation, build)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


async def _running(cell: Site) -> None:
    await cell.deploy(2)
    await cell.runs("web-0")
    await cell.runs("web-1")
    assert await cell.copies() == ["web-0", "web-1"]


async def _forgotten(cell: Site) -> None:
    """The hub object goes, and nobody takes the copy in the cell away."""
    await cell.hub.delete(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME)
    await cell.advance(1)


async def _is_left(cell: Site) -> bool:
    try:
        return not (await cell.deployment()).metadata.deleting
    except NotFound:
        return False


async def test_a_forgotten_deployment_goes_with_all_it_has(cell: Site) -> None:
    await _running(cell)
    await _forgotten(cell)
    await cell.advance(SWEEP_SECONDS + 2 * GRACE_SECONDS)
    assert not await _is_left(cell)
    assert (await cell.instances(), await cell.copies()) == ([], [])


async def test_a_forgotten_deployment_is_looked_at_when_its_original_goes_and_not_only_in_a_sweep(cell: Site) -> None:
    await _running(cell)
    await _forgotten(cell)
    await cell.advance(GRACE_SECONDS - 2)
    assert await _is_left(cell)
    await cell.advance(2)
    assert not await _is_left(cell)


async def test_what_karmada_would_bring_it_back_from_goes_too(cell: Site) -> None:
    await serve(cell.hub)
    await cell.deploy(annotations=await keep(cell.hub, "of-web", NAMESPACE_NAME))
    await keep(cell.hub, "of-another", NAMESPACE_NAME)
    await _forgotten(cell)
    await cell.advance(GRACE_SECONDS)
    assert not await _is_left(cell)
    assert await names_of(cell.hub, WORK) == ["of-another"]


async def test_a_work_that_is_of_another_project_stays(cell: Site) -> None:
    """However the copy came to name it."""
    await serve(cell.hub)
    await cell.deploy(annotations=await keep(cell.hub, "of-others", "ns-2"))
    await _forgotten(cell)
    await cell.advance(GRACE_SECONDS)
    assert not await _is_left(cell)
    assert await names_of(cell.hub, WORK) == ["of-others"]


async def test_a_work_that_karmada_changes_at_that_moment_stays_and_the_copy_with_it(cell: Site) -> None:
    """As it does for a new original of the same name."""
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


async def test_a_cell_that_may_not_delete_works_says_so_and_tries_again(cell: Site) -> None:
    await serve(cell.hub)
    await cell.deploy(annotations=await keep(cell.hub, "of-web", NAMESPACE_NAME))
    await _forgotten(cell)

    async def refuse(call: Call) -> Answer | None:
        said = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no right", "code": 403}
        return Answer(403, encode(said)) if calls("DELETE", "works")(call) else None

    cell.faults["hub"].instead = refuse
    with capture_logs() as logs:
        await cell.advance(GRACE_SECONDS)
    assert await _is_left(cell)
    assert [(one["event"], one["copy"]) for one in logs if "leftover" in one["event"]] == [
        ("leftover cannot be removed yet", f"{NAMESPACE_NAME}/web")
    ]
    cell.faults["hub"].instead = None
    await cell.advance(GRACE_SECONDS)
    assert not await _is_left(cell)


async def test_one_that_was_forgotten_while_nobody_looked_goes_soon_after_the_start(cell: Site) -> None:
    await _running(cell)
    await _forgotten(cell)
    await cell.restart()
    await cell.advance(GRACE_SECONDS / 2)
    assert await _is_left(cell)
    await cell.advance(GRACE_SECONDS)
    assert not await _is_left(cell)


async def test_what_the_hub_has_stays(cell: Site) -> None:
    await _running(cell)
    before = cell.writes.total()
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)
    assert cell.writes.total() == before


async def test_a_copy_that_came_before_our_view_of_the_hub_is_not_misjudged(cell: Site) -> None:
    cell.faults["hub"].drop_event(calls(path="workloaddeployments"))
    await _running_unseen(cell)
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)


async def _running_unseen(cell: Site) -> None:
    await cell.deploy(1)
    await cell.runs("web-0")


async def test_what_karmada_did_not_bring_stays(cell: Site) -> None:
    await cell.deploy(1, on_hub=False)
    await cell.cell.merge_patch(
        WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME, {"metadata": {"labels": {"karmada.io/managed": None}}}
    )
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)


async def test_invariant_13_a_hub_that_is_away_takes_nothing_away(cell: Site) -> None:
    await _running(cell)
    cell.faults["hub"].take_away()
    await _forgotten(cell)
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)
    cell.faults["hub"].bring_back()
    await cell.advance(SWEEP_SECONDS + 2 * GRACE_SECONDS)
    assert not await _is_left(cell)


async def test_invariant_13_a_hub_that_has_lost_everything_takes_nothing_away(cell: Site) -> None:
    """As one that was set up anew: it answers, and knows neither the namespace nor what was in it."""
    await _running(cell)
    await cell.hub.delete(NAMESPACE, NAMESPACE_NAME)
    await cell.advance(5)
    with pytest.raises(NotFound):
        await cell.hub.get(NAMESPACE, NAMESPACE_NAME)
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)


@pytest.mark.parametrize("code", [403, 404, 500])
async def test_invariant_13_an_answer_that_is_no_list_takes_nothing_away(cell: Site, code: int) -> None:
    await _running(cell)
    await _forgotten(cell)

    async def refuse(call: Call) -> Answer | None:
        said = {"kind": "Status", "status": "Failure", "message": "no", "code": code}
        is_list = calls("GET", f"namespaces/{NAMESPACE_NAME}/workloaddeployments")(call)
        return Answer(code, encode(said)) if is_list else None

    cell.faults["hub"].instead = refuse
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)


async def test_one_that_comes_back_on_the_hub_in_time_stays(cell: Site) -> None:
    await _running(cell)
    spec = (await cell.deployment()).spec_json
    await _forgotten(cell)
    await cell.restart()
    await cell.advance(GRACE_SECONDS / 2)
    await cell.hub.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", NAMESPACE_NAME) | {"spec": spec})
    await cell.advance(3 * SWEEP_SECONDS)
    assert await _is_left(cell)
