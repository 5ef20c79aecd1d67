"""Alerts on the metrics of compute-manager, each with its runbook. Entry point: `ALERTS`.

Rules, runbooks and their index are generated from this table.
"""

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.federation.metrics import QUOTA_FAILURES

JOB = 'job="compute-metrics"'
SITE = "cluster, namespace"
_WARNING, _CRITICAL = "warning", "critical"
_LOGS = "kubectl logs -n compute-system deployment/compute-manager"

# Why a claim gets no verdict. A new claim waits for its own, and a suspended project has one.
_NO_VERDICT = [reason for reason in QUOTA_FAILURES if reason != reasons.PROJECT_SUSPENDED]


class Alert(Struct, frozen=True):
    name: str
    severity: str
    expression: str
    lasting: str  # how long it must hold
    summary: str  # for whoever is called; may contain templates
    means: str
    look: str
    act: str


def _away(roles: str) -> str:
    return f"max by ({SITE}, role) (compute_planes_away{{{JOB}, role{roles}}}) > 0"


def _storm(rate: str, by: str, depth: str) -> str:
    return f"{rate} > 0.5 and on ({SITE}, {by}) {depth} < 5"


# A standby fills its queue without working on it, so the depth of the busiest worker is the smallest.
_DEPTH = f"min by ({SITE}, name) (avg_over_time(workqueue_depth{{{JOB}}}[15m]))"


def _share(metric: str, bad: str) -> str:
    by = f"sum by ({SITE}, webhook)"
    return f"{by} (rate({metric}{{{JOB}, {bad}}}[5m])) / {by} (rate({metric}{{{JOB}}}[5m])) > 0.05"


def _held(metric: str) -> str:
    return f"max by ({SITE}, reason) ({metric}{{{JOB}}}) > 0"


def _slow(metric: str, label: str, seconds: int) -> str:
    rate = f"sum by ({SITE}, {label}, le) (rate({metric}_bucket{{{JOB}}}[5m]))"
    return f"histogram_quantile(0.99, {rate}) > {seconds}"


ALERTS = (
    Alert(
        "ComputeManagerAbsent",
        _CRITICAL,
        f"max by ({SITE}) (up{{{JOB}}}) == 0 or absent(up{{{JOB}}})",
        "5m",
        "No compute-manager can be scraped.",
        "No replica runs, or Prometheus may not read `/metrics`. What runs keeps running; nothing changes any more. A "
        "site without Pods has no series, so one that is scaled to nothing is only noticed by a Prometheus of its own.",
        f"`kubectl get pods -n compute-system`, then `{_LOGS} --previous`. Else look at the scrape error.",
        "A process that cannot start says in one sentence what to change. A scraper needs the right to get `/metrics`.",
    ),
    Alert(
        "ComputeNoLeader",
        _CRITICAL,
        f"max by ({SITE}, name) (leader_election_master_status{{{JOB}}}) == 0",
        "5m",
        "No replica holds lease {{ $labels.name }}.",
        "All replicas stand by, so nothing is reconciled.",
        f"`kubectl get lease -n compute-system`, and `{_LOGS} | grep 'lease cannot be taken'`.",
        "Restore access to the API server that has the lease, or the role for leases.",
    ),
    Alert(
        "ComputeLeaseFlapping",
        _WARNING,
        f"max by ({SITE}, name) (increase(compute_lease_transitions_total{{{JOB}}}[1h])) > 3",
        "0m",
        "Lease {{ $labels.name }} changed hands more than three times in an hour.",
        "Leaders cannot renew their lease for 10 s and exit, or they are restarted.",
        f"`{_LOGS} --previous | tail`, restarts of the pods, and `compute_event_loop_lag_seconds`.",
        "Find out why the API server with the lease is slow, or why the pods are restarted or lack CPU.",
    ),
    Alert(
        "ComputePlaneAway",
        _CRITICAL,
        _away('!~"project|claims"'),
        "5m",
        "A plane of role {{ $labels.role }} is away.",
        "The hub, a cell or the root plane does not answer or refuses its caches. Sites keep running what they have.",
        f"`compute_plane_up == 0` names it; `{_LOGS} | grep 'plane cannot be followed'` has phase and what to check.",
        "Follow `check` of that log line. Everything that waits for the plane continues when it answers.",
    ),
    Alert(
        "ComputeProjectPlanesAway",
        _WARNING,
        _away('=~"project|claims"'),
        "15m",
        "{{ $value }} planes of role {{ $labels.role }} are away.",
        "These projects cannot be followed. Others are not affected.",
        f"`compute_plane_up == 0` names them; `{_LOGS} | grep 'plane cannot be followed'` has phase and what to check.",
        "Follow `check` of that log line. A project that is gone for good has to leave discovery.",
    ),
    Alert(
        "ComputeControllerReconcileStorm",
        _WARNING,
        _storm(
            f"sum by ({SITE}, controller) (rate(controller_runtime_reconcile_total{{{JOB}}}[5m]))",
            "controller",
            f'label_replace({_DEPTH}, "controller", "$1", "name", "(.+)")',
        ),
        "15m",
        "Controller {{ $labels.controller }} reconciles all the time although its queue is empty.",
        "It wakes itself, or fights with somebody over an object. Thousands of objects can be the harmless cause.",
        "Compare the rate with `compute_cache_objects`, and see which writes `compute_api_writes_total` counts.",
        "Find who else writes these objects; see ComputeWritesDamped. Report it with the controller and the writes.",
    ),
    Alert(
        "ComputeControllerWorkqueueAddStorm",
        _WARNING,
        _storm(f"max by ({SITE}, name) (rate(workqueue_adds_total{{{JOB}}}[5m]))", "name", _DEPTH),
        "15m",
        "Requests are added to queue {{ $labels.name }} all the time although it is empty.",
        "Events wake the controller as fast as it works: the same causes as ComputeControllerReconcileStorm.",
        "`rate(workqueue_adds_total[5m])` by name, next to `compute_api_writes_total` by controller.",
        "As for ComputeControllerReconcileStorm.",
    ),
    Alert(
        "ComputeReconcileErrors",
        _WARNING,
        f"sum by ({SITE}, controller) (increase(controller_runtime_reconcile_errors_total{{{JOB}}}[15m])) > 10",
        "15m",
        "Passes of {{ $labels.controller }} keep failing.",
        "At least one object is retried without success. Others are not held up.",
        f"`{_LOGS}`: every line of a failed pass has controller, plane, namespace, name and error.",
        "The error says what is refused or missing. With a plane away, resolve that alert first.",
    ),
    Alert(
        "ComputeWritesDamped",
        _WARNING,
        f"sum by ({SITE}, controller, kind) (increase(compute_api_writes_damped_total{{{JOB}}}[10m])) > 0",
        "5m",
        "Somebody keeps undoing writes of {{ $labels.controller }} to {{ $labels.kind }}.",
        "Two installations on the same planes, or a GitOps tool that owns the same objects.",
        f"`{_LOGS} | grep 'writes damped'` and the Warning events `WritesDamped` name the objects.",
        "Stop the other writer. The controller writes once per minute until its write stays.",
    ),
    Alert(
        "ComputeWebhookFailing",
        _CRITICAL,
        _share("compute_admission_reviews_total", 'result=~"failed|unavailable"')
        + " or "
        + _share("controller_runtime_webhook_requests_total", 'code=~"5.."'),
        "5m",
        "More than 5 % of the reviews of {{ $labels.webhook }} get no decision.",
        "Users cannot create or change workloads. `unavailable`: a project is not engaged. `failed`: a defect.",
        f"`compute_admission_reviews_total` by result; `{_LOGS} | grep 'admission crashed'`.",
        "For `unavailable` see ComputeProjectPlanesAway. Report a crash with its traceback.",
    ),
    Alert(
        "ComputeWebhookSlow",
        _WARNING,
        _slow("controller_runtime_webhook_latency_seconds", "webhook", 1),
        "10m",
        "The slowest reviews of {{ $labels.webhook }} take more than a second.",
        "Access reviews in the project are slow, or the process lacks CPU.",
        "`rest_client_request_duration_seconds` for verb POST and role project; `compute_event_loop_lag_seconds`.",
        "Find out why the project's API server is slow, or give the process more CPU.",
    ),
    Alert(
        "ComputeHopSlow",
        _WARNING,
        _slow("compute_federation_hop_seconds", "hop", 30),
        "15m",
        "Hop {{ $labels.hop }} takes more than 30 s.",
        "Changes arrive late on the next plane.",
        "`workqueue_depth`, `rest_client_request_duration_seconds` by role, and `compute_planes_away`.",
        "Resolve what the target plane is slow for. A hop that waited out an outage ends this alert by itself.",
    ),
    Alert(
        "ComputeCacheStale",
        _WARNING,
        f"max by ({SITE}, role, kind) (compute_cache_silent_seconds{{{JOB}}}) > 900",
        "5m",
        "A cache of {{ $labels.kind }} on a plane of role {{ $labels.role }} heard nothing for 15 minutes.",
        "Caches list again every ten minutes, so decisions rest on old state.",
        "`compute_plane_up == 0`; `/healthz?verbose` if the plane answers.",
        "See ComputePlaneAway. If the plane answers, `/healthz` fails after 20 minutes and the pod is restarted.",
    ),
    Alert(
        "ComputeLeftoversHeld",
        _WARNING,
        f"{_held('compute_cell_deployments_held')} or {_held('compute_hub_deployments_held')} or "
        f"{_held('compute_hub_namespaces_held')}",
        "15m",
        "Leftovers are held: {{ $labels.reason }}.",
        "Something runs without an original, mostly after a restore. Nothing is removed without proof.",
        "`kubectl get events -A --field-selector reason=Held` on the hub and in the cell.",
        'Follow "What is held" in docs/operator.md: start management, or release what nobody wants any more.',
    ),
    Alert(
        "ComputeQuotaSilent",
        _WARNING,
        f'sum by ({SITE}) (compute_cell_instances_gated{{{JOB}, gate="Quota", reason=~"{"|".join(_NO_VERDICT)}"}}) > 0',
        "15m",
        "{{ $value }} instances wait for quota, and nobody decides.",
        "Claims get no verdict, so new instances do not start. Running ones are not affected.",
        "`compute_cell_instances_gated` and `compute_quota_eval_failures_total` by reason. `PendingEvaluation` is not "
        "part of the rule, because a busy cell always has some: if it only grows, nobody evaluates the claims.",
        "docs/reference/reasons.md explains each reason. Check the quota system and the cell's credential for claims.",
    ),
    Alert(
        "ComputeCertificateExpiring",
        _WARNING,
        f"min by ({SITE}, certificate) (compute_certificate_expiry_timestamp_seconds{{{JOB}}}) - time() < 604800",
        "15m",
        "The certificate of {{ $labels.certificate }} expires within a week.",
        "It is not renewed. When the webhook's expires, workloads can no longer be created or changed.",
        f"`{_LOGS} | grep -e 'certificates not reloaded' -e 'webhook certificate'`: one that cannot be read, or one "
        "that the process issues itself and cannot write. `kubectl get secret -n compute-system`.",
        "Renew the certificate, or repair whoever should. New ones are loaded without a restart.",
    ),
    Alert(
        "ComputeCertificatePrepared",
        _WARNING,
        f"max by ({SITE}) (compute_webhook_certificate_prepared{{{JOB}}}) == 1",
        "90m",
        "A renewed certificate of the webhook waits to be served.",
        "Registrations of the webhook on other API servers have to trust its authority before it is served, which is "
        "`webhookServer.tls.selfSigned.overlapSeconds` after its creation. Those on the cluster of the process are "
        "updated by itself; with the default overlap and no others, this lasts for an hour.",
        "Compare `caBundle` of the registrations on other API servers with `ca.crt` of "
        "`kubectl get secret compute-webhook-cert -n compute-system -o yaml`. "
        f"`{_LOGS} | grep 'webhook certificate'` says whether one on this cluster cannot be written.",
        "Copy `ca.crt` of the Secret into `caBundle` of every webhook that is registered on another API server. It has "
        "the old authority too, so nothing fails meanwhile. The alert ends when the certificate is served.",
    ),
    Alert(
        "ComputeCellNameNotHeld",
        _CRITICAL,
        f"max by ({SITE}, name) (compute_cell_name_held{{{JOB}}}) == 0",
        "5m",
        "Cell {{ $labels.name }} does not hold its name.",
        "Another cluster uses the name, or the hub does not grant it. The cell writes nothing to the hub.",
        f"`{_LOGS} | grep 'cell name not held'`, or the line `cell-name` of `/readyz?verbose`.",
        "Give one of the two another `discovery.clusterName`, or bind `compute-cell-on-hub-execution-space`.",
    ),
)
