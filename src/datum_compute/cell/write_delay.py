"""Holds back a write that an imminent answer would change again. Entry point: `WriteDelay`."""

import asyncio

from msgspec import Struct

from datum_compute.runtime import Request

DELAY_SECONDS = 0.2


class _Wait(Struct, frozen=True):
    awaited: object
    since: float


class WriteDelay:
    """Remembers, by loop time, since when each object has been waiting for the same answer."""

    def __init__(self, seconds: float = DELAY_SECONDS) -> None:
        self._seconds = seconds
        self._waits: dict[Request, _Wait] = {}

    def remaining(self, request: Request, awaited: object) -> float:
        """Seconds for which not to write yet; no longer positive once the delay is over. None awaits nothing."""
        if awaited is None:
            self.forget(request)
            return 0.0
        now = asyncio.get_running_loop().time()
        wait = self._waits.get(request)
        if wait is None or wait.awaited != awaited:
            self._waits[request] = wait = _Wait(awaited, now)
        return wait.since + self._seconds - now

    def forget(self, request: Request) -> None:
        self._waits.pop(request, None)
