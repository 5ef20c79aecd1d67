"""The pages of `docs/reference/`, from the tables of this package. Entry point: `files`."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from datum_compute.api import labels
from datum_compute.api.crd import OURS, AnyKind, definition, schema_of
from datum_compute.api.labels import Mark
from datum_compute.api.permissions import PERMISSIONS, On, Rule, When, Who
from datum_compute.api.reasons import (
    REASONS,
    REPAIRS,
    Acts,
    Reason,
    deployment_rank,
    instance_rank,
    span,
    workload_rank,
)
from datum_compute.api.roles import role_name
from datum_compute.api.template import InstanceSpec, InstanceTemplate
from datum_compute.api.workload import ScaleSettings
from datum_compute.federation.metrics import GATED, OTHER
from datum_compute.kube.meta import Condition, Json
from datum_compute.operator.alerts import ALERTS
from datum_compute.operator.metrics import METRICS
from datum_compute.runtime.telemetry.table import Label, Metric


def files() -> dict[str, str]:
    """By file name."""
    return {"kinds.md": _kinds(), "labels.md": _labels(), "permissions.md": _permissions(), "reasons.md": _reasons()}


def operator_files() -> dict[str, str]:
    """Pages that follow from the tables of compute-manager, by file name."""
    return {"metrics.md": _metrics()}


def _page(*blocks: str) -> str:
    return "\n\n".join(blocks) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(_line(cells) for cells in (head, ["---"] * len(head), *rows))


def _line(cells: Iterable[str]) -> str:
    return "|" + "|".join(f" {cell.replace('<', '&lt;')} " if cell else " " for cell in cells) + "|"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


# Reasons


def _reasons() -> str:
    def of(acts: Acts) -> list[Reason]:
        return [reason for reason in REASONS if reason.acts is acts]

    return _page(
        "# Reasons",
        "Every condition and every event has a reason. This page says what each one means and who can act on it. A "
        "reason that is not listed here is shown as received.",
        "## You can act",
        _table(
            ("Reason", "Means", "What to do"),
            [(_code(reason.name), reason.sentence, reason.todo) for reason in of(Acts.YOU)],
        ),
        "## Whoever gives access in your organization can act",
        _table(
            ("Reason", "Means", "What to do"),
            [(_code(reason.name), reason.sentence, reason.todo) for reason in of(Acts.ADMIN)],
        ),
        "## The platform has to act",
        "No change to the workload helps. Contact whoever runs the platform; the last column is for them.",
        _table(
            ("Reason", "Means", "What an operator does"),
            [(_code(reason.name), reason.sentence, REPAIRS[reason.name]) for reason in of(Acts.PLATFORM)],
        ),
        "## Wait",
        "These are normal up to the given time. After that the object has stalled: something is slow or stuck, and no "
        "cause was reported.",
        _table(_WAITS, [_wait(reason) for reason in of(Acts.WAIT) if not reason.is_pointer]),
        "## Another condition has the cause",
        "Look at another condition of the same object, or at the deployments and instances below it.",
        _table(_WAITS, [_wait(reason) for reason in REASONS if reason.is_pointer]),
        "## Nothing to do",
        _table(("Reason", "Means"), [(_code(reason.name), reason.sentence) for reason in of(Acts.NOBODY)]),
        "## Conclusions",
        "No object has these reasons. `compute why` draws them from the state of several objects: "
        + ", ".join(_code(reason.name) for reason in REASONS if reason.is_conclusion)
        + ".",
        "## Which reason is reported",
        "When there are several causes, the reason with the highest rank is reported, among equal ranks that of the "
        "first by placement, then by name. A reason without a rank never hides another.",
        _table(
            ("Rank", "`Ready` of an Instance", "`Available` of a WorkloadDeployment", "`Available` of a Workload"),
            _ranks(),
        ),
    )


_WAITS = ("Reason", "Means", "Normally under")


def _wait(reason: Reason) -> Sequence[str]:
    return _code(reason.name), reason.sentence, span(reason.normal) if reason.normal else ""


def _ranks() -> Iterator[Sequence[str]]:
    def named(rank_of: Callable[[str], int], rank: int) -> str:
        return ", ".join(_code(reason.name) for reason in REASONS if rank_of(reason.name) == rank)

    for rank in range(max(max(reason.instance, reason.deployment, reason.workload) for reason in REASONS), 0, -1):
        yield str(rank), *(named(rank_of, rank) for rank_of in (instance_rank, deployment_rank, workload_rank))


# Labels


def _labels() -> str:
    def marks(rows: Iterable[Mark], heading: str) -> str:
        cells = [(_code(mark.key), mark.on, mark.by, mark.meaning) for mark in rows]
        return _table(("Key", "On", "Set by", heading), cells)

    return _page(
        "# Labels, annotations and finalizers",
        "Labels serve to find objects. They never decide which project an object belongs to.",
        "## Labels",
        marks(labels.LABELS, "Value"),
        "## Annotations",
        marks(labels.ANNOTATIONS, "Value"),
        "## Finalizers",
        marks(labels.FINALIZERS, "Held until"),
    )


# Permissions

_WHO = {
    Who.MANAGEMENT: "Management",
    Who.CELL: "A cell",
    Who.USER: "A user",
    Who.VIEWER: "A viewer",
    Who.KARMADA: "Karmada",
}
_ON = {
    On.HOST: "in the cluster it runs in",
    On.ROOT: "in the platform's root plane",
    On.PROJECT: "in each project",
    On.HUB: "on the hub",
    On.CELL: "in each cell",
}


_WHEN = {
    When.ALWAYS: "",
    When.LEADER_ELECTION: "with `--leader-elect`, in its own namespace",
    When.EXECUTION_SPACE: "in the namespace that Karmada uses for the cell, `karmada-es-` and its name",
    When.ABANDONED_CLAIMS: "in its own namespace, unless `--abandon-claims-after-seconds` is 0",
    When.SECURE_METRICS: "when metrics are served securely",
    When.WEBHOOK: "when it serves the webhook",
    When.WEBHOOK_CERTIFICATE: "with `webhookServer.tls.selfSigned`, in its own namespace",
    When.WEBHOOK_AUTHORITY: "with `webhookServer.tls.selfSigned`",
    When.MILO_DISCOVERY: "in discovery mode `milo`",
    When.INTERNAL_DISCOVERY: "in discovery mode `milo`, from inside the infrastructure",
    When.NETWORKING: "with feature gate `NetworkingIntegration`",
    When.PODS: "with `--provider pods`",
    When.ENTITLEMENT: "with `--builtins entitlement`, where the service catalog is absent",
    When.QUOTA: "with `--builtins quota`, where Milo is absent",
    When.NETWORK: "with `--builtins network`, where the network operator is absent",
    When.LOCATIONS: "with `--builtins locations`, where the service catalog is absent",
    When.LOGS: "with `logsServer`",
    When.EXEC: "with `logsServer.exec`",
    When.FRONT_PROXY: "with `logsServer` behind an APIService, in `kube-system`",
    When.CITY_RESTART: "for clients that write a city's restart into its deployments",
}


def _permissions() -> str:
    blocks = [
        "# Permissions",
        "What the controllers and the users of a project may do, and why. The roles in `deploy/roles/` are generated "
        "from the same table. Permissions that only some configurations need are in separate roles.",
    ]
    for (who, on), rules in PERMISSIONS.items():
        place = "on its own plane" if (who, on) == (Who.CELL, On.CELL) else _ON[on]
        blocks.append(f"## {_WHO[who]}, {place}")
        for when in dict.fromkeys(rule.when for rule in rules):
            blocks.append(f"{', '.join(filter(None, (_code(role_name(who, on, when)), _WHEN[when])))}:")
            cells = [_rule(rule) for rule in rules if rule.when is when]
            blocks.append(_table(("Group", "Resources", "Verbs", "Purpose"), cells))
    return _page(*blocks)


def _rule(rule: Rule) -> Sequence[str]:
    resources = ", ".join(map(_code, rule.resources))
    named = f" {', '.join(map(_code, rule.names))}" if rule.names else ""
    return rule.group or "core", f"{resources}{named}", ", ".join(rule.verbs), rule.why


# Metrics


def _metrics() -> str:
    blocks = [
        "# Metrics",
        "What `/metrics` of compute-manager serves. [Labels](#labels) have the listed values and no others, or as many "
        "as their source has. No series is labelled with an object, and only few metrics with a plane: their series "
        "end when the plane leaves. If a metric needs action, an alert says so, and its runbook what to do; the others "
        "help to find the cause.",
    ]
    for group in dict.fromkeys(metric.group for metric in METRICS):
        rows = [_metric(metric) for metric in METRICS if metric.group == group]
        blocks += [f"## {group}", _table(("Metric", "Type", "Labels", "Emitted by", "Meaning", "Alerts"), rows)]
    return _page(*blocks, "## Labels", _table(("Label", "Of", "Values"), map(_label, _labels_of_metrics())))


def _metric(metric: Metric) -> Sequence[str]:
    labels = ", ".join(_code(label.name) for label in metric.labels)
    using = [alert.name for alert in ALERTS if re.search(rf"\b{metric.name}(_bucket)?\b", alert.expression)]
    alerts = ", ".join(f"[{name}](../runbooks/{name}.md)" for name in using)
    return _code(metric.name), metric.type.value, labels, metric.emitter, metric.help, alerts


def _labels_of_metrics() -> list[Label]:
    return sorted(dict.fromkeys(label for metric in METRICS for label in metric.labels), key=lambda label: label.name)


def _label(label: Label) -> Sequence[str]:
    metrics = ", ".join(_code(metric.name) for metric in METRICS if label in metric.labels)
    if label.values == GATED:  # the other table
        return _code(label.name), metrics, f"[reasons](reasons.md), {OTHER}"
    return _code(label.name), metrics, ", ".join(label.values) or label.source


# Kinds


class _Part(Struct, frozen=True):
    """A part that several kinds share, documented once."""

    title: str
    schema: Json

    @property
    def link(self) -> str:
        return f"[{self.title}](#{self.title.lower().replace(' ', '-')})"


_PARTS = [
    _Part("Instance template", schema_of(InstanceTemplate)),
    _Part("Instance spec", schema_of(InstanceSpec)),
    _Part("Scale settings", schema_of(ScaleSettings)),
    _Part("Condition", schema_of(Condition)),
]


def _kinds() -> str:
    blocks = [
        "# Kinds",
        f"Group `{OURS[0].group}`, version `{OURS[0].version}`. Users create Workloads; the others follow from them.",
    ]
    for kind in OURS:
        schema = _schema(kind)
        blocks += [f"## {kind.name}", str(schema["description"]), _fields(_without_head(schema))]
    for part in _PARTS:
        blocks += [f"## {part.title}", _fields(part.schema)]
    return _page(*blocks)


def _schema(kind: AnyKind) -> Json:
    schema: Json = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _without_head(schema: Json) -> Json:
    """The schema without the fields that every object has."""
    return schema | {"properties": {name: schema["properties"][name] for name in ("spec", "status")}}


def _fields(schema: Json) -> str:
    return _table(("Field", "Type", "Required", "Default", "Description"), _rows(schema, ""))


def _rows(schema: Json, prefix: str) -> Iterator[Sequence[str]]:
    for name, field in schema["properties"].items():
        path, inner = f"{prefix}{name}", field.get("items", field)
        part = _part(inner)
        required = "yes" if name in schema.get("required", ()) else ""
        yield _code(path), _type(field, part), required, _default(field), field.get("description", "")
        if part is None and "properties" in inner:
            yield from _rows(inner, f"{path}[]." if "items" in field else f"{path}.")


def _part(schema: Json) -> _Part | None:
    return next((part for part in _PARTS if part.schema["properties"] == schema.get("properties")), None)


def _type(field: Json, part: _Part | None) -> str:
    if "items" in field:
        return f"list of {_type(field['items'], part)}"
    if part is not None:
        return part.link
    if isinstance(values := field.get("additionalProperties"), dict):
        return f"map of {_type(values, None)}"
    if field.get("x-kubernetes-int-or-string"):
        return "quantity" if "pattern" in field else "integer or string"
    return "time" if field.get("format") == "date-time" else str(field["type"])


def _default(field: Json) -> str:
    match field.get("default"):
        case None:
            return ""
        case {"conditions": conditions}:
            return f"{', '.join(_code(condition['type']) for condition in conditions)}, all `Unknown`"
        case default:
            return _code(json.dumps(default))
