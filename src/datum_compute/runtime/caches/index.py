"""Finds the objects of a cache by a value. Entry point: `Index`."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from datum_compute.kube.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

Key = tuple[str, str]  # namespace, name


class Index(Generic[T]):
    """Keys of objects by value. An object whose values cannot be read is not indexed; others are not affected."""

    def __init__(self, values: Callable[[T], Iterable[str]], crashed: Callable[[Exception], None]) -> None:
        self._values = values
        self._crashed = crashed  # called with unforeseen errors of the function
        self._keys: dict[str, dict[Key, None]] = {}

    def keys(self, value: str) -> list[Key]:
        return sorted(self._keys.get(value, {}))

    def put(self, key: Key, before: T | None, after: T | None) -> None:
        for value in self._of(before, lambda error: None):  # its errors were reported when the object came
            entry = self._keys.get(value)
            if entry is not None:
                entry.pop(key, None)
                if not entry:
                    del self._keys[value]
        for value in self._of(after, self._crashed):
            self._keys.setdefault(value, {})[key] = None

    def _of(self, object_: T | None, crashed: Callable[[Exception], None]) -> list[str]:
        try:
            return [value for value in self._values(object_) if value] if object_ is not None else []
        except msgspec.MsgspecError:
            return []
        except Exception as error:
            crashed(error)
            return []
