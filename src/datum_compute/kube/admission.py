"""A write that is about to happen, as rules look at it. Entry points: `Review`, `Admit`."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from datum_compute.kube.errors import Cause
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json


class Review(Struct, frozen=True):
    """`before` is None for a new object. `objects` reads what else is on the plane, as of this write."""

    plane: str
    resource: str
    before: Json | None
    after: Json
    objects: Callable[[Kind[Any]], list[Any]]


Admit = Callable[[Review], Sequence[Cause]]
"""What speaks against a write; nothing when it may happen."""
