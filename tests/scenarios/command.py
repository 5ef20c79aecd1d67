"""The program `compute` in a simulation: its calls reach the planes in this process, and its time is the loop's.

Entry point: `Command`.
"""

import asyncio
import json
import queue
import shlex
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage

from datum_compute.cli.main import main
from datum_compute.cli.shell.environment import Environment
from datum_compute.embedded.plane.server import PlaneServer
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.blocking import BlockingTransport
from datum_compute.kube.meta import Json
from datum_compute.kube.tracing import Tracer
from datum_compute.kube.transport import Answer, Call
from datum_compute.kube.websocket import WebSocket
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.telemetry.exec import channels
from datum_compute.telemetry.exec.channels import Exited
from datum_compute.telemetry.exec.request import place_of
from datum_compute.telemetry.gateway import GROUP, VERSION, Gateway
from tests.cli.conftest import Stream

T = TypeVar("T")
Documents = Mapping[str, Callable[[], Json]]

_SERVER = "http://simulation.example/demo"
_LOCAL = "https://127.0.0.1:6443/projects/demo/control-plane"

_LOGS = f"/apis/{GROUP}/{VERSION}"
_STUCK_SECONDS = 60  # of real time, in which a command neither ends nor sleeps


class Result(NamedTuple):
    line: str
    code: int
    out: str
    err: str


class _InThisProcess(BlockingTransport):
    """Every call is answered in one step: nothing else happens between the reads of a command that does not sleep."""

    def __init__(self, endpoint: Endpoint, server: PlaneServer, command: "Command") -> None:
        super().__init__(endpoint)
        self._server = server
        self._documents = command.documents
        self._command = command
        self._plane = endpoint.server.rpartition("/")[2]
        self._logs = command.logs

    def call(self, call: Call) -> Answer:
        self._command.calls.append(call)
        self._command.planes.append(self._plane)
        if self._command.denies(call):
            return Answer(403, b'{"kind": "Status", "reason": "Forbidden", "message": "no"}')
        if (document := self._documents.get(call.path)) is not None:
            return Answer(200, json.dumps(document()).encode())
        if self._logs is not None and call.path == _LOGS:
            return Answer(200, b"{}")
        if self._logs is not None and call.path.startswith(_LOGS):
            return asyncio.run(_answered(self._logs, self._server.plane, call))
        return _in_one_step(self._server.answer(call))

    def websocket(self, path: str, query: str, subprotocol: str) -> WebSocket:
        """A command that ran at once: it says where, whatever it is."""
        ours, theirs = socket.socketpair()
        speaking = Connection(ConnectionType.SERVER)
        _, instance = place_of(path)
        with theirs:
            for message in (channels.message(channels.STDOUT, f"{instance}\n".encode()), channels.closing(Exited(0))):
                theirs.sendall(speaking.send(BytesMessage(data=message)))
        return WebSocket(ours, Connection(ConnectionType.CLIENT))


async def _answered(logs: Gateway, plane: str, call: Call) -> Answer:
    """The logs of a project. They are in memory, so it makes no difference which loop asks for them."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the call has no body")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": call.method, "query_string": urlencode(call.query).encode(), "headers": []}
    await logs(plane, call.path, scope, receive, send)
    start, *bodies = sent
    return Answer(start["status"], b"".join(message["body"] for message in bodies))


def _in_one_step(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the server waited for something")


class _Clock:
    """The simulation's time. To sleep is to let the simulation go on, which waits for this command otherwise."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.naps: queue.SimpleQueue[float | None] = queue.SimpleQueue()  # None when the command has ended
        self.awake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def now(self) -> datetime:
        return self._simulation.now()

    def monotonic(self) -> float:
        return self._simulation.time()

    def sleep(self, seconds: float) -> None:
        self.naps.put(seconds)
        self.awake.get(timeout=_STUCK_SECONDS)

    def alarm(self, seconds: float, action: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()  # calls take no time here


class _Changes:
    """Looks again after every wait."""

    trusted = True

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock

    def wait(self, seconds: float) -> bool:
        self._clock.sleep(seconds)
        return True


class Command:
    """The command line of a user of one project. While a command runs, nothing else does until it sleeps or ends.

    With documents by path, the project looks like one of a local federation, which also serves these. `others` are
    planes besides the project: contexts of its own kubeconfig, as in a local federation, or with `apart` of the file
    `federation` beside it. `denies` decides which calls are forbidden.
    """

    def __init__(
        self,
        simulation: Simulation,
        server: PlaneServer,
        folder: Path,
        *,
        environ: Mapping[str, str] = {},
        tracer: Tracer | None = None,
        documents: Documents | None = None,
        others: Mapping[str, PlaneServer] = {},
        apart: bool = False,
        denies: Callable[[Call], bool] = lambda call: False,
        logs: Gateway | None = None,
    ) -> None:
        self._simulation = simulation
        self.documents = documents or {}
        self.logs = logs
        self.denies = denies
        self.calls: list[Call] = []  # of the last command
        self.planes: list[str] = []  # the plane of each
        self._servers = {_address(name): plane for name, plane in others.items()}
        self._server = server
        self._tracer = tracer
        path = folder / "kubeconfig"
        addresses = {name: _address(name) for name in others}
        own = {"demo": _LOCAL if documents else _address("demo") if others and not apart else _SERVER}
        path.write_text(json.dumps(_kubeconfig(own if apart else own | addresses)))
        if apart:
            (folder / "federation").write_text(json.dumps(_kubeconfig(addresses)))
        self._environ = {"KUBECONFIG": str(path), "DATUM_COMPUTE_ACTOR": "ann@example.com", **environ}
        self._directory = str(folder)

    async def __call__(self, line: str) -> Result:
        clock, results = _Clock(self._simulation), []

        def work() -> None:
            try:
                results.append(self._run(line, clock))
            finally:
                clock.naps.put(None)

        thread = threading.Thread(target=work, name=line, daemon=True)
        thread.start()
        while (nap := clock.naps.get(timeout=_STUCK_SECONDS)) is not None:
            await asyncio.sleep(nap)
            clock.awake.put(None)
        thread.join()
        return results[0]

    def look(self, line: str) -> Result:
        """A command that does not wait, all in one moment."""
        return self._run(line, _Clock(self._simulation))

    def _run(self, line: str, clock: _Clock) -> Result:
        out, err = Stream(), Stream()
        self.calls, self.planes = [], []

        def watching(transport: BlockingTransport, calls: Sequence[Call]) -> AbstractContextManager[_Changes]:
            return nullcontext(_Changes(clock))

        environment = Environment(
            program="compute",
            environ=self._environ,
            stdin=Stream(),
            stdout=out,
            stderr=err,
            clock=clock,
            watching=watching,
            connect=lambda endpoint: _InThisProcess(endpoint, self._servers.get(endpoint.server, self._server), self),
            directory=self._directory,
            tracer=self._tracer,
            random_bytes=self._simulation.random.randbytes,
        )
        code = main(shlex.split(line), environment)
        return Result(line, code, out.getvalue(), err.getvalue())


def _address(plane: str) -> str:
    return f"http://127.0.0.1:6443/{plane}"


def _kubeconfig(servers: Mapping[str, str]) -> Json:
    """One context per server; the first is current."""
    return {
        "current-context": next(iter(servers)),
        "contexts": [{"name": name, "context": {"cluster": name, "user": "ann"}} for name in servers],
        "clusters": [{"name": name, "cluster": {"server": server}} for name, server in servers.items()],
        "users": [{"name": "ann", "user": {"token": "none"}}],
    }
