"""Logs of Instances from a store with Loki's API. Entry point: `LokiSource`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import structlog
from msgspec import Struct

from datum_compute.federation.lines import nanoseconds
from datum_compute.runtime import Clock
from datum_compute.telemetry.query import Matcher, Query, QueryError, matches, write
from datum_compute.telemetry.sources import Dropped, Entry, Labels, Notice, Reader, SourceAway, Window

POLL_SECONDS = 1.0
OVERLAP = 5 * 10**9
_ANSWER_SECONDS = 30.0
_PAGE = 5000
_NAMES = frozenset(Labels.__struct_fields__)
_NAMESPACE = "datum_namespace_name"
_AWAY = "the store of logs does not answer; try again in a moment"

_log = structlog.get_logger(__name__)


class _Stream(Struct, frozen=True):
    stream: dict[str, str]
    values: list[list[Any]] = []  # time and line, and more that is not for users


class _Data(Struct, frozen=True):
    result: list[_Stream] = []


class _Answer(Struct, frozen=True):
    data: _Data = _Data()


class _Series(Struct, frozen=True):
    data: list[dict[str, str]] = []


def enforced(query: Query | None, reader: Reader, project_label: str) -> Query:
    """What is sent: the query with our matcher on the project in front, and only with labels that are ours.

    A matcher on any other label meets an empty value, as it does in every other source; it is decided here, so that the
    store never sees it. A query that such a matcher excludes becomes one that selects nothing.
    """
    matchers = [Matcher(project_label, "=", reader.project)]
    if reader.namespaces is not None:
        matchers.append(Matcher(_NAMESPACE, "=~", "|".join(map(_literal, sorted(reader.namespaces)))))
    if query is None:
        return Query(tuple(matchers))
    return Query((*matchers, *(matcher for matcher in query.matchers if matcher.label in _NAMES)), query.filters)


def selects_nothing(query: Query | None, reader: Reader) -> bool:
    """Whether a matcher on a label that is not ours cannot meet an empty value."""
    if reader.namespaces is not None and not reader.namespaces:
        return True
    others = [matcher for matcher in query.matchers if matcher.label not in _NAMES] if query is not None else []
    return bool(others) and not matches({}, Query(tuple(others)))


def _literal(name: str) -> str:
    """A name in a pattern; names of namespaces have no other special characters."""
    return name.replace(".", "\\.")


def labels_of(stream: Mapping[str, str]) -> Labels:
    """Only our own labels are left."""
    return Labels(**{name: value for name, value in stream.items() if name in _NAMES})


class LokiSource:
    """A `Source` over a store. The project is a matcher that no query can change."""

    delay = 0.3
    remembers = True
    previous_runs = False

    def __init__(self, url: str, project_label: str, token_file: Path | None, clock: Clock) -> None:
        self._url = f"{url.rstrip('/')}/loki/api/v1"
        self._project_label = project_label
        self._token_file = token_file
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def read(self, reader: Reader, query: Query, window: Window) -> Sequence[Entry]:
        if selects_nothing(query, reader) or window.limit <= 0:
            return []
        parameters = {
            "query": write(enforced(query, reader, self._project_label)),
            "start": str(window.start),
            "end": str(window.end),
            "limit": str(min(window.limit, _PAGE)),
            "direction": "backward" if window.backward else "forward",
        }
        answer = await self._get("query_range", parameters, _Answer)
        try:
            entries = [
                Entry(int(value[0]), labels, str(value[1]))
                for stream in answer.data.result
                for labels in [labels_of(stream.stream)]
                for value in (reversed(stream.values) if window.backward else stream.values)
            ]
        except (IndexError, TypeError, ValueError):
            _log.warning("the store of logs makes no sense")
            raise SourceAway(_AWAY) from None
        found = [entry for entry in entries if window.start <= entry.time < window.end]
        return sorted(found, key=lambda entry: entry.time)

    async def streams(self, reader: Reader, query: Query | None, start: int, end: int) -> Sequence[Labels]:
        if selects_nothing(query, reader):
            return []
        matching = Query(enforced(query, reader, self._project_label).matchers)
        parameters = {"match[]": write(matching), "start": str(start), "end": str(end)}
        answer = await self._get("series", parameters, _Series)
        return list(dict.fromkeys(map(labels_of, answer.data)))

    @asynccontextmanager
    async def follow(
        self, reader: Reader, query: Query, start: int, limit: int
    ) -> AsyncIterator[AsyncIterator[Entry | Notice | Dropped]]:
        """By asking again and again: a store has lines of some streams earlier than those of others."""
        generator = self._poll(reader, query, start, limit)
        try:
            yield generator
        finally:
            await generator.aclose()  # type: ignore[attr-defined]

    async def _poll(
        self, reader: Reader, query: Query, start: int, limit: int
    ) -> AsyncIterator[Entry | Notice | Dropped]:
        now = self._now()
        backlog = await self.read(reader, query, Window(start, now, limit)) if limit else []
        seen = {_key(entry) for entry in backlog if entry.time >= now - OVERLAP}
        for entry in backlog:
            yield entry
        floor = now if not limit else backlog[0].time if len(backlog) >= limit else start
        since, silent = now - OVERLAP, False
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = self._now()
            try:
                async with aclosing(self._pages(reader, query, since, now)) as pages:
                    async for page, end in pages:
                        if silent:
                            silent = False
                            yield Notice("back", "", "", now, "the store of logs answers again")
                        for entry in page:
                            if entry.time >= floor and _key(entry) not in seen:
                                yield entry
                        since = max(since, min(end, now - OVERLAP))
                        seen = {key for key in seen.union(map(_key, page)) if key[0] >= since}
            except SourceAway as away:
                if not silent:
                    silent = True
                    yield Notice("silent", "", "", now, str(away))

    async def _pages(
        self, reader: Reader, query: Query, start: int, end: int
    ) -> AsyncGenerator[tuple[Sequence[Entry], int], None]:
        """Every line of a window, and up to when each page is complete. The next page has lines of that time again.

        One page is asked for when the last was taken, because after an outage there may be any number of them.
        """
        while True:
            page = await self.read(reader, query, Window(start, end, _PAGE, backward=False))
            if len(page) < _PAGE:
                yield page, end
                return
            start = max(page[-1].time, start + 1)
            yield page, start

    async def _get(self, path: str, parameters: Mapping[str, str], type_: type[Any]) -> Any:
        session = self._open_session()
        try:
            async with session.get(
                f"{self._url}/{path}", params=parameters, headers=self._headers(), allow_redirects=False
            ) as response:
                body = await response.read()
                if response.status == 400:
                    raise QueryError("the store of logs does not understand the query")
                if response.status >= 300:
                    _log.warning("the store of logs refused a query", status=response.status)
                    raise SourceAway(_AWAY)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.warning("the store of logs does not answer", error=type(error).__name__)
            raise SourceAway(_AWAY) from None
        try:
            return msgspec.json.decode(body, type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            _log.warning("the store of logs makes no sense")
            raise SourceAway(_AWAY) from None

    def _headers(self) -> dict[str, str]:
        """Read for each call, because tokens are rotated."""
        if self._token_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._token_file.read_text('utf-8').strip()}"}
        except (OSError, UnicodeDecodeError):
            _log.warning("the token for the store of logs cannot be read", file=str(self._token_file))
            raise SourceAway(_AWAY) from None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS, sock_connect=5.0)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _now(self) -> int:
        return nanoseconds(self._clock.now())


def _key(entry: Entry) -> tuple[int, Labels, str]:
    return entry.time, entry.labels, entry.text
