"""Logs of the instances of a local federation, in memory. Entry point: `Logs`."""

from datum_compute.federation.lines import nanoseconds
from datum_compute.runtime import Clock
from datum_compute.telemetry.callers.access import open_access
from datum_compute.telemetry.gateway import Gateway
from datum_compute.telemetry.memory.lives import Lives
from datum_compute.telemetry.memory.ring import Ring
from datum_compute.telemetry.memory.source import MemorySource


class Logs:
    """A provider that runs containers writes to `ring`, a simulated one reports to `lives`; `gateway` serves both.

    Whoever holds the token of the federation may read everything.
    """

    def __init__(self, clock: Clock, seed: int = 0) -> None:
        self._clock = clock
        self.ring = Ring(self._now)
        self.lives = Lives()
        self.gateway = Gateway(MemorySource(self.ring, self.lives, self._now, seed), open_access, self._now)

    def _now(self) -> int:
        return nanoseconds(self._clock.now())
