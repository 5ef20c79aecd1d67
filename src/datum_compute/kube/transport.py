"""How a call reaches the server of a plane. Entry points: `Transport`, `Call`, `Answer`.

Bytes in, bytes out: a transport neither reads nor changes what it carries, so HTTP, the server in this process and
the fault injector are interchangeable.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct


class Call(Struct, frozen=True):
    method: str
    path: str  # below the plane's API root
    query: dict[str, str] = {}
    body: bytes = b""
    content_type: str = "application/json"


class Answer(Struct, frozen=True):
    code: int
    body: bytes
    warnings: tuple[str, ...] = ()  # for the person who asked; no program acts on them


class Transport(Protocol):
    async def call(self, call: Call) -> Answer:
        """Raises `Unavailable` or `Timeout` when there is no answer; every answer, good or bad, is returned."""
        ...

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A watch: one JSON event an item. Entering raises `ApiError` when the server refuses."""
        ...
