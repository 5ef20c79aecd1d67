"""Which instances a reader follows, and what to say when one comes or goes. Entry point: `Presence`."""

from collections.abc import Iterator

from datum_compute.federation.lines import Origin
from datum_compute.telemetry.sources import Notice

LEAVE_SECONDS = 5.0
"""How long an instance may be away before it counts as gone: one that is replaced is away for a moment."""

_Key = tuple[str, str]  # namespace and name


class _Instance:
    def __init__(self, origin: Origin) -> None:
        self.city = origin.city
        self.generation = origin.generation
        self.containers = {origin.container}
        self.gone_at: float | None = None  # when its last container ended


class Presence:
    """`came` and `went` take what happens to containers, `overdue` finds those who did not come back.

    Moments are seconds of the event loop, and times of notices nanoseconds since 1970.
    """

    def __init__(self) -> None:
        self._instances: dict[_Key, _Instance] = {}

    @property
    def cities(self) -> set[str]:
        return {instance.city for instance in self._instances.values()}

    def came(self, origin: Origin, time: int) -> Notice | None:
        """`joined` for a new instance, `generation` for one that was replaced."""
        key = (origin.namespace, origin.instance)
        known = self._instances.get(key)
        if known is not None and known.generation == origin.generation:
            known.containers.add(origin.container)
            known.gone_at = None
            return None
        self._instances[key] = _Instance(origin)
        if known is None:
            return Notice("joined", origin.city, origin.instance, time, f"{origin.instance} in {origin.city} joined")
        message = f"{origin.instance} was replaced by generation {origin.generation}"
        return Notice("generation", origin.city, origin.instance, time, message)

    def went(self, origin: Origin, moment: float) -> None:
        known = self._instances.get((origin.namespace, origin.instance))
        if known is None or known.generation != origin.generation:
            return  # its successor is there already
        known.containers.discard(origin.container)
        if not known.containers:
            known.gone_at = moment

    def next_departure(self) -> float | None:
        """The moment at which `overdue` finds something, unless it comes back before."""
        gone = [instance.gone_at for instance in self._instances.values() if instance.gone_at is not None]
        return min(gone) + LEAVE_SECONDS if gone else None

    def overdue(self, moment: float, time: int) -> Iterator[Notice]:
        """`left` for each instance that has been away for too long."""
        for key, instance in list(self._instances.items()):
            if instance.gone_at is not None and instance.gone_at + LEAVE_SECONDS <= moment:
                del self._instances[key]
                yield Notice("left", instance.city, key[1], time, f"{key[1]} in {instance.city} left")
