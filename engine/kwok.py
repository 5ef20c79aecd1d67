"""Nodes that pretend to run Pods, for a cell whose provider creates Pods. Entry points: `listeners`, `scheduler`,
`simulator`, `add_nodes`.
"""

from pathlib import Path

from datum_compute.kube.meta import Json
from engine.api import Api, condition, until
from engine.settings import Plane
from engine.site import HOST, Process, Site

_NODES = 3
# Pods are Running as soon as they are bound and gone as soon as they are deleted.
_STAGES = (
    "node/fast/node-initialize.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)


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
        "--manage-all-nodes=true",
        f"--node-ip={HOST}",
        f"--server-address={site.address(name)}",
        "--node-lease-duration-seconds=0",  # nothing here checks the leases of nodes
    )
    return Process(name, "kwok", arguments, f"http://{site.address(name)}/healthz")


def add_nodes(member: Api) -> None:
    nodes = [_node(f"kwok-{number}") for number in range(_NODES)]
    for node in nodes:
        member.apply(node)
        member.merge(node, {"spec": {"taints": None}})  # every new node has one, and no controller here takes it off
    for node in nodes:
        name = node["metadata"]["name"]
        until(f"node {name} of {member.plane} being ready", lambda name=name: _ready(member, name))  # type: ignore[misc]


def _node(name: str) -> Json:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def _ready(member: Api, name: str) -> bool:
    return condition(member.get("v1", "Node", name), "Ready") == "True"
