"""A `site` with the instance controller on it: quota by claims, copies on the hub."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from datum_compute.cell.instance import NAME, InstanceController
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.quota import Claims
from datum_compute.cell.writeback import WriteBack
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.simulation import Simulation
from tests.cell.site import Site

CELL_NAME = "cell-dfw"


def cell_name(plane: Plane) -> str:
    return CELL_NAME


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def site(runner: asyncio.Runner, simulation: Simulation, metrics: Metrics) -> Iterator[Site]:
    def build(fleet: Fleet) -> Sequence[Reconciler]:
        quota = Claims(fleet, simulation, cell_name, NAME, metrics=metrics)
        return [InstanceController(fleet, simulation, quota, WriteBack(fleet, cell_name, NAME), metrics=metrics)]

    site = Site(simulation, build)
    runner.run(site.start())
    yield site
    runner.run(site.stop())
