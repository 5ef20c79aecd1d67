"""Writes that several passes share. Entry point: `BatchedWrites`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Batch(Generic[T]):
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting: list[T] = []


class BatchedWrites(Generic[T]):
    """Combines entries that many passes add to one object at the same time: the first pass writes for all of them."""

    def __init__(self) -> None:
        self._batches: dict[str, _Batch[T]] = {}

    async def add(self, key: str, entry: T, write: Callable[[list[T]], Awaitable[None]]) -> None:
        """Returns once the entry is written, by `write` or by that of another pass with the same key."""
        batch = self._batches.setdefault(key, _Batch())
        batch.waiting.append(entry)
        try:
            async with batch.lock:
                if entry in batch.waiting:
                    entries = list(batch.waiting)
                    await write(entries)
                    batch.waiting = [waiting for waiting in batch.waiting if waiting not in entries]
        finally:
            if entry in batch.waiting:
                batch.waiting.remove(entry)
            if not batch.waiting and self._batches.get(key) is batch:
                del self._batches[key]
