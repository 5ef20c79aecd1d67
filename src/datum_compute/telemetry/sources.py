"""Where log lines are read from. Entry points: `Source`, `Entry`, `Notice`."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from datum_compute.telemetry.query import Query


class Labels(Struct, frozen=True):
    """The labels of a stream, under the names that readers see; a label without a value is left out there."""

    datum_workload_name: str = ""
    datum_instance_name: str = ""
    k8s_container_name: str = ""
    log_iostream: str = ""
    k8s_pod_uid: str = ""
    datum_namespace_name: str = ""
    datum_placement_name: str = ""
    datum_city_code: str = ""

    def values(self) -> dict[str, str]:
        """By name, without those that are empty."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


class Entry(Struct, frozen=True):
    time: int  # nanoseconds since 1970
    labels: Labels
    text: str


class Notice(Struct, frozen=True):
    """Something that a reader who follows should know: `joined`, `left`, `generation`, `silent`, `back`."""

    kind: str
    city: str
    instance: str
    time: int
    message: str


class Partial(list[Entry]):
    """Lines of a window, without those of `silent`: cities that could not be read."""

    def __init__(self, entries: Iterable[Entry], silent: Iterable[str]) -> None:
        super().__init__(entries)
        self.silent = tuple(sorted(set(silent)))


class Dropped(Struct, frozen=True):
    """Lines of a stream that were given up because a source or a reader could not keep up."""

    labels: Labels
    time: int
    count: int


class Reader(Struct, frozen=True):
    """Who reads: the project, and those of its namespaces in which the caller may read. None means all."""

    project: str
    namespaces: frozenset[str] | None = None


class Window(Struct, frozen=True):
    """From `start`, inclusive, to `end`, exclusive. At most `limit` lines, the newest if `backward`.

    With `previous`, only lines of the run of each container before its last restart. Readers ask for them with
    `query_range?previous=true`, and the answer says `"previous": true` where the source knows no earlier generations.
    """

    start: int
    end: int
    limit: int
    backward: bool = True
    previous: bool = False


class Source(Protocol):
    """Reads lines of the Instances of a project. A query only ever narrows what the reader may see.

    Raises `SourceAway` when nothing can be read at all. A city that cannot be read is left out of a `Partial` window,
    and a notice to those who follow.
    """

    delay: float
    """Seconds that a followed line waits for earlier lines of other streams, unless the client asks otherwise."""

    remembers: bool
    """Whether lines of Instances that were replaced can be read. Such a source is never asked for `previous`."""

    previous_runs: bool
    """Whether `Window.previous` is known; otherwise it is never set."""

    async def read(self, reader: Reader, query: Query, window: Window) -> Sequence[Entry]:
        """Matching lines in order of time, whatever the direction."""
        ...

    async def streams(self, reader: Reader, query: Query | None, start: int, end: int) -> Sequence[Labels]:
        """The label sets of streams with something to read in the window.

        If that includes the present, a container that runs has at least its standard output.
        """
        ...

    def follow(
        self, reader: Reader, query: Query, start: int, limit: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Entry | Notice | Dropped]]:
        """The newest `limit` lines from `start` on, then everything new, without a gap or a repetition.

        Ordered within each stream; between streams the reader of this iterator merges.
        """
        ...


class SourceAway(Exception):
    """Nothing can be read for now; one sentence for users."""
