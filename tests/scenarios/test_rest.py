"""Unchanged input means no writes: not on a second pass, not after a restart, not in ten hours."""

from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios import life
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation


async def _with_a_workload(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW", "ORD"], replicas=2)
    await project.until_ready("web", 4)


async def test_ten_hours_at_rest_write_nothing(
    federation: Federation, embedded: EmbeddedFederation, simulation: Simulation
) -> None:
    await _with_a_workload(federation)
    await simulation.advance(life.REST_SECONDS)
    revision, writes = embedded.engine.store.revision, embedded.local.writes.total()
    await simulation.advance(36_000)
    assert embedded.engine.store.revision == revision
    assert embedded.local.writes.total() == writes, embedded.report()


async def test_a_restart_at_rest_gives_every_controller_its_pass_and_writes_nothing(
    federation: Federation, embedded: EmbeddedFederation, simulation: Simulation
) -> None:
    await _with_a_workload(federation)
    await simulation.advance(life.REST_SECONDS)
    rows = list(embedded.engine.log.rows())

    again = EmbeddedFederation(simulation, life.BEHAVIOUR, rows)
    await again.start()
    await simulation.advance(life.REST_SECONDS)
    passes = {name: controller.passes for name, controller in again.local.manager.controllers.items()}
    assert passes.pop("hub-sweeper") == 0, "which looks only at what its project may have given up"
    assert passes.pop("former-provider") == 0, "which looks only at what another provider ran"
    assert all(passes.values()), f"every controller has had its pass: {passes}"
    assert dict(again.local.writes.counts) == {}
    assert again.engine.store.revision == rows[-1].revision
    await again.stop()
