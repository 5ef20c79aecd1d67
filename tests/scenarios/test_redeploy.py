"""A workload that is destroyed and deployed again under its name, as scripts do."""

import asyncio

from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation
from tests.scenarios.life import BEHAVIOUR

TIMES = 12  # one more than would be a fight


async def test_a_workload_created_and_deleted_repeatedly_is_not_damped(simulation: Simulation) -> None:
    """Each time the same is written and deleted on every plane; nobody undoes anything, so nothing waits."""
    engine = EmbeddedFederation(simulation, BEHAVIOUR)
    await engine.start()
    project = Federation(engine).project()
    began = asyncio.get_running_loop().time()
    for _ in range(TIMES):
        await project.deploy("web", ["DFW", "ORD"])
        await project.until_ready("web", 2)
        await project.delete("web")
        await project.until_gone("web")
    took = asyncio.get_running_loop().time() - began
    assert not engine.local.writes.damped, engine.report()
    assert took < 60, "it was fast enough for a repetition to be mistaken for a fight"
    await engine.stop()
