"""What a registry exposes, compared with the table of metrics. Entry points: `samples`, `differences`."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from datum_compute.runtime.telemetry.table import Metric, Type

Series = tuple[str, tuple[tuple[str, str], ...]]
_SUFFIXES = {
    Type.COUNTER: ("_total", "_created"),
    Type.GAUGE: ("",),
    Type.HISTOGRAM: ("_bucket", "_count", "_sum", "_created"),
}


def samples(exposed: CollectorRegistry | str) -> dict[Series, float]:
    """Values by name and labels."""
    text = exposed if isinstance(exposed, str) else generate_latest(exposed).decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def differences(exposed: CollectorRegistry | str, table: Iterable[Metric]) -> set[str]:
    """One sentence for everything that is exposed and not what the table says."""
    by_name = {
        f"{metric.name.removesuffix('_total')}{suffix}": metric for metric in table for suffix in _SUFFIXES[metric.type]
    }
    text = exposed if isinstance(exposed, str) else generate_latest(exposed).decode()
    types = {family.name: family.type for family in text_string_to_metric_families(text)}
    found = set()
    for name, labels in samples(exposed):
        metric = by_name.get(name)
        if metric is None:
            found.add(f"{name} is not in the table")
            continue
        if types.get(metric.name.removesuffix("_total"), metric.type.value) != metric.type.value:
            found.add(f"{name} is no {metric.type.value}")
        found |= set(_label_differences(metric, dict(labels)))
    return found


def _label_differences(metric: Metric, labels: Mapping[str, str]) -> Iterable[str]:
    names = {name for name in labels if name != "le"}
    if names != {label.name for label in metric.labels}:
        yield f"{metric.name} has labels {sorted(names)}"
    for label in metric.labels:
        if label.values and labels.get(label.name, "") not in label.values:
            yield f"{metric.name} has {label.name}={labels.get(label.name)}"
