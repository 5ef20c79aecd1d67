"""What to read, as a query in LogQL. Entry point: `Selection`."""

import re
from collections.abc import Iterable, Sequence
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.cli.logs.entries import INSTANCE_LABEL
from datum_compute.telemetry.query import Filter, Matcher, Query, write

_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


class Selection(Struct, frozen=True):
    """Which streams, and which of their lines. Each method returns a narrower selection."""

    matchers: tuple[Matcher, ...] = ()
    search: str = ""  # text that lines must contain

    @property
    def query(self) -> str:
        return write(Query(self.matchers, (Filter("|=", self.search),) if self.search else ()))

    def with_label(self, label: str, values: Sequence[str]) -> Self:
        """Only streams whose label has one of these values; all if none is given."""
        return self._narrowed(label, values, "=", "=~")

    def without_label(self, label: str, values: Sequence[str]) -> Self:
        return self._narrowed(label, values, "!=", "!~")

    def in_places(self, workload: str, cities: Iterable[str]) -> Self:
        """By the names of instances, for servers that have no label for the city: `shop-default-ams-0`."""
        places = "|".join(literal(city.lower()) for city in cities)
        return self._with(Matcher(INSTANCE_LABEL, "=~", f"{literal(workload)}-.+-({places})-[0-9]+"))

    def containing(self, text: str) -> Self:
        return replace(self, search=text)

    def _narrowed(self, label: str, values: Sequence[str], equal: str, like: str) -> Self:
        if not values:
            return self
        if len(values) == 1:
            return self._with(Matcher(label, equal, values[0]))
        return self._with(Matcher(label, like, "|".join(map(literal, values))))

    def _with(self, matcher: Matcher) -> Self:
        return replace(self, matchers=(*self.matchers, matcher))


def literal(text: str) -> str:
    """A pattern that matches this text and nothing else."""
    return _SPECIAL.sub(lambda match: f"\\{match[0]}", text)
