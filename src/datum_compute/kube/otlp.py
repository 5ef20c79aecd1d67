"""Spans by way of OpenTelemetry, loaded only when they are exported. Entry point: `OtlpTracer`.

Spans wait in a bounded queue and are sent by a thread of their own, so that a collector that is slow or gone holds up
nothing. What does not fit into the queue is dropped.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from datum_compute.kube.tracing import Attributes, RandomBytes, Traceparent, random_id

REPORT_SECONDS = 300.0
_UNKNOWN = "unknown_service"
_LIBRARY = "opentelemetry"
_LONGEST = 500


def otlp_exporter() -> SpanExporter:
    """The exporter that OpenTelemetry's variables describe."""
    return OTLPSpanExporter()


class OtlpTracer:
    """`close` is bounded, whatever the collector does."""

    def __init__(
        self,
        exporter: SpanExporter,
        service: str,
        version: str,
        random_bytes: RandomBytes,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._exporter = exporter
        self._troubles = _Troubles(report)
        library = logging.getLogger(_LIBRARY)
        for handler in [handler for handler in library.handlers if isinstance(handler, _Troubles)]:
            library.removeHandler(handler)  # of a tracer before this one
        library.addHandler(self._troubles)
        library.propagate = False  # its lines have neither our format nor our limits
        self._provider = TracerProvider(
            resource=_resource(service, version), id_generator=_Ids(random_bytes), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("datum_compute", version)

    def begin(self, name: str, parent: Traceparent | None, at: datetime) -> "OtlpSpan":
        context = trace.set_span_in_context(_remote(parent)) if parent is not None else Context()
        return OtlpSpan(self._tracer.start_span(name, context, start_time=_nanoseconds(at)))

    def close(self, seconds: float) -> bool:
        closing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(seconds)
        if not closing.is_alive():
            return not self._troubles.any
        self._exporter.shutdown()  # else its thread goes on trying to send what nobody waits for
        return False


class OtlpSpan:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> Traceparent:
        context = self._span.get_span_context()
        return Traceparent(f"{context.trace_id:032x}", f"{context.span_id:016x}", f"{context.trace_flags:02x}")

    def end(self, at: datetime, attributes: Attributes, error: str = "") -> None:
        for key, value in attributes.items():
            self._span.set_attribute(key, value)
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(_nanoseconds(at))


class _Ids(IdGenerator):
    """Ids from a source that tests can replace."""

    def __init__(self, random_bytes: RandomBytes) -> None:
        self._random_bytes = random_bytes

    def generate_span_id(self) -> int:
        return int(random_id(8, self._random_bytes), 16)

    def generate_trace_id(self) -> int:
        return int(random_id(16, self._random_bytes), 16)


class _Troubles(logging.Handler):
    """Whatever OpenTelemetry complains about; reported at most every few minutes."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.any = False
        self._report = report
        self._last = -REPORT_SECONDS

    def emit(self, record: logging.LogRecord) -> None:
        self.any = True
        now = time.monotonic()
        if now - self._last >= REPORT_SECONDS:
            self._last = now
            self._report(record.getMessage()[:_LONGEST])  # a collector's answer may be a whole page


def _resource(service: str, version: str) -> Resource:
    resource = Resource.create({SERVICE_VERSION: version})
    name = str(resource.attributes.get(SERVICE_NAME, ""))
    return resource if name and not name.startswith(_UNKNOWN) else resource.merge(Resource({SERVICE_NAME: service}))


def _remote(parent: Traceparent) -> trace.Span:
    flags = TraceFlags(int(parent.flags, 16))
    return NonRecordingSpan(SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), True, flags))


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1000
