"""How long a change takes from one plane to the next. Entry point: `hop_seconds`."""

from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Histogram

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_by_registry: WeakKeyDictionary[CollectorRegistry, Histogram] = WeakKeyDictionary()


def hop_seconds(registry: CollectorRegistry | None) -> Histogram:
    """One a registry, because management and cells in one process report different hops of the same metric."""
    if registry is None:
        return _built(None)
    found = _by_registry.get(registry)
    if found is None:
        found = _by_registry[registry] = _built(registry)
    return found


def _built(registry: CollectorRegistry | None) -> Histogram:
    return Histogram(
        "compute_federation_hop_seconds",
        "Time from the arrival of a change on one plane to its write on the next.",
        ["hop"],
        registry=registry,
        buckets=_BOUNDS,
    )
