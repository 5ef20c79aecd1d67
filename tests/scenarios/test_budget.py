"""How many writes one Instance may cost, from its creation to Available in the project."""

import asyncio

import pytest

from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation
from tests.scenarios.life import BEHAVIOUR

COUNTED = (
    *("workload", "workload-deployment-federator", "instance-projector"),
    *("workloaddeployment", "instance", "quota-gate", "write-back"),
)
PER_INSTANCE, PER_DEPLOYMENT = 20, 10
REPLICAS = 4


async def _writes(simulation: Simulation) -> tuple[int, str]:
    engine = EmbeddedFederation(simulation, BEHAVIOUR)
    await engine.start()
    before = {name: engine.local.writes.total(name) for name in COUNTED}
    project = Federation(engine).project()
    await project.deploy("web", ["DFW"], replicas=REPLICAS)
    await project.until_ready("web", REPLICAS)
    await simulation.advance(5)
    spent = {name: engine.local.writes.total(name) - before[name] for name in COUNTED}
    report = engine.report()
    await engine.stop()
    return sum(spent.values()), f"{spent}\n{report}"


@pytest.mark.parametrize("seed", range(20))
def test_an_instance_costs_no_more_writes_than_its_budget(seed: int) -> None:
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        writes, report = runner.run(_writes(loop))
    assert writes <= REPLICAS * PER_INSTANCE + PER_DEPLOYMENT, report
