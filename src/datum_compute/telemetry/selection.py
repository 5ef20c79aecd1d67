"""What a reader selects by a query. Entry point: `Selection`."""

from datum_compute.federation.lines import STDERR, STDOUT, Origin
from datum_compute.telemetry.memory.ring import labels_of
from datum_compute.telemetry.query import Query, line_matches, matches
from datum_compute.telemetry.sources import Entry, Labels, Reader

_CITY = "datum_city_code"
_MOST_REMEMBERED = 4096


class Selection:
    """Decides about each stream once: a pattern costs more than the look at a line."""

    def __init__(self, reader: Reader, query: Query | None) -> None:
        self.project = reader.project
        self._reader = reader
        self._query = query
        self._streams: dict[Labels, bool] = {}

    def stream(self, labels: Labels) -> bool:
        selected = self._streams.get(labels)
        if selected is None:
            if len(self._streams) >= _MOST_REMEMBERED:
                self._streams.clear()
            selected = self._streams[labels] = self._selects(labels)
        return selected

    def entry(self, entry: Entry) -> bool:
        return self.stream(entry.labels) and self.line(entry.text)

    def line(self, text: str) -> bool:
        """Whether a line of a selected stream is selected."""
        return self._query is None or not self._query.filters or line_matches(text, self._query)

    def container(self, origin: Origin) -> bool:
        """Whether any stream of a container is selected."""
        return origin.project == self._reader.project and any(
            self.stream(labels_of(origin, stream)) for stream in (STDOUT, STDERR)
        )

    def city(self, city: str) -> bool:
        """Whether a stream in this city could be selected."""
        if self._query is None:
            return True
        about = tuple(matcher for matcher in self._query.matchers if matcher.label == _CITY)
        return matches({_CITY: city}, Query(about))

    def _selects(self, labels: Labels) -> bool:
        namespaces = self._reader.namespaces
        if namespaces is not None and labels.datum_namespace_name not in namespaces:
            return False
        return self._query is None or matches(labels.values(), self._query)
