"""What the containers provider asks of a container engine. Entry points: `ContainerEngine`, `EngineError`.

Engines answer the same situation with different codes and texts. After a refusal look at what is there; the text only
chooses between sentences.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from datum_compute.federation.sessions import Command, Session
from datum_compute.kube.meta import Json

PODMAN, DOCKER = "Podman", "Docker"


class EngineInfo(Struct, frozen=True):
    """An engine, and which of the limits in a container's body it enforces. It ignores the others."""

    product: str  # PODMAN or DOCKER
    version: str
    api: str  # the version of the API that is spoken with it
    address: str  # unix://PATH
    cpus: int
    limits_memory: bool
    limits_cpu: bool
    limits_processes: bool


class Summary(Struct, frozen=True):
    """A container as a list shows it."""

    id: str
    name: str
    labels: dict[str, str]
    state: str  # created, running, paused, exited, ...
    created: int  # seconds since 1970


class ContainerState(Struct, frozen=True):
    """`error` is what the engine says about a start that failed."""

    status: str  # created, running, paused, exited, ...
    exit_code: int
    out_of_memory: bool
    error: str
    started: int  # nanoseconds since 1970, 0 if never
    finished: int


class Container(Struct, frozen=True):
    id: str
    name: str
    labels: dict[str, str]
    image: str  # the reference that it was created with
    state: ContainerState
    ports: dict[str, int]  # from "8080/tcp" to the port on the host
    addresses: dict[str, str]  # by name of the network


class PullProgress(Struct, frozen=True):
    """`fraction` is None while the size is unknown. A pull that failed ends with an `error`, the engine's words."""

    fraction: float | None = None
    error: str = ""


class Event(Struct, frozen=True):
    """Something happened to a container. It is only ever a reason to look."""

    action: str
    id: str
    labels: dict[str, str]


class EngineError(Exception):
    """A call failed; the text is a sentence."""


class EngineAway(EngineError):
    """The engine cannot be reached, or did not answer in time: what was asked for may still have happened."""


class Refused(EngineError):
    """The engine answered that it will not. `code` is an HTTP status, `message` its own words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"the container engine refused: {message}" if message else f"the container engine said {code}")
        self.code = code
        self.message = message


class ContainerEngine(Protocol):
    """Every method may raise `EngineAway`, and `Refused` where nothing else is said."""

    @property
    def info(self) -> EngineInfo: ...

    async def containers(self, labels: Mapping[str, str]) -> Sequence[Summary]:
        """All containers with these labels, in any state. An empty value asks only for the name of a label."""
        ...

    async def inspect(self, id: str) -> Container | None:
        """A container by id or name."""
        ...

    async def create(self, name: str, body: Json) -> str:
        """The id of the new container."""
        ...

    async def start(self, id: str) -> None:
        """One that runs already is fine."""
        ...

    async def stop(self, id: str, grace: float) -> None:
        """Asks the container to end and kills it after `grace` seconds. One that does not run, or is gone, is fine."""
        ...

    async def remove(self, id: str) -> None:
        """Kills and removes a container. One that is gone is fine."""
        ...

    async def has_image(self, reference: str) -> bool: ...

    def pull(self, reference: str, credentials: str) -> AsyncGenerator[PullProgress, None]:
        """Pulls an image, with the value of `X-Registry-Auth`, or none if empty. To be closed if it is left early."""
        ...

    async def networks(self, labels: Mapping[str, str]) -> Sequence[str]:
        """The names of all networks with exactly these values of labels."""
        ...

    async def create_network(self, name: str, labels: Mapping[str, str]) -> None:
        """One of this name is fine."""
        ...

    async def remove_network(self, name: str) -> None:
        """One that is gone is fine."""
        ...

    def events(self, labels: Mapping[str, str]) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """What happens to containers with these labels from the moment of entering on, so that a list which is read
        inside misses nothing. Some events may be from a second before. Raises `EngineAway` when the stream ends."""
        ...

    def logs(self, id: str, tail: int | None) -> AsyncGenerator[bytes, None]:
        """The newest `tail` lines of a container, or all, and everything after, as the engine sends it:
        `streams.Frames` with a time before each. Ends when the container does. To be closed if it is left early.

        Only after all lines is there no gap: Podman leaves out what is written between the newest lines and the first
        one that it waits for."""
        ...

    async def exec(self, id: str, command: Command) -> Session:
        """Starts a command in a running container; its `container` is ignored. Raises `Unstartable`."""
        ...

    async def close(self) -> None: ...
