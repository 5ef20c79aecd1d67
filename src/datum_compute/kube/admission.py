"""A write that is about to happen, as rules look at it. Entry points: `Review`, `Admit`, `User`."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from datum_compute.kube.errors import Cause
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"

ADMINISTRATORS = "system:masters"  # the group whose members an API server lets do everything


class User(Struct, frozen=True):
    """Who makes a call, as the server knows them."""

    name: str = ""
    groups: tuple[str, ...] = ()


class Review(Struct, frozen=True):
    """`objects` reads what else is on the plane, as of this write. Most rules pass over most writes, so what was and
    what will be is decoded only when a rule looks at it."""

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
        """None for a new object."""
        return self.old() if self.old is not None else None

    @property
    def after(self) -> Json | None:
        """None for one that is being deleted."""
        return self.new() if self.new is not None else None


Admit = Callable[[Review], Sequence[Cause]]
"""What speaks against a write; nothing when it may happen. It raises `ApiError` where the caller is the reason."""
