"""Claims that were handed over to a cell: it releases them, even those whose Instance is gone."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.federation.roles import HUB
from datum_compute.kube.meta import Json
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.conftest import CELL_NAME, cell_name
from tests.cell.site import GROUP, NAMESPACE_NAME, TEMPLATE, Site

SOURCE = f"{GROUP}/source-cluster"


def _site(runner: asyncio.Runner, simulation: Simulation, *, named: bool) -> Iterator[Site]:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name, named=named)

    site = Site(simulation, build)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


@pytest.fixture
def named(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Site]:
    yield from _site(runner, simulation, named=True)


@pytest.fixture
def unnamed(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Site]:
    yield from _site(runner, simulation, named=False)


async def claim(site: Site, name: str, source: str = "former") -> None:
    """A granted claim that another cell created."""
    project = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
    spec: Json = {
        "consumerRef": project,
        "resourceRef": project,
        "requests": [{"resourceType": f"{GROUP}/instances", "amount": 1}],
    }
    labels = {SOURCE: source, f"{GROUP}/instance-namespace": NAMESPACE_NAME}
    body = RESOURCE_CLAIM.body(f"instance-{name}", "default", labels=labels)
    await site.project.create(RESOURCE_CLAIM, body | {"spec": spec})
    await site.grant(name)


async def hand_over(site: Site, name: str) -> None:
    patch = {"metadata": {"labels": {SOURCE: CELL_NAME}}}
    await site.project.merge_patch(RESOURCE_CLAIM, f"instance-{name}", "default", patch)
    await site.settle()


async def test_a_claim_that_was_handed_over_is_released_with_its_instance(named: Site) -> None:
    await claim(named, "web-0")
    await named.create()
    assert await named.gates() == []
    await hand_over(named, "web-0")
    await named.delete()
    assert await named.claims() == []


async def test_a_claim_whose_instance_is_gone_is_deleted_once_handed_over(named: Site) -> None:
    await claim(named, "web-0")
    await named.create()
    await named.delete()
    assert await named.claims() == ["instance-web-0"]
    await hand_over(named, "web-0")
    assert await named.claims() == []


async def test_a_claim_is_kept_for_an_instance_that_a_deployment_requests(named: Site) -> None:
    """As in a rebuilt cell: its Instances are created later, and keep their grants."""
    spec = {
        "workloadRef": {"name": "hello", "uid": "uid-of-hello"},
        "placementName": "main",
        "cityCode": "DFW",
        "template": TEMPLATE,
        "scaleSettings": {"minReplicas": 1},
    }
    await named.hub.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", NAMESPACE_NAME) | {"spec": spec})
    await named.settle()
    for name in ("web-0", "web-1", "other-0"):
        await claim(named, name, CELL_NAME)
    await named.settle()
    assert await named.claims() == ["instance-web-0"]


async def test_nothing_is_deleted_while_the_hub_is_unreachable(named: Site) -> None:
    named.fleet.remove("hub")
    named.faults["hub"].take_away()
    away = Plane("hub", HUB, named.faults["hub"], writes=named.writes, generator=named.simulation.random)
    named.fleet.add(away)
    await claim(named, "web-0", CELL_NAME)
    await named.advance(60)
    assert await named.claims() == ["instance-web-0"]
    named.faults["hub"].bring_back()
    await named.advance(700)
    assert await named.claims() == []


async def test_claims_of_other_cells_and_of_cells_without_a_name_stay(named: Site) -> None:
    await claim(named, "web-0")
    await named.advance(3600)
    assert await named.claims() == ["instance-web-0"]


async def test_a_cell_without_a_configured_name_deletes_claims_only_with_their_instance(unnamed: Site) -> None:
    await claim(unnamed, "web-0", CELL_NAME)
    await unnamed.advance(3600)
    assert await unnamed.claims() == ["instance-web-0"]
