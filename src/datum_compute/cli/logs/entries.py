"""Lines of a log as the server sends them. Entry points: `Entry`, `entries_of`, `Frame`."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

WORKLOAD_LABEL = "datum_workload_name"
INSTANCE_LABEL = "datum_instance_name"
CONTAINER_LABEL = "k8s_container_name"
STREAM_LABEL = "log_iostream"
PLACEMENT_LABEL = "datum_placement_name"
CITY_LABEL = "datum_city_code"
GENERATION_LABELS = (
    "container_id",
    "k8s_pod_uid",
)  # the first that has a value counts: only virtual machines have both


class Labels(Struct, frozen=True):
    """The labels of a stream, in the order of their names."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, labels: dict[str, str]) -> "Labels":
        return cls(tuple(sorted(labels.items())))

    def value(self, name: str) -> str:
        return next((value for label, value in self.pairs if label == name), "")

    @property
    def generation(self) -> tuple[str, str]:
        """The label that tells this generation of an instance from others, and its value; empty without one."""
        return next(((name, value) for name in GENERATION_LABELS if (value := self.value(name))), ("", ""))

    @property
    def place(self) -> str:
        """The city; where no label tells it, what the instance's name has in its place."""
        return self.value(CITY_LABEL) or self.value(INSTANCE_LABEL).rpartition("-")[0].rpartition("-")[2].upper()


class Entry(Struct, frozen=True):
    time: int  # nanoseconds since 1970
    labels: Labels
    text: str


class Notice(Struct, frozen=True):
    """Something that happened to what is followed: `joined`, `left`, `generation`, `silent` or `back`."""

    kind: str = ""
    city: str = ""
    instance: str = ""
    time: int = 0
    message: str = ""


class Dropped(Struct, frozen=True):
    """Lines that the server left out, because they were not read fast enough."""

    labels: dict[str, str] = {}
    count: int = 1


class _Stream(Struct, frozen=True):
    stream: dict[str, str] = {}
    values: list[list[Any]] = []  # each with time and line; others send more


class Frame(Struct, frozen=True):
    """One line of an answer that is followed. One without content only shows that the connection is alive."""

    streams: list[_Stream] = []
    dropped_entries: list[Dropped] = []
    notice: Notice | None = None

    @property
    def entries(self) -> list[Entry]:
        return entries_of(self.streams)


class _Data(Struct, frozen=True):
    result: list[_Stream] = []


class Page(Struct, frozen=True):
    """An answer to a query. `previous` if it has lines of earlier runs, as the query asked; `warnings` say what is
    missing."""

    data: _Data = _Data()
    previous: bool = False
    warnings: list[str] = []


def entries_of(streams: Iterable[_Stream], *, backward: bool = False) -> list[Entry]:
    """The lines of all streams by time; the order within a stream stays as it was written."""
    entries: list[Entry] = []
    for stream in streams:
        labels = Labels.of(stream.stream)
        values: Sequence[list[Any]] = stream.values[::-1] if backward else stream.values
        entries += [Entry(int(value[0]), labels, str(value[1])) for value in values if len(value) > 1]
    return sorted(entries, key=_time)


def _time(entry: Entry) -> int:
    return entry.time


def decode_frame(line: bytes) -> Frame:
    """Raises `ValueError` for a line that makes no sense."""
    return msgspec.json.decode(line, type=Frame, strict=False)


def decode_page(body: bytes) -> Page:
    """Raises `ValueError` for an answer that makes no sense."""
    return msgspec.json.decode(body, type=Page)
