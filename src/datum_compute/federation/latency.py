"""How long a change takes from one plane to the next. Entry point: `hop_seconds`."""

from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Histogram

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_by_registry: WeakKeyDictionary[CollectorRegistry, Histogram] = WeakKeyDictionary()


def hop_seconds(registry: CollectorRegistry | None) -> Histogram:
    """One histogram per registry, because management and cells in one process share the metric."""
    if registry is None:
        return _histogram(None)
    histogram = _by_registry.get(registry)
    if histogram is None:
        histogram = _by_registry[registry] = _histogram(registry)
    return histogram


def _histogram(registry: CollectorRegistry | None) -> Histogram:
    return Histogram(
        "compute_federation_hop_seconds",
        "Time from the arrival of a change on one plane to its write on the next.",
        ["hop"],
        registry=registry,
        buckets=_BOUNDS,
    )
