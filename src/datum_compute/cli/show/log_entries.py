"""Lines of instances, as people and programs read them. Entry points: `EntryLines`, `record`, `clock_time`."""

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo

from msgspec import Struct

from datum_compute.cli.logs.entries import (
    CITY_LABEL,
    CONTAINER_LABEL,
    INSTANCE_LABEL,
    PLACEMENT_LABEL,
    STREAM_LABEL,
    WORKLOAD_LABEL,
    Entry,
    Labels,
)
from datum_compute.cli.show.escapes import harmless, visible
from datum_compute.kube.meta import Json

_COLOURS = ("36", "33", "32", "35", "34", "31")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SECOND = 1_000_000_000
_LATEST = 253402300799  # the last second that a date can have


class Appearance(Struct, frozen=True):
    timestamps: bool = True
    prefix: bool = True
    zone: tzinfo | None = None  # None for local time
    terminal: bool = False  # which must be protected from what instances write
    colours: bool = False


class EntryLines:
    """Prefixes are padded to the longest so far, and have the colour of their city."""

    def __init__(
        self, workload: str, appearance: Appearance, *, cities: Iterable[str] = (), containers: Iterable[str] = ()
    ) -> None:
        self._workload = workload
        self._appearance = appearance
        self._colours: dict[str, str] = {}
        for city in sorted(cities):
            self._colour(city)
        self._containers = set(containers)
        self._several = len(self._containers) > 1
        self._prefixes: dict[Labels, tuple[str, str]] = {}
        self._width = 0
        self._second = -1
        self._moment = ""

    def text(self, entry: Entry) -> str:
        """The line with its prefix and time, without a newline."""
        parts = []
        if self._appearance.prefix:
            parts.append(self._prefix(entry.labels))
        if self._appearance.timestamps:
            parts.append(f"{self._time(entry.time)}  ")
        text = entry.text
        if self._appearance.terminal:
            text = harmless(text, colours=self._appearance.colours)
        return "".join((*parts, text))

    def _prefix(self, labels: Labels) -> str:
        if labels not in self._prefixes:
            self._add(labels)
        prefix, colour = self._prefixes[labels]
        padding = " " * (self._width - len(prefix) + 1)
        return f"\x1b[{colour}m{prefix}\x1b[0m{padding}" if self._appearance.colours else f"{prefix}{padding}"

    def _add(self, labels: Labels) -> None:
        self._containers.add(labels.value(CONTAINER_LABEL))
        if not self._several and len(self._containers - {""}) > 1:
            self._several = True
            self._prefixes = {}
        name = short_name(self._workload, labels.value(INSTANCE_LABEL))
        container = labels.value(CONTAINER_LABEL) if self._several else ""
        prefix = visible(f"[{name}/{container}]" if container else f"[{name}]")
        self._prefixes[labels] = prefix, self._colour(labels.place)
        self._width = max(self._width, len(prefix))

    def _colour(self, city: str) -> str:
        """Each city has its own, as long as there are enough."""
        return self._colours.setdefault(city, _COLOURS[len(self._colours) % len(_COLOURS)])

    def _time(self, time: int) -> str:
        second, rest = divmod(time, _SECOND)
        if second != self._second:  # most lines share it with the one before
            moment = _moment(second, self._appearance.zone)
            self._second = second
            self._moment = f"{_MONTHS[moment.month - 1]} {moment.day:>2} {moment:%H:%M:%S}"
        return f"{self._moment}.{rest // 1_000_000:03}"


def short_name(workload: str, instance: str) -> str:
    """The name of an instance without that of its workload."""
    return instance.removeprefix(f"{workload}-")


def clock_time(time: int, zone: tzinfo | None) -> str:
    return f"{_moment(time // _SECOND, zone):%H:%M:%S}"


def record(entry: Entry) -> Json:
    """The line for programs, without what is not known."""
    labels = entry.labels
    second, rest = divmod(entry.time, _SECOND)
    fields = {
        "timestamp": f"{_moment(second, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z",
        "workload": labels.value(WORKLOAD_LABEL),
        "instance": labels.value(INSTANCE_LABEL),
        "city": labels.value(CITY_LABEL),
        "placement": labels.value(PLACEMENT_LABEL),
        "container": labels.value(CONTAINER_LABEL),
        "stream": labels.value(STREAM_LABEL),
        "generation": labels.generation[1],
    }
    return {key: value for key, value in fields.items() if value} | {"line": entry.text}


def _moment(second: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(min(max(second, 0), _LATEST), UTC).astimezone(zone)
