"""Which objects of a kind a cache holds. Entry point: `Selection`."""

from functools import lru_cache

from msgspec import Struct

from datum_compute.kube.meta import ObjectMeta
from datum_compute.kube.selectors import LabelSelector


class Selection(Struct, frozen=True):
    """Objects of a namespace, with certain labels, or both; by default all. The server selects them."""

    namespace: str = ""
    labels: str = ""  # a selector in the form of the query parameter: `a=b,c!=d,e in (f,g),h,!i`

    def holds(self, metadata: ObjectMeta) -> bool:
        if self.namespace and metadata.namespace != self.namespace:
            return False
        return not self.labels or _parsed(self.labels).matches(metadata.labels)

    def __str__(self) -> str:
        """Empty when everything is selected."""
        return (f" in {self.namespace}" if self.namespace else "") + (f" with {self.labels}" if self.labels else "")


EVERYTHING = Selection()


@lru_cache(maxsize=256)
def _parsed(labels: str) -> LabelSelector:
    return LabelSelector.parse(labels)
