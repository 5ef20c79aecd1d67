"""What others than compute may change in a project's deployments. Entry point: `deployment_refusal`.

`api.policies` generates the same rule as a ValidatingAdmissionPolicy, and one table tests both.
"""

import re
from datetime import datetime
from typing import Any

from datum_compute.api.labels import RESTARTED_AT
from datum_compute.api.validation.fields import clipped
from datum_compute.kube.meta import Json

# A time that CEL can parse: stricter than ISO 8601.
TIME = (
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
PROTECTED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")


def deployment_refusal(operation: str, subresource: str, before: Json | None, after: Json | None) -> str:
    """Why the write is refused; empty if it only moves the time of the last restart forward."""
    name = _at(after or before, "metadata", "name")
    if operation == "UPDATE" and not subresource and before and after and _only_restarts(before, after):
        return ""
    return refusal_of(clipped(name if isinstance(name, str) else ""))


def refusal_of(name: str) -> str:
    return (
        f"deployment {name} follows from its Workload, so change that instead; "
        f"all that may change here is a later {RESTARTED_AT} of the template"
    )


def _only_restarts(before: Json, after: Json) -> bool:
    old, new = _at(before, *_ANNOTATIONS), _at(after, *_ANNOTATIONS)
    return (
        all(_at(before, "metadata", key) == _at(after, "metadata", key) for key in PROTECTED_METADATA)
        and _without_restart(before) == _without_restart(after)
        and _moves_forward(_text(old, RESTARTED_AT), _text(new, RESTARTED_AT))
    )


_ANNOTATIONS = ("spec", "template", "metadata", "annotations")


def _without_restart(deployment: Json) -> Any:
    """The spec without the time of the restart, and without maps that contained nothing else."""
    spec = _at(deployment, "spec")
    annotations = _at(deployment, *_ANNOTATIONS)
    if not isinstance(annotations, dict):
        annotations = {}
    others = {key: value for key, value in annotations.items() if key != RESTARTED_AT}
    template = spec.get("template") if isinstance(spec, dict) else None
    metadata = _at(template, "metadata") or {}
    if not isinstance(template, dict) or not isinstance(metadata, dict):
        return spec
    rest = {key: value for key, value in metadata.items() if key != "annotations"}
    return spec | {"template": template | {"metadata": [rest, others]}}


def _moves_forward(old: str | None, new: str | None) -> bool:
    if old == new:
        return True
    later, earlier = _time(new), _time(old)
    return later is not None and (old is None or (earlier is not None and later > earlier))


def _time(text: str | None) -> datetime | None:
    if text is None or not re.fullmatch(TIME, text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # there is no 31st of June
        return None


def _text(annotations: Any, key: str) -> str | None:
    value = annotations.get(key) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else None


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
