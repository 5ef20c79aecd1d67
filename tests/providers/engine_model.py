"""A container engine in memory, in the dialect of Docker or Podman. Entry point: `EngineModel`.

It has the interface of the client, runs on any event loop, and does nothing by itself that is not due: containers run
until the test ends them, or as their image says.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from enum import Enum
from typing import TypeVar

from msgspec import Struct

from datum_compute.federation.sessions import Command
from datum_compute.kube.meta import Json
from datum_compute.providers.engine.interface import (
    Container,
    EngineAway,
    EngineInfo,
    Event,
    PullProgress,
    Refused,
    Summary,
)
from tests.providers.engine_boxes import Box, Dialect, Image, frame
from tests.providers.engine_sessions import ModelSession, run_command

T = TypeVar("T")

ANSWER, START = 10.0, 60.0  # seconds that the client waits for an answer
FOLLOW_GAP = 0.002  # seconds in which Podman loses lines, after the newest ones and before it waits for more


class Mishap(Enum):
    """What may happen to a call."""

    LOST = "the call never arrives, and nobody answers"
    UNANSWERED = "it is done, and nobody answers"
    LATE = "nobody answers, and it is done after that"
    BROKEN = "the connection breaks before it is done"


class Trouble(Struct):
    call: str  # the name of a method of the model
    mishap: Mishap | Refused
    times: int  # -1 for ever


class EngineModel:
    """Set `images`, `registry` and the rest, and do by hand what users do: `end`, `pause`, `restart` and so on."""

    def __init__(self, dialect: Dialect = Dialect.PODMAN, now: Callable[[], datetime] | None = None) -> None:
        self.dialect = dialect
        self.info = EngineInfo(
            "Docker" if dialect is Dialect.DOCKER else "Podman", "29.1.0" if dialect is Dialect.DOCKER else "4.3.1",
            "1.44" if dialect is Dialect.DOCKER else "1.41", "unix:///run/model.sock", 4, True, True, True,
        )  # fmt: skip
        self.images: dict[str, Image] = {}
        self.registry: dict[str, Image] = {}  # what a pull finds
        self.pull_errors: dict[str, str] = {}  # in the words of a registry
        self.pull_pauses: Sequence[float] = ()  # seconds between the steps of a pull; the last step is its end
        self.pulls: list[tuple[str, str]] = []  # image and credentials, in order
        self.boxes: dict[str, Box] = {}  # by id
        self.networks_there: dict[str, dict[str, str]] = {}  # name to labels
        self.full = False  # no space left on its disk
        self.taken_ports = 0  # how many starts from now on meet a port that somebody else has
        self.away = False  # nobody listens
        self.silent = False  # calls are taken, and never answered
        self.deaf = False  # events are lost
        self.calls: list[str] = []  # every call, such as "create datum-x"
        self.after_call: Callable[[str], None] = lambda call: None
        self._troubles: list[Trouble] = []
        self._listeners: list[tuple[Mapping[str, str], asyncio.Queue[Event | None]]] = []
        self._numbers = itertools.count(1)
        self._ports = itertools.count(32768)
        self._tick = 0
        self._now = now or (lambda: datetime.now(UTC))

    # Trouble

    def trouble(self, call: str, mishap: Mishap | Refused, times: int = 1) -> None:
        """The next calls of a method fail."""
        self._troubles.append(Trouble(call, mishap, times))

    def emit(self, action: str, id: str, labels: Mapping[str, str]) -> None:
        """An event, true or not."""
        for wanted, queue in self._listeners:
            if fits(wanted, labels):
                queue.put_nowait(Event(action, id, dict(labels)))

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def end_events(self) -> None:
        """Breaks the streams of events."""
        for _, queue in self._listeners:
            queue.put_nowait(None)

    def restart(self) -> None:
        """The engine goes and comes back: streams end, and so has everything that ran."""
        for box in self.boxes.values():
            if box.status in ("running", "paused"):
                self._end(box, 137, announce=False)
        self.end_events()

    # By hand

    def box(self, name: str) -> Box:
        found = self._find(name)
        assert found is not None, f"no container {name}; there are {sorted(box.name for box in self.boxes.values())}"
        return found

    def end(self, name: str, code: int, *, out_of_memory: bool = False) -> None:
        """A container ends by itself."""
        self._end(self.box(name), 137 if out_of_memory else code, out_of_memory)

    def pause(self, name: str) -> None:
        self.box(name).status = "paused"
        self._happened("pause", self.box(name))

    def resume(self, name: str) -> None:
        self.box(name).status = "running"
        self._happened("unpause", self.box(name))

    def start_by_hand(self, name: str) -> None:
        self._start(self.box(name))

    def remove_by_hand(self, name: str) -> None:
        self._remove(self.box(name))

    def write(self, name: str, text: str | bytes, stream: str = "stdout", time: int | None = None) -> None:
        """A line of a container; without a newline at its end it is only the beginning of one."""
        data = text.encode() if isinstance(text, str) else text
        self.box(name).log.append((self.time() if time is None else time, stream, data))
        self.box(name).changed()

    def rotate(self, name: str, lines: int) -> None:
        """Forgets all but the newest lines, and ends the streams that follow them."""
        box = self.box(name)
        box.log[:] = box.log[-lines:] if lines else []
        box.rotations += 1
        box.changed()

    # The interface of an engine

    async def containers(self, labels: Mapping[str, str]) -> Sequence[Summary]:
        await self._arrives("containers")
        return [box.summary() for box in self.boxes.values() if fits(labels, box.labels)]

    async def inspect(self, id: str) -> Container | None:
        await self._arrives("inspect", id)
        box = self._find(id)
        return box.container(self.dialect) if box else None

    async def create(self, name: str, body: Json) -> str:
        return await self._does("create", name, lambda: self._create(name, body).id, START)

    async def start(self, id: str) -> None:
        await self._does("start", id, lambda: self._start(self._existing(id)), START)

    async def stop(self, id: str, grace: float) -> None:
        def stop() -> None:
            box = self._find(id)
            if box is not None and box.status in ("running", "paused"):
                self._end(box, box.image.stop_code)

        box = self._find(id)
        if box is not None and box.status == "running":
            await asyncio.sleep(min(box.image.stop_seconds, grace))
        await self._does("stop", id, stop, grace + ANSWER)

    async def remove(self, id: str) -> None:
        def remove() -> None:
            if box := self._find(id):
                self._remove(box)

        await self._does("remove", id, remove, START)

    async def has_image(self, reference: str) -> bool:
        await self._arrives("has_image", reference)
        return self._image(reference) is not None

    async def pull(self, reference: str, credentials: str) -> AsyncGenerator[PullProgress, None]:
        await self._arrives("pull", reference)
        self.pulls.append((reference, credentials))
        steps = len(self.pull_pauses)
        for step, pause in enumerate(self.pull_pauses):
            await asyncio.sleep(pause)
            if self.away or self.silent:
                raise EngineAway("the container engine closed the connection")
            yield PullProgress(fraction=(step + 1) / steps)
        if self.full:
            yield PullProgress(error="writing blob: storing blob to file: no space left on device")
        elif error := self.pull_errors.get(reference):
            yield PullProgress(error=error)
        elif reference not in self.registry:
            yield PullProgress(error=f"reading manifest in {reference}: manifest unknown")
        else:
            self.images[reference] = self.registry[reference]
        self.after_call(f"pull {reference}")

    async def networks(self, labels: Mapping[str, str]) -> Sequence[str]:
        await self._arrives("networks")
        return [name for name, own in self.networks_there.items() if fits(labels, own)]

    async def create_network(self, name: str, labels: Mapping[str, str]) -> None:
        await self._does("create_network", name, lambda: self.networks_there.setdefault(name, dict(labels)))

    async def remove_network(self, name: str) -> None:
        def remove() -> None:
            users = [box.name for box in self.boxes.values() if name in box.networks]
            if users:
                raise Refused(403 if self.dialect is Dialect.DOCKER else 409, f"network {name} is in use by {users[0]}")
            self.networks_there.pop(name, None)

        await self._does("remove_network", name, remove)

    @asynccontextmanager
    async def events(self, labels: Mapping[str, str]) -> AsyncIterator[AsyncIterator[Event]]:
        await self._arrives("events")
        listener = (labels, asyncio.Queue[Event | None]())
        self._listeners.append(listener)
        try:
            yield self._received(listener[1])
        finally:
            self._listeners.remove(listener)

    async def logs(self, id: str, tail: int | None) -> AsyncGenerator[bytes, None]:
        await self._arrives("logs", id)
        box = self._existing(id)
        rotations, written = box.rotations, 0
        position = 0 if tail is None else max(len(box.log) - tail, 0)
        if self.dialect is Dialect.PODMAN and tail is not None and box.status == "running":
            newest = box.log[position:]
            await asyncio.sleep(FOLLOW_GAP)
            for time, stream, data in newest:
                yield frame(self.dialect, time, stream, data)
            position = len(box.log)  # what was written meanwhile is lost
        while True:
            for time, stream, data in box.log[position:]:
                yield frame(self.dialect, time, stream, data)
                written += 1
            position = len(box.log)
            if box.status not in ("running", "paused") or box.rotations != rotations:
                return
            await box.change()
            if self.away:
                raise EngineAway("the container engine closed the connection")

    async def exec(self, id: str, command: Command) -> ModelSession:
        await self._arrives("exec", id)
        return run_command(self.dialect, self._existing(id), command)

    async def close(self) -> None:
        return

    # What an engine does

    async def _received(self, queue: "asyncio.Queue[Event | None]") -> AsyncGenerator[Event, None]:
        while (event := await queue.get()) is not None:
            yield event
        raise EngineAway("the container engine ended the stream of events")

    async def _arrives(self, call: str, about: str = "") -> None:
        """A call that changes nothing."""
        await self._does(call, about, lambda: None)

    async def _does(self, call: str, about: str, do: Callable[[], T], seconds: float = ANSWER) -> T:
        self.calls.append(f"{call} {about}".strip())
        if self.away:
            raise EngineAway("no container engine listens there")
        mishap = self._mishap(call)
        if isinstance(mishap, Refused):
            raise mishap
        if mishap is Mishap.BROKEN:
            raise EngineAway("the container engine closed the connection")
        if self.silent or mishap is Mishap.LOST:
            await self._keeps_waiting(seconds)
        if mishap is Mishap.LATE:
            asyncio.get_running_loop().call_later(seconds + 1, _unheard, do)
            await self._keeps_waiting(seconds)
        await asyncio.sleep(0)  # other tasks may run during any call
        result = do()
        if mishap is Mishap.UNANSWERED:
            await self._keeps_waiting(seconds)
        self.after_call(f"{call} {about}".strip())
        return result

    async def _keeps_waiting(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise EngineAway("the container engine does not answer")

    def _mishap(self, call: str) -> Mishap | Refused | None:
        for trouble in self._troubles:
            if trouble.call == call and trouble.times:
                trouble.times -= 1
                return trouble.mishap
        return None

    def _find(self, name: str) -> Box | None:
        return self.boxes.get(name) or next((box for box in self.boxes.values() if box.name == name), None)

    def _existing(self, name: str) -> Box:
        if box := self._find(name):
            return box
        raise Refused(404, f"no container with name or ID {name!r} found: no such container")

    def _image(self, reference: str) -> Image | None:
        # Podman finds what was built on the machine under a name without a registry.
        return self.images.get(reference) or self.images.get(f"localhost/{reference}")

    def _refused(self, docker: int, message: str) -> Refused:
        """Podman says 500 to nearly everything."""
        return Refused(docker if self.dialect is Dialect.DOCKER else 500, message)

    def _create(self, name: str, body: Json) -> Box:
        if holder := self._find(name):
            raise self._refused(409, f'the container name "{name}" is already in use by {holder.id}')
        image = self._image(body["Image"])
        if image is None:
            raise Refused(404, f"no such image: {body['Image']}: image not known")
        if self.full:
            raise self._refused(500, "mkdir /var/lib/containers: no space left on device")
        box = Box(id=f"{next(self._numbers):064x}", name=name, body=body, image=image, created=self.time())
        owner = box.network_owner
        if owner and self.dialect is Dialect.DOCKER:
            for field_ in ("Hostname", "ExposedPorts"):
                if body.get(field_):
                    raise Refused(400, f"conflicting options: {field_} and the container type network mode")
        if owner and self._find(owner) is None:
            raise self._refused(404, f"No such container: {owner}")
        for network in box.networks:
            if network not in self.networks_there:
                raise self._refused(404, f"unable to find network with name or ID {network}: network not found")
        self.boxes[box.id] = box
        self._happened("create", box)
        return box

    def _start(self, box: Box) -> None:
        if box.status in ("running", "paused"):
            return
        if self.full:
            raise self._refused(500, "write /run/containers: no space left on device")
        if box.network_owner:
            owner = self._find(box.network_owner)
            if owner is None or owner.status != "running":
                raise self._refused(409, "cannot join network of a non running container")
        if self.taken_ports and box.published:
            self.taken_ports -= 1
            raise self._refused(500, "listen tcp4 127.0.0.1:32768: bind: address already in use")
        if reason := box.start_problem():
            if self.dialect is Dialect.DOCKER:
                box.exit_code, box.error = 127, reason
            raise self._refused(400, reason)
        if self.dialect is Dialect.DOCKER or not box.ports:
            box.ports = {port: next(self._ports) for port in box.published}
        box.addresses = {network: f"10.89.0.{next(self._numbers) % 250 + 2}" for network in box.networks}
        box.status, box.started, box.finished, box.exit_code, box.oom = "running", self.time(), 0, 0, False
        box.starts += 1
        self._happened("start", box)
        if (code := box.exits_with()) is not None:
            asyncio.get_running_loop().call_later(box.image.run_seconds, self._ends_alone, box, box.starts, code)

    def _ends_alone(self, box: Box, start: int, code: int) -> None:
        if box.status == "running" and box.starts == start:
            self._end(box, code, box.image.out_of_memory)

    def _end(self, box: Box, code: int, oom: bool = False, *, announce: bool = True) -> None:
        box.status, box.exit_code, box.finished = "exited", code, self.time()
        box.oom = oom and self.dialect is Dialect.DOCKER
        box.addresses = {}
        box.changed()
        if announce:
            self._happened("die", box)

    def _remove(self, box: Box) -> None:
        users = [other.name for other in self.boxes.values() if other.network_owner == box.id]
        if users:
            raise self._refused(409, f"container {box.name} has dependent containers which must be removed: {users[0]}")
        if box.status in ("running", "paused"):
            self._end(box, 137)
        del self.boxes[box.id]
        box.changed()
        self._happened("destroy" if self.dialect is Dialect.DOCKER else "remove", box)

    def _happened(self, action: str, box: Box) -> None:
        if not self.deaf:
            self.emit(action, box.id, box.labels)

    def time(self) -> int:
        """Never a whole second, nor the same twice in a row: no real clock is so exact."""
        self._tick = self._tick % 999 + 1
        return round((self._now() - _EPOCH).total_seconds() * 1_000_000) * 1000 + self._tick


def _unheard(do: Callable[[], object]) -> None:
    """Nobody hears of a refusal either."""
    with suppress(Refused):
        do()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fits(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(key in labels and value in ("", labels[key]) for key, value in wanted.items())
