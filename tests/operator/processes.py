"""compute-manager as a real process, over planes that an embedded engine serves. Entry points: `Site`, `Manager`.

The engine is only an engine here: what Karmada does (propagation) and what Milo does (opening projects) runs in the
test, everything else in the processes.
"""

import asyncio
import http.client
import json
import os
import random
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.federation.roles import CELL, HUB, PROJECT, ROOT
from datum_compute.karmada.execution_spaces import ExecutionSpaces
from datum_compute.karmada.propagation import NamespacePropagation, Propagation
from datum_compute.kube.access.kubeconfig import write_kubeconfig
from datum_compute.kube.client import Client
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.local.federation import prepare_project
from datum_compute.platform.projects import ProjectController
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager as Controllers
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.writes import Writes
from tests.https import Background

CITY, CELL_NAME, PROJECT_NAME = "DFW", "cell-dfw", "demo"
HOST_NAMESPACE = "compute-system"
WAIT_SECONDS = 90.0


class Site:
    """Root, hub, one cell and one project over HTTPS, with a kubeconfig for each in `directory`."""

    def __init__(self, directory: Path, cell: str = CELL_NAME) -> None:
        """`cell` is the plane that copies are delivered to."""
        self.directory = directory
        self._cell = cell
        self.background = Background(directory)
        for plane in ("root", "hub", CELL_NAME, PROJECT_NAME):
            self.kubeconfig(plane)
        self._runs = self.background.do(self._start())

    def kubeconfig(self, plane: str, path: Path | None = None) -> Path:
        path = path or self.directory / f"{plane}.kubeconfig"
        write_kubeconfig(path, {plane: self.background.server.endpoint(plane)}, plane)
        return path

    async def _start(self) -> "list[asyncio.Task[None]]":
        engine = self.background.engine
        fleet, writes = Fleet(), Writes()
        served = {"root": (ROOT, "root"), "hub": (HUB, "hub"), CELL_NAME: (CELL, self._cell)}
        for name, (role, plane) in served.items():
            transport = InProcess(engine.serve(plane, role))
            fleet.add(Plane(name, role, transport, writes=writes, generator=random.Random(1)))
        controllers = Controllers(
            fleet,
            [
                ProjectController(self._open),
                NamespacePropagation(fleet, "hub", engine.has_deleted),
                Propagation(fleet, "hub", engine.has_deleted),
                ExecutionSpaces(),
            ],
            SystemClock(),
        )
        await engine.client("hub").create(CLUSTER, CLUSTER.body(CELL_NAME, labels={TOPOLOGY_CITY: CITY}))
        await engine.client("root").create(PROJECT_KIND, PROJECT_KIND.body(PROJECT_NAME) | {"spec": {}})
        for plane in ("root", CELL_NAME):
            for namespace in (HOST_NAMESPACE, "kube-system"):
                await engine.client(plane).create(NAMESPACE, NAMESPACE.body(namespace))
        return [asyncio.create_task(controllers.run())]

    def _open(self, name: str) -> Client:
        self.background.engine.serve(name, PROJECT)
        return self.background.engine.client(name)

    def entitle(self) -> None:
        self.do(lambda: prepare_project(self.client(PROJECT_NAME)))

    def client(self, plane: str) -> Client:
        """Only to be used on the loop of the engine: through `do` and `until`."""
        return self.background.engine.client(plane)

    def do(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await work()

        return self.background.do(run())

    def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        until(partial(self.do, condition), what)

    def close(self) -> None:
        self.background.do(self._stop())
        self.background.close()

    async def _stop(self) -> None:
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true in {WAIT_SECONDS:.0f} s: {what}"
        time.sleep(0.02)


class Manager:
    """One process. Its log goes to a file, which says where its servers listen."""

    def __init__(self, directory: Path, name: str, config: str, *flags: str, **environment: str) -> None:
        self.name = name
        file = directory / f"{name}.yaml"
        file.write_text(f"apiVersion: apiserver.config.datumapis.com/v1alpha1\nkind: WorkloadOperator\n{config}")
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "datum_compute.operator.process"),
                    *(f"--server-config={file}", "--health-probe-bind-address=127.0.0.1:0"),
                    *("--shutdown-delay-seconds=0", *flags),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment() | environment,
            )

    def lines(self) -> list[Mapping[str, Any]]:
        found = []
        for line in self.log.read_text("utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"event": line})
        return found

    def port(self, server: str) -> int:
        def known() -> list[int]:
            assert self.process.poll() is None, f"{self.name} ended: {self.log.read_text()}"
            return [line["port"] for line in self.lines() if line.get("server") == server]

        until(lambda: bool(known()), f"{self.name} serves {server}")
        return known()[0]

    def get(self, path: str, server: str = "health", token: str = "", tls: bool = False) -> tuple[int, str]:
        connection = self._connection(server, tls)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def post(self, path: str, server: str, body: Any, certificate: Path | None = None) -> Any:
        """`certificate` is the client's, with its key."""
        connection = self._connection(server, tls=True, certificate=certificate)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def _connection(self, server: str, tls: bool, certificate: Path | None = None) -> http.client.HTTPConnection:
        port = self.port(server)
        if not tls:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            context.load_cert_chain(certificate)
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)

    def until_ready(self) -> None:
        until(lambda: self.get("/readyz")[0] == 200, f"{self.name} is ready: {self.log.read_text()}")

    def ended(self) -> int:
        return self.process.wait(WAIT_SECONDS)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _environment() -> dict[str, str]:
    """What a process needs to start, and nothing of what may be set where the tests run."""
    return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "PYTHONPATH", "VIRTUAL_ENV")}
