"""Simulated containers, whose lines follow from when they began. Entry points: `Life`, `Recorder`."""

from typing import Protocol

from msgspec import Struct

from datum_compute.federation.lines import Origin


class Life(Struct, frozen=True):
    """A simulated container. The same life has the same lines in every process."""

    origin: Origin
    start: int  # nanoseconds since 1970, in whole seconds, as conditions have it
    image: str
    port: int = 0  # 0 if it declares none
    crashes: bool = False


class Recorder(Protocol):
    """Remembers simulated containers for those who read their lines. None of its methods waits."""

    def begin(self, life: Life) -> None:
        """A simulated container runs, or keeps crashing; may be reported any number of times."""
        ...

    def end(self, generation: str, time: int) -> None:
        """All containers of an Instance have ended; only the first report counts."""
        ...
