"""Withdrawals are noted on the hub namespace before anything is deleted."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.federation.withdrawals import KEPT, Note, annotation, notes_of
from datum_compute.kube.errors import Unavailable
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.management.test_federator import Federation, spec


@pytest.fixture
def federation(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Federation]:
    federation = Federation(simulation)
    runner.run(federation.start())
    yield federation
    runner.run(federation.stop())


async def _notes(federation: Federation) -> tuple[Note, ...]:
    home = await federation.hub.get(NAMESPACE, await federation.home())
    return notes_of(home.metadata.annotations)


async def test_a_hub_copy_names_its_project_deployment(federation: Federation) -> None:
    deployment = await federation.deploy()
    copy = await federation.copy()
    assert copy.metadata.annotations["compute.datumapis.com/upstream-uid"] == deployment.metadata.uid


async def test_a_withdrawal_is_noted_with_both_uids_before_the_copy_is_deleted(federation: Federation) -> None:
    deployment, copy = await federation.deploy(), await federation.copy()
    refused = federation.faults["hub"].refuse(calls("DELETE", "workloaddeployments"), Unavailable("busy"))
    await federation.delete()
    assert refused.times
    expected = (Note("web", copy.metadata.uid, deployment.metadata.uid),)
    assert await _notes(federation) == expected
    refused.lift()
    await federation.simulation.advance(60)
    assert await federation.copies() == []
    assert await _notes(federation) == expected


async def test_nothing_is_deleted_while_the_withdrawal_cannot_be_noted(federation: Federation) -> None:
    await federation.deploy()
    refused = federation.faults["hub"].refuse(calls("PATCH", "/api/v1/namespaces/"), Unavailable("busy"))
    await federation.delete()
    await federation.simulation.advance(60)
    assert await federation.copies() == ["web"]
    refused.lift()
    await federation.simulation.advance(60)
    assert await federation.copies() == []


async def test_a_deployment_that_the_hub_lost_is_noted_by_the_uid_in_its_project(federation: Federation) -> None:
    """As when it is deleted after a restore of the hub and before management created it again."""
    federation.faults["hub"].take_away()
    deployment = await federation.deploy()
    await federation.project.merge_patch(
        WORKLOAD_DEPLOYMENT, "web", "default", {"metadata": {"finalizers": ["compute.datumapis.com/federator"]}}
    )
    await federation.project.delete(WORKLOAD_DEPLOYMENT, "web", "default")
    await federation.hub.create(NAMESPACE, NAMESPACE.body(await federation.home()))
    federation.faults["hub"].bring_back()
    await federation.simulation.advance(60)
    assert await _notes(federation) == (Note("web", "", deployment.metadata.uid),)


async def test_deployments_withdrawn_at_once_share_one_write_of_their_notes(federation: Federation) -> None:
    names = [f"web-{number}" for number in range(20)]
    for name in names:
        await federation.deploy(name=name)
    before = len(federation.faults["hub"].written)
    federation.faults["hub"].slow_down(0.01)
    for name in names:
        await federation.project.delete(WORKLOAD_DEPLOYMENT, name, "default")
    await federation.simulation.advance(60)
    assert {note.name for note in await _notes(federation)} == set(names)
    written = federation.faults["hub"].written[before:]
    patches = [call for call in written if calls("PATCH", "/api/v1/namespaces/")(call)]
    assert len(patches) <= len(names) / 2


async def test_the_notes_of_a_namespace_are_bounded(federation: Federation) -> None:
    for number in range(KEPT + 5):
        await federation.deploy(name=f"web-{number}")
        await federation.delete(f"web-{number}")
    names = [note.name for note in await _notes(federation)]
    assert names == [f"web-{number}" for number in range(5, KEPT + 5)]


async def test_the_note_of_a_deployment_that_its_project_has_again_is_removed(federation: Federation) -> None:
    """As after the project was restored to before its deletion: the old note must not remove a copy in a cell."""
    deployment = await federation.deploy()
    others = Note("other", "1", "2")
    patch = {"metadata": {"annotations": annotation([Note("web", "0", deployment.metadata.uid), others])}}
    await federation.hub.merge_patch(NAMESPACE, await federation.home(), "", patch)
    await federation.change({"spec": spec("DFW") | {"scaleSettings": {"minReplicas": 5}}})
    assert await _notes(federation) == (others,)


async def test_a_note_costs_one_write_per_withdrawn_deployment(federation: Federation) -> None:
    await federation.deploy()
    before = len(federation.faults["hub"].written)
    await federation.delete()
    await federation.simulation.advance(3600)
    methods = [(call.method, call.path.split("/")[-2]) for call in federation.faults["hub"].written[before:]]
    assert methods == [("PATCH", "namespaces"), ("DELETE", "workloaddeployments"), ("DELETE", "propagationpolicies")]
