"""Where the objects of a cache are by what they carry. Entry point: `Index`."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from datum_compute.kube.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

Place = tuple[str, str]  # namespace, name


class Index(Generic[T]):
    """An object whose values cannot be read is not indexed; it never stops the others."""

    def __init__(self, values: Callable[[T], Iterable[str]], crashed: Callable[[Exception], None]) -> None:
        self._values = values
        self._crashed = crashed  # told of an object that the function fails on in a way nobody foresaw
        self._places: dict[str, dict[Place, None]] = {}

    def places(self, value: str) -> list[Place]:
        return sorted(self._places.get(value, {}))

    def put(self, place: Place, before: T | None, after: T | None) -> None:
        for value in self._of(before, lambda error: None):  # it was reported when the object came
            entry = self._places.get(value)
            if entry is not None:
                entry.pop(place, None)
                if not entry:
                    del self._places[value]
        for value in self._of(after, self._crashed):
            self._places.setdefault(value, {})[place] = None

    def _of(self, object_: T | None, crashed: Callable[[Exception], None]) -> list[str]:
        try:
            return [value for value in self._values(object_) if value] if object_ is not None else []
        except msgspec.MsgspecError:
            return []
        except Exception as error:
            crashed(error)
            return []
