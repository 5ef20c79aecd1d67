"""A clock that is wrong. Entry point: `ShiftedClock`."""

from datetime import datetime, timedelta

from datum_compute.runtime.clock import Clock


class ShiftedClock:
    """A clock that is `ahead` of another one by so many seconds, or behind it if negative."""

    def __init__(self, clock: Clock, ahead: float = 0.0) -> None:
        self.ahead = ahead
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now() + timedelta(seconds=self.ahead)
