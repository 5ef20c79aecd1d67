"""Nodes that pretend to run Pods, for a cell whose provider creates Pods. Entry points: `listeners`, `scheduler`,
`prepare`, `simulator`, `add_nodes`, `log_file`.

All containers of one name share a log, which is a file that tests append to. Commands run on this machine.
"""

from pathlib import Path

import yaml

from datum_compute.kube.files import write_private
from datum_compute.kube.meta import Json
from engine.api import Api, condition, until
from engine.settings import Folder, Plane
from engine.site import HOST, Process, Site

_NODES = 3
# Pods are Running as soon as they are bound and gone as soon as they are deleted.
_STAGES = (
    "node/fast/node-initialize.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)


CONTAINERS = ("web", "red", "blue", "empty")
"""Names of containers that have logs of their own; all others share one."""
_OTHERS = "others"


def log_file(folder: Folder, cell: str, container: str, *, previous: bool = False) -> Path:
    """The log of all containers of a name; lines are those of a container runtime, `TIME stdout F TEXT`."""
    name = container if container in CONTAINERS else _OTHERS
    return folder.containers / cell / f"{name}{'-previous' if previous else ''}.log"


def prepare(site: Site, cell: Plane) -> None:
    """Writes what the simulator is to answer for logs and commands."""
    logs = []
    for name in (*CONTAINERS, _OTHERS):
        files = [log_file(site.folder, cell.name, name, previous=previous) for previous in (False, True)]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        entry = {"logsFile": str(files[0]), "previousLogsFile": str(files[1]), "follow": True}
        logs.append(entry if name == _OTHERS else {"containers": [name], **entry})
    kinds = {"ClusterLogs": {"logs": logs}, "ClusterExec": {"execs": [{"local": {}}]}}
    documents = [
        {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "every"}, "spec": spec}
        for kind, spec in kinds.items()
    ]
    write_private(_config(site, cell), yaml.safe_dump_all(documents).encode())


def _config(site: Site, cell: Plane) -> Path:
    return site.folder.containers / cell.name / "config.yaml"


def listeners(cell: Plane) -> tuple[str, str]:
    return f"{cell.name}-scheduler", f"{cell.name}-kwok"


def scheduler(site: Site, cell: Plane) -> Process:
    name, _ = listeners(cell)
    arguments = (
        f"--kubeconfig={site.kubeconfig(cell.name)}",
        f"--bind-address={HOST}",
        f"--secure-port={site.port(name)}",
        *site.serving(),
        "--leader-elect=false",
    )
    return Process(name, "kube-scheduler", arguments, f"{site.url(name)}/healthz")


def simulator(site: Site, cell: Plane, sources: Path) -> Process:
    _, name = listeners(cell)
    arguments = (
        f"--kubeconfig={site.kubeconfig(cell.name)}",
        *(f"--config={sources / 'kustomize' / 'stage' / stage}" for stage in _STAGES),
        f"--config={_config(site, cell)}",
        "--manage-all-nodes=true",
        f"--node-ip={HOST}",
        f"--server-address={site.address(name)}",
        f"--node-port={site.port(name)}",  # where API servers ask nodes for logs
        "--node-lease-duration-seconds=0",  # nothing here checks the leases of nodes
    )
    return Process(name, "kwok", arguments, f"http://{site.address(name)}/healthz")


def add_nodes(site: Site, member: Api, cell: Plane) -> None:
    _, simulator_ = listeners(cell)
    endpoints = {"kubeletEndpoint": {"Port": site.port(simulator_)}}
    nodes = [_node(f"kwok-{number}") for number in range(_NODES)]
    for node in nodes:
        member.apply(node)
        member.merge(node, {"spec": {"taints": None}})  # every new node has one, and no controller here takes it off
    for node in nodes:
        name = node["metadata"]["name"]
        until(f"node {name} of {member.plane} being ready", lambda name=name: _ready(member, name))  # type: ignore[misc]
        member.merge(node, {"status": {"daemonEndpoints": endpoints}}, "status")  # nodes keep what they began with


def _node(name: str) -> Json:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def _ready(member: Api, name: str) -> bool:
    return condition(member.get("v1", "Node", name), "Ready") == "True"
