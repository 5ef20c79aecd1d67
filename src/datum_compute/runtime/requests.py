"""What a controller is asked to look at, and one look at it. Entry points: `Request`, `Drop`, `Pass`."""

from msgspec import Struct


class Request(Struct, frozen=True, order=True):
    """An object on a plane. One without a plane cannot be built, so work can never go to the wrong one unnoticed."""

    plane: str
    namespace: str
    name: str

    def __post_init__(self) -> None:
        if not self.plane:
            raise ValueError(f"a request for {self.namespace}/{self.name} needs the name of its plane")
        if not self.name:
            raise ValueError(f"a request on {self.plane} needs the name of its object")

    def __str__(self) -> str:
        return f"{self.plane}:{self.namespace}/{self.name}"


class Drop(Struct, frozen=True):
    """An event that leads to no request; counted by its reason."""

    reason: str


class Unfinished(Exception):
    """The pass cannot go on for a reason that is no API error; it is tried again with backoff."""


class Pass:
    """One run of a controller over one request. It ends in any way it likes; the floor it declared is kept."""

    def __init__(self, request: Request, since: float = 0.0) -> None:
        self.request = request
        self.since = since  # loop time at which the oldest change that this pass looks at came in
        self.floor: float | None = None

    def no_later_than(self, seconds: float | None) -> None:
        """The same request runs again after at most this long, whatever happens in the rest of the pass."""
        if seconds is not None:
            self.floor = seconds if self.floor is None else min(self.floor, seconds)
