"""Where the objects of a cache are by what they carry. Entry point: `Index`."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from datum_compute.kube.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

Place = tuple[str, str]  # namespace, name


class Index(Generic[T]):
    def __init__(self, values: Callable[[T], Iterable[str]]) -> None:
        self._values = values
        self._places: dict[str, dict[Place, None]] = {}

    def places(self, value: str) -> list[Place]:
        return sorted(self._places.get(value, {}))

    def put(self, place: Place, before: T | None, after: T | None) -> None:
        for value in self._of(before):
            entry = self._places.get(value)
            if entry is not None:
                entry.pop(place, None)
                if not entry:
                    del self._places[value]
        for value in self._of(after):
            self._places.setdefault(value, {})[place] = None

    def _of(self, object_: T | None) -> list[str]:
        """An object whose content cannot be read is not indexed; it must not stop the others."""
        try:
            return [value for value in self._values(object_) if value] if object_ is not None else []
        except msgspec.MsgspecError:
            return []
