"""Metrics come from the table and from nowhere else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from datum_compute.runtime.telemetry.table import PYTHON, RUNTIME, Label, Metric, Type

SOURCE = Path(__file__).parents[3] / "src" / "datum_compute"
TABLE = SOURCE / "runtime" / "telemetry" / "table.py"
# What reads or registers metrics and cannot create one.
HARMLESS = {
    "CollectorRegistry",
    "Collector",
    "Metric",
    "GCCollector",
    "PlatformCollector",
    "ProcessCollector",
    "choose_encoder",
}

COUNTER = Metric("oven_loaves_total", Type.COUNTER, "Oven", "Loaves.", (Label("kind", ("rye", "wheat")),))
GAUGE = Metric("heat", Type.GAUGE, "Oven", "Heat.", prefixed=True)
HISTOGRAM = Metric("oven_seconds", Type.HISTOGRAM, "Oven", "Time.", (Label("kind", ("rye",)),), buckets=(1.0, 2.0))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("prometheus_client"):
                yield from (alias.name for alias in names)
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.startswith("prometheus_client"))


def test_nothing_outside_the_table_can_create_a_metric() -> None:
    found = {path.relative_to(SOURCE).as_posix(): set(imported(path)) - HARMLESS for path in SOURCE.rglob("*.py")}
    creators = {name: names for name, names in found.items() if names}
    assert set(creators) == {TABLE.relative_to(SOURCE).as_posix()}


@pytest.mark.parametrize("metric", [*RUNTIME, *PYTHON], ids=lambda metric: metric.name)
def test_a_row_is_complete_and_named_by_the_conventions(metric: Metric) -> None:
    assert metric.help
    assert metric.emitter
    assert metric.name.endswith("_total") is (metric.type is Type.COUNTER)
    assert bool(metric.buckets) is (metric.type is Type.HISTOGRAM)
    assert list(metric.buckets) == sorted(metric.buckets)
    for label in metric.labels:
        assert bool(label.values) is not bool(label.source), f"{label.name} needs values or a source"
        assert len(set(label.values)) == len(label.values)


def test_parts_of_a_program_that_share_a_registry_share_a_metric() -> None:
    registry = CollectorRegistry()
    assert COUNTER.counter(registry) is COUNTER.counter(registry)
    COUNTER.counter(registry).labels("rye").inc()
    HISTOGRAM.histogram(registry).labels("rye").observe(1.5)
    assert registry.get_sample_value("oven_loaves_total", {"kind": "rye"}) == 1
    assert registry.get_sample_value("oven_seconds_bucket", {"kind": "rye", "le": "1.0"}) == 0
    assert registry.get_sample_value("oven_seconds_bucket", {"kind": "rye", "le": "2.0"}) == 1


def test_each_registry_has_its_own_metrics() -> None:
    assert COUNTER.counter(CollectorRegistry()) is not COUNTER.counter(CollectorRegistry())


def test_without_a_registry_nothing_is_shared_or_published() -> None:
    assert COUNTER.counter(None) is not COUNTER.counter(None)
    COUNTER.counter(None).labels("rye").inc()


def test_a_metric_is_what_its_row_says_and_nothing_else() -> None:
    with pytest.raises(AssertionError):
        COUNTER.gauge(None)
    with pytest.raises(AssertionError):
        GAUGE.histogram(None)
    with pytest.raises(AssertionError):
        HISTOGRAM.counter(None)


def test_the_prefix_is_put_before_names_that_nobody_else_chose() -> None:
    assert GAUGE.with_prefix("oven_").name == "oven_heat"
    assert COUNTER.with_prefix("oven_") == COUNTER
    family = GAUGE.family("oven_")
    family.add([], 7)

    class Collected:
        def collect(self) -> Iterator[object]:
            yield family.family

    registry = CollectorRegistry()
    registry.register(Collected())  # type: ignore[arg-type]
    assert "# HELP oven_heat Heat.\n# TYPE oven_heat gauge\noven_heat 7.0\n" in generate_latest(registry).decode()
