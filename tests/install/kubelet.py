"""Deployments and kubelets for clusters without nodes: every replica of a Deployment is a process. Entry: `Kubelet`.

A replica gets what a kubelet would give it, and nothing else: the command, arguments and environment of its container,
its ConfigMaps and Secrets as files at their mount paths, updated when they change, and a token of its service account
for its own cluster. As a controller would, this replaces replicas when the template changes, and reports in the status
of the Deployment how many are ready. Not done: the user, the read-only root and the limits of the container.
"""

import base64
import http.client
import itertools
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.errors import ApiError, Conflict, NotFound
from datum_compute.kube.meta import Json
from engine.api import Api
from tests.install import pod as launcher

NAMESPACE = "compute-system"

_FINALIZER = "install.test/replicas"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SECONDS = 3600
_LOOK_SECONDS = 0.3
_FILL_SECONDS = 3.0  # a real one takes a minute
_PROGRAMS = Path(sys.executable).parent  # where the image has /opt/compute/bin
_NAMESPACES = ("--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child")


def may_isolate() -> str:
    """Why processes cannot have paths and ports of their own here; empty if they can."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    done = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip()


class Replica:
    """A container that runs as a process, with the folders that are mounted into it."""

    def __init__(self, folder: Path, template: Json, revision: str) -> None:
        self.folder = folder
        self.revision = revision
        self.template = template
        [self.container] = template["spec"]["containers"]
        self.is_ready = False
        self.filled = 0.0  # when its volumes were written last
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str], planes: list[int]) -> None:
        container = self.container
        entry = container.get("command") or [str(_PROGRAMS / "compute-manager")]
        mounts = {mount["mountPath"]: str(self.volume(mount["name"])) for mount in container["volumeMounts"]}
        spec = {
            "command": [*entry, *container.get("args", [])],
            "environment": {
                "PATH": f"{_PROGRAMS}:{os.environ['PATH']}",
                "HOSTNAME": self.folder.name,
                **environment,
                **{entry["name"]: entry["value"] for entry in container["env"]},
            },
            "mounts": {**mounts, _ACCOUNT: str(self.volume("account"))},
            "planes": planes,
            "ports": [port["containerPort"] for port in container["ports"]],
        }
        (self.folder / "pod.json").write_bytes(msgspec.json.encode(spec))
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", *_NAMESPACES, sys.executable, str(launcher.__file__), str(self.folder)],
                stdin=subprocess.PIPE,  # which tells it when the test is gone
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def volume(self, name: str) -> Path:
        return self.folder / "volumes" / name

    def socket(self, port: int | str) -> Path:
        """Leads to a port of the process, by number or by name."""
        [number] = [
            each["containerPort"] for each in self.container["ports"] if port in (each["name"], each["containerPort"])
        ]
        return self.folder / f"{number}.sock"

    def probe(self) -> None:
        probe = self.container["readinessProbe"]["httpGet"]
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(5)
            connection.sock.connect(str(self.socket(probe["port"])))
            connection.request("GET", probe["path"])
            self.is_ready = connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            self.is_ready = False
        finally:
            connection.close()

    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def terminate(self) -> None:
        """The launcher, which is the first process of its namespace, passes the signal on."""
        self.is_ready = False
        for child in _children(self._process.pid if self._process else 0):
            os.kill(child, 15)

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", errors="replace") if (self.folder / "log").exists() else ""


class Kubelet:
    """Runs the Deployments of one cluster in its own thread until `close`."""

    def __init__(self, cluster: str, api: Api, endpoint: Endpoint, folder: Path, planes: list[int]) -> None:
        """`planes` are the ports on loopback of everything that a Pod may reach."""
        self.cluster = cluster
        self.replicas: list[Replica] = []
        self.failures: list[str] = []  # replicas that ended by themselves
        self._leaving: list[Replica] = []
        self._api = api
        self._endpoint = endpoint
        self._folder = folder
        self._planes = planes
        self._numbers = itertools.count()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kubelet of {cluster}")
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for replica in (*self.replicas, *self._leaving):
            replica.close()

    def logs(self) -> Iterator[tuple[str, str]]:
        for path in sorted(self._folder.glob(f"{self.cluster}-*/log")):
            yield path.parent.name, path.read_text("utf-8", errors="replace")

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                self._look()
            except ApiError:
                continue  # as a kubelet does, whose API server is busy

    def _look(self) -> None:
        found = self._api.items("apps/v1", "Deployment", NAMESPACE)
        for body in found:
            self._sync(body | {"apiVersion": "apps/v1", "kind": "Deployment"})
        if not found:
            self._leave(self.replicas)
        for replica in [replica for replica in self._leaving if replica.ended()]:
            self._leaving.remove(replica)
            replica.close()

    def _sync(self, deployment: Json) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        if "deletionTimestamp" in metadata:
            self._leave(self.replicas)
            others = [name for name in metadata.get("finalizers", ()) if name != _FINALIZER]
            if not self._leaving and others != metadata.get("finalizers", []):
                self._api.merge(deployment, {"metadata": {"finalizers": others}})
            return
        if _FINALIZER not in metadata.get("finalizers", ()):
            # It is there for as long as its Pods are, as with --cascade=foreground where there are some.
            self._api.merge(deployment, {"metadata": {"finalizers": [*metadata.get("finalizers", ()), _FINALIZER]}})
        revision = msgspec.json.encode(spec["template"], order="sorted").hex()
        self._restart_ended()
        current = [replica for replica in self.replicas if replica.revision == revision]
        for _ in range(spec["replicas"] - len(current)):
            self._start(spec["template"], revision)
        for replica in self.replicas:
            if time.monotonic() - replica.filled > _FILL_SECONDS:
                self._fill(replica)
            replica.probe()
        current = [replica for replica in self.replicas if replica.revision == revision]
        ready = [replica for replica in current if replica.is_ready]
        if len(ready) == spec["replicas"]:
            self._leave([replica for replica in self.replicas if replica.revision != revision])
            self._point_at(ready[0])
        self._report(deployment, len(self.replicas) + len(self._leaving), len(current), len(ready))

    def _start(self, template: Json, revision: str) -> None:
        replica = Replica(self._folder / f"{self.cluster}-{next(self._numbers)}", template, revision)
        if not self._fill(replica):
            shutil.rmtree(replica.folder, ignore_errors=True)
            return  # a container waits for what it mounts
        server = self._endpoint.server.rpartition(":")
        replica.start(
            {"KUBERNETES_SERVICE_HOST": server[0].removeprefix("https://"), "KUBERNETES_SERVICE_PORT": server[2]},
            self._planes,
        )
        self.replicas.append(replica)

    def _restart_ended(self) -> None:
        for replica in [replica for replica in self.replicas if replica.ended()]:
            self.failures.append(f"{replica.folder.name} ended by itself:\n{replica.log()[-3000:]}")
            self.replicas.remove(replica)
            replica.close()

    def _leave(self, replicas: list[Replica]) -> None:
        for replica in list(replicas):
            self.replicas.remove(replica)
            self._leaving.append(replica)
            replica.terminate()

    def _fill(self, replica: Replica) -> bool:
        """Whether all volumes have their content."""
        spec = replica.template["spec"]
        for volume in spec["volumes"]:
            content = self._content(volume)
            if content is None:
                return False
            write_volume(replica.volume(volume["name"]), content)
        if not replica.volume("account").exists():
            token = self._api.token(spec["serviceAccountName"], NAMESPACE, _TOKEN_SECONDS)
            account = {"token": token, "ca.crt": self._endpoint.ca_pem, "namespace": NAMESPACE}
            write_volume(replica.volume("account"), {key: value.encode() for key, value in account.items()})
        replica.filled = time.monotonic()
        return True

    def _content(self, volume: Json) -> dict[str, bytes] | None:
        match volume:
            case {"configMap": {"name": name}}:
                found = self._api.find("v1", "ConfigMap", name, NAMESPACE)
                return None if found is None else {key: text.encode() for key, text in found["data"].items()}
            case {"secret": {"secretName": name}}:
                found = self._api.find("v1", "Secret", name, NAMESPACE)
                return None if found is None else {key: base64.b64decode(text) for key, text in found["data"].items()}
        raise AssertionError(f"no kubelet here knows the volume {volume}")

    def _point_at(self, replica: Replica) -> None:
        """For `kubectl exec deploy/...`, which chooses a Pod."""
        link, new = self._folder / self.cluster, self._folder / f"{self.cluster}.new"
        if not link.is_symlink() or os.readlink(link) != replica.folder.name:
            new.symlink_to(replica.folder.name)
            new.replace(link)

    def _report(self, deployment: Json, replicas: int, updated: int, ready: int) -> None:
        available = "True" if ready == deployment["spec"]["replicas"] else "False"
        status: dict[str, Any] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": replicas,
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "conditions": [{"type": "Available", "status": available, "reason": "ReplicasReady", "message": ""}],
        }
        old = deployment.get("status", {})
        if status.items() <= {**dict.fromkeys(status, 0), **old, "conditions": _without_times(old)}.items():
            return
        try:
            self._api.merge(deployment, {"status": status}, "status")
        except (Conflict, NotFound):
            return


def write_volume(folder: Path, content: Mapping[str, bytes]) -> None:
    """As the kubelet does it: all files change at once, by a link to the folder that has them."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "..data"
    old = Path(os.readlink(data)).name if data.is_symlink() else ""
    if old and {path.name: path.read_bytes() for path in (folder / old).iterdir()} == dict(content):
        return
    new = f"..{int(old.strip('.') or 0) + 1}"
    (folder / new).mkdir()
    for key, value in content.items():
        (folder / new / key).write_bytes(value)
    (folder / "..next").symlink_to(new)
    (folder / "..next").replace(data)
    for key in content:
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(Path("..data") / key)
    for path in folder.iterdir():
        if not path.name.startswith("..") and path.name not in content:
            path.unlink()
    if old:
        shutil.rmtree(folder / old)


def _without_times(status: Json) -> list[Json]:
    wanted = ("type", "status", "reason", "message")
    return [{key: found.get(key, "") for key in wanted} for found in status.get("conditions", ())]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    except FileNotFoundError:
        return []
