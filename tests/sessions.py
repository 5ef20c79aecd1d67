"""Commands that run nowhere, for tests of what is around them. Entry point: `FakeRunner`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from datum_compute.federation.lines import STDERR, STDOUT
from datum_compute.federation.sessions import Command, Session, Unstartable

PIECE = 32 * 1024


class FakeSession:
    """A command that is one of the functions below; its pipes hold one piece, as narrow as can be."""

    def __init__(self, command: Command, program: Callable[["FakeSession"], Coroutine[Any, Any, int]]) -> None:
        self.command = command
        self.sizes: list[tuple[int, int]] = []
        self.closed = asyncio.Event()
        self._input: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._output: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue(1)
        self._resized = asyncio.Event()
        self._task = asyncio.create_task(self._run(program))

    async def _run(self, program: Callable[["FakeSession"], Coroutine[Any, Any, int]]) -> int:
        try:
            return await program(self)
        finally:
            if not self.closed.is_set():  # otherwise nobody reads any more
                await self._output.put(None)

    # What the command does

    async def read(self) -> bytes:
        return await self._input.get()

    async def say(self, data: bytes, stream: str = STDOUT) -> None:
        for start in range(0, len(data), PIECE):
            await self._output.put((stream, data[start : start + PIECE]))

    async def next_size(self) -> tuple[int, int]:
        while not self.sizes:
            self._resized.clear()
            await self._resized.wait()
        return self.sizes.pop(0)

    # What a Session does

    async def write(self, data: bytes) -> None:
        await self._input.put(data)

    async def end_input(self) -> None:
        await self._input.put(b"")

    async def resize(self, width: int, height: int) -> None:
        self.sizes.append((width, height))
        self._resized.set()

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        while (piece := await self._output.get()) is not None:
            yield piece

    async def exit_code(self) -> int:
        return await self._task

    async def close(self) -> None:
        self.closed.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def echo(session: FakeSession) -> int:
    await session.say(" ".join(session.command.arguments[1:]).encode() + b"\n")
    return 0


async def complain(session: FakeSession) -> int:
    await session.say(b"no such thing\n", STDERR)
    return 1


async def exit_(session: FakeSession) -> int:
    return int(session.command.arguments[1])


async def cat(session: FakeSession) -> int:
    while data := await session.read():
        await session.say(data)
    return 0


async def count(session: FakeSession) -> int:
    size = 0
    while data := await session.read():
        size += len(data)
    await session.say(b"%d\n" % size)
    return 0


async def flood(session: FakeSession) -> int:
    await session.say(b"x" * int(session.command.arguments[1]))
    return 0


async def sleep(session: FakeSession) -> int:
    await session.say(b"sleeping\n")
    await asyncio.Event().wait()
    return 0


async def size(session: FakeSession) -> int:
    """Says the size of its terminal three times, once per change."""
    for _ in range(int(session.command.arguments[1])):
        width, height = await session.next_size()
        await session.say(b"%dx%d\r\n" % (width, height))
    return 0


async def shell(session: FakeSession) -> int:
    """Echoes what is typed as a terminal in raw mode gets it; ends at `q`, and says what Ctrl-C looks like."""
    await session.say(b"$ ")
    while data := await session.read():
        for byte in data:
            if byte == 3:
                await session.say(b"^C\r\n$ ")
            elif byte == ord("q"):
                await session.say(b"bye\r\n")
                return 7
            else:
                await session.say(bytes((byte,)))
    return 0


async def nope(session: FakeSession) -> int:
    raise FileNotFoundError("nope")


async def broken(session: FakeSession) -> int:
    raise ConnectionResetError("the engine went away")


PROGRAMS = {
    "echo": echo,
    "complain": complain,
    "exit": exit_,
    "cat": cat,
    "count": count,
    "flood": flood,
    "sleep": sleep,
    "size": size,
    "sh": shell,
    "broken": broken,
    "nope": nope,
}


class FakeRunner:
    """Runs the programs above in any Instance; `refusal` is raised instead, if there is one."""

    def __init__(self) -> None:
        self.sessions: list[FakeSession] = []
        self.places: list[tuple[str, str, str, str]] = []
        self.refusal: Unstartable | None = None

    async def run(self, cell: str, namespace: str, instance: str, uid: str, command: Command) -> Session:
        if self.refusal is not None:
            raise self.refusal
        self.places.append((cell, namespace, instance, uid))
        session = FakeSession(command, PROGRAMS[command.arguments[0]])
        self.sessions.append(session)
        return session
