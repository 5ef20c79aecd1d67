"""Deletion is ordinary: no pass fails, and no warning is emitted."""

from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from datum_compute.api.instance import INSTANCE
from datum_compute.api.networking import NETWORK
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.kinds import NAMESPACE
from tests.conftest import count
from tests.scenarios.embedded import CITIES, EmbeddedFederation
from tests.scenarios.federation import Federation, placement, template

SEEDS = range(1, count(4, 100) + 1)


def failures(embedded: EmbeddedFederation) -> dict[str, int]:
    """Passes that counted as errors, by controller."""
    controllers = embedded.local.manager.controllers.items()
    return {name: controller.results["error"] for name, controller in controllers if controller.results["error"]}


def warned(logs: list[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [line for line in logs if line["log_level"] not in ("debug", "info")]


async def nothing_left(embedded: EmbeddedFederation) -> bool:
    """No instance anywhere."""
    clients = [embedded.project_client("demo"), embedded.hub, *embedded.cells.values()]
    return not any([(await client.list(INSTANCE)).items for client in clients])


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_ordinary_deletion_fails_no_pass(embedded: EmbeddedFederation, seed: int) -> None:
    project = Federation(embedded).project()
    before = failures(embedded)
    for number in range(2):
        await project.deploy(f"web-{number}", ["DFW", "ORD"], replicas=2)
        await project.until_ready(f"web-{number}", 4)
    with capture_logs() as logs:
        for number in range(2):
            await project.delete(f"web-{number}")
        await embedded.until(lambda: nothing_left(embedded), 120, "all instances are gone")
    assert failures(embedded) == before
    assert warned(logs) == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_deleted_namespace_fails_no_pass(embedded: EmbeddedFederation, seed: int) -> None:
    client = embedded.project_client("demo")
    await client.create(NAMESPACE, NAMESPACE.body("team"))
    await client.create(NETWORK, NETWORK.body("default", "team") | {"spec": {"ipam": {"mode": "Auto"}}})
    spec = {"template": template(), "placements": [placement("main", list(CITIES), 2)]}
    for number in range(2):
        await client.create(WORKLOAD, WORKLOAD.body(f"web-{number}", "team") | {"spec": spec})

    async def is_projected() -> bool:
        return len((await client.list(INSTANCE, "team")).items) == 8

    await embedded.until(is_projected, 120, "eight instances in the project")
    await embedded.simulation.settle()
    before = failures(embedded)
    written = embedded.local.faults["demo"].written
    written.clear()

    async def gone() -> bool:
        return "team" not in [found.name for found in (await client.list(NAMESPACE)).items]

    with capture_logs() as logs:
        await client.delete(NAMESPACE, "team")
        await embedded.until(lambda: nothing_left(embedded), 120, "all instances are gone")
        await embedded.until(gone, 60, "the namespace is gone")
    assert failures(embedded) == before
    assert warned(logs) == []
    assert [call.path for call in written if call.method == "POST" and "/namespaces/team/" in call.path] == []
