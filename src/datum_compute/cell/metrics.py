"""Metrics of the cell controllers. Entry point: `Metrics`."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from datum_compute.api import reasons
from datum_compute.federation.latency import hop_seconds
from datum_compute.federation.removal import Held

_FAILURES = {
    reasons.QUOTA_BACKEND_UNAVAILABLE: "backend_unavailable",
    reasons.QUOTA_PROJECT_NOT_FOUND: "project_not_found",
    reasons.QUOTA_NAMESPACE_NOT_FOUND: "namespace_not_found",
    reasons.QUOTA_MISCONFIGURED: "misconfigured",
    reasons.QUOTA_PROJECT_ID_UNRESOLVABLE: "project_id_unresolvable",
    reasons.QUOTA_NO_BUDGET: "no_budget",
    reasons.PROJECT_SUSPENDED: "project_suspended",
}


class Metrics:
    """Without a registry, everything is counted and nothing is published."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.enforcement_enabled = Gauge(
            "compute_quota_enforcement_enabled", "Whether instances wait for quota.", registry=registry
        )
        self.evaluation_failures = Counter(
            "compute_quota_eval_failures", "Quota evaluations without a verdict.", ["reason"], registry=registry
        )
        self.claims_orphaned = Counter(
            "compute_quota_claim_orphaned", "Claims that could not be located for deletion.", registry=registry
        )
        self.abandonments = Counter(
            "compute_quota_claim_abandoned", "Claims abandoned, to be deleted later.", registry=registry
        )
        self.claims_abandoned = Gauge(
            "compute_quota_claims_abandoned", "Abandoned claims that still have to be deleted.", registry=registry
        )
        self._held = Gauge(
            "compute_cell_deployments_held",
            "Deployments kept although the hub does not have them.",
            ["reason"],
            registry=registry,
        )
        self.held({})
        self.specs_held = Gauge(
            "compute_cell_specs_held",
            "Deployments whose spec is held because it is older than the one in effect.",
            registry=registry,
        )
        self._to_hub = hop_seconds(registry).labels("cell_to_hub")

    def evaluated(self, reason: str) -> None:
        if reason in _FAILURES:
            self.evaluation_failures.labels(_FAILURES[reason]).inc()

    def left_behind(self, reason: str) -> None:
        (self.abandonments if reason == reasons.QUOTA_CLAIM_ABANDONED else self.claims_orphaned).inc()

    def held(self, counts: Mapping[Held, int]) -> None:
        for reason in Held:
            self._held.labels(reason.value).set(counts.get(reason, 0))

    def reached_hub(self, seconds: float) -> None:
        self._to_hub.observe(seconds)
