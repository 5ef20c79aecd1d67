"""Lines that a test writes, served as in a local federation, over a connection that can be cut. Entry points:
`LogFederation`, `Reading`."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.https.extensions import Extension
from datum_compute.federation.lines import STDOUT, Line, Origin
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.meta import Json
from datum_compute.local.logs import Logs
from datum_compute.runtime import SystemClock
from datum_compute.telemetry.gateway import GROUP, VERSION
from tests.cli.conftest import placement, template
from tests.https import DEMO, Background

GUARD_SECONDS = 30.0


def until(condition: Callable[[], bool], what: str = "") -> None:
    deadline = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true in time {what}"
        time.sleep(0.005)


class Wire:
    """Passes bytes on to a server, until it is cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._refuses = False
        threading.Thread(target=self._accept, daemon=True, name="wire").start()

    def cut(self) -> None:
        with self._lock:
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def stop(self) -> None:
        """Every connection breaks at once, until `restart`."""
        self._refuses = True
        self.cut()

    def restart(self) -> None:
        self._refuses = False

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True, name="wire").start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class LogFederation:
    """A project with the workload api, whose instances are whatever a test writes lines for."""

    def __init__(self, folder: Path) -> None:
        self._logs = Logs(SystemClock())
        extension = Extension(GROUP, VERSION, PROJECT, self._logs.gateway)
        self._server = Background(folder, extensions=[extension])
        self.wire = Wire(self._server.server.port)
        self._server.do(self._create())
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._config()))

    async def _create(self) -> None:
        spec = {"template": template(), "placements": [placement("default", ("AMS", "DFW"), 2)]}
        body = WORKLOAD.body("api", "default") | {"spec": spec}
        await self._server.engine.client("demo").create(WORKLOAD, body)

    def delete_workload(self) -> None:
        self._server.do(self._server.engine.client("demo").delete(WORKLOAD, "api", "default"))

    def _config(self) -> Json:
        endpoint = self._server.server.endpoint("demo")
        cluster = {
            "server": f"https://127.0.0.1:{self.wire.port}{DEMO}",
            "certificate-authority-data": _base64(endpoint.ca_pem),
        }
        return {
            "current-context": "demo",
            "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo"}}],
            "clusters": [{"name": "demo", "cluster": cluster}],
            "users": [{"name": "demo", "user": {"token": self._server.credentials.token}}],
        }

    def start(self, origin: Origin) -> None:
        self._server.read(lambda: self._logs.ring.started(origin, time.time_ns()))

    def end(self, origin: Origin) -> None:
        self._server.read(lambda: self._logs.ring.ended(origin, time.time_ns()))

    def write(self, origin: Origin, *texts: str) -> None:
        lines = [Line(time.time_ns(), STDOUT, text) for text in texts]
        self._server.read(lambda: self._logs.ring.add(origin, lines))

    def silence(self, city: str, reason: str) -> None:
        """An empty reason ends it."""
        self._server.read(lambda: self._logs.ring.silent(city, reason))

    def close(self) -> None:
        self.wire.close()
        self._server.close()


def origin(instance: str, generation: str = "g1") -> Origin:
    city = instance.split("-")[-2].upper()
    return Origin("demo", "default", "api", "default", city, instance, generation, "app")


class Reading:
    """The program in a process of its own, which writes what it reads to files."""

    def __init__(self, federation: LogFederation, folder: Path, *words: str) -> None:
        self._out, self._err = folder / "stdout", folder / "stderr"
        environ = {
            "KUBECONFIG": str(federation.kubeconfig),
            "HOME": str(folder),
            "DATUM_COMPUTE_SKIP_ACCESS_CHECK": "1",
            "PATH": os.environ["PATH"],
        }
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "datum_compute.cli.main", "logs", "api", *words],
                stdout=out,
                stderr=err,
                env=environ,
            )

    @property
    def notes(self) -> list[str]:
        return self._err.read_text().splitlines()

    @property
    def records(self) -> list[Json]:
        whole = self._out.read_bytes().rpartition(b"\n")[0]
        return [msgspec.json.decode(line) for line in whole.splitlines()]

    @property
    def texts(self) -> list[str]:
        return [record["line"] for record in self.records]

    def until_note(self, part: str) -> None:
        until(lambda: any(part in note for note in self.notes), part)

    def until_lines(self, count: int) -> None:
        until(lambda: len(self.records) >= count, f"{count} lines")

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(GUARD_SECONDS)


def per_instance(records: Sequence[Json]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in records:
        found.setdefault(record["instance"], []).append(record["line"])
    return found


def _base64(text: str) -> str:
    import base64

    return base64.b64encode(text.encode()).decode()
