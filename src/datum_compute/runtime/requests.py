"""Requests, and what there is instead of one. Entry points: `Request`, `Drop`, `Unfinished`."""

from msgspec import Struct


class Request(Struct, frozen=True, order=True):
    """An object to look at. A request without a plane cannot be built, so work cannot silently go to the wrong one."""

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
    """A change that leads to no request: counted by reason, and logged once per object unless it is ordinary."""

    reason: str
    ordinary: bool = False  # expected, because the object belongs to somebody else


class Unfinished(Exception):
    """The pass cannot continue for a reason other than an API error; it is retried with backoff."""
