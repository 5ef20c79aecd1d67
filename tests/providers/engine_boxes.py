"""Images and containers of the engine in memory. Entry points: `Image`, `Box`, `Dialect`, `frame`."""

import asyncio
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from msgspec import Struct

from datum_compute.federation.lines import STDOUT
from datum_compute.kube.meta import Json
from datum_compute.providers.engine.interface import Container, ContainerState, Summary


class Dialect(Enum):
    DOCKER = "docker"
    PODMAN = "podman"


class Image(Struct, frozen=True):
    """What is in an image, and how its containers behave: they run until somebody ends them, unless `exits` is set."""

    programs: tuple[str, ...] = ()  # none: every command is there
    other_processor: bool = False
    exits: int | None = None
    run_seconds: float = 0.0  # before it exits
    out_of_memory: bool = False
    stop_seconds: float = 0.0  # how long it takes to stop
    stop_code: int = 0


class Box:
    """A container."""

    def __init__(self, id: str, name: str, body: Json, image: Image, created: int) -> None:
        self.id = id
        self.name = name
        self.body = body
        self.image = image
        self.created = created
        self.labels: dict[str, str] = dict(body.get("Labels") or {})
        self.status = "created"
        self.exit_code = 0
        self.oom = False
        self.error = ""
        self.started = 0
        self.finished = 0
        self.starts = 0
        self.ports: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        self.log: list[tuple[int, str, bytes]] = []
        self.rotations = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def network_owner(self) -> str:
        """The id of the container whose network it shares."""
        return self._mode.removeprefix("container:") if self._mode.startswith("container:") else ""

    @property
    def networks(self) -> list[str]:
        if self.network_owner or self._mode in ("none", "host"):
            return []
        endpoints = (self.body.get("NetworkingConfig") or {}).get("EndpointsConfig") or {}
        named = [self._mode] if self._mode not in ("", "default", "bridge") else []
        return list(dict.fromkeys([*named, *endpoints]))

    @property
    def published(self) -> list[str]:
        return list((self.body.get("HostConfig") or {}).get("PortBindings") or {})

    @property
    def _mode(self) -> str:
        return str((self.body.get("HostConfig") or {}).get("NetworkMode") or "")

    def start_problem(self) -> str:
        if self.image.other_processor:
            return "exec /program: exec format error"
        command = (self.body.get("Entrypoint") or []) + (self.body.get("Cmd") or [])
        if command and self.image.programs and command[0] not in self.image.programs:
            return f'exec: "{command[0]}": stat {command[0]}: no such file or directory'
        return ""

    def exits_with(self) -> int | None:
        return 137 if self.image.out_of_memory else self.image.exits

    def summary(self) -> Summary:
        return Summary(self.id, self.name, dict(self.labels), self.status, self.created // 1_000_000_000)

    def container(self, dialect: Dialect) -> Container:
        running = self.status in ("running", "paused")
        # Podman shows the ports of a container that has ended, too.
        ports = dict(self.ports) if running or dialect is Dialect.PODMAN else {}
        state = ContainerState(self.status, self.exit_code, self.oom, self.error, self.started, self.finished)
        image = str(self.body["Image"])
        return Container(self.id, self.name, dict(self.labels), image, state, ports, dict(self.addresses))

    async def change(self) -> None:
        """Returns when something was written, or the container ended."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def changed(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()


def frame(dialect: Dialect, time: int, stream: str, data: bytes) -> bytes:
    """A line of a log as an engine sends it."""
    seconds, fraction = divmod(time, 1_000_000_000)
    stamp = _seconds(seconds) + ("Z" if dialect is Dialect.PODMAN else f".{fraction:09}Z")
    return framed(stream, stamp.encode() + b" " + data)


def framed(stream: str, data: bytes) -> bytes:
    return bytes([1 if stream == STDOUT else 2, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def stamp(time: int) -> str:
    """A time in the answer to an inspect."""
    if not time:
        return "0001-01-01T00:00:00Z"
    seconds, fraction = divmod(time, 1_000_000_000)
    return f"{_seconds(seconds)}.{fraction:09}Z"


def _seconds(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def inspection(box: Box, dialect: Dialect) -> Json:
    """What `containers/ID/json` answers."""
    found = box.container(dialect)
    state = found.state
    networks: dict[str, Any] = {name: {"IPAddress": found.addresses.get(name, "")} for name in box.networks}
    return {
        "Id": found.id,
        "Name": f"/{found.name}",
        "Config": {"Image": found.image, "Labels": found.labels or None},
        "State": {
            "Status": state.status,
            "Running": state.status == "running",
            "ExitCode": state.exit_code,
            "OOMKilled": state.out_of_memory,
            "Error": state.error,
            "StartedAt": stamp(state.started),
            "FinishedAt": stamp(state.finished),
        },
        "NetworkSettings": {
            "Ports": {p: [{"HostIp": "127.0.0.1", "HostPort": str(n)}] for p, n in found.ports.items()} or None,
            "Networks": networks or None,
        },
    }
