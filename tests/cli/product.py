"""The project of the manual, made by the product itself: a local federation in a simulation. Entry points: `history`,
`opened`.

The workloads are shop, with two revisions, and blog. Both are well.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from datum_compute.embedded.storage.log import Row
from datum_compute.local.endpoints import Endpoints
from datum_compute.local.instances import BEHAVIOUR, simulated_instances
from datum_compute.local.logs import Logs
from datum_compute.local.overview import OVERVIEW, Overview
from datum_compute.local.proxy import PORT
from datum_compute.local.settings import DEFAULT_CITIES, cell_of
from datum_compute.platform.grants import DEFAULT_LIMITS
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.command import Command
from tests.scenarios.embedded import EmbeddedFederation

MANIFEST = """\
apiVersion: compute.datumapis.com/v1alpha
kind: Workload
metadata:
  name: mail
spec:
  template:
    spec:
      runtime:
        resources: {instanceType: datumcloud/d1-standard-2}
        sandbox: {containers: [{name: app, image: registry.example/mail:3}]}
      networkInterfaces: [{network: {name: default}}]
  placements:
    - name: default
      cityCodes: [SIN]
      scaleSettings: {minReplicas: 1}
"""
_HISTORY = (
    ("deploy blog --image=registry.example/blog:1.4 --city=AMS", 60),
    ("deploy shop --image=registry.example/shop:2.0 --city=AMS,DFW --min=2 --port=8080", 2400),
    ("deploy shop --image=registry.example/shop:2.1 --env=LOG_LEVEL=info", 1200),
)


class Stored(NamedTuple):
    """What the federation had stored, and when."""

    rows: list[Row]
    seconds: float


def history(folder: Path) -> Stored:
    """The project an hour after its first deploy, on a federation as `compute local up` makes it."""

    async def pass_(simulation: Simulation) -> Stored:
        logs = Logs(simulation)
        federation = _federation(simulation, logs)
        await federation.start()
        command = _command(federation, logs, folder)
        for line, seconds in _HISTORY:
            done = await command(line)
            assert done.code == 0, done
            await simulation.advance(seconds)
        await federation.stop()
        return Stored(list(federation.engine.log.rows()), simulation.time())

    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(1)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Simulation)
        return runner.run(pass_(loop))


@asynccontextmanager
async def opened(
    stored: Stored, simulation: Simulation, folder: Path, *, local: bool = False
) -> AsyncIterator[Command]:
    """Goes on from there, as after a restart, with a manifest in the folder where commands are typed. `local` if
    commands may notice that the federation is on their machine."""
    await simulation.advance(stored.seconds)
    logs = Logs(simulation)
    federation = _federation(simulation, logs, stored.rows)
    await federation.start()
    (folder / "workload.yaml").write_text(MANIFEST)
    yield _command(federation, logs, folder, local=local)
    await federation.stop()


def _federation(simulation: Simulation, logs: Logs, rows: Iterable[Row] = ()) -> EmbeddedFederation:
    return EmbeddedFederation(
        simulation,
        BEHAVIOUR,
        rows,
        limits=DEFAULT_LIMITS,
        projects=("demo",),
        cities={city: cell_of(city) for city in DEFAULT_CITIES},
        names=DEFAULT_CITIES,
        recorder=logs.lives,
    )


def _command(federation: EmbeddedFederation, logs: Logs, folder: Path, *, local: bool = False) -> Command:
    server = federation.engine.plane("demo")
    assert server is not None
    endpoints = Endpoints(federation.local.manager.fleet, "demo")
    overview = Overview("demo", PORT, simulated_instances(), endpoints)
    documents = {OVERVIEW: overview.document} if local else {}
    return Command(federation.simulation, server, folder, documents=documents, logs=logs.gateway)
