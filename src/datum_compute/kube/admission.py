"""A write that is about to happen, as admission rules see it. Entry points: `Review`, `Admit`, `User`."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from datum_compute.kube.errors import Cause
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"

ADMINISTRATORS = "system:masters"  # the group whose members an API server lets do everything


class User(Struct, frozen=True):
    """Who makes a call, as authenticated by the server."""

    name: str = ""
    groups: tuple[str, ...] = ()


class Review(Struct, frozen=True):
    """One write. `objects` reads other objects of the plane, as of this write.

    Most rules ignore most writes, so the object is decoded only when a rule looks at it.
    """

    plane: str
    role: str  # of the plane
    user: User
    operation: str
    resource: str
    subresource: str
    name: str
    old: Callable[[], Json] | None
    new: Callable[[], Json] | None
    objects: Callable[[Kind[Any]], list[Any]]

    @property
    def before(self) -> Json | None:
        """The object before the write; None for a new one."""
        return self.old() if self.old is not None else None

    @property
    def after(self) -> Json | None:
        """The object after the write; None for a deletion."""
        return self.new() if self.new is not None else None


Admit = Callable[[Review], Sequence[Cause]]
"""Returns the violations of a write, none when it is allowed. Raises `ApiError` where the caller is the reason."""
