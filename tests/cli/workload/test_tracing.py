"""The trace that commands note on a workload."""

import json
import random
import sys
from pathlib import Path

import pytest

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.workload.changes import object_change_lines
from datum_compute.cli.workload.history import name_of
from datum_compute.kube.kinds import CONFIG_MAP
from datum_compute.kube.tracing import ANNOTATION, Traceparent
from tests.cli.conftest import Compute, World
from tests.cli.server import ApiServer
from tests.tracing import Collector, RecordedTracer

NEW = ("deploy", "shop", "--image=registry.example/shop:2.1", "--city=DFW,AMS", "--detach", "-y")
UPDATE = ("deploy", "shop", "--image=registry.example/shop:3", "--detach", "-y")
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EARLIER = f"00-{'a' * 32}-{'b' * 16}-01"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.fixture
def tracer(compute: Compute) -> RecordedTracer:
    compute.tracer = tracer = RecordedTracer()
    return tracer


def noted(world: World) -> str | None:
    return world.read().metadata.annotations.get(ANNOTATION)


def writes(api: ApiServer) -> list[str]:
    return [seen.method for seen in api.writes() if "/workloads" in seen.path]


def test_without_a_trace_nothing_is_noted(
    api: ApiServer, compute: Compute, world: World, tracer: RecordedTracer
) -> None:
    assert compute(*NEW).code == 0
    assert world.read().metadata.annotations == {}
    assert tracer.spans == []


def test_a_deploy_notes_its_own_span_in_the_write_that_creates(
    api: ApiServer, compute: Compute, world: World, tracer: RecordedTracer
) -> None:
    result = compute(*NEW, environ=ENDPOINT)
    [span] = tracer.spans
    assert (result.code, result.err) == (0, "")
    assert writes(api) == ["POST"]
    assert noted(world) == str(span.traceparent)
    assert (span.name, span.parent, span.error) == ("compute deploy", None, "")
    assert span.attributes == {"command": "deploy", "plane": "demo", "namespace": "default", "name": "shop"}
    assert "traceparent" not in result.out


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (UPDATE, "deploy"),
        (("scale", "shop", "--min=3"), "scale"),
        (("restart", "shop"), "restart"),
        (("rollout", "restart", "shop"), "rollout restart"),
        (("rollout", "undo", "shop", "-y"), "rollout undo"),
    ],
)
def test_every_change_of_a_spec_notes_its_trace_in_the_same_write(
    api: ApiServer, compute: Compute, world: World, tracer: RecordedTracer, words: tuple[str, ...], name: str
) -> None:
    compute(*NEW)
    compute("scale", "shop", "--min=2")
    api.requests.clear()
    result = compute(*words, environ=ENDPOINT)
    [span] = tracer.spans
    assert result.code == 0
    assert writes(api) == ["PUT"]
    assert noted(world) == str(span.traceparent)
    assert span.name == f"compute {name}"
    assert "other field" not in result.out


def test_a_restart_of_one_city_notes_its_trace(
    api: ApiServer, compute: Compute, world: World, tracer: RecordedTracer
) -> None:
    world.settled()
    compute("restart", "shop", "--city=AMS", environ=ENDPOINT)
    assert [str(span.traceparent) for span in tracer.spans] == [noted(world)]


@pytest.mark.parametrize("words", [("deploy", "shop", "--min=1", "--detach"), ("scale", "shop", "--min=1")])
def test_a_command_that_changes_nothing_writes_nothing_and_has_no_span(
    api: ApiServer, compute: Compute, world: World, tracer: RecordedTracer, words: tuple[str, ...]
) -> None:
    compute(*NEW)
    api.requests.clear()
    assert compute(*words, environ=ENDPOINT | {"TRACEPARENT": CALLER}).code == 0
    assert writes(api) == []
    assert (noted(world), tracer.spans) == (None, [])


def test_a_dry_run_has_no_trace(api: ApiServer, compute: Compute, tracer: RecordedTracer) -> None:
    result = compute(*NEW, "--dry-run", "-o", "json", environ=ENDPOINT)
    assert ANNOTATION not in result.out
    assert tracer.spans == []


def test_the_trace_of_the_caller_is_continued(
    api: ApiServer, compute: Compute, world: World, tracer: RecordedTracer
) -> None:
    compute(*NEW, environ=ENDPOINT | {"TRACEPARENT": CALLER})
    [span] = tracer.spans
    assert str(span.parent) == CALLER
    assert span.traceparent.trace_id == CALLER.split("-")[1]
    assert noted(world) == str(span.traceparent)


def test_without_a_span_of_its_own_a_command_hands_on_that_of_its_caller(
    api: ApiServer, compute: Compute, world: World, tracer: RecordedTracer
) -> None:
    compute(*NEW, environ={"TRACEPARENT": CALLER})
    assert (noted(world), tracer.spans) == (CALLER, [])


def test_a_malformed_trace_of_the_caller_is_ignored(api: ApiServer, compute: Compute, world: World) -> None:
    assert compute(*NEW, environ={"TRACEPARENT": "nonsense"}).code == 0
    assert noted(world) is None


def test_an_untraced_change_does_not_continue_an_earlier_trace(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(annotations={ANNOTATION: EARLIER, "team": "blue"})
    compute(*UPDATE)
    assert world.read().metadata.annotations == {"team": "blue"}


def test_a_trace_is_no_change_and_in_no_saved_manifest(api: ApiServer, compute: Compute, tmp_path: Path) -> None:
    compute(*NEW, "--save=saved.yaml", environ={"TRACEPARENT": CALLER})
    assert ANNOTATION not in (tmp_path / "saved.yaml").read_text()
    (tmp_path / "live.yaml").write_text(compute("workloads", "describe", "shop", "-o", "yaml").out)
    assert CALLER in (tmp_path / "live.yaml").read_text()
    compute("scale", "shop", "--min=1", environ={"TRACEPARENT": EARLIER})
    writes_before = writes(api)
    for file in ("saved.yaml", "live.yaml"):
        result = compute("deploy", "-f", file, "--detach", environ={"TRACEPARENT": EARLIER})
        assert "No changes detected." in result.out
    assert [seen for seen in api.writes() if "dryRun" not in seen.query and seen.method == "PUT"] == []
    assert writes_before == ["POST"]


def test_a_trace_is_in_no_line_diff_or_revision(api: ApiServer, compute: Compute, world: World) -> None:
    compute(*NEW, environ={"TRACEPARENT": EARLIER})
    result = compute(*UPDATE, "--diff", environ={"TRACEPARENT": CALLER})
    assert noted(world) == CALLER
    assert "  image: registry.example/shop:2.1 → registry.example/shop:3\n" in result.out
    assert "other field" not in result.out
    assert "traceparent" not in result.out
    history = api.get(CONFIG_MAP, name_of("shop"))
    assert "traceparent" not in str(history.data)


def test_two_workloads_that_differ_in_the_trace_alone_are_the_same() -> None:
    body = WORKLOAD.body("shop", "default") | {"spec": {}}
    traced = WORKLOAD.body("shop", "default", annotations={ANNOTATION: CALLER}) | {"spec": {}}
    assert object_change_lines(body, traced) == []


def test_a_write_that_is_repeated_after_a_conflict_keeps_its_trace(
    api: ApiServer, compute: Compute, world: World, tracer: RecordedTracer
) -> None:
    world.workload()
    label = {"metadata": {"labels": {"team": "blue"}}}
    api.before("PUT", "/workloads/shop", lambda: api.patch(WORKLOAD, "shop", label))
    assert compute(*UPDATE, environ=ENDPOINT).code == 0
    assert writes(api) == ["PUT", "PUT"]
    assert [str(span.traceparent) for span in tracer.spans] == [noted(world)]


def test_a_refused_write_ends_the_span_with_the_kind_of_refusal(
    api: ApiServer, compute: Compute, tracer: RecordedTracer
) -> None:
    api.answer("POST", "/workloads", 403, "the password is s3cret", reason="Forbidden")
    assert compute(*NEW, environ=ENDPOINT).code != 0
    [span] = tracer.spans
    assert span.error == "Forbidden"
    assert "s3cret" not in str(span)


def test_a_missing_extra_is_a_warning_and_controllers_still_share_a_trace(
    api: ApiServer, compute: Compute, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    result = compute(*NEW, environ=ENDPOINT)
    [line] = result.err.splitlines()
    assert result.code == 0
    assert line.startswith("  warning: no trace is sent: OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not")
    assert noted(world) == str(Traceparent.new(random.Random(1).randbytes))


def test_a_collector_that_does_not_answer_is_a_warning(api: ApiServer, compute: Compute) -> None:
    compute.tracer = RecordedTracer(closes=False)
    result = compute(*NEW, environ=ENDPOINT)
    assert (result.code, result.err) == (0, "  warning: the trace of this command could not be sent\n")


def test_the_span_of_a_deploy_reaches_a_collector(
    api: ApiServer, compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        result = compute(*NEW, "-o", "json", environ={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    [span] = collector.spans
    assert result.code == 0
    annotation = json.loads(result.out)["metadata"]["annotations"][ANNOTATION]
    assert annotation == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
    assert collector.services == {"compute"}
