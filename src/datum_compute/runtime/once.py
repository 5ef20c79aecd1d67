"""What was said already. Entry point: `Once`."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

AT_MOST = 1000


class Once(Generic[K]):
    """Remembers the latest few, so that what comes again and again is said once and memory is bounded."""

    def __init__(self, at_most: int = AT_MOST) -> None:
        self._at_most = at_most
        self._said: OrderedDict[K, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._said)

    def first(self, key: K) -> bool:
        """Whether this was not said yet; from now on it was."""
        is_first = key not in self._said
        self._said[key] = None
        self._said.move_to_end(key)
        if len(self._said) > self._at_most:
            self._said.popitem(last=False)
        return is_first

    def forget(self, is_over: Callable[[K], bool]) -> None:
        for key in [key for key in self._said if is_over(key)]:
            del self._said[key]
