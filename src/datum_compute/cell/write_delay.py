"""How long to hold back what an answer is about to change anyway. Entry point: `WriteDelay`."""

import asyncio

from msgspec import Struct

from datum_compute.runtime import Request

DELAY_SECONDS = 0.2


class _Wait(Struct, frozen=True):
    for_: object
    since: float


class WriteDelay:
    """Remembers, by loop time, since when each object has been waiting for the same thing."""

    def __init__(self, seconds: float = DELAY_SECONDS) -> None:
        self._seconds = seconds
        self._waits: dict[Request, _Wait] = {}

    def left(self, request: Request, for_: object) -> float:
        """How many seconds more the object is to be left alone; None is nothing to wait for."""
        if for_ is None:
            self.forget(request)
            return 0.0
        now = asyncio.get_running_loop().time()
        wait = self._waits.get(request)
        if wait is None or wait.for_ != for_:
            self._waits[request] = wait = _Wait(for_, now)
        return wait.since + self._seconds - now

    def forget(self, request: Request) -> None:
        self._waits.pop(request, None)
