"""Unchanged input means no writes, on the real engine: compute-managers that start over a workload at rest."""

import asyncio
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.client import Client
from datum_compute.kube.kinds import Kind
from tests.conftest import ENGINE
from tests.scenarios.federation import Federation
from tests.scenarios.managers import MANAGEMENT
from tests.scenarios.real import RealFederation

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not ENGINE, reason="needs the real engine: make test-engine")]

# Those that have something to look at here; each must have had its passes.
CONTROLLERS = {
    MANAGEMENT: ("workload", "workload-deployment-federator", "instance-projector"),
    "pop-dfw": ("workloaddeployment", "instance"),
    "pop-ord": ("workloaddeployment", "instance"),
}


async def _versions(federation: Federation) -> dict[str, str]:
    """What every object of ours is at, on every plane."""
    project = federation.project().client
    cells = [federation.cell(city).client for city in ("DFW", "ORD")]
    found: dict[str, str] = {}

    async def add(client: Client, *kinds: Kind[Any]) -> None:
        for kind in kinds:
            for object_ in (await client.list(kind)).items:
                found[f"{client.plane} {kind.name} {object_.namespace}/{object_.name}"] = (
                    object_.metadata.resource_version
                )

    await add(project, WORKLOAD, WORKLOAD_DEPLOYMENT, INSTANCE, RESOURCE_CLAIM)
    await add(federation.hub, WORKLOAD_DEPLOYMENT, INSTANCE, PROPAGATION_POLICY)
    for cell in cells:
        await add(cell, WORKLOAD_DEPLOYMENT, INSTANCE)
    return found


async def test_a_restart_at_rest_writes_nothing_on_the_real_engine(
    federation: Federation,
) -> None:
    engine = federation.engine
    assert isinstance(engine, RealFederation)
    project, managers = federation.project(), engine.managers
    await project.deploy("web", ["DFW", "ORD"], replicas=2)
    await project.until_ready("web", 4)
    snapshots: list[dict[str, str]] = [{}]

    async def at_rest() -> bool:
        """Nobody has anything to do, and nothing has changed since the last look; Karmada's marks come late."""
        snapshots.append(await _versions(federation))
        idle = [await asyncio.to_thread(manager.idle) for manager in managers.running.values()]
        return all(idle) and snapshots[-1] == snapshots[-2]

    await federation.until(at_rest, "all is at rest")
    await engine.restart()

    async def passed() -> bool:
        for name, controllers in CONTROLLERS.items():
            manager = managers.running[name]
            for controller in controllers:
                if not manager.total("controller_runtime_reconcile_total", controller=controller, result="success"):
                    return False
        return all([await asyncio.to_thread(manager.idle) for manager in managers.running.values()])

    await federation.until(passed, "every controller has had its passes")
    written = {
        name: [labels for labels, value in manager.samples("compute_api_writes_total") if value]
        for name, manager in managers.running.items()
    }
    assert not any(written.values()), written
    assert await _versions(federation) == snapshots[-1]
