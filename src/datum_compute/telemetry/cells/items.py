"""What streams deliver to one reader. Entry points: `Items`, `Item`."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from datum_compute.telemetry.sources import Dropped, Entry, Notice

_WAITING = 2000

Item = Entry | Notice | Dropped


class Items:
    """What streams deliver to one reader, who reads it at once; a stream waits while too much is waiting."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self._error: BaseException | None = None

    def add(self, item: Item) -> None:
        self._items.append(item)
        self._changed.set()
        if len(self._items) >= _WAITING:
            self._room.clear()

    async def room(self) -> None:
        await self._room.wait()

    def end(self, task: "asyncio.Task[Any]") -> None:
        self._ended = True
        self._error = None if task.cancelled() else task.exception()
        self._changed.set()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        item = self._items.popleft()
        self._room.set()
        return item
