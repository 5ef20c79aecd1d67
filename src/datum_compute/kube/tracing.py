"""One trace over many planes: W3C trace context on objects, and the spans that belong to it. Entry points:
`Traceparent`, `carried`, `with_spec`, `open_tracer`.

An object names the trace of its last change in an annotation. The annotation travels with a spec and never alone, so
that it costs no write of its own. OpenTelemetry is loaded only where spans are exported.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from datum_compute.kube.meta import Json, KubeObject, missing_or_different

ANNOTATION = "tracing.k8s.io/traceparent"
VARIABLE = "TRACEPARENT"  # how a program tells the command it runs which trace it belongs to

SAMPLED = "01"
_FORMAT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_LONGEST = 512

RandomBytes = Callable[[int], bytes]
Attributes = Mapping[str, str | int | tuple[str, ...]]


class Traceparent(Struct, frozen=True):
    """A span of a trace, in hexadecimal digits: whatever it causes names it as its parent."""

    trace_id: str
    span_id: str
    flags: str = SAMPLED

    @classmethod
    def parse(cls, text: str | None) -> "Traceparent | None":
        """None for anything malformed, which is ignored everywhere. Of versions yet to come, the known fields count."""
        if not text or len(text) > _LONGEST or not (match := _FORMAT.fullmatch(text)):
            return None
        version, trace_id, span_id, flags, more = match.groups()
        is_known = version == "00" and more is None
        if version == "ff" or not (is_known or version > "00") or not (trace_id.strip("0") and span_id.strip("0")):
            return None
        return cls(trace_id, span_id, flags)

    @classmethod
    def new(cls, random_bytes: RandomBytes) -> "Traceparent":
        return cls(random_id(16, random_bytes), random_id(8, random_bytes))

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def random_id(number: int, random_bytes: RandomBytes) -> str:
    """So many random bytes; zeros alone would be invalid."""
    while not any(drawn := random_bytes(number)):
        pass
    return drawn.hex()


# On objects


def of(object_: KubeObject | None) -> Traceparent | None:
    return Traceparent.parse(object_.metadata.annotations.get(ANNOTATION)) if object_ is not None else None


def carried(source: KubeObject) -> dict[str, str]:
    """The annotation of an object that is created because of another one."""
    traceparent = of(source)
    return {ANNOTATION: str(traceparent)} if traceparent is not None else {}


def with_spec(patch: Json, target: KubeObject, source: KubeObject) -> Json:
    """A patch that changes the spec of `target` also makes it name the trace of `source`; others stay as they are."""
    if "spec" not in patch:
        return patch
    different = missing_or_different({ANNOTATION: None, **carried(source)}, target.metadata.annotations)
    if not different:
        return patch
    metadata = patch.get("metadata") or {}
    annotations = (metadata.get("annotations") or {}) | different
    return patch | {"metadata": metadata | {"annotations": annotations}}


def marked(body: Json, traceparent: Traceparent | None) -> Json:
    """The JSON of an object that names this trace, or none."""
    metadata = body["metadata"]
    before = metadata.get("annotations") or {}
    after = without_mark(before) | ({ANNOTATION: str(traceparent)} if traceparent is not None else {})
    return body if after == before else body | {"metadata": metadata | {"annotations": after}}


def without_mark(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in annotations.items() if key != ANNOTATION}


# Spans


class Span(Protocol):
    """Work that has begun. It is reported when it ends."""

    @property
    def traceparent(self) -> Traceparent: ...

    def end(self, at: datetime, attributes: Attributes, error: str = "") -> None:
        """`error` names the kind of failure, never its text, which may contain what nobody else should read."""
        ...


class Tracer(Protocol):
    def begin(self, name: str, parent: Traceparent | None, at: datetime) -> Span:
        """Without a parent, the span begins a trace of its own."""
        ...

    def close(self, seconds: float) -> bool:
        """Sends what has ended, for at most so long. Returns whether all of it was sent."""
        ...


class TracingUnavailable(Exception):
    """Spans are asked for and cannot be exported; the sentence says why, and what to do."""


_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_PACKAGE = __name__.partition(".")[0].replace("_", "-")


def is_exported(environ: Mapping[str, str]) -> bool:
    """Whether the environment, in OpenTelemetry's own variables, asks for spans."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return environ.get("OTEL_TRACES_EXPORTER", "").strip() != "none" and any(environ.get(name) for name in _ENDPOINTS)


def check_available(environ: Mapping[str, str]) -> None:
    """Raises `TracingUnavailable` if spans are asked for and cannot be exported."""
    if not is_exported(environ):
        return
    for name in _PROTOCOLS:
        if protocol := environ.get(name):
            if protocol != _PROTOCOL:
                raise TracingUnavailable(
                    f'{name} is "{protocol}", but spans are sent only by {_PROTOCOL}; change or unset it'
                )
            break
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ModuleNotFoundError:
        name = next(name for name in _ENDPOINTS if environ.get(name))
        raise TracingUnavailable(
            f"{name} is set, but OpenTelemetry is not installed; "
            f"install it with pip install '{_PACKAGE}[tracing]', or unset the variable"
        ) from None


def open_tracer(
    environ: Mapping[str, str],
    service: str,
    version: str,
    random_bytes: RandomBytes,
    report: Callable[[str], None] = lambda text: None,
) -> Tracer | None:
    """None unless the environment asks for spans. Raises `TracingUnavailable` if they cannot be exported.

    `service` is the name of the program unless the environment gives another. `report` hears now and then, from another
    thread, of spans that cannot be sent.
    """
    if not is_exported(environ):
        return None
    check_available(environ)
    from datum_compute.kube.otlp import OtlpTracer, otlp_exporter

    try:
        return OtlpTracer(otlp_exporter(), service, version, random_bytes, report)
    except (ValueError, OSError) as error:
        raise TracingUnavailable(f"spans cannot be exported: {error}; correct the variables OTEL_*") from error
