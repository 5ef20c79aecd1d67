"""The results of a client as one line of JSON that can be compared between servers. Entry point: `Report`.

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

    def note(self, step: str, result: Any) -> None:
        """The parts that are the same on every server: no uids, versions or times."""
        self._steps.append((step, result))

    def print(self) -> None:
        print(json.dumps(self._steps, sort_keys=True))


def config_map(name: str, data: dict[str, str], **metadata: Any) -> dict[str, Any]:
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    return head | {"metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "data": data}


def widget(name: str, size: int, **metadata: Any) -> dict[str, Any]:
    head = {"apiVersion": API_VERSION, "kind": "Widget"}
    return head | {"metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "spec": {"size": size}}


def owners(managed_fields: list[dict[str, Any]]) -> list[list[str]]:
    """The appliers of spec and data; servers may differ in what they track of other writers."""
    return sorted(
        [entry["manager"], *sorted(entry["fieldsV1"].get("f:spec", entry["fieldsV1"].get("f:data", {})))]
        for entry in managed_fields
        if entry["operation"] == "Apply"
    )
