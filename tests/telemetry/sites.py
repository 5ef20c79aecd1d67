"""Sites with Pods in memory, whose API servers also die, refuse and hang. Entry points: `Cell`, `Cells`, `target`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from datum_compute.federation.lines import STDERR
from datum_compute.federation.sessions import Command
from datum_compute.kube.errors import ApiError, BadRequest, NotFound, Timeout, Unavailable
from datum_compute.kube.transport import Call, Link
from datum_compute.telemetry.cells.sites import Door
from datum_compute.telemetry.cells.targets import Target
from datum_compute.telemetry.exec import channels
from datum_compute.telemetry.exec.channels import SUBPROTOCOL
from tests.sessions import PROGRAMS, FakeSession


def stamp(time: int) -> str:
    whole = datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{time % 10**9:09d}Z"


class Run:
    """What a container has written since it was started."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        self.ended = False


class PodLink:
    """A command behind the messages of Kubernetes."""

    def __init__(self, session: FakeSession) -> None:
        self._session = session
        self._messages = self._speak()

    async def send(self, data: bytes) -> None:
        match channels.from_client(data):
            case channels.Input(text):
                await self._session.write(text)
            case channels.EndOfInput():
                await self._session.end_input()
            case channels.Resize(width, height):
                await self._session.resize(width, height)

    async def receive(self) -> bytes | None:
        return await anext(self._messages, None)

    async def _speak(self) -> AsyncGenerator[bytes, None]:
        async for stream, data in self._session.output():
            yield channels.message(channels.STDERR if stream == STDERR else channels.STDOUT, data)
        try:
            end: channels.Exited | channels.Ended = channels.Exited(await self._session.exit_code())
        except ConnectionError:
            return  # without a last message
        except FileNotFoundError:
            end = channels.Ended('error executing command on node-17: "nope": executable file not found in $PATH')
        yield channels.closing(end)

    async def close(self) -> None:
        await self._session.close()


class Cell:
    """One cell. `trouble` is raised by every call; a cell that `hangs` answers none, and sends nothing more. One that
    `stops_within_answers` sends half of each."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str, str], list[Run]] = {}  # by namespace, Pod and container
        self.calls: list[Call] = []
        self.trouble: ApiError | None = None
        self.hangs = False
        self.stops_within_answers = False
        self._changed = asyncio.Event()
        self._cut = 0  # how often all connections were cut

    def start(self, place: str, pod: str, container: str = "app") -> None:
        runs = self.runs.setdefault((place, pod, container), [])
        if runs:
            runs[-1].ended = True
        runs.append(Run())
        self._notify()

    def write(self, place: str, pod: str, time: int, text: str, container: str = "app") -> None:
        self.runs[place, pod, container][-1].lines.append((time, text))
        self._notify()

    def remove(self, place: str, pod: str) -> None:
        for key in [key for key in self.runs if key[:2] == (place, pod)]:
            self.runs.pop(key)[-1].ended = True
        self._notify()

    def cut(self) -> None:
        """Ends all connections; later calls are answered."""
        self._cut += 1
        self._notify()

    def die(self) -> None:
        self.trouble = Unavailable("10.1.2.3:6443 cannot be reached")
        self.cut()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def websocket(self, path: str, query: str, subprotocol: str) -> Link:
        """Runs a command as `pods/exec` does."""
        assert subprotocol == SUBPROTOCOL
        if self.trouble is not None:
            raise self.trouble
        _, _, _, _, place, _, pod, _ = path.split("/")
        fields = parse_qsl(query)
        arguments, others = [value for name, value in fields if name == "command"], dict(fields)
        if (place, pod, others["container"]) not in self.runs:
            raise NotFound(f'pods "{pod}" not found on node-17')
        command = Command(arguments, others["container"], stdin="stdin" in others, tty="tty" in others)
        assert ("stderr" in others) != command.tty
        return PodLink(FakeSession(command, PROGRAMS[arguments[0]]))

    @asynccontextmanager
    async def pieces(self, call: Call, silence: float | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        self.calls.append(call)
        if self.hangs:
            await self._hang(silence)
        if self.trouble is not None:
            raise self.trouble
        _, _, _, _, place, _, pod, _ = call.path.split("/")
        query, runs = call.query, self.runs.get((place, pod, call.query["container"]))
        if runs is None:
            raise NotFound(f'pods "{pod}" not found on node-17')
        if query.get("previous") and len(runs) < 2:
            raise BadRequest(f"previous terminated container of {pod} not found on node-17")
        run = runs[-2 if query.get("previous") else -1]
        async with aclosing(self._content(call, run, silence)) as content:
            yield content

    async def _content(self, call: Call, run: Run, silence: float | None) -> AsyncGenerator[bytes, None]:
        cuts, at, query = self._cut, 0, call.query
        if "tailLines" in query:
            at = max(0, len(run.lines) - int(query["tailLines"]))
        since = int(datetime.fromisoformat(query["sinceTime"]).timestamp()) * 10**9 if "sinceTime" in query else 0
        while True:
            changed = self._changed
            if self.hangs:
                await self._hang(silence)
            if self._cut != cuts:
                if self.trouble is not None:
                    raise self.trouble
                return
            lines, at = run.lines[at:], len(run.lines)
            if text := "".join(f"{stamp(time)} {line}\n" for time, line in lines if time >= since):
                data = text.encode()
                yield data[: len(data) // 2]  # in two pieces, as networks do
                if self.stops_within_answers:
                    await self._hang(silence)
                yield data[len(data) // 2 :]
                continue
            if "follow" not in query or run.ended:
                return
            await changed.wait()

    async def _hang(self, silence: float | None) -> None:
        try:
            async with asyncio.timeout(silence):
                while self.hangs or self.stops_within_answers:
                    await self._changed.wait()
        except TimeoutError:
            raise Timeout("no answer from 10.1.2.3:6443 in time") from None


class Cells:
    """Cells by name; one that is not there cannot be called."""

    def __init__(self, **cells: Cell) -> None:
        self.cells = cells
        self.unready: set[str] = set()

    def door(self, cell: str) -> Door | None:
        return self.cells.get(cell)

    def ready(self, cell: str) -> bool:
        return cell not in self.unready


def target(
    instance: str = "api-default-dfw-0",
    *,
    cell: str = "dfw",
    city: str = "DFW",
    generation: str = "",
    namespace: str = "default",
    containers: tuple[str, ...] = ("app",),
    workload: str = "api",
    runs: bool = True,
) -> Target:
    return Target(
        namespace=namespace,
        place=f"ns-{namespace}",
        instance=instance,
        generation=generation or f"uid-of-{instance}",
        workload=workload,
        placement="default",
        city=city,
        cell=cell,
        containers=containers,
        runs=runs,
    )
