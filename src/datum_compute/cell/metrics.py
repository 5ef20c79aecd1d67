"""What a cell counts of its own work. Entry point: `Metrics`."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from datum_compute.api import reasons
from datum_compute.federation.hops import hop_seconds

_FAILURES = {
    reasons.QUOTA_BACKEND_UNAVAILABLE: "backend_unavailable",
    reasons.QUOTA_PROJECT_NOT_FOUND: "project_not_found",
    reasons.QUOTA_NAMESPACE_NOT_FOUND: "namespace_not_found",
    reasons.QUOTA_MISCONFIGURED: "misconfigured",
    reasons.QUOTA_PROJECT_ID_UNRESOLVABLE: "project_id_unresolvable",
    reasons.QUOTA_NO_BUDGET: "no_budget",
}


class Metrics:
    """Without a registry everything is counted and nothing is published."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.enforcement_enabled = Gauge(
            "compute_quota_enforcement_enabled", "Whether instances wait for quota.", registry=registry
        )
        self.evaluation_failures = Counter(
            "compute_quota_eval_failures", "Evaluations of quota without a verdict.", ["reason"], registry=registry
        )
        self.claims_orphaned = Counter(
            "compute_quota_claim_orphaned", "Claims that nobody could locate to delete.", registry=registry
        )
        self._to_hub = hop_seconds(registry).labels("cell_to_hub")

    def evaluated(self, reason: str) -> None:
        if reason in _FAILURES:
            self.evaluation_failures.labels(_FAILURES[reason]).inc()

    def reached_hub(self, seconds: float) -> None:
        self._to_hub.observe(seconds)
