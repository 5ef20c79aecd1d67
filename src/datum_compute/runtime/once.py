"""Remembers what was already reported. Entry point: `Once`."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

AT_MOST = 1000


class Once(Generic[K]):
    """The most recent keys, so that a repeated event is reported once while memory stays bounded."""

    def __init__(self, at_most: int = AT_MOST) -> None:
        self._at_most = at_most
        self._keys: OrderedDict[K, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def first(self, key: K) -> bool:
        """Whether the key is new; it is remembered from now on."""
        is_first = key not in self._keys
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._at_most:
            self._keys.popitem(last=False)
        return is_first

    def forget(self, is_over: Callable[[K], bool]) -> None:
        for key in [key for key in self._keys if is_over(key)]:
            del self._keys[key]
