"""Which passes are spans, and what the spans say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import pytest

from datum_compute.kube.errors import Forbidden
from datum_compute.kube.tracing import ANNOTATION, Traceparent
from datum_compute.runtime.controller import Controller
from datum_compute.runtime.passes import Pass
from datum_compute.runtime.requests import Request
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.testing.server import NAMESPACE, WIDGET
from datum_compute.runtime.testing.simulation import Simulation
from tests.runtime.world import Act, World
from tests.tracing import RecordedSpan, RecordedTracer

PARENT = Traceparent("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
SECONDS = 2.0


class Traced(World):
    """Planes `a` and `b`, and a widget on each."""

    def __init__(self, simulation: Simulation, tracer: RecordedTracer) -> None:
        super().__init__(Source("east", WIDGET, itself), Source("west", WIDGET))
        self.controller = Controller(self.recorder, self.fleet, simulation, tracer)
        self.add("a").make("w")
        self.add("b", "west").make("v")

    def name_trace(self, text: str) -> None:
        self.servers["a"].change("w", {"metadata": {"annotations": {ANNOTATION: text}}})


async def write_twice(request: Request, pass_: Pass) -> None:
    widget, other = pass_.get(WIDGET), pass_.on("west").informer(WIDGET).get(NAMESPACE, "v")
    assert widget is not None
    assert other is not None
    await asyncio.sleep(SECONDS)
    async with asyncio.TaskGroup() as tasks:  # writes of other tasks count as well
        tasks.create_task(pass_.on("west").write.patch(other, {"spec": {"size": 1}}))
    await pass_.write.status(widget, {"ready": True})


async def read_only(request: Request, pass_: Pass) -> None:
    widget = pass_.get(WIDGET)
    assert widget is not None
    await pass_.write.clear_status(widget)  # there is none


@asynccontextmanager
async def spans_of(simulation: Simulation, act: Act, *, trace: str = "") -> AsyncIterator[list[RecordedSpan]]:
    """The spans of one pass that does this."""
    tracer = RecordedTracer(simulation.random)
    world = Traced(simulation, tracer)
    if trace:
        world.name_trace(trace)
    done = 0

    async def once(request: Request, pass_: Pass) -> None:
        nonlocal done
        done += 1
        if done == 1:
            await act(request, pass_)

    world.recorder.act = once
    async with world.running(simulation):
        await simulation.advance(30)
        yield tracer.spans


async def test_a_pass_that_writes_is_a_span_below_the_trace_of_its_object(simulation: Simulation) -> None:
    async with spans_of(simulation, write_twice, trace=str(PARENT)) as spans:
        [span] = spans
    assert (span.name, span.parent, span.error) == ("recorder", PARENT, "")
    assert span.traceparent.trace_id == PARENT.trace_id
    assert span.attributes == {
        "controller": "recorder",
        "plane": "a",
        "namespace": NAMESPACE,
        "name": "w",
        "pass": 1,
        "writes": 2,
        "written_planes": ("b", "a"),
    }
    assert isinstance(span.ended, datetime)
    assert (span.ended - span.began).total_seconds() == pytest.approx(SECONDS, abs=0.1)


async def test_a_pass_that_writes_nothing_is_no_span(simulation: Simulation) -> None:
    async with spans_of(simulation, read_only, trace=str(PARENT)) as spans:
        assert spans == []


@pytest.mark.parametrize("trace", ["", "nonsense"])
async def test_without_a_valid_trace_on_its_object_a_pass_begins_its_own(simulation: Simulation, trace: str) -> None:
    async with spans_of(simulation, write_twice, trace=trace) as spans:
        [span] = spans
    assert span.parent is None


async def test_a_pass_that_fails_after_a_write_names_the_kind_of_failure_only(simulation: Simulation) -> None:
    async def act(request: Request, pass_: Pass) -> None:
        await write_twice(request, pass_)
        raise Forbidden("the password is s3cret")

    async with spans_of(simulation, act) as spans:
        [span] = spans
    assert span.error == "Forbidden"
    assert "s3cret" not in str(span)


async def test_a_tracer_that_raises_costs_no_pass(simulation: Simulation) -> None:
    class Broken(RecordedTracer):
        def begin(self, name: str, parent: Traceparent | None, at: datetime) -> RecordedSpan:
            raise RuntimeError("no span today")

    world = Traced(simulation, Broken())
    world.recorder.act = write_twice
    async with world.running(simulation):
        await simulation.advance(30)
        assert world.servers["a"].get("w")["status"] == {"ready": True}
        assert world.controller.results["success"] >= 1
    assert [str(error) for error in world.controller.crashes[:1]] == ["no span today"]
