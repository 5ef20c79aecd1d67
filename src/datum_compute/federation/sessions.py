"""A command that runs in a container for a user. Entry points: `Session`, `Runner`, `Unstartable`."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct


class Command(Struct, frozen=True):
    """`container` is empty for the only one of an Instance."""

    arguments: Sequence[str]
    container: str = ""
    stdin: bool = False
    tty: bool = False


class Unstartable(Exception):
    """Why a command cannot be run, as one sentence for users. `code` is an HTTP status."""

    def __init__(self, message: str, code: int = 409) -> None:
        super().__init__(message)
        self.code = code


class Session(Protocol):
    """A running command. It ends when `close` is called, at the latest."""

    async def write(self, data: bytes) -> None:
        """Passes input to the command; waits while the command does not read."""
        ...

    async def end_input(self) -> None: ...

    async def resize(self, width: int, height: int) -> None: ...

    def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """What the command writes, by stream (`lines.STDOUT`, `lines.STDERR`); ends with the command."""
        ...

    async def exit_code(self) -> int:
        """To be called after the output has ended. Raises `Unstartable` if the command turns out not to have run."""
        ...

    async def close(self) -> None: ...


class Runner(Protocol):
    """A provider that can run commands in what it runs."""

    async def run(self, cell: str, namespace: str, instance: str, uid: str, command: Command) -> Session:
        """Starts a command in an Instance of a cell, named by its cell plane, namespace, name and uid there.

        Raises `Unstartable` if the Instance does not run here, is another one by now, or has no such container.
        """
        ...
