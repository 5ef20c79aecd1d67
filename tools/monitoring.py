"""Rules, runbooks, dashboard and manifests for Prometheus and Grafana, from the tables. Entry point: `files`."""

import json

from datum_compute.kube.meta import Json
from datum_compute.operator.alerts import ALERTS, JOB, SITE, Alert
from datum_compute.operator.metrics import METRICS
from datum_compute.runtime.telemetry.table import Metric, Overall, Type
from tools.documents import yaml_text

_COMPONENT = "deploy/components/monitoring"
_LABELS = {"app.kubernetes.io/name": "compute"}


def files(mark: str) -> dict[str, str]:
    """Text by path below the repository, with the mark in the first line."""
    groups: Json = {"groups": [{"name": "compute", "rules": [_rule(alert) for alert in ALERTS]}]}
    objects = {
        "rules.yaml": groups,
        "prometheusrule.yaml": _object("PrometheusRule", "compute", groups),
        "servicemonitor.yaml": _object("ServiceMonitor", "compute-metrics", _SCRAPE),
        "kustomization.yaml": _KUSTOMIZATION,
    }
    return {
        **{f"{_COMPONENT}/{name}": f"# {mark}\n{yaml_text(body, width=1000)}" for name, body in objects.items()},
        f"{_COMPONENT}/dashboard.json": f'{{ "description": {json.dumps(mark)},\n{_dashboard()}',
        "docs/runbooks/README.md": f"<!-- {mark} -->\n\n{_index()}",
        **{f"docs/runbooks/{alert.name}.md": f"<!-- {mark} -->\n\n{_runbook(alert)}" for alert in ALERTS},
    }


def _object(kind: str, name: str, spec: Json) -> Json:
    metadata = {"name": name, "namespace": "compute-system", "labels": _LABELS}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": kind, "metadata": metadata, "spec": spec}


_SCRAPE: Json = {
    "selector": {"matchLabels": _LABELS},
    "endpoints": [
        {
            "port": "https",
            "scheme": "https",
            "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
            "tlsConfig": {"insecureSkipVerify": True},
            # The Service of the webhook has the same labels and port name.
            "relabelings": [
                {"sourceLabels": ["__meta_kubernetes_service_name"], "regex": "compute-metrics", "action": "keep"}
            ],
        }
    ],
}
_KUSTOMIZATION: Json = {
    "apiVersion": "kustomize.config.k8s.io/v1alpha1",
    "kind": "Component",
    "resources": ["servicemonitor.yaml", "prometheusrule.yaml"],
    "configMapGenerator": [
        {
            "name": "compute-dashboard",
            "namespace": "compute-system",
            "files": ["compute.json=dashboard.json"],
            "options": {"disableNameSuffixHash": True, "labels": {"grafana_dashboard": "1"}},
        }
    ],
}


def _rule(alert: Alert) -> Json:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook": f"docs/runbooks/{alert.name}.md"},
    }


def _index() -> str:
    rows = [f"| [{alert.name}]({alert.name}.md) | {alert.severity} | {alert.means} |" for alert in ALERTS]
    head = ["# Runbooks", "", "| Alert | Severity | Means |", "| --- | --- | --- |"]
    return "\n".join([*head, *rows]) + "\n"


def _runbook(alert: Alert) -> str:
    rule = f"```promql\n{alert.expression}\n```\n\nfor {alert.lasting}; severity {alert.severity}."
    parts = {"What it means": alert.means, "How to look": alert.look, "What to do": alert.act, "Rule": rule}
    return "\n\n".join([f"# {alert.name}", *(f"## {title}\n\n{text}" for title, text in parts.items())]) + "\n"


_HEIGHT = 8  # of a panel


def _dashboard() -> str:
    panels: list[Json] = []
    top = 0
    for group in dict.fromkeys(metric.group for metric in METRICS):
        panels.append({"type": "row", "title": group, "gridPos": {"h": 1, "w": 24, "x": 0, "y": top}})
        top += 1
        metrics = [metric for metric in METRICS if metric.group == group]
        for begin in range(0, len(metrics), 2):
            for column, metric in enumerate(metrics[begin : begin + 2]):
                place = {"h": _HEIGHT, "w": 12, "x": 12 * column, "y": top}
                panel = {"type": "timeseries", "title": metric.name, "description": metric.help, "gridPos": place}
                panels.append(panel | {"targets": [{"expr": _query(metric), "refId": "A"}]})
            top += _HEIGHT
    body: Json = {"title": "compute-manager", "uid": "compute-manager", "schemaVersion": 39, "panels": panels}
    return json.dumps(body, indent=1).removeprefix("{\n") + "\n"


def _query(metric: Metric) -> str:
    by = ", ".join(label.name for label in metric.labels if label.name != "plane")
    match metric.type:
        case Type.COUNTER:
            return f"sum by ({by}) (rate({metric.name}{{{JOB}}}[5m]))"
        case Type.HISTOGRAM:
            rate = f"rate({metric.name}_bucket{{{JOB}}}[5m])"
            return f"histogram_quantile(0.99, sum by ({by}, le) ({rate}))"
    value = f"{metric.name}{{{JOB}}}"
    if metric.overall is Overall.ANY:
        sites = ", ".join(filter(None, (SITE, by)))
        return f"min by ({by}) (max by ({sites}) ({value}))"
    return f"{metric.overall.value} by ({by}) ({value})"
