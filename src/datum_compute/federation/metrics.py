"""The metrics of compute, beside those of the runtime. Entry point: `COMPUTE`."""

from datum_compute.api import instance, reasons
from datum_compute.federation.removal import Held
from datum_compute.runtime.telemetry.table import (
    LEADERSHIP,
    PROCESS,
    WEBHOOK,
    WEBHOOK_PATH,
    Label,
    Metric,
    Overall,
    Type,
)

# Groups
QUOTA = "Quota"
INSTANCES = "Instances"
LEFTOVERS = "Leftovers"
HOPS = "Hops"

# Who emits them
MANAGEMENT = "management"
CELL = "cells"
BOTH = "management and cells"

PROJECT_TO_HUB = "project_to_hub"
HUB_TO_PROJECT = "hub_to_project"
HUB_TO_PROJECTION = "hub_to_projection"
CELL_TO_HUB = "cell_to_hub"

QUOTA_FAILURES = {
    reasons.QUOTA_BACKEND_UNAVAILABLE: "backend_unavailable",
    reasons.QUOTA_PROJECT_NOT_FOUND: "project_not_found",
    reasons.QUOTA_NAMESPACE_NOT_FOUND: "namespace_not_found",
    reasons.QUOTA_MISCONFIGURED: "misconfigured",
    reasons.QUOTA_PROJECT_ID_UNRESOLVABLE: "project_id_unresolvable",
    reasons.QUOTA_NO_BUDGET: "no_budget",
    reasons.PROJECT_SUSPENDED: "project_suspended",
}
"""The value of label `reason` by the reason in a condition."""

OTHER = "other"
GATES = (*instance.GATES, OTHER)
GATED = (*dict.fromkeys(reason.name for reason in reasons.REASONS if not reason.is_conclusion), OTHER)
REMOVED_FROM_CELL = "cell_deployment"
REMOVED_FROM_HUB = "hub_deployment"
REMOVED_NAMESPACE = "hub_namespace"
CERTIFICATES = ("logs", "metrics", "webhook")
ALLOWED, REFUSED, UNAVAILABLE, FAILED = REVIEWS = ("allowed", "refused", "unavailable", "failed")

_HELD = Label("reason", tuple(reason.value for reason in Held))
_HOP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

ENFORCEMENT_ENABLED = Metric(
    "compute_quota_enforcement_enabled",
    Type.GAUGE,
    QUOTA,
    "Whether instances wait for quota.",
    emitter=CELL,
    overall=Overall.ANY,
)
EVALUATION_FAILURES = Metric(
    "compute_quota_eval_failures_total",
    Type.COUNTER,
    QUOTA,
    "Quota evaluations without a verdict.",
    (Label("reason", tuple(QUOTA_FAILURES.values())),),
    CELL,
)
CLAIMS_ORPHANED = Metric(
    "compute_quota_claim_orphaned_total",
    Type.COUNTER,
    QUOTA,
    "Claims that could not be located for deletion.",
    emitter=CELL,
)
ABANDONMENTS = Metric(
    "compute_quota_claim_abandoned_total",
    Type.COUNTER,
    QUOTA,
    "Claims abandoned, to be deleted later.",
    emitter=CELL,
)
CLAIMS_ABANDONED = Metric(
    "compute_quota_claims_abandoned",
    Type.GAUGE,
    QUOTA,
    "Abandoned claims that still have to be deleted.",
    emitter=CELL,
    overall=Overall.SUM,
)
INSTANCES_GATED = Metric(
    "compute_cell_instances_gated",
    Type.GAUGE,
    INSTANCES,
    "Instances that a gate keeps from starting, by the reason that their conditions give.",
    (Label("gate", GATES), Label("reason", GATED)),
    CELL,
    overall=Overall.SUM,
)
CELL_DEPLOYMENTS_HELD = Metric(
    "compute_cell_deployments_held",
    Type.GAUGE,
    LEFTOVERS,
    "Deployments kept although the hub does not have them.",
    (_HELD,),
    CELL,
    overall=Overall.SUM,
)
CELL_SPECS_HELD = Metric(
    "compute_cell_specs_held",
    Type.GAUGE,
    LEFTOVERS,
    "Deployments whose spec is held because it is older than the one in effect.",
    emitter=CELL,
    overall=Overall.SUM,
)
HUB_DEPLOYMENTS_HELD = Metric(
    "compute_hub_deployments_held",
    Type.GAUGE,
    LEFTOVERS,
    "Hub deployments kept although their project does not have them.",
    (_HELD,),
    MANAGEMENT,
    overall=Overall.SUM,
)
HUB_NAMESPACES_HELD = Metric(
    "compute_hub_namespaces_held",
    Type.GAUGE,
    LEFTOVERS,
    "Hub namespaces kept although their project does not have them.",
    (_HELD,),
    MANAGEMENT,
    overall=Overall.SUM,
)
LEFTOVERS_REMOVED = Metric(
    "compute_leftovers_removed_total",
    Type.COUNTER,
    LEFTOVERS,
    "Leftovers that were removed.",
    (Label("kind", (REMOVED_FROM_CELL, REMOVED_FROM_HUB, REMOVED_NAMESPACE)),),
    BOTH,
)
HOP_SECONDS = Metric(
    "compute_federation_hop_seconds",
    Type.HISTOGRAM,
    HOPS,
    "Time from the arrival of a change on one plane to its write on the next.",
    (Label("hop", (PROJECT_TO_HUB, HUB_TO_PROJECT, CELL_TO_HUB, HUB_TO_PROJECTION)),),
    BOTH,
    _HOP_SECONDS,
)
CELL_NAME_HELD = Metric(
    "compute_cell_name_held",
    Type.GAUGE,
    LEADERSHIP,
    "Whether this cell holds its configured name.",
    (Label("name", source="the configured name of the cell"),),
    CELL,
    overall=Overall.ANY,
)
REVIEWED = Metric(
    "compute_admission_reviews_total",
    Type.COUNTER,
    WEBHOOK,
    "Admission reviews by result. Only `allowed` and `refused` are decisions about the object.",
    (WEBHOOK_PATH, Label("result", REVIEWS)),
    "processes that serve the webhook",
)
CERTIFICATE_EXPIRY = Metric(
    "compute_certificate_expiry_timestamp_seconds",
    Type.GAUGE,
    PROCESS,
    "When the certificate that a server presents expires, since unix epoch in seconds.",
    (Label("certificate", CERTIFICATES),),
    overall=Overall.MIN,
)
CERTIFICATE_PREPARED = Metric(
    "compute_webhook_certificate_prepared",
    Type.GAUGE,
    WEBHOOK,
    "Whether a renewed certificate of the webhook waits until callers trust its authority.",
    emitter="processes that issue the certificate of their webhook",
)
BUILD_INFO = Metric(
    "compute_build_info",
    Type.GAUGE,
    PROCESS,
    "Always 1; the labels say what runs.",
    (Label("version", source="the program"), Label("python_version", source="the interpreter")),
    overall=Overall.SUM,
)

COMPUTE = (
    *(ENFORCEMENT_ENABLED, EVALUATION_FAILURES, CLAIMS_ORPHANED, ABANDONMENTS, CLAIMS_ABANDONED),
    INSTANCES_GATED,
    *(CELL_DEPLOYMENTS_HELD, CELL_SPECS_HELD, HUB_DEPLOYMENTS_HELD, HUB_NAMESPACES_HELD, LEFTOVERS_REMOVED),
    *(HOP_SECONDS, CELL_NAME_HELD, REVIEWED, CERTIFICATE_EXPIRY, CERTIFICATE_PREPARED, BUILD_INFO),
)
