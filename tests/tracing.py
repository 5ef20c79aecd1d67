"""Spans in memory, and a collector on loopback. Entry points: `RecordedTracer`, `Collector`."""

import random
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from msgspec import Struct, structs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan

from datum_compute.kube.tracing import Attributes, Traceparent


class RecordedSpan(Struct):
    name: str
    parent: Traceparent | None
    traceparent: Traceparent
    began: datetime
    ended: datetime | None = None
    attributes: Attributes = {}
    error: str = ""

    def end(self, at: datetime, attributes: Attributes, error: str = "") -> None:
        self.ended, self.attributes, self.error = at, attributes, error


class RecordedTracer:
    """Keeps what it is given. One that refuses to close plays a collector that does not answer."""

    def __init__(self, generator: random.Random | None = None, *, closes: bool = True) -> None:
        self.spans: list[RecordedSpan] = []
        self._generator = generator or random.Random(1)
        self._closes = closes

    def begin(self, name: str, parent: Traceparent | None, at: datetime) -> RecordedSpan:
        draw = self._generator.randbytes
        traceparent = Traceparent.new(draw)
        if parent is not None:
            traceparent = structs.replace(traceparent, trace_id=parent.trace_id, flags=parent.flags)
        span = RecordedSpan(name, parent, traceparent, at)
        self.spans.append(span)
        return span

    def close(self, seconds: float) -> bool:
        return self._closes


class Collector:
    """Receives spans over HTTP until it is left."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="collector", daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @property
    def spans(self) -> list[SentSpan]:
        return [
            span
            for request in self.requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]

    @property
    def services(self) -> set[str]:
        return {
            attribute.value.string_value
            for request in self.requests
            for of_resource in request.resource_spans
            for attribute in of_resource.resource.attributes
            if attribute.key == "service.name"
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.paths.append(self.path)
            collector.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler
