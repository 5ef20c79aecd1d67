"""Lines that instances write, on their way from a provider to their readers. Entry points: `Line`, `Origin`, `Sink`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from msgspec import Struct

STDOUT, STDERR = "stdout", "stderr"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def nanoseconds(moment: datetime) -> int:
    """Since 1970, exactly."""
    since = moment - _EPOCH
    return ((since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


class Origin(Struct, frozen=True):
    """One container of one generation of an Instance. An Instance that is replaced begins a new generation, one that is
    restarted in place does not."""

    project: str
    namespace: str  # of the project
    workload: str
    placement: str
    city: str
    instance: str
    generation: str  # uid of the Instance
    container: str


class Line(Struct, frozen=True):
    """`text` has no newline at its end."""

    time: int  # nanoseconds since 1970
    stream: str  # STDOUT or STDERR
    text: str


class Sink(Protocol):
    """Receives what a provider reads. None of its methods waits, so a slow reader never holds up a provider."""

    def started(self, origin: Origin, time: int) -> None:
        """A container runs; reported again for each start, also for one that was found running."""
        ...

    def ended(self, origin: Origin, time: int) -> None:
        """The Instance of a container is gone for good. A container that is started again has not ended."""
        ...

    def add(self, origin: Origin, lines: Sequence[Line]) -> None:
        """New lines of a container, in the order in which it wrote them."""
        ...

    def latest(self, origin: Origin, count: int) -> Sequence[Line]:
        """The newest known lines of a container, oldest first, for a provider that reads the end of a log again."""
        ...

    def silent(self, city: str, reason: str) -> None:
        """Nothing can be read in a city for now; `reason` is a sentence for users. An empty reason ends that."""
        ...
