"""A queue in which each key waits once, in order of arrival. Entry point: `Queue`."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from datum_compute.kube.errors import ApiError

K = TypeVar("K", bound=Hashable)

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 5.0


class Queue(Generic[K]):
    def __init__(self) -> None:
        self._keys: dict[K, None] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: K) -> None:
        self._keys[key] = None
        self._wake.set()

    async def run(self, reconcile: Callable[[K], Awaitable[None]]) -> None:
        """Reconciles one key after the other, for ever; a key that is added meanwhile is reconciled again.

        After a failure a key is retried: at once, since something may have changed in between, and then after a
        growing wait, since the cause may be a full disk.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._keys:
                key = next(iter(self._keys))
                del self._keys[key]
                try:
                    await reconcile(key)
                    self._failures.pop(key, None)
                except ApiError:
                    self._retry(key)
                await asyncio.sleep(0)

    def _retry(self, key: K) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if failures == 1:
            self.add(key)
        else:
            wait = min(_FIRST_WAIT * 2 ** min(failures - 2, 10), _LONGEST_WAIT)
            asyncio.get_running_loop().call_later(wait, self.add, key)
