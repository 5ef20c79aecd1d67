"""Containers that kwok pretends to run, whose logs tests write. Entry points: `Container`, `now`."""

import time
from pathlib import Path

from datum_compute.kube.meta import Json
from engine.api import Api, until
from engine.harness import Engine
from engine.kwok import log_file
from tests.telemetry.sites import stamp


def now() -> int:
    return time.time_ns()


class Container:
    """All containers of one name in a cell, which share their log; it is empty when a test begins."""

    def __init__(self, engine: Engine, cell: str, name: str) -> None:
        self.name = name
        self._files = [log_file(engine.folder, cell, name, previous=previous) for previous in (False, True)]
        for file in self._files:
            file.write_bytes(b"")

    def write(self, *lines: str, previous: bool = False) -> None:
        """Each with the present as its time."""
        file: Path = self._files[previous]
        with file.open("a", encoding="utf-8") as output:
            for line in lines:
                output.write(f"{stamp(now())} stdout F {line}\n")


def pod(name: str, namespace: str, *containers: str) -> Json:
    """One that the provider would create, for a cell in which none runs."""
    listed = [{"name": container, "image": "registry.example/hello:1"} for container in containers]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": listed, "automountServiceAccountToken": False},
    }


def run(cell: Api, body: Json) -> None:
    """Creates a Pod and waits until its node says that it runs."""
    cell.create(body)
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    until(
        f"Pod {name} running",
        lambda: cell.get("v1", "Pod", name, namespace).get("status", {}).get("phase") == "Running",
    )
