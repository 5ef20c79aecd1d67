"""The `federation` fixture: started, seeded, and checked for crashes at the end.

With ENGINE=1 (`make test-engine`) it is the real engine, and what needs the simulation is left out.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from datum_compute.runtime.testing.simulation import Simulation
from tests.conftest import ENGINE
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation, Outages, Suspension
from tests.scenarios.life import BEHAVIOUR

if TYPE_CHECKING:
    from tests.scenarios.managers import Managers


@pytest.fixture
def embedded(runner: asyncio.Runner, simulation: Simulation) -> Iterator[EmbeddedFederation]:
    async def build() -> EmbeddedFederation:
        federation = EmbeddedFederation(simulation, BEHAVIOUR)
        await federation.start()
        return federation

    federation = runner.run(build())
    yield federation
    runner.run(federation.stop())


@pytest.fixture(scope="session")
def managers(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Managers"]:
    """Started by the first scenario and ended after the last: a process takes longer to start than most of them."""
    from tests.engine.running import running_engine
    from tests.scenarios.managers import Managers

    managers = Managers(running_engine(), tmp_path_factory.mktemp("managers"))
    yield managers
    managers.close()


@pytest.fixture
def federation(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Federation]:
    if not ENGINE:
        yield Federation(request.getfixturevalue("embedded"))
        return
    from tests.engine.running import running_engine
    from tests.scenarios.real import RealFederation

    async def build() -> RealFederation:
        federation = RealFederation(running_engine(), request.getfixturevalue("managers"))
        await federation.start()
        return federation

    real = runner.run(build())
    yield Federation(real)
    runner.run(real.stop())


@pytest.fixture
def outages(federation: Federation) -> Outages:
    """What breaks the federation of this scenario."""
    assert isinstance(federation.engine, Outages)
    return federation.engine


@pytest.fixture
def suspension(federation: Federation) -> Suspension:
    """What takes the projects of this scenario out of service."""
    assert isinstance(federation.engine, Suspension)
    return federation.engine
