"""Metrics of the cell controllers. Entry point: `Metrics`."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry

from datum_compute.api import reasons
from datum_compute.federation import metrics as table
from datum_compute.federation.removal import Held
from datum_compute.runtime import Request

Gate = tuple[str, str]
"""The name of a gate, and the reason why it is closed."""


class Metrics:
    """Without a registry, everything is counted and nothing is published."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.enforcement_enabled = table.ENFORCEMENT_ENABLED.gauge(registry)
        self.evaluation_failures = table.EVALUATION_FAILURES.counter(registry)
        self.claims_orphaned = table.CLAIMS_ORPHANED.counter(registry)
        self.abandonments = table.ABANDONMENTS.counter(registry)
        self.claims_abandoned = table.CLAIMS_ABANDONED.gauge(registry)
        self.specs_held = table.CELL_SPECS_HELD.gauge(registry)
        self._held = table.CELL_DEPLOYMENTS_HELD.gauge(registry)
        self.held({})
        self._removed = table.LEFTOVERS_REMOVED.counter(registry).labels(table.REMOVED_FROM_CELL)
        self._to_hub = table.HOP_SECONDS.histogram(registry).labels(table.CELL_TO_HUB)
        self._instances_gated = table.INSTANCES_GATED.gauge(registry)
        self._gates: dict[Request, tuple[Gate, ...]] = {}  # of instances that wait
        self._gated: Counter[Gate] = Counter()

    def evaluated(self, reason: str) -> None:
        if reason in table.QUOTA_FAILURES:
            self.evaluation_failures.labels(table.QUOTA_FAILURES[reason]).inc()

    def left_behind(self, reason: str) -> None:
        (self.abandonments if reason == reasons.QUOTA_CLAIM_ABANDONED else self.claims_orphaned).inc()

    def held(self, counts: Mapping[Held, int]) -> None:
        for reason in Held:
            self._held.labels(reason.value).set(counts.get(reason, 0))

    def removed(self) -> None:
        """Counts a leftover that was removed."""
        self._removed.inc()

    def reached_hub(self, seconds: float) -> None:
        self._to_hub.observe(seconds)

    def gated(self, request: Request, gates: Iterable[Gate]) -> None:
        """Records the gates of an Instance; none when it may start, or is gone."""
        after = tuple(map(_known, gates))
        before = self._gates.pop(request, ())
        if after:
            self._gates[request] = after
        self._gated.subtract(before)
        self._gated.update(after)
        for gate in {*before, *after}:
            self._instances_gated.labels(*gate).set(self._gated[gate])

    def forget(self, is_gone: Callable[[Request], bool]) -> None:
        """Forgets the gates of Instances that are out of sight."""
        for request in [request for request in self._gates if is_gone(request)]:
            self.gated(request, ())


def _known(gate: Gate) -> Gate:
    """The gate as it is labelled: whatever others write, the number of series is bounded."""
    name, reason = gate
    return name if name in table.GATES else table.OTHER, reason if reason in table.GATED else table.OTHER
