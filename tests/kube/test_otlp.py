"""Spans on their way to a collector."""

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from datum_compute.kube.otlp import OtlpTracer
from datum_compute.kube.tracing import Traceparent, Tracer, open_tracer
from tests.tracing import Collector

BEGAN = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
ENDED = BEGAN + timedelta(milliseconds=250)
PARENT = Traceparent("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
BOUNDED_SECONDS = 10.0


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def opened(url: str, monkeypatch: pytest.MonkeyPatch, reports: list[str] | None = None, **environ: str) -> Tracer:
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **environ}.items():
        monkeypatch.setenv(name, value)
    report = reports.append if reports is not None else lambda text: None
    tracer = open_tracer(os.environ, "baker", "1.0", random.Random(1).randbytes, report)
    assert tracer is not None
    return tracer


def in_memory(exporter: InMemorySpanExporter) -> OtlpTracer:
    return OtlpTracer(exporter, "baker", "1.0", random.Random(1).randbytes)


def sending() -> list[threading.Thread]:
    """The threads that still try to send spans of a tracer that collects from a server."""
    return [thread for thread in threading.enumerate() if thread.name in ("spans", "OtelBatchSpanRecordProcessor")]


def finished(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, ...]:
    return tuple(exporter.get_finished_spans())


def test_a_span_reaches_the_collector_with_its_parent_times_and_attributes(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = opened(collector.url, monkeypatch)
    span = tracer.begin("oven", PARENT, BEGAN)
    span.end(ENDED, {"writes": 2, "name": "bread", "written_planes": ("a", "b")})
    assert tracer.close(BOUNDED_SECONDS)
    [sent] = collector.spans
    assert collector.paths == ["/v1/traces"]
    assert collector.services == {"baker"}
    assert (sent.name, sent.trace_id.hex(), sent.parent_span_id.hex()) == ("oven", PARENT.trace_id, PARENT.span_id)
    assert sent.span_id.hex() == span.traceparent.span_id
    assert sent.end_time_unix_nano - sent.start_time_unix_nano == 250_000_000
    assert sent.start_time_unix_nano == int(BEGAN.timestamp()) * 1_000_000_000
    values = {attribute.key: attribute.value for attribute in sent.attributes}
    assert (values["writes"].int_value, values["name"].string_value) == (2, "bread")
    assert [value.string_value for value in values["written_planes"].array_value.values] == ["a", "b"]


def test_the_environment_names_the_service(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = opened(collector.url, monkeypatch, OTEL_SERVICE_NAME="ours")
    tracer.begin("oven", None, BEGAN).end(ENDED, {})
    tracer.close(BOUNDED_SECONDS)
    assert collector.services == {"ours"}


def test_ids_come_from_the_source_that_was_given() -> None:
    ids = []
    for _ in range(2):
        tracer = in_memory(InMemorySpanExporter())
        ids.append(tracer.begin("oven", None, BEGAN).traceparent)
        tracer.close(BOUNDED_SECONDS)
    assert ids[0] == ids[1]


def test_a_failed_span_names_the_kind_of_failure() -> None:
    exporter = InMemorySpanExporter()
    tracer = in_memory(exporter)
    tracer.begin("oven", None, BEGAN).end(ENDED, {}, "Forbidden")
    tracer.close(BOUNDED_SECONDS)
    [span] = finished(exporter)
    assert span.attributes == {"error.type": "Forbidden"}
    assert not span.status.is_ok


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    exporter = InMemorySpanExporter()
    tracer = in_memory(exporter)
    span = tracer.begin("oven", Traceparent(PARENT.trace_id, PARENT.span_id, "00"), BEGAN)
    span.end(ENDED, {})
    tracer.close(BOUNDED_SECONDS)
    assert finished(exporter) == ()
    assert (span.traceparent.trace_id, span.traceparent.flags) == (PARENT.trace_id, "00")


def test_a_collector_that_is_down_delays_nothing_and_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reports: list[str] = []
    tracer = opened(f"http://127.0.0.1:{port}", monkeypatch, reports)
    began = time.monotonic()
    for _ in range(5000):  # more than the queue holds
        tracer.begin("oven", PARENT, BEGAN).end(ENDED, {})
    assert not tracer.close(0.5)
    for thread in sending():
        thread.join(BOUNDED_SECONDS)
    assert not sending()
    assert time.monotonic() - began < BOUNDED_SECONDS
    assert len(reports) == 1


def test_a_collector_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        tracer = opened(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        tracer.begin("oven", PARENT, BEGAN).end(ENDED, {})
        began = time.monotonic()
        assert not tracer.close(0.2)
        assert time.monotonic() - began < BOUNDED_SECONDS
