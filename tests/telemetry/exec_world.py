"""A project, a hub and a door between users and commands that run nowhere. Entry points: `World`, `Peer`."""

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Any

from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import SOURCE_CLUSTER, UPSTREAM_UID
from datum_compute.api.names import hub_namespace
from datum_compute.embedded.https.extensions import Handler
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.federation.sessions import Command
from datum_compute.kube.errors import ApiError
from datum_compute.kube.kinds import EVENT, NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.telemetry.exec import channels
from datum_compute.telemetry.exec.channels import SUBPROTOCOL, Ended, Exited, Output, from_server
from datum_compute.telemetry.exec.door import Caller, Door, Limits
from datum_compute.telemetry.exec.places import Places
from datum_compute.telemetry.exec.request import path_of, query_of
from tests.sessions import FakeRunner

USER = "user@example.com"
NAME = "web-default-dfw-0"


class World:
    """`refusal` is what the access function raises; `simulated` has no runner."""

    def __init__(self, simulation: Simulation, *, limits: Limits | None = None, simulated: bool = False) -> None:
        self.simulation = simulation
        self.engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.engine.serve("demo", PROJECT)
        self.engine.serve("hub", HUB)
        self.project, self.hub = self.engine.client("demo"), self.engine.client("hub")
        self.runner = FakeRunner()
        self.refusal: ApiError | None = None
        self.reviews: list[tuple[str, str, str]] = []
        self.places = Places(self.engine.client, lambda: self.hub, simulation)
        self.door = Door(self._access, self.places, None if simulated else self.runner, limits)

    async def _access(self, plane: str, scope: Mapping[str, Any], namespace: str, instance: str) -> Caller:
        self.reviews.append((plane, namespace, instance))
        if self.refusal is not None:
            raise self.refusal
        return Caller(plane, USER)

    async def start(self) -> None:
        home = await self.project.create(NAMESPACE, NAMESPACE.body("default"))
        self.namespace = hub_namespace(home.metadata.uid)
        await self.hub.create(NAMESPACE, NAMESPACE.body(self.namespace, labels=hub_labels("demo", "default")))

    async def add(self, name: str = NAME, *, uid: str = "cell-uid", **changes: Any) -> None:
        """An Instance that runs, in its project and on the hub; `changes` differ from that."""
        await self.project.create(INSTANCE, INSTANCE.body(name, "default") | spec(changes.get("containers", ("app",))))
        await self.add_copy(name, uid=uid, **changes)

    async def add_copy(
        self,
        name: str = NAME,
        *,
        uid: str = "cell-uid",
        containers: tuple[str, ...] = ("app",),
        labels: Mapping[str, str] | None = None,
        status: Json | None = None,
    ) -> None:
        labels = {SOURCE_CLUSTER: "cell-dfw"} | dict(labels or hub_labels("demo", "default"))
        metadata = {"labels": labels, "annotations": {UPSTREAM_UID: uid}}
        copy = await self.hub.create(INSTANCE, INSTANCE.body(name, self.namespace, **metadata) | spec(containers))
        await self.hub.replace_status(INSTANCE, copy, status or running())

    async def events(self) -> list[tuple[str, str]]:
        listed = await self.project.list(EVENT)
        return [(event.reason, event.message) for event in listed.items]

    def connect(self, *arguments: str, name: str = NAME, **options: Any) -> "Peer":
        return Peer(self.door, name, Command(arguments, **options))


def spec(containers: tuple[str, ...]) -> Json:
    runtime: Json = {"resources": {"instanceType": "datumcloud/d1-standard-2"}}
    if containers:
        runtime["sandbox"] = {"containers": [{"name": name, "image": "example.com/web:1"} for name in containers]}
    else:
        runtime["virtualMachine"] = {"volumeAttachments": [{"name": "boot"}]}
    return {"spec": {"runtime": runtime, "networkInterfaces": [{"network": {"name": "default"}}]}}


def running() -> Json:
    return {"conditions": [condition("Programmed", "True", "Programmed"), condition("Available", "True", "Available")]}


def condition(type_: str, status: str, reason: str, message: str = "") -> Json:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


class Peer:
    """A client of the door, as its server sees it. The call of the door is a task that a test may wait for."""

    def __init__(self, door: Handler, name: str, command: Command) -> None:
        self._to_server: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._to_server.put_nowait({"type": "websocket.connect"})
        self._arrived = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()
        self.gone = False
        self.accepted = ""
        self.close_code = 0
        self._stdout, self._stderr = bytearray(), bytearray()
        self.end: Exited | Ended | None = None
        scope = {"type": "websocket", "query_string": query_of(command).encode(), "subprotocols": [SUBPROTOCOL]}
        path = path_of("default", name)
        call = door("demo", path, scope, self._to_server.get, self._receive)
        self.task = asyncio.ensure_future(call)

    async def _receive(self, message: MutableMapping[str, Any]) -> None:
        await self._readable.wait()
        if self.gone:
            raise OSError("the client has gone")
        match message["type"]:
            case "websocket.accept":
                self.accepted = message["subprotocol"]
            case "websocket.send":
                self._read(message["bytes"])
            case "websocket.close":
                self.close_code = message["code"]
        self._arrived.set()

    def _read(self, data: bytes) -> None:
        match from_server(data):
            case Output(channels.STDOUT, text):
                self._stdout += text
            case Output(_, text):
                self._stderr += text
            case Exited() | Ended() as end:
                assert self.end is None
                self.end = end

    @property
    def stdout(self) -> bytes:
        return bytes(self._stdout)

    @property
    def stderr(self) -> bytes:
        return bytes(self._stderr)

    def type(self, data: bytes) -> None:
        self._send(channels.message(channels.STDIN, data))

    def end_input(self) -> None:
        self._send(channels.end_of(channels.STDIN))

    def resize(self, width: int, height: int) -> None:
        self._send(channels.resize(width, height))

    def _send(self, data: bytes) -> None:
        self._to_server.put_nowait({"type": "websocket.receive", "bytes": data})

    def leave(self) -> None:
        self.gone = True
        self._to_server.put_nowait({"type": "websocket.disconnect", "code": 1006})

    def stop_reading(self) -> None:
        self._readable.clear()

    def read_on(self) -> None:
        self._readable.set()

    async def until(self, stdout: bytes) -> None:
        while stdout not in self._stdout:
            self._arrived.clear()
            arrival = asyncio.create_task(self._arrived.wait())
            await asyncio.wait({arrival, self.task}, return_when=asyncio.FIRST_COMPLETED)
            arrival.cancel()
            if self.task.done():
                self.task.result()
                assert stdout in self.stdout

    async def ended(self) -> Exited | Ended | None:
        await self.task
        return self.end
