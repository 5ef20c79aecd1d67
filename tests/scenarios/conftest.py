"""The `federation` fixture: started, seeded, and checked for crashes at the end."""

import asyncio
from collections.abc import Iterator

import pytest

from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime.simulation import Simulation
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation


@pytest.fixture
def embedded(runner: asyncio.Runner, simulation: Simulation) -> Iterator[EmbeddedFederation]:
    async def build() -> EmbeddedFederation:
        federation = EmbeddedFederation(simulation, Behaviour(start_seconds=0.3, stop_seconds=0.2))
        await federation.start()
        return federation

    federation = runner.run(build())
    yield federation
    runner.run(federation.stop())


@pytest.fixture
def federation(embedded: EmbeddedFederation) -> Federation:
    return Federation(embedded)
