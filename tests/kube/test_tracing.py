"""The trace that an object names, and whether spans are exported."""

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.kube import tracing
from datum_compute.kube.meta import Json, KubeObject, ObjectMeta
from datum_compute.kube.tracing import ANNOTATION, Traceparent, TracingUnavailable

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TEXT = f"00-{TRACE}-{SPAN}-01"
OTHER = f"00-{TRACE}-{'1' * 16}-00"
MALFORMED = [
    "", "nonsense", TEXT.upper(), f" {TEXT}", f"{TEXT}\n", f"{TEXT}-more", TEXT[:-1], f"{TEXT}0",
    f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"01-{TRACE}-{SPAN}-01more",
    f"01-{TRACE}-{SPAN}-01-{'x' * 600}", TEXT.replace("4", "٤"),
]  # fmt: skip


def named(text: str | None) -> KubeObject:
    return KubeObject(ObjectMeta(name="w", annotations={} if text is None else {ANNOTATION: text, "other": "x"}))


def test_a_traceparent_is_read_and_written_as_it_is() -> None:
    parsed = Traceparent.parse(TEXT)
    assert parsed == Traceparent(TRACE, SPAN, "01")
    assert str(parsed) == TEXT


def test_of_a_later_version_the_known_fields_count() -> None:
    assert str(Traceparent.parse(f"01-{TRACE}-{SPAN}-01-more")) == TEXT


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_traceparent_is_ignored(text: str) -> None:
    assert Traceparent.parse(text) is None
    assert tracing.carried(named(text)) == {}


@given(st.text())
def test_any_text_is_a_traceparent_or_ignored(text: str) -> None:
    parsed = Traceparent.parse(text)
    assert parsed is None or Traceparent.parse(str(parsed)) == parsed


@given(st.integers())
def test_new_ids_are_valid(seed: int) -> None:
    traceparent = Traceparent.new(random.Random(seed).randbytes)
    assert Traceparent.parse(str(traceparent)) == traceparent


def test_an_id_is_never_zero() -> None:
    drawn = [bytes(8), b"\1" * 8]
    assert tracing.random_id(8, lambda number: drawn.pop(0)) == "01" * 8


# On objects

SPEC: Json = {"spec": {"size": 2}}


@pytest.mark.parametrize(
    ("patch", "target", "source", "annotations"),
    [
        (SPEC, None, TEXT, {ANNOTATION: TEXT}),
        (SPEC, OTHER, TEXT, {ANNOTATION: TEXT}),
        (SPEC, TEXT, TEXT, None),
        (SPEC, TEXT, None, {ANNOTATION: None}),
        (SPEC, TEXT, "nonsense", {ANNOTATION: None}),
        (SPEC, None, None, None),
        ({}, None, TEXT, None),
        ({"metadata": {"annotations": {"a": "b"}}}, None, TEXT, {"a": "b"}),
        (SPEC | {"metadata": {"annotations": {"a": "b"}}}, None, TEXT, {"a": "b", ANNOTATION: TEXT}),
    ],
)
def test_a_trace_is_written_with_a_spec_and_never_alone(
    patch: Json, target: str | None, source: str | None, annotations: Json | None
) -> None:
    before = dict(patch)
    after = tracing.with_spec(patch, named(target), named(source))
    assert after.get("metadata", {}).get("annotations") == annotations
    assert after.get("spec") == patch.get("spec")
    assert patch == before


def test_a_body_names_one_trace_or_none() -> None:
    body: Json = {"metadata": {"name": "w"}, "spec": {}}
    assert tracing.marked(body, None) is body
    marked = tracing.marked(body, Traceparent.parse(TEXT))
    assert marked["metadata"]["annotations"] == {ANNOTATION: TEXT}
    assert tracing.marked(marked, None)["metadata"]["annotations"] == {}


# Whether spans are exported

URL = "http://127.0.0.1:4318"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_an_endpoint_switches_the_export_of_spans_on(environ: dict[str, str], expected: bool) -> None:
    assert tracing.is_exported(environ) is expected


def test_without_an_endpoint_there_is_no_tracer() -> None:
    assert tracing.open_tracer({}, "s", "1", random.Random(1).randbytes) is None


def test_another_protocol_is_refused_in_one_sentence() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(TracingUnavailable, match='OTEL_EXPORTER_OTLP_PROTOCOL is "grpc"'):
        tracing.check_available(environ)
    tracing.check_available(environ | {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"})


def test_a_missing_extra_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingUnavailable) as refused:
        tracing.open_tracer({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, "s", "1", random.Random(1).randbytes)
    assert str(refused.value) == (
        "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed; "
        "install it with pip install 'datum-compute[tracing]', or unset the variable"
    )


_LOADED = """
import sys
import datum_compute.operator.process, datum_compute.local.process, datum_compute.cli.commands.deploy
import datum_compute.cli.talk.tracing
from datum_compute.kube.tracing import open_tracer
assert open_tracer({}, "s", "1", bytes) is None
print(*[name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "requests", "google")])
"""


def test_nothing_of_opentelemetry_is_loaded_unless_spans_are_exported() -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
