"""How old Instances are, by loop time where possible. Entry point: `InstanceAges`."""

import asyncio
from datetime import timedelta

from datum_compute.api.instance import Instance
from datum_compute.runtime import Change, Clock


class InstanceAges:
    """The age of an Instance that this process saw appear is the loop time since then.

    For one that existed before, the creation time has to do. It comes from the server's clock, which may be ahead of
    ours or behind: an age is never negative, and from then on loop time counts as well.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._births: dict[str, float] = {}  # loop time, by uid

    def note(self, change: Change[Instance]) -> None:
        if change.after is None:
            self._births.pop(change.object.metadata.uid, None)
        elif change.before is None and not change.initial:
            self._births[change.object.metadata.uid] = asyncio.get_running_loop().time()

    def of(self, instance: Instance) -> timedelta:
        loop_time, now = asyncio.get_running_loop().time(), self._clock.now()
        age = max(0.0, (now - (instance.metadata.creation_timestamp or now)).total_seconds())
        return timedelta(seconds=loop_time - self._births.setdefault(instance.metadata.uid, loop_time - age))
