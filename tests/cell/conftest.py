"""A `site` with everything that a cell runs: quota by claims, copies on the hub."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client import CollectorRegistry

from datum_compute.cell.metrics import Metrics
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.site import Site

CELL_NAME = "cell-dfw"


def cell_name(plane: Plane) -> str:
    return CELL_NAME


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


@pytest.fixture
def site(runner: asyncio.Runner, simulation: Simulation, metrics: Metrics) -> Iterator[Site]:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name, metrics=metrics)

    site = Site(simulation, build)
    runner.run(site.start())
    yield site
    runner.run(site.stop())
