"""A Podman of the tests' own: its service, storage, networks and images live in one folder. Entry point: `Podman`.

Nothing of a Podman that the machine may have is read or changed, and `close` leaves nothing running.
"""

import http.client
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from datum_compute.kube.meta import Json, encode
from tests.containers.image_archive import architecture, write_archive

PROGRAM = Path(__file__).parent / "program"
PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/lib/podman", "/usr/libexec/podman"])
NEEDED = ("podman", "runc", "netavark", "iptables", "go")

HELLO = "localhost/hello:1"
"""Serves HTTP on 8080 and says its host name; see program/main.go for what else it can do as a command."""

HELLO_2 = "localhost/hello:2"
"""The same with the variable VERSION, which it adds to its answers."""

FOREIGN = "localhost/hello:foreign"
"""For a processor that this machine does not have."""

_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]

[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/tmp"

[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""


def obstacle() -> str:
    """Why no Podman can be run here; empty if it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "only root can run Podman with the networks that the tests need"
    missing = [name for name in NEEDED if shutil.which(name, path=PLACES) is None]
    return f"missing here: {', '.join(missing)}" if missing else ""


class Podman:
    """`start` and `stop` are the service's; containers survive them, as they do with a real one."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="podman-"))
        self.path = self.folder / "podman.sock"
        self.address = f"unix://{self.path}"
        self._service: subprocess.Popen[bytes] | None = None
        files, processes = (
            min(hard if hard >= 0 else 1024, 4096)
            for _, hard in map(resource.getrlimit, (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
        )
        (self.folder / "containers.conf").write_text(
            _CONFIGURATION.format(folder=self.folder, files=files, processes=processes)
        )

    @property
    def environment(self) -> dict[str, str]:
        """For processes that use it: this engine, and nothing that names another."""
        kept_out = ("DOCKER_", "CONTAINER_", "CONTAINERS_", "REGISTRY_AUTH", "XDG_RUNTIME_DIR", "DATUM_COMPUTE_ENGINE")
        others = {name: value for name, value in os.environ.items() if not name.startswith(kept_out)}
        return others | {"DATUM_COMPUTE_ENGINE": self.address}

    def limit_storage(self, megabytes: int) -> None:
        """Puts the storage on a file system of its own that can be filled; before the first start."""
        (self.folder / "storage").mkdir()
        options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(self.folder / "storage")]
        subprocess.run(["mount", *options], check=True)

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        with (self.folder / "service.log").open("ab") as output:
            self._service = subprocess.Popen(
                [
                    shutil.which("podman", path=PLACES) or "podman",
                    *("--root", f"{self.folder}/storage", "--runroot", f"{self.folder}/run"),
                    *("system", "service", "--time", "0", self.address),
                ],
                cwd=self.folder,  # where the engine leaves a file for a container that ran out of memory
                env=os.environ | {"CONTAINERS_CONF": f"{self.folder}/containers.conf", "PATH": PLACES},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until("Podman answers", self._answers, 30)

    def stop(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.kill()
            service.wait(10)

    def pause(self) -> None:
        """It takes calls, and answers none."""
        assert self._service is not None
        self._service.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._service is not None
        self._service.send_signal(signal.SIGCONT)

    def load(self) -> None:
        """Builds the program and loads the images around it."""
        program = self.folder / "program"
        go = shutil.which("go", path=PLACES) or "go"
        command = [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(program), "."]
        subprocess.run(command, cwd=PROGRAM, env=os.environ | {"CGO_ENABLED": "0"}, check=True, timeout=240)
        other = "arm64" if architecture() == "amd64" else "amd64"
        self._load(program, [HELLO, "localhost/hello:dev"])
        self._load(program, [HELLO_2], variables={"VERSION": " version 2"})
        foreign = self.folder / "foreign"
        foreign.write_bytes(b"\x7fELF" + bytes(60))  # the kernel takes it for another processor's
        self._load(foreign, [FOREIGN], processor=other)

    def _load(self, program: Path, tags: list[str], **options: Any) -> None:
        archive = self.folder / "image.tar"
        write_archive(archive, program, tags, **options)
        code, answer = self.call("POST", "/v1.41/images/load", archive.read_bytes(), "application/x-tar")
        assert code == 200, answer
        archive.unlink()

    def call(
        self, method: str, path: str, body: bytes | None = None, type_: str = "application/json"
    ) -> tuple[int, Any]:
        """One call to the API, for what a test does by hand."""
        connection = _Connection(str(self.path))
        try:
            connection.request(method, path, body, {"Content-Type": type_})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        try:
            return response.status, msgspec.json.decode(data) if data.strip() else None
        except msgspec.DecodeError:
            return response.status, data

    def containers(self, **labels: str) -> list[Json]:
        """All of them, as `containers/json` shows them."""
        filters = {"label": [f"{key}={value}" for key, value in labels.items()]} if labels else {}
        _, found = self.call("GET", f"/v1.41/containers/json?all=true&filters={quote(encode(filters))}")
        return list(found)

    def networks(self) -> list[str]:
        _, found = self.call("GET", "/v1.41/networks")
        return sorted(network["Name"] for network in found if network["Name"] != "podman")

    def clear(self) -> None:
        """Removes all containers and networks."""

        def no_containers() -> bool:
            for container in self.containers():
                self.call("DELETE", f"/v1.41/containers/{container['Id']}?force=true&v=true")
            return not self.containers()

        until("no containers", no_containers, 30)
        for network in self.networks():
            self.call("DELETE", f"/v1.41/networks/{network}")

    def close(self) -> None:
        if self._service is not None:
            self.resume()
            self.clear()
            self.stop()
        # Podman leaves a helper behind for five minutes after each command that was run in a container.
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        until("no process of Podman", lambda: not self.processes(), 10)
        for mount in reversed(self.mounts()):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(self.folder)

    def processes(self) -> list[int]:
        """Those that have the folder on their command line; nobody else's do."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.folder).encode() in line:
                    found.append(int(entry.name))
        return found

    def mounts(self) -> list[str]:
        lines = Path("/proc/self/mounts").read_text().splitlines()
        return [point for point in (line.split()[1] for line in lines) if point.startswith(str(self.folder))]

    def _answers(self) -> bool:
        service = self._service
        assert service is not None
        assert service.poll() is None, (self.folder / "service.log").read_text()
        try:
            return self.call("GET", "/_ping")[0] == 200
        except OSError:
            return False


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def until(what: str, condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)
