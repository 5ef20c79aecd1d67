"""An older spec that a restored hub or project sends again is held, never acted on."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client import CollectorRegistry

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.stale_specs import Relation, relation
from datum_compute.federation.withdrawals import Note, annotation
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import NAMESPACE_NAME, Site

GROUP = "compute.datumapis.com"
UID, GENERATION, RELEASE = f"{GROUP}/upstream-uid", f"{GROUP}/upstream-generation", f"{GROUP}/release"
ACCEPTED = f"{GROUP}/accepted-uid"
FOLLOWS, OLDER, UNRELATED = Relation.FOLLOWS, Relation.OLDER, Relation.UNRELATED


@pytest.mark.parametrize(
    ("accepted", "accepted_generation", "uid", "generation", "is_withdrawn", "expected"),
    [
        ("", 0, "a", 1, False, FOLLOWS),
        ("", 7, "a", 1, False, FOLLOWS),  # of a time before uids were noted
        ("a", 0, "a", 1, False, FOLLOWS),
        ("a", 3, "a", 3, False, FOLLOWS),
        ("a", 3, "a", 4, False, FOLLOWS),
        ("a", 3, "a", 2, False, OLDER),
        ("a", 3, "a", 2, True, OLDER),
        ("a", 3, "", 2, False, OLDER),
        ("a", 3, "", 3, False, FOLLOWS),
        ("a", 3, "b", 1, False, UNRELATED),
        ("a", 3, "b", 9, False, UNRELATED),
        ("a", 3, "b", 1, True, FOLLOWS),
        ("a", 3, "a", None, False, FOLLOWS),
        ("a", 3, "", None, False, FOLLOWS),
    ],
)
def test_a_spec_follows_when_it_is_newer_or_the_previous_one_was_withdrawn(
    accepted: str, accepted_generation: int, uid: str, generation: int | None, is_withdrawn: bool, expected: Relation
) -> None:
    assert relation(accepted, accepted_generation, uid, generation, is_withdrawn=is_withdrawn) is expected


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation, registry: CollectorRegistry) -> Iterator[Site]:
    metrics = Metrics(registry)

    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name, metrics=metrics, quota=False)

    site = Site(simulation, build)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


async def _running(cell: Site, replicas: int = 3) -> None:
    """Generation 5 of deployment `a` of the project."""
    await cell.deploy(replicas, annotations={UID: "a", GENERATION: "5"})
    for ordinal in range(replicas):
        await cell.runs(f"web-{ordinal}")
        await cell.advance(1)


async def _arrives(cell: Site, uid: str, generation: int, replicas: int) -> None:
    patch = {
        "metadata": {"annotations": {UID: uid, GENERATION: str(generation)}},
        "spec": {"scaleSettings": {"minReplicas": replicas}},
    }
    await cell.cell.merge_patch(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME, patch)
    await cell.advance(5)


async def _annotate(cell: Site, annotations: Json) -> None:
    patch = {"metadata": {"annotations": annotations}}
    await cell.cell.merge_patch(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME, patch)
    await cell.advance(5)


async def _names(cell: Site) -> list[str]:
    return [instance.name for instance in await cell.instances() if not instance.metadata.deleting]


ALL = ["web-0", "web-1", "web-2"]


async def test_an_older_generation_removes_nothing_and_is_reported_once(
    cell: Site, registry: CollectorRegistry
) -> None:
    await _running(cell)
    await _arrives(cell, "a", 4, replicas=1)
    await cell.advance(3600)
    assert await _names(cell) == ALL
    found = await cell.deployment()
    assert found.status is not None
    assert (found.status.observed_generation, found.status.desired_replicas, found.status.ready_replicas) == (5, 3, 3)
    held = conditions.find(found.status.conditions, "ReplicasReady")
    assert held is not None
    assert (held.status, held.reason) == ("False", "Held")
    assert registry.get_sample_value("compute_cell_specs_held") == 1
    ((reason, message),) = await cell.events("web")
    assert reason == "Held"
    assert f"kubectl annotate workloaddeployment web -n {NAMESPACE_NAME} {RELEASE}=true" in message


async def test_an_older_template_replaces_nothing(cell: Site) -> None:
    await _running(cell)
    before = {instance.metadata.uid for instance in await cell.instances()}
    spec = {"template": {"spec": {"runtime": {"sandbox": {"containers": [{"name": "web", "image": "old:1"}]}}}}}
    patch = {"metadata": {"annotations": {GENERATION: "4"}}, "spec": spec}
    await cell.cell.merge_patch(WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME, patch)
    await cell.advance(3600)
    assert {instance.metadata.uid for instance in await cell.instances()} == before


async def test_a_hold_ends_when_the_newest_spec_arrives_again(cell: Site, registry: CollectorRegistry) -> None:
    await _running(cell)
    await _arrives(cell, "a", 4, replicas=1)
    await _arrives(cell, "a", 5, replicas=3)
    assert await _names(cell) == ALL
    assert registry.get_sample_value("compute_cell_specs_held") == 0
    await _arrives(cell, "a", 6, replicas=2)
    assert await _names(cell) == ALL[:2]


async def test_a_held_spec_of_a_cell_that_left_is_not_counted(cell: Site, registry: CollectorRegistry) -> None:
    await _running(cell)
    await _arrives(cell, "a", 4, replicas=1)
    assert registry.get_sample_value("compute_cell_specs_held") == 1
    cell.fleet.remove("cell")
    await cell.settle()
    assert registry.get_sample_value("compute_cell_specs_held") == 0


async def test_a_hold_survives_a_restart(cell: Site) -> None:
    await _running(cell)
    await _arrives(cell, "a", 4, replicas=1)
    for _ in range(2):
        await cell.restart()
        await cell.advance(3600)
    assert await _names(cell) == ALL


async def test_an_operator_releases_an_older_spec_once(cell: Site) -> None:
    await _running(cell)
    await _arrives(cell, "a", 4, replicas=1)
    await _annotate(cell, {RELEASE: "true"})
    assert await _names(cell) == ALL[:1]
    found = await cell.deployment()
    assert found.status is not None
    assert found.status.observed_generation == 4
    assert RELEASE not in found.metadata.annotations
    await _arrives(cell, "a", 3, replicas=0)
    assert await _names(cell) == ALL[:1]


async def test_a_release_on_the_original_releases_nothing(cell: Site) -> None:
    await _running(cell)
    await _arrives(cell, "a", 4, replicas=1)
    await _annotate(cell, {RELEASE: "true", "resourcetemplate.karmada.io/managed-annotations": f"x,{RELEASE}"})
    assert await _names(cell) == ALL


async def test_an_unneeded_release_is_removed(cell: Site) -> None:
    await _running(cell)
    await _annotate(cell, {RELEASE: "true"})
    assert RELEASE not in (await cell.deployment()).metadata.annotations
    await _arrives(cell, "a", 4, replicas=1)
    assert await _names(cell) == ALL


async def test_another_deployment_of_the_name_waits_for_the_withdrawal_of_the_first(cell: Site) -> None:
    await _running(cell)
    await _arrives(cell, "b", 9, replicas=1)
    await cell.advance(3600)
    assert await _names(cell) == ALL
    patch = {"metadata": {"annotations": annotation([Note("web", "", "a")])}}
    await cell.hub.merge_patch(NAMESPACE, NAMESPACE_NAME, "", patch)
    await cell.advance(5)
    assert await _names(cell) == ALL[:1]
    assert (await cell.deployment()).metadata.annotations[ACCEPTED] == "b"
    await _arrives(cell, "b", 8, replicas=3)
    assert await _names(cell) == ALL[:1]


async def test_a_successor_with_lower_generations_is_not_taken_for_older(cell: Site) -> None:
    await _running(cell)
    patch = {"metadata": {"annotations": annotation([Note("web", "", "a")])}}
    await cell.hub.merge_patch(NAMESPACE, NAMESPACE_NAME, "", patch)
    await _arrives(cell, "b", 1, replicas=1)
    assert await _names(cell) == ALL[:1]
    await _arrives(cell, "b", 2, replicas=2)
    await cell.runs("web-0")
    assert await _names(cell) == ALL[:2]


async def test_every_spec_is_acted_on_where_nothing_runs(cell: Site) -> None:
    await cell.deploy(0, annotations={UID: "a", GENERATION: "5"})
    await _arrives(cell, "a", 4, replicas=1)
    assert await _names(cell) == ["web-0"]


async def test_recording_the_accepted_uid_costs_no_extra_write(cell: Site) -> None:
    await cell.deploy(0, annotations={UID: "a", GENERATION: "1"})
    await cell.advance(3600)
    assert (await cell.deployment()).metadata.annotations[ACCEPTED] == "a"
    verbs = sorted(
        (write.verb, write.kind, count) for write, count in cell.writes.counts.items() if write.plane == "cell"
    )
    assert verbs == [("patch", "WorkloadDeployment", 1), ("status", "WorkloadDeployment", 1)]


async def test_a_deployment_without_upstream_annotations_is_acted_on(cell: Site) -> None:
    await cell.deploy(2, on_hub=False)
    await cell.runs("web-0")
    await cell.cell.merge_patch(
        WORKLOAD_DEPLOYMENT, "web", NAMESPACE_NAME, {"spec": {"scaleSettings": {"minReplicas": 1}}}
    )
    await cell.advance(5)
    assert await _names(cell) == ["web-0"]
