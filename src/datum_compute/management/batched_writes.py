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
    """Entries for one object that many passes want to write at the same time: whoever comes first writes for all."""

    def __init__(self) -> None:
        self._batches: dict[str, _Batch[T]] = {}

    async def add(self, key: str, entry: T, write: Callable[[list[T]], Awaitable[None]]) -> None:
        """Returns when the entry is written, by `write` or by that of another pass for the same key."""
        batch = self._batches.setdefault(key, _Batch())
        batch.waiting.append(entry)
        try:
            async with batch.lock:
                if entry in batch.waiting:
                    entries = list(batch.waiting)
                    await write(entries)
                    batch.waiting = [other for other in batch.waiting if other not in entries]
        finally:
            if entry in batch.waiting:
                batch.waiting.remove(entry)
            if not batch.waiting and self._batches.get(key) is batch:
                del self._batches[key]
