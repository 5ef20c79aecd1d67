"""The paths of printer columns."""

from typing import Any

import pytest

from datum_compute.embedded.schemas.json_path import json_path
from datum_compute.kube.meta import Json

OBJECT: Json = {
    "metadata": {"name": "web", "labels": {"a.b/c": "d"}, "creationTimestamp": "2026-06-01T11:00:00Z"},
    "status": {
        "replicas": 3,
        "ratio": 0.5,
        "paused": False,
        "nothing": None,
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "Wait"},
            {"type": "Available", "status": "True"},
        ],
        "interfaces": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}],
    },
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".metadata.name", ["web"]),
        (".status.replicas", [3]),
        (".status.nope", []),
        (".status.nope.deeper", []),
        (".status.replicas.deeper", []),
        ('.status.conditions[?(@.type=="Ready")].status', ["False"]),
        (".status.conditions[?(@.type=='Available')].status", ["True"]),
        ('.status.conditions[?(@.type == "Ready")].reason', ["Wait"]),
        ('.status.conditions[?(@.type=="Available")].reason', []),
        ('.status.conditions[?(@.type=="Nope")].status', []),
        ('.status.nope[?(@.type=="Nope")].status', []),
        (".status.interfaces[0].ip", ["10.0.0.1"]),
        (".status.interfaces[1].ip", ["10.0.0.2"]),
        (".status.interfaces[-1].ip", ["10.0.0.2"]),
        (".status.interfaces[2].ip", []),
        (".status.interfaces[*].ip", ["10.0.0.1", "10.0.0.2"]),
        (".status.replicas[0]", []),
        (r".metadata.labels.a\.b/c", ["d"]),
        (".metadata.labels['a.b/c']", ["d"]),
    ],
)
def test_a_path_reads_all_values_it_leads_to(path: str, values: list[Any]) -> None:
    assert json_path(path)(OBJECT) == values


@pytest.mark.parametrize("path", ["metadata", ".a[", ".a[?(@.b>1)]", "..a", ".a[?(@.b)]"])
def test_an_unsupported_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="JSON path"):
        json_path(path)
