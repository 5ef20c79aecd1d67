import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from datum_compute.kube.client import Client
from datum_compute.kube.errors import Conflict, Forbidden, Unavailable
from datum_compute.kube.inprocess import InProcess
from datum_compute.runtime.caches.informer import STALL_SECONDS
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.leases import Election
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Drop
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.telemetry.calls import Calls, Counted
from datum_compute.runtime.telemetry.histogram import Histogram
from datum_compute.runtime.telemetry.metrics import process_registry
from datum_compute.runtime.telemetry.table import PYTHON, RUNTIME
from datum_compute.runtime.testing.server import NAMESPACE, WIDGET, Server, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.metrics import differences

LABEL = {"controller": "worker"}
NAME = {"name": "worker"}


class Worker:
    """Ends each pass as the name of its widget says."""

    name = "worker"

    def sources(self) -> Sequence[Source[Any]]:
        def named(plane: Plane, change: Any) -> Any:
            yield from [Drop("unlabelled")] if change.object.name == "ignored" else itself(plane, change)

        return (Source("east", WIDGET, named),)

    async def reconcile(self, pass_: Pass) -> None:
        match pass_.request.name:
            case "slow":
                await asyncio.sleep(3)
            case "later":
                pass_.no_later_than(1000)
            case "away":
                raise Unavailable("away", plane="b")
            case "conflict":
                raise Conflict("changed")
            case "defect":
                raise RuntimeError
            case "writes":
                [widget] = [found for found in pass_.informer(WIDGET).all() if found.name == "writes"]
                if not bytes(widget.status_json):
                    await pass_.write.status(widget, {"ready": True})


class World:
    def __init__(self, simulation: Simulation, election: bool = False) -> None:
        self.server = Server()
        self.registry = CollectorRegistry()
        fleet, writes = Fleet(), Writes()
        for name in ("a", "b"):
            server = self.server if name == "a" else Server()
            fleet.add(Plane(name, "east", InProcess(server), writes=writes, generator=simulation.random))
        client = Client("host", InProcess(Server()))
        self.manager = Manager(
            fleet,
            [Worker()],
            simulation,
            election=Election(client, NAMESPACE, "lead", "one", simulation, simulation.random) if election else None,
            registry=self.registry,
            writes=writes,
            prefix="oven_",
        )

    def up(self, plane: str) -> float | None:
        return self.value("oven_plane_up", plane=plane, role="east")

    def value(self, metric: str, /, **labels: str) -> float | None:
        return self.registry.get_sample_value(metric, labels)


@pytest.fixture
def world(simulation: Simulation) -> World:
    return World(simulation)


async def test_passes_are_counted_by_how_they_end(world: World, simulation: Simulation) -> None:
    for name in ("fine", "later", "away", "conflict", "defect"):
        world.server.make(name)
    async with background(world.manager.run()):
        await simulation.settle()
        expected = {"success": 1, "requeue_after": 1, "error": 2, "requeue": 1}
        for result, count in expected.items():
            assert world.value("controller_runtime_reconcile_total", result=result, **LABEL) == count, result
        assert world.value("controller_runtime_reconcile_errors_total", **LABEL) == 2
        assert world.value("controller_runtime_reconcile_panics_total", **LABEL) == 1
        assert world.value("controller_runtime_reconcile_time_seconds_count", **LABEL) == 5
        assert world.value("workqueue_retries_total", **NAME) == 3


async def test_running_and_waiting_requests_are_measured(world: World, simulation: Simulation) -> None:
    world.server.make("slow")
    async with background(world.manager.run()):
        await simulation.advance(2)
        assert world.value("controller_runtime_active_workers", **LABEL) == 1
        assert world.value("workqueue_longest_running_processor_seconds", **NAME) == 2
        assert world.value("workqueue_unfinished_work_seconds", **NAME) == 2
        assert world.value("workqueue_depth", **NAME) == 0
        await simulation.advance(2)
        assert world.value("controller_runtime_active_workers", **LABEL) == 0
        assert world.value("workqueue_longest_running_processor_seconds", **NAME) == 0
        assert world.value("controller_runtime_reconcile_time_seconds_sum", **LABEL) == 3
        assert world.value("controller_runtime_reconcile_time_seconds_bucket", le="2.5", **LABEL) == 0
        assert world.value("controller_runtime_reconcile_time_seconds_bucket", le="3.0", **LABEL) == 1
        assert world.value("workqueue_work_duration_seconds_sum", **NAME) == 3
        assert world.value("workqueue_queue_duration_seconds_count", **NAME) == 1


async def test_the_queue_of_a_standby_has_a_depth(simulation: Simulation) -> None:
    world = World(simulation, election=True)
    election = world.manager.election
    assert election is not None
    world.server.make("fine")
    world.server.make("later")
    async with background(world.manager.fleet.run()):
        await simulation.settle()
        assert world.value("workqueue_depth", **NAME) == 2
        assert world.value("workqueue_adds_total", **NAME) == 2
        assert world.value("leader_election_master_status", name="lead") == 0
    await election.acquire()
    assert world.value("leader_election_master_status", name="lead") == 1


async def test_planes_caches_and_dropped_changes_carry_the_prefix(world: World, simulation: Simulation) -> None:
    world.server.make("ignored")
    async with background(world.manager.run()):
        await simulation.advance(30)
        assert world.value("oven_planes_engaged", kind="east") == 2
        assert world.value("oven_events_dropped_total", controller="worker", reason="unlabelled") == 1
        assert world.value("oven_cache_objects", role="east", kind="Widget") == 1
        assert world.value("oven_cache_watching", role="east", kind="Widget") == 1
        assert world.value("oven_cache_silent_seconds", role="east", kind="Widget") == 30
        assert world.value("oven_event_loop_lag_seconds") == 0


async def test_a_plane_is_up_while_it_is_engaged_and_all_of_its_caches_follow(
    world: World, simulation: Simulation
) -> None:
    world.server.refuse = [Forbidden("no")] * 3
    async with background(world.manager.run()):
        await simulation.settle()
        assert (world.up("a"), world.up("b"), world.value("oven_planes_away", role="east")) == (0, 1, 1)
        failures = {"role": "east", "kind": "Widget", "phase": "authorization"}
        assert world.value("oven_plane_failures_total", **failures) == 1
        await simulation.advance(10)
        assert (world.up("a"), world.value("oven_planes_away", role="east")) == (1, 0)
        world.server.refuse_watches = Forbidden("no")
        world.server.end_watches()
        await simulation.advance(10)
        assert world.up("a") == 0
        world.manager.fleet.remove("a")
        assert world.up("a") is None
        assert (world.value("oven_plane_failures_total", **failures) or 0) > 1, "a counter never decreases"


async def test_a_server_restored_from_a_backup_is_counted(world: World, simulation: Simulation) -> None:
    backup = world.server.snapshot()
    world.server.make("fine")
    async with background(world.manager.run()):
        await simulation.settle()
        assert world.value("oven_cache_rewinds_total", role="east", kind="Widget") == 0
        world.server.restore(backup)
        await simulation.advance(STALL_SECONDS + 1)
        assert world.value("oven_cache_rewinds_total", role="east", kind="Widget") == 1


async def test_writes_are_counted_by_plane_controller_verb_and_kind(world: World, simulation: Simulation) -> None:
    world.server.make("writes")
    async with background(world.manager.run()):
        await simulation.settle()
        labels = {"plane": "a", "controller": "worker", "verb": "status", "kind": "Widget"}
        assert world.value("oven_api_writes_total", **labels) == 1


async def test_writes_that_are_undone_again_and_again_are_counted(world: World, simulation: Simulation) -> None:
    world.server.make("writes")
    async with background(world.manager.run()):
        for _ in range(20):
            world.server.change("writes", {"status": None})
            await simulation.settle()
        labels = {"plane": "a", "controller": "worker", "verb": "status", "kind": "Widget"}
        assert world.value("oven_api_writes_total", **labels) == 10
        assert (world.value("oven_api_writes_damped_total", **labels) or 0) >= 10


async def test_metrics_can_be_parsed_and_every_name_occurs_once(world: World, simulation: Simulation) -> None:
    world.server.make("fine")
    async with background(world.manager.run()):
        await simulation.settle()
        families = list(text_string_to_metric_families(generate_latest(world.registry).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert {
        "controller_runtime_reconcile",
        "controller_runtime_reconcile_errors",
        "controller_runtime_reconcile_time_seconds",
        "controller_runtime_max_concurrent_reconciles",
        "controller_runtime_active_workers",
        "workqueue_adds",
        "workqueue_depth",
        "workqueue_queue_duration_seconds",
        "workqueue_work_duration_seconds",
        "workqueue_retries",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
    } <= set(names)


async def test_serving_metrics_makes_no_calls(world: World, simulation: Simulation) -> None:
    async with background(world.manager.run()):
        await simulation.settle()
        calls = len(world.server.calls)
        generate_latest(world.registry)
        await simulation.settle()
        assert len(world.server.calls) == calls


def test_process_metrics_are_served_as_the_table_says() -> None:
    assert "process_resident_memory_bytes" in generate_latest(process_registry()).decode()
    assert differences(process_registry(), PYTHON) == set()


# Histograms


@pytest.mark.parametrize(
    ("seconds", "cumulative"),
    [(0.0, [1, 1, 1]), (1.0, [1, 1, 1]), (1.1, [0, 1, 1]), (2.0, [0, 1, 1]), (9.0, [0, 0, 1])],
)
def test_a_bound_belongs_to_its_bucket(seconds: float, cumulative: list[int]) -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(seconds)
    assert histogram.cumulative() == cumulative
    assert (histogram.count, histogram.total) == (1, seconds)


# The table


async def test_everything_exposed_is_in_the_table(simulation: Simulation) -> None:
    world = World(simulation, election=True)
    for name in ("fine", "defect", "writes", "ignored"):
        world.server.make(name)
    world.server.refuse = [Forbidden("no")] * 3
    async with background(world.manager.run()):
        await simulation.advance(60)
        table = [metric.with_prefix("oven_") for metric in RUNTIME]
        assert differences(world.registry, table) == set()


async def test_the_number_of_times_that_the_lease_changed_hands_is_reported(simulation: Simulation) -> None:
    world = World(simulation, election=True)
    election = world.manager.election
    assert election is not None
    assert world.value("oven_lease_transitions_total", name="lead") is None, "an earlier count would look like changes"
    await election.acquire()
    await election.release()
    assert world.value("oven_lease_transitions_total", name="lead") == 0, "the first holder is no change"
    await election.acquire()
    assert world.value("oven_lease_transitions_total", name="lead") == 1


async def test_requests_are_exposed_by_code_method_and_role(simulation: Simulation) -> None:
    registry, calls, fleet = CollectorRegistry(), Calls(), Fleet()
    transport = Counted(InProcess(Server()), calls, "east")
    fleet.add(Plane("a", "east", transport, writes=Writes(), generator=simulation.random))
    manager = Manager(fleet, [Worker()], simulation, registry=registry, calls=calls)
    async with background(manager.run()):
        await simulation.settle()
    labels = {"code": "200", "method": "GET", "role": "east"}
    assert registry.get_sample_value("rest_client_requests_total", labels) == 2, "a list and a watch"
    watches = {"verb": "WATCH", "role": "east"}
    assert registry.get_sample_value("rest_client_request_duration_seconds_count", watches) == 1
