"""Controllers of management forget a project when it leaves, however much trouble they had with it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest

from datum_compute.kube.errors import Forbidden, Invalid, Unavailable
from datum_compute.management.handover import Handover
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness
from tests.management.test_federator import Federation
from tests.management.test_handover import Management
from tests.management.test_projector import Federation as Hub
from tests.management.test_workload import Project, about

PROJECT = "demo"


def remembers(reconciler: object, name: str) -> bool:
    """Whether a string can be reached from an object, without what it shares with others: the fleet, and code."""
    seen: set[int] = set()
    left: list[Any] = [vars(reconciler)]
    while left:
        object_ = left.pop()
        if id(object_) in seen or isinstance(object_, Fleet | ModuleType | FunctionType | type | asyncio.Future):
            continue
        seen.add(id(object_))
        if object_ == name:
            return True
        left += gc.get_referents(object_)
    return False


async def _leaves(harness: ControllerHarness, reconciler: object) -> None:
    assert remembers(reconciler, PROJECT), "otherwise there is nothing to forget"
    harness.fleet.remove(PROJECT)
    await harness.settle()
    assert not remembers(reconciler, PROJECT)


# The federator


@pytest.fixture
def federation(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Federation]:
    federation = Federation(simulation)
    runner.run(federation.start())
    yield federation
    runner.run(federation.stop())


async def _refused(federation: Federation) -> None:
    federation.faults["hub"].refuse(calls("POST", "workloaddeployments"), Invalid("spec.template: no"))
    await federation.deploy()


async def _interrupted(federation: Federation) -> None:
    federation.faults["hub"].refuse(calls("POST", "workloaddeployments"), Unavailable("busy", plane="hub"))
    await federation.deploy()


async def _unanswered(federation: Federation) -> None:
    await federation.deploy()


async def _unrecorded(federation: Federation) -> None:
    await federation.deploy()
    federation.faults[PROJECT].refuse(calls("PATCH", "namespaces/default"), Forbidden("no right"))
    await federation.delete()


@pytest.mark.parametrize("trouble", [_refused, _interrupted, _unanswered, _unrecorded])
async def test_the_federator_forgets_a_project_that_leaves(
    federation: Federation, trouble: Callable[[Federation], Awaitable[None]]
) -> None:
    assert not remembers(federation.reconciler, PROJECT)
    await trouble(federation)
    await _leaves(federation, federation.reconciler)


async def test_a_pass_that_ends_after_its_project_left_leaves_nothing_behind(federation: Federation) -> None:
    federation.faults["hub"].slow_down(5, calls("POST", "workloaddeployments"))
    federation.faults["hub"].refuse(calls("POST", "workloaddeployments"), Invalid("spec.template: no"))
    await federation.deploy()
    federation.fleet.remove(PROJECT)
    await federation.simulation.advance(60)
    assert not remembers(federation.reconciler, PROJECT)


# The others


async def test_the_workload_controller_forgets_a_project_that_leaves(simulation: Simulation) -> None:
    project = Project(simulation)
    await project.start()
    project.faults[PROJECT].refuse(about("web-main-dfw"), Invalid("spec.template: no"))
    await project.deploy(["DFW"])
    await _leaves(project, project.reconciler)
    await project.stop()


async def test_the_projector_forgets_what_a_project_refused_that_left_before_the_instance(
    simulation: Simulation,
) -> None:
    hub = Hub(simulation)
    await hub.start()
    hub.faults[PROJECT].refuse(calls("POST", "/instances"), Invalid("metadata.labels: no"))
    await hub.write_back("web-7")
    assert remembers(hub.reconciler, "web-7")
    hub.fleet.remove(PROJECT)
    await hub.settle()
    await hub.remove("web-7")
    assert not remembers(hub.reconciler, "web-7")
    await hub.stop()


async def test_the_handover_forgets_a_project_that_leaves(simulation: Simulation) -> None:
    management = Management(simulation)
    reconciler: list[Handover] = []

    def build(fleet: Fleet) -> Handover:
        reconciler.append(Handover(fleet))
        return reconciler[-1]

    await management.start()
    await management.replace(build)
    management.faults[PROJECT].refuse(calls("GET", "resourceclaims"), Forbidden("no right"))
    await management.start_controllers()
    await _leaves(management, reconciler[-1])
    await management.stop()
