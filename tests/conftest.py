"""Shared by all tests: async tests, the counts of a long run, and a simulation.

An async test runs on the loop of its `simulation` (or `federation`) fixture; a failure there prints its seed.
"""

import asyncio
import inspect
import os
import signal
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from hypothesis import settings

from datum_compute.runtime.process import collect_rarely
from datum_compute.runtime.testing.simulation import Simulation

LONG = os.environ.get("LONG") == "1"
ENGINE = os.environ.get("ENGINE", "") in ("1", "sample")  # run scenarios on the real engine
SAMPLE = os.environ.get("ENGINE") == "sample"  # only some of the tests that the embedded engine runs as well
SAMPLE_OF_CHECKS = 4  # every fourth conformance check is in the sample

# No test touches the container engine of whoever runs it, unless it brings one of its own.
SIMULATED = {"DATUM_COMPUTE_INSTANCES": "simulated"}
os.environ.update(SIMULATED)

# Programs that tests start and signal inherit it, and whoever uses nohup ignores it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def own_environ() -> dict[str, str]:
    """The environment without what chooses a project or a federation, for programs that a test starts."""
    chosen = {key: value for key, value in os.environ.items() if not key.startswith(("DATUM", "KUBECONFIG"))}
    return chosen | SIMULATED


def count(default: int, long: int) -> int:
    """The number of repetitions: few in `make test`, all in `make test-long`."""
    return long if LONG else default


# The same examples on every machine in `make test`, so that only a change can break it; new ones in `make test-long`.
# No deadline: machines are noisy, and slowness is measured in bench/.
settings.register_profile("compute", deadline=None, derandomize=not LONG, max_examples=count(100, 500))
settings.load_profile("compute")


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage, and traversing them again and again is a tenth of the run."""
    collect_rarely()


@pytest.fixture(autouse=True, scope="session")
def _quiet_logs() -> None:
    structlog.configure(processors=[_drop])


@pytest.fixture(autouse=True)
def _no_defects() -> Iterator[None]:
    """Defects met while following a plane cost only that plane, so that a test would not notice them. A test that
    expects some captures the log."""
    _defects.clear()
    yield
    assert _defects == []


_defects: list[MutableMapping[str, Any]] = []


def _drop(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if event.get("event") == "defect on a plane":
        _defects.append(event)
    raise structlog.DropEvent


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """The loop of an async test: simulated, with seed 1 unless the test is parametrised by `seed`."""
    if ENGINE and "simulation" not in request.fixturenames:
        with asyncio.Runner() as real:
            yield real
        return
    params = getattr(request.node, "callspec", None)
    seed = params.params.get("seed", 1) if params else 1
    with asyncio.Runner(loop_factory=lambda: Simulation.seeded(seed)) as runner:
        yield runner


@pytest.fixture
def simulation(runner: asyncio.Runner) -> Simulation:
    loop = runner.get_loop()
    assert isinstance(loop, Simulation)
    return loop


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select for the real engine the scenarios that need no simulation, and the tests of the engine itself."""
    if not ENGINE:
        return
    chosen = [item for item in items if _runs_on_the_engine(item)]
    if SAMPLE:
        chosen = _sample(chosen)
    left_out = set(items) - set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = chosen


def _runs_on_the_engine(item: pytest.Item) -> bool:
    names = item.fixturenames if isinstance(item, pytest.Function) else []
    scenario = "federation" in names and not {"simulation", "embedded"} & set(names)
    return scenario or item.get_closest_marker("engine") is not None


def _sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that run only on the real engine, the first scenario of each module, and some conformance checks; none
    that wait for minutes."""
    chosen: list[pytest.Item] = []
    modules: set[str] = set()
    checks = 0
    for item in items:
        if item.get_closest_marker("minutes") is not None:
            continue
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if "server" in params:
            checks += params["server"] == "engine"
            if params["server"] == "engine" and checks % SAMPLE_OF_CHECKS == 1:
                chosen.append(item)
        elif item.get_closest_marker("engine") is not None or item.path.name not in modules:
            modules.add(item.path.name)
            chosen.append(item)
    return chosen


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner: asyncio.Runner = pyfuncitem._request.getfixturevalue("runner")
    names = pyfuncitem._fixtureinfo.argnames
    runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
