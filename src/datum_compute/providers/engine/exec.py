"""Commands run in a container through the engine. Entry point: `start_exec`.

Input and output share one connection that stops speaking HTTP once the command has started. An HTTP library would be
in the way, so this module opens it itself.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from datum_compute.federation.lines import STDOUT
from datum_compute.federation.sessions import Command, Unstartable
from datum_compute.kube.meta import encode
from datum_compute.providers.engine import answers
from datum_compute.providers.engine.interface import EngineAway, Refused
from datum_compute.providers.engine.streams import Frames, document

if TYPE_CHECKING:
    from datum_compute.providers.engine.client import EngineClient

NO_DETACH = "ctrl-^,ctrl-_,ctrl-^"
"""The keys that would detach from a terminal. Never none: the engine would then take its own, and swallow Ctrl-P."""

_CHUNK = 64 << 10
_LONGEST_HEAD = 64 << 10
_LONGEST_REFUSAL = 64 << 10
_EXIT_PAUSE = 0.05


async def start_exec(client: "EngineClient", id: str, command: Command) -> "ExecSession":
    body = {
        "Cmd": list(command.arguments),
        "AttachStdin": command.stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": command.tty,
        "DetachKeys": NO_DETACH,
    }
    answer = await client.post(f"/containers/{id}/exec", None, body)
    if answer.code >= 300:
        raise _unstartable(answer.refusal())
    exec_id = answer.json().get("Id")
    if not isinstance(exec_id, str) or not exec_id:
        raise EngineAway("the container engine does not say which command it created")
    return ExecSession(client, exec_id, command.tty, await _start(client, exec_id, command.tty))


class _Wire:
    """A connection in both directions. No transport of asyncio: one that fails to write drops what it could still read,
    and a command may well end before it has read its input."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._waiting = 0
        self._closing = False

    async def connect(self, path: str) -> None:
        with self._in_use():
            await self._loop.sock_connect(self._socket, path)

    async def send(self, data: bytes) -> None:
        with self._in_use():
            await self._loop.sock_sendall(self._socket, data)

    async def receive(self) -> bytes:
        """Empty at the end, and when the other side left while something was on its way to it."""
        if self._rest:
            chunk, self._rest = self._rest, b""
            return chunk
        with suppress(OSError):
            return await self._read()
        return b""

    async def receive_until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            await self._more()
        found, _, self._rest = self._rest.partition(mark)
        return found

    async def receive_exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            await self._more()
        return self._rest[:size]

    async def _more(self) -> None:
        chunk = await self._read()
        if not chunk or len(self._rest) > _LONGEST_HEAD:
            raise EOFError
        self._rest += chunk

    async def _read(self) -> bytes:
        with self._in_use():
            return await self._loop.sock_recv(self._socket, _CHUNK)

    def end(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends what waits, which then closes the socket: its number must not be taken while the loop looks at it."""
        self._closing = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._close_when_unused()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        if self._closing:
            raise ConnectionAbortedError
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._close_when_unused()

    def _close_when_unused(self) -> None:
        if self._closing and not self._waiting:
            self._socket.close()


async def _start(client: "EngineClient", exec_id: str, tty: bool) -> _Wire:
    wire = _Wire()
    try:
        async with asyncio.timeout(client.limits.start):
            await wire.connect(client.path)
            body = encode({"Detach": False, "Tty": tty})
            head = (
                f"POST {client.root}/exec/{exec_id}/start HTTP/1.1\r\nHost: engine\r\n"
                "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            await wire.send(head.encode() + body)
            code, headers = _parse_head(await wire.receive_until(b"\r\n\r\n"))
            if code not in (101, 200):
                raise _unstartable(await _refusal(wire, code, headers))
            return wire
    except BaseException as error:
        wire.close()
        if isinstance(error, TimeoutError):
            raise EngineAway("the container engine does not answer") from error
        if isinstance(error, OSError | EOFError | ValueError | IndexError):
            raise EngineAway("the container engine closed the connection") from error
        raise


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split(" ", 2)[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _refusal(wire: _Wire, code: int, headers: Mapping[str, str]) -> Refused:
    length = headers.get("content-length", "")
    with suppress(OSError, EOFError, ValueError, EngineAway):
        if not length.isdecimal():  # chunked; one chunk is all there is of a sentence
            length = str(int((await wire.receive_until(b"\r\n")).split(b";")[0], 16))
        body = await wire.receive_exactly(min(int(length), _LONGEST_REFUSAL))
        return Refused(code, answers.message_of(document(body)))
    return Refused(code, "")


def _unstartable(refused: Refused) -> Unstartable:
    message = refused.message[:200] or f"it answered {refused.code}"
    return Unstartable(f"The command cannot be started: {message}.", 409)


class ExecSession:
    """A `federation.sessions.Session`."""

    def __init__(self, client: "EngineClient", exec_id: str, tty: bool, wire: _Wire) -> None:
        self._client = client
        self._path = f"/exec/{exec_id}"
        self._tty = tty
        self._wire = wire

    async def write(self, data: bytes) -> None:
        # A command may end without reading its input, and then only its exit code is of interest.
        with suppress(OSError):
            await self._wire.send(data)

    async def end_input(self) -> None:
        self._wire.end()

    async def resize(self, width: int, height: int) -> None:
        """A refusal is ignored: a command that has just ended has no terminal."""
        await self._client.post(f"{self._path}/resize", {"h": str(height), "w": str(width)})

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        frames = Frames()
        while chunk := await self._wire.receive():
            if self._tty:
                yield STDOUT, chunk
                continue
            for stream, piece, _ in frames.feed(chunk):
                if piece:
                    yield stream, piece

    async def exit_code(self) -> int:
        try:
            async with asyncio.timeout(self._client.limits.answer):
                while True:
                    answer = await self._client.get(f"{self._path}/json")
                    if answer.code >= 300:
                        raise answer.refusal()
                    state = answer.json()
                    code = state.get("ExitCode")
                    if state.get("Running") is False and isinstance(code, int):
                        return code
                    await asyncio.sleep(_EXIT_PAUSE)  # the engine learns of the end a little after the output ends
        except TimeoutError as error:
            raise EngineAway("the container engine does not say how the command ended") from error

    async def close(self) -> None:
        self._wire.close()
