"""One workload's whole life, create to delete, in one simulation; run as a program it prints its writes.

The driver notes in the store how far it has come, so that a life can go on after a crash from any row of the log.
`python -m tests.scenarios.life SEED` is what the repeat test runs in two processes.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog
from msgspec import Struct

from datum_compute.embedded.storage.log import Row
from datum_compute.kube.errors import AlreadyExists, NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.local.federation import ROOT_PLANE
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation, Project
from tests.scenarios.snapshot import snapshot

BEHAVIOUR = Behaviour(start_seconds=0.3, stop_seconds=0.2)
REST_SECONDS = 30.0  # longer than any delay in the system at rest, shorter than a relist
NOTE = "driver"


class Plan(Struct, frozen=True):
    cities: tuple[str, ...] = ("DFW", "ORD")
    replicas: int = 2

    @property
    def instances(self) -> int:
        return len(self.cities) * self.replicas


ONE_INSTANCE = Plan(cities=("DFW",), replicas=1)


class Life:
    """What one run leaves behind: the state at rest after each step, and every write in order."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, Any]] = {}
        self.rows: list[Row] = []


async def _create(project: Project, plan: Plan) -> None:
    with suppress(AlreadyExists):
        await project.deploy("web", plan.cities, replicas=plan.replicas)
    await project.until_ready("web", plan.instances)


async def _roll(project: Project, plan: Plan) -> None:
    await project.set_image("web", "registry.example/hello:2")
    await project.until_ready("web", plan.instances)


async def _delete(project: Project, plan: Plan) -> None:
    with suppress(NotFound):
        await project.delete("web")
    await project.until_gone("web")


STEPS = {"created": _create, "rolled": _roll, "deleted": _delete}


async def live(simulation: Simulation, plan: Plan, rows: Sequence[Row] = ()) -> Life:
    """Goes on from the step that the log's rows tell of; with no rows, from the beginning."""
    engine = EmbeddedFederation(simulation, BEHAVIOUR, rows)
    await engine.start()
    project = Federation(engine).project()
    root = engine.local.client(ROOT_PLANE)
    with suppress(AlreadyExists):
        await root.create(NAMESPACE, NAMESPACE.body(NOTE))
    done = (await root.get(NAMESPACE, NOTE)).metadata.annotations
    life = Life()
    for step, act in STEPS.items():
        if step in done:
            continue
        await act(project, plan)
        await simulation.advance(REST_SECONDS)
        engine.check()
        life.states[step] = snapshot(engine.engine.store, [plane for plane in engine.planes if plane != ROOT_PLANE])
        await root.merge_patch(NAMESPACE, NOTE, "", {"metadata": {"annotations": {step: "done"}}})
    life.rows = list(engine.engine.log.rows())
    await engine.stop()
    return life


def run(seed: int, plan: Plan = Plan(), rows: Sequence[Row] = ()) -> Life:  # noqa: B008 - frozen
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        return runner.run(live(loop, plan, rows))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for row in run(int(sys.argv[1])).rows:
        print(row.revision, row.plane, row.resource, row.namespace, row.name, row.type, row.value.decode())
