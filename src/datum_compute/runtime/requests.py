"""What a controller is asked to look at. Entry points: `Request`, `Drop`, `Unfinished`."""

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
    """An event that leads to no request: counted by its reason, and logged once per object unless it is ordinary."""

    reason: str
    ordinary: bool = False  # what belongs to somebody else, and is expected here


class Unfinished(Exception):
    """The pass cannot go on for a reason that is no API error; it is tried again with backoff."""
