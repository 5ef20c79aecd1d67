"""docs/install.md on the real engine: its commands, in their order, on a Karmada with two members that knows nothing of
compute, with the shipped overlays and nothing else.

There are no kubelets, so `tests.install.kubelet` runs compute-managers as processes, with exactly the arguments,
environment, files, ports and identity of their Deployments, and as many replicas. Instances are Pods on nodes of kwok.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from datum_compute.kube.access.kubeconfig import load, write_kubeconfig
from engine.build import binary
from engine.harness import Engine
from engine.settings import HOST_PLANE, HUB_PLANE
from tests.install import kubectl_exec
from tests.install.kubelet import Kubelet, may_isolate
from tests.install.page import PAGE, ROOT, Shell, blocks
from tests.install.services import Relays, Services

CELLS = ("pop-dfw", "pop-ord")
PLANES = {"management": HOST_PLANE, "hub": HUB_PLANE, **{cell: cell for cell in CELLS}}  # by the page's contexts
ALSO = {"demo": "management"}  # a context for the same plane

_FOLDER = Path(os.environ.get("INSTALL") or ROOT / "build" / "install")

# What comes and goes by itself.
_VOLATILE = ("events", "componentstatuses")

# There is nobody to exec into a container but the launcher of the Pod; everything else is kubectl itself.
_KUBECTL = """#!/bin/sh
for word; do
  case $word in
    exec) exec {} {} {} "$@" ;;
    --) break ;;
  esac
done
exec {} "$@"
"""

Found = dict[tuple[str, str, str], dict[str, Any]]


class Machines(Struct):
    """The clusters, and what the test does in place of their nodes."""

    folder: Path
    environment: dict[str, str]
    kubelets: list[Kubelet]
    services: Services

    def objects(self, context: str) -> Found:
        """Everything on a plane, by kind, namespace and name, with the metadata that people and programs add."""
        kinds = self._kubectl(context, "api-resources", "--verbs=list", "-o", "name").split()
        listed = ",".join(kind for kind in kinds if kind.partition(".")[0] not in _VOLATILE)
        items = msgspec.json.decode(self._kubectl(context, "get", listed, "-A", "-o", "json"))["items"]
        return {
            (body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]): {
                key: body["metadata"].get(key) for key in ("labels", "annotations", "finalizers")
            }
            for body in items
        }

    def _kubectl(self, context: str, *arguments: str) -> str:
        command = ["kubectl", "--context", context, *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def machines() -> Iterator[Machines]:
    if reason := may_isolate():
        pytest.skip(f"processes cannot have paths and ports of their own here: {reason}")
    engine = Engine(_FOLDER / "engine")
    engine.remove()
    shutil.rmtree(_FOLDER / "pods", ignore_errors=True)
    engine.up(kwok_cells=CELLS, empty=True)
    relays = Relays()
    kubelets: list[Kubelet] = []
    endpoints = {context: load([engine.kubeconfig(plane)]) for context, plane in PLANES.items()}
    apis = {context: engine.api(plane) for context, plane in PLANES.items() if context != "hub"}
    apis["services"] = engine.api(HOST_PLANE)
    pods = _FOLDER / "pods"
    (pods / "planes").mkdir(parents=True)
    ports = {context: int(endpoint.server.rpartition(":")[2]) for context, endpoint in endpoints.items()}
    try:
        for port in ports.values():
            relays.to_port(pods / "planes" / f"{port}.sock", port)
        for context in ("management", *CELLS):
            kubelets.append(Kubelet(context, apis[context], endpoints[context], pods, list(ports.values())))
        services = Services(relays, engine.folder.services, apis["services"], kubelets[0])
        contexts = endpoints | {context: endpoints[same] for context, same in ALSO.items()}
        write_kubeconfig(_FOLDER / "kubeconfig", contexts, "management")
        yield Machines(_FOLDER, _environment(pods), kubelets, services)
    finally:
        for kubelet in kubelets:
            kubelet.close()
        for api in apis.values():
            api.close()
        relays.close()
        engine.down()


def _environment(pods: Path) -> dict[str, str]:
    """What a reader has: four contexts, kubectl, and the commands of this package."""
    programs = _FOLDER / "bin"
    shutil.rmtree(programs, ignore_errors=True)
    programs.mkdir()
    kubectl = programs / "kubectl"
    kubectl.write_text(_KUBECTL.format(sys.executable, kubectl_exec.__file__, pods, binary("kubectl")))
    kubectl.chmod(0o755)
    home = _FOLDER / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    return {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "KUBECONFIG": str(_FOLDER / "kubeconfig"),
    }


@pytest.mark.timeout(900)
def test_the_page_installs_a_workload_runs_in_two_cities_and_uninstall_leaves_nothing(machines: Machines) -> None:
    before = {context: machines.objects(context) for context in PLANES}
    shell = Shell(machines.folder, machines.environment)
    workload: dict[str, list[str]] = {}
    try:
        for block in blocks(PAGE.read_text("utf-8")):
            if block.excuse:
                continue
            print(shell.run(block))
            if block.section.endswith("The first workload"):
                workload = {cell: _instances(machines.objects(cell)) for cell in CELLS}
    except AssertionError as error:
        logs = "\n".join(
            f"{name} logged last:\n{text[-4000:]}" for kubelet in machines.kubelets for name, text in kubelet.logs()
        )
        raise AssertionError(f"{error}\n{logs}") from None
    finally:
        for section, seconds in shell.times:
            print(f"{seconds:6.1f} s  {section}")
        shell.close()
    assert workload == {"pop-dfw": ["hello-default-dfw-0"], "pop-ord": ["hello-default-ord-0"]}
    assert machines.services.connections > 0  # the API server asked the webhook
    assert [failure for kubelet in machines.kubelets for failure in kubelet.failures] == []
    differences = {context: _differences(before[context], machines.objects(context)) for context in PLANES}
    assert differences == {context: [] for context in PLANES}


def _differences(before: Found, after: Found) -> list[str]:
    left = [f"{'/'.join(filter(None, key))} is left" for key in sorted(after.keys() - before.keys())]
    removed = [f"{'/'.join(filter(None, key))} was removed" for key in sorted(before.keys() - after.keys())]
    changed = [
        f"{'/'.join(filter(None, key))} was {before[key]} and is {after[key]}"
        for key in sorted(before.keys() & after.keys())
        if before[key] != after[key]
    ]
    return [*left, *removed, *changed]


def _instances(found: Found) -> list[str]:
    """Those that run in Pods."""
    pods = {name for kind, _, name in found if kind == "Pod"}
    return sorted(name for kind, _, name in found if kind == "Instance" and name in pods)
