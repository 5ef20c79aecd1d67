"""What has to be looked at, each once, in the order in which it came up. Entry point: `Due`."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Due(Generic[K]):
    def __init__(self) -> None:
        self._keys: dict[K, None] = {}
        self._wake = asyncio.Event()

    def add(self, key: K) -> None:
        self._keys[key] = None
        self._wake.set()

    async def run(self, look: Callable[[K], Awaitable[None]]) -> None:
        """Looks at one after the other, for ever; what comes up during a look is looked at again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._keys:
                key = next(iter(self._keys))
                del self._keys[key]
                await look(key)
                await asyncio.sleep(0)
