"""The journal of withdrawals in a project, which a restore of the hub does not lose."""

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.kube.errors import Forbidden, Unavailable
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.management.withdrawal_journal import KEPT, entries, with_entries
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.management.test_federator import Federation

KEY = "compute.datumapis.com/withdrawn-uids"
PATCHES = calls("PATCH", "/api/v1/namespaces/default")


@pytest.mark.parametrize("text", ["", "{}", "[7]", "nonsense", '["a"', "null"])
def test_a_malformed_annotation_has_no_entries(text: str) -> None:
    assert entries({KEY: text}) == ()


def test_entries_are_kept_once_and_the_oldest_are_dropped() -> None:
    old = [str(number) for number in range(KEPT)]
    assert with_entries(old, ["a", "0", "", "a"]) == (*old[1:], "a")
    assert with_entries([], ["", "a"]) == ("a",)


@pytest.fixture
def federation(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Federation]:
    federation = Federation(simulation)
    runner.run(federation.start())
    yield federation
    runner.run(federation.stop())


async def _entries(federation: Federation) -> tuple[str, ...]:
    return entries((await federation.project.get(NAMESPACE, "default")).metadata.annotations)


async def test_a_deleted_deployment_is_in_the_journal_before_it_is_gone(federation: Federation) -> None:
    deployment = await federation.deploy()
    refused = federation.faults["demo"].refuse(PATCHES, Unavailable("busy"))
    await federation.delete()
    await federation.simulation.advance(60)
    assert (await federation.deployment()).metadata.deleting
    refused.lift()
    await federation.simulation.advance(60)
    assert (await federation.project.list(WORKLOAD_DEPLOYMENT)).items == []
    assert await _entries(federation) == (deployment.metadata.uid,)


async def test_a_deletion_does_not_wait_for_permission_to_write_the_journal(federation: Federation) -> None:
    for name in ("web", "api"):
        await federation.deploy(name=name)
    federation.faults["demo"].refuse(PATCHES, Forbidden("no right"))
    with capture_logs() as logs:
        for name in ("web", "api"):
            await federation.delete(name)
    assert (await federation.project.list(WORKLOAD_DEPLOYMENT)).items == []
    warnings = [log for log in logs if log["event"] == "withdrawals cannot be recorded in the project"]
    assert [(log["project"], log["error"]) for log in warnings] == [("demo", "no right")]


async def test_deployments_deleted_at_once_share_one_journal_write(federation: Federation) -> None:
    names = [f"web-{number}" for number in range(20)]
    uids = {(await federation.deploy(name=name)).metadata.uid for name in names}
    federation.faults["demo"].slow_down(0.01)
    for name in names:
        await federation.project.delete(WORKLOAD_DEPLOYMENT, name, "default")
    await federation.simulation.advance(60)
    assert set(await _entries(federation)) == uids
    assert len([call for call in federation.faults["demo"].written if PATCHES(call)]) <= len(names) / 2
