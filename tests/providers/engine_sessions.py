"""Commands in containers of the engine in memory. Entry point: `run_command`.

`exit CODE`, `cat`, `echo WORDS`, `both` (a line on each stream) and `sleep` are in every image; nothing else is.
"""

import asyncio
from collections.abc import AsyncIterator

from datum_compute.federation.lines import STDERR, STDOUT
from datum_compute.federation.sessions import Command, Unstartable
from tests.providers.engine_boxes import Box, Dialect


class ModelSession:
    def __init__(self, command: Command) -> None:
        self.command = command
        self.sizes: list[tuple[int, int]] = []
        self.closed = False
        self._code = 0
        self._output: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()

    def say(self, data: bytes, stream: str = STDOUT) -> None:
        self._output.put_nowait((STDOUT if self.command.tty else stream, data))

    def finish(self, code: int) -> None:
        self._code = code
        self._output.put_nowait(None)

    async def write(self, data: bytes) -> None:
        if self.command.arguments[0] == "cat":
            self.say(data)

    async def end_input(self) -> None:
        if self.command.arguments[0] == "cat":
            self.finish(0)

    async def resize(self, width: int, height: int) -> None:
        self.sizes.append((width, height))

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        while (entry := await self._output.get()) is not None:
            yield entry

    async def exit_code(self) -> int:
        return self._code

    async def close(self) -> None:
        self.closed = True
        self._output.put_nowait(None)


def run_command(dialect: Dialect, box: Box, command: Command) -> ModelSession:
    if box.status != "running":
        raise Unstartable("The command cannot be started: container state improper.")
    session = ModelSession(command)
    match list(command.arguments):
        case ["exit", code]:
            session.finish(int(code))
        case ["echo", *words]:
            session.say(" ".join(words).encode() + b"\n")
            session.finish(0)
        case ["both"]:
            session.say(b"to stdout\n")
            session.say(b"to stderr\n", STDERR)
            session.finish(0)
        case ["cat"] if not command.stdin:
            session.finish(0)
        case ["cat" | "sleep", *_]:
            pass
        case [name, *_]:
            if dialect is Dialect.DOCKER:
                raise Unstartable(f'The command cannot be started: exec: "{name}": executable file not found.')
            session.say(f'Error: exec: "{name}": executable file not found\n'.encode(), STDERR)
            session.finish(127)
    return session
