"""One workload's whole life, create to delete, in one simulation; run as a program it prints its writes.

`python -m tests.scenarios.life SEED` is what the repeat test runs in two processes.
"""

import asyncio
import sys
from typing import Any

import structlog

from datum_compute.embedded.log import Row
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime.simulation import Simulation
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation
from tests.scenarios.snapshot import snapshot

BEHAVIOUR = Behaviour(start_seconds=0.3, stop_seconds=0.2)
REST_SECONDS = 30.0  # longer than any delay in the system at rest, shorter than a relist


class Life:
    """What one run leaves behind: the state at rest after each step, and every write in order."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, Any]] = {}
        self.rows: list[Row] = []


async def live(simulation: Simulation) -> Life:
    engine = EmbeddedFederation(simulation, BEHAVIOUR)
    await engine.start()
    project = Federation(engine).project()
    life = Life()

    async def rest(step: str) -> None:
        await simulation.advance(REST_SECONDS)
        engine.check()
        life.states[step] = snapshot(engine.engine.store, engine.planes)

    await project.deploy("web", ["DFW", "AMS"], replicas=2)
    await project.until_ready("web", 4)
    await rest("created")
    await project.set_image("web", "registry.example/hello:2")
    await project.until_ready("web", 4)
    await rest("rolled")
    await project.delete("web")
    await project.until_gone("web")
    await rest("deleted")
    life.rows = list(engine.engine.log.rows())
    await engine.stop()
    return life


def run(seed: int) -> Life:
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        return runner.run(live(loop))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for row in run(int(sys.argv[1])).rows:
        print(row.revision, row.plane, row.resource, row.namespace, row.name, row.type, row.value.decode())
