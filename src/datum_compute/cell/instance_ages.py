"""How old Instances are, by the clock of this process where it can be. Entry point: `InstanceAges`."""

import asyncio
from datetime import timedelta

from datum_compute.api.instance import Instance
from datum_compute.runtime import Change, Clock


class InstanceAges:
    """An Instance that appeared before our eyes is as old as the time since then; loop time counts it.

    Only of one that was here before us the creation time has to do. It is of the server's clock, which may be ahead of
    ours or behind: nothing is younger than new, and from then on loop time counts too.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._born: dict[str, float] = {}  # loop time, by uid

    def note(self, change: Change[Instance]) -> None:
        if change.after is None:
            self._born.pop(change.object.metadata.uid, None)
        elif change.before is None and not change.initial:
            self._born[change.object.metadata.uid] = asyncio.get_running_loop().time()

    def of(self, instance: Instance) -> timedelta:
        loop_time, now = asyncio.get_running_loop().time(), self._clock.now()
        age = max(0.0, (now - (instance.metadata.creation_timestamp or now)).total_seconds())
        return timedelta(seconds=loop_time - self._born.setdefault(instance.metadata.uid, loop_time - age))
