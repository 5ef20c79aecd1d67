"""What a client did and saw, as one line of JSON that can be compared between servers. Entry point: `Report`.

Surroundings, from the environment: KUBECONFIG, NAMESPACE to work in, and GROUP, an API group with the namespaced kind
Widget (short name wdg).
"""

import json
import os
from typing import Any

NAMESPACE = os.environ["NAMESPACE"]
GROUP = os.environ["GROUP"]
API_VERSION = f"{GROUP}/v1"


class Report:
    def __init__(self) -> None:
        self._steps: list[tuple[str, Any]] = []

    def note(self, step: str, seen: Any) -> None:
        """Only what is the same on every server: no uids, versions or times."""
        self._steps.append((step, seen))

    def print(self) -> None:
        print(json.dumps(self._steps, sort_keys=True))


def config_map(name: str, data: dict[str, str], **metadata: Any) -> dict[str, Any]:
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    return head | {"metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "data": data}


def widget(name: str, size: int, **metadata: Any) -> dict[str, Any]:
    head = {"apiVersion": API_VERSION, "kind": "Widget"}
    return head | {"metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "spec": {"size": size}}


def owners(managed_fields: list[dict[str, Any]]) -> list[list[str]]:
    """Who applied which part of spec or data; what a server knows of other writers is its own business."""
    return sorted(
        [entry["manager"], *sorted(entry["fieldsV1"].get("f:spec", entry["fieldsV1"].get("f:data", {})))]
        for entry in managed_fields
        if entry["operation"] == "Apply"
    )
