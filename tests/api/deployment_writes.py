"""Writes to a project's deployment by others than compute, and which of them are admitted. Entry point: `WRITES`.

They test the rule in Python, the generated policy, and the policy on a real API server.
"""

from copy import deepcopy
from typing import Any, NamedTuple

from datum_compute.kube.meta import Json

RESTARTED_AT = "compute.datumapis.com/restartedAt"
NOON, LATER = "2026-06-01T12:00:00Z", "2026-06-01T13:00:00Z"

NEVER: Json = {
    "apiVersion": "compute.datumapis.com/v1alpha",
    "kind": "WorkloadDeployment",
    "metadata": {"name": "web-main-dfw", "namespace": "default", "labels": {"app": "web"}},
    "spec": {
        "workloadRef": {"name": "web", "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"},
        "placementName": "main",
        "cityCode": "DFW",
        "template": {
            "metadata": {"labels": {"app": "web"}, "annotations": {"team": "red"}},
            "spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2"},
                    "sandbox": {"containers": [{"name": "web", "image": "example.org/web:1"}]},
                },
                "networkInterfaces": [{"network": {"name": "default"}}],
            },
        },
        "scaleSettings": {"minReplicas": 2, "instanceManagementPolicy": "OrderedReady"},
    },
}
"""A deployment that was never restarted."""


def changed(deployment: Json, *path: str, to: Any) -> Json:
    """A copy with one value set, or removed by None."""
    copy = deepcopy(deployment)
    at = copy
    for key in path[:-1]:
        at = at.setdefault(key, {})
    if to is None:
        at.pop(path[-1], None)
    else:
        at[path[-1]] = to
    return copy


def restarted(deployment: Json, at: str | None) -> Json:
    return changed(deployment, "spec", "template", "metadata", "annotations", RESTARTED_AT, to=at)


ONCE = restarted(NEVER, NOON)
BARE = changed(NEVER, "spec", "template", "metadata", to=None)


class Write(NamedTuple):
    what: str
    allowed: bool
    before: Json
    after: Json


def _both(what: str, *path: str, to: Any) -> list[Write]:
    """A change of anything else is refused, even together with a later restart."""
    return [
        Write(what, False, ONCE, changed(ONCE, *path, to=to)),
        Write(f"{what}, and restart", False, ONCE, restarted(changed(ONCE, *path, to=to), LATER)),
    ]


WRITES = [
    Write("change nothing", True, ONCE, ONCE),
    Write("restart", True, ONCE, restarted(ONCE, LATER)),
    Write("restart for the first time", True, NEVER, ONCE),
    Write("restart where the template has no metadata", True, BARE, restarted(BARE, NOON)),
    Write("restart, with an offset", True, ONCE, restarted(ONCE, "2026-06-01T12:00:00.5+00:00")),
    Write("restart one second ago elsewhere", False, ONCE, restarted(ONCE, "2026-06-01T12:59:59+01:00")),
    Write("restart at the same time", False, ONCE, restarted(ONCE, "2026-06-01T13:00:00+01:00")),
    Write("restart earlier", False, restarted(ONCE, LATER), ONCE),
    Write("forget a restart", False, ONCE, NEVER),
    Write("restart at no time", False, NEVER, restarted(NEVER, "now")),
    Write("restart without an offset", False, NEVER, restarted(NEVER, "2026-06-01T12:00:00")),
    Write("restart on a day that is none", False, NEVER, restarted(NEVER, "2026-06-31T12:00:00Z")),
    Write("restart with a line break", False, NEVER, restarted(NEVER, f"{NOON}\n")),
    Write("restart with nothing", False, NEVER, restarted(NEVER, "")),
    Write("restart after no time", False, restarted(NEVER, "now"), ONCE),
    *_both("scale", "spec", "scaleSettings", "minReplicas", to=5),
    *_both("move to another city", "spec", "cityCode", to="ORD"),
    *_both("move to another placement", "spec", "placementName", to="other"),
    *_both("belong to another workload", "spec", "workloadRef", "name", to="other"),
    *_both("run another type", "spec", "template", "spec", "runtime", "resources", "instanceType", to="huge"),
    *_both("run another image", "spec", "template", "spec", "runtime", "sandbox", "containers", to=[
        {"name": "web", "image": "example.org/evil:1"}
    ]),
    *_both("label instances", "spec", "template", "metadata", "labels", "app", to="other"),
    *_both("label instances for the first time", "spec", "template", "metadata", "labels", "mine", to="yes"),
    *_both("take away the labels of instances", "spec", "template", "metadata", "labels", to=None),
    *_both("annotate instances", "spec", "template", "metadata", "annotations", "mine", to="yes"),
    *_both("change what is annotated", "spec", "template", "metadata", "annotations", "team", to="blue"),
    *_both("take away an annotation", "spec", "template", "metadata", "annotations", "team", to=None),
    *_both("take it from its owner", "metadata", "ownerReferences", to=[
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca428"}
    ]),
    *_both("hold it", "metadata", "finalizers", to=["example.com/mine"]),
    *_both("label it", "metadata", "labels", "compute.datumapis.com/workload-uid", to="other"),
    *_both("annotate it", "metadata", "annotations", "compute.datumapis.com/rollout-paused", to="true"),
]  # fmt: skip
