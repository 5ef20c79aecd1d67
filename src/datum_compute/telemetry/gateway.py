"""The read API of logs on the plane of a project, with the paths and answers of Loki. Entry point: `Gateway`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from datum_compute.kube.errors import (
    ApiError,
    BadRequest,
    MethodNotAllowed,
    NotFound,
    ServerError,
    Timeout,
    TooManyRequests,
    Unavailable,
)
from datum_compute.kube.meta import encode
from datum_compute.telemetry import loki
from datum_compute.telemetry.callers.access import Access
from datum_compute.telemetry.parameters import HOUR, SECOND, ParameterError, Parameters
from datum_compute.telemetry.query import PLAIN_FILTERS, Query, QueryError, parse
from datum_compute.telemetry.sources import Labels, Partial, Reader, Source, SourceAway, Window
from datum_compute.telemetry.tail import Receive, Send, Tail

GROUP, VERSION = "o11y.miloapis.com", "v1alpha1"
ROOT = f"/apis/{GROUP}/{VERSION}/logs/loki/api/v1/"

ANSWER_SECONDS = 30.0
MOST_STREAMS = 256  # of one reader who follows
MOST_STREAMS_TOGETHER = 1024
MOST_TAILS = 16  # of a project

_PROBE = ("vector(1)+vector(1)", "vector(1)vector(1)")  # Grafana's, to see who answers; a bare + in a URL is a blank
_LABELS_WINDOW = 6 * HOUR  # as Loki
_NARROWER = "narrow the query by datum_workload_name, datum_city_code or datum_instance_name"

_log = structlog.get_logger(__name__)


class _Answer(Struct, frozen=True):
    code: int
    body: bytes


class _Request(Struct, frozen=True):
    reader: Reader
    parameters: Parameters
    now: int


class Gateway:
    """Answers requests for the logs of a project, as an ASGI application that is also given a plane and a path.

    `access` decides who reads what; `now` is in nanoseconds; `filters` are the operators on lines that the source
    supports.
    """

    def __init__(
        self, source: Source, access: Access, now: Callable[[], int], filters: Sequence[str] = PLAIN_FILTERS
    ) -> None:
        self._source = source
        self._access = access
        self._now = now
        self._filters = filters
        self._tails: dict[str, int] = {}  # by project
        self._streams = 0  # of all tails

    async def __call__(self, plane: str, path: str, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise BadRequest("logs are followed over HTTP, not by WebSocket")
        try:
            if scope["method"] != "GET":
                raise MethodNotAllowed(f"{scope['method']} is not supported for logs; use GET")
            if not path.startswith(ROOT):
                raise NotFound(f"nothing is served at {path}; logs are below {ROOT}")
            name = path.removeprefix(ROOT)
            if name == "tail":
                await self._tail(plane, scope, receive, send)
                return
            answer = await self._answer(plane, name, scope)
        except Exception as error:
            answer = _refusal(error, path)
        await _send(send, answer)

    async def _answer(self, plane: str, name: str, scope: Mapping[str, Any]) -> _Answer:
        route = self._route(name)
        async with asyncio.timeout(ANSWER_SECONDS):
            parameters = Parameters.of(scope["query_string"])
            reader = await self._access(plane, scope)
            return _Answer(200, await route(_Request(reader, parameters, self._now())))

    def _route(self, name: str) -> Callable[[_Request], Awaitable[bytes]]:
        match name.split("/"):
            case ["query_range"]:
                return self._query_range
            case ["query"]:
                return self._query
            case ["labels"]:
                return self._labels
            case ["label", label, "values"]:
                return partial(self._values, label)
            case ["series"]:
                return self._series
        raise NotFound(f"{name} is not served for logs")

    # Answers

    async def _query_range(self, request: _Request) -> bytes:
        query = self._parsed(request.parameters.required("query"))
        start, end = request.parameters.window(request.now)
        if end < start:
            raise ParameterError("the parameter end is before start")
        return await self._read(request, query, start, end)

    async def _query(self, request: _Request) -> bytes:
        text = request.parameters.required("query")
        time = request.parameters.time("time", request.now, request.now)
        if "".join(text.split()) in _PROBE:
            return loki.success(loki.sample(time, "2"))
        return await self._read(request, self._parsed(text), time - HOUR, time)

    async def _read(self, request: _Request, query: Query, start: int, end: int) -> bytes:
        parameters = request.parameters
        backward = parameters.backward()
        previous = parameters.text("previous") == "true" and self._source.previous_runs
        window = Window(start, end, parameters.limit(), backward, previous)
        entries = await self._source.read(request.reader, query, window)
        silent = entries.silent if isinstance(entries, Partial) else ()
        warnings = [f"{city} does not answer; its lines are missing" for city in silent]
        return loki.success(loki.streams(entries, backward=backward), previous=previous, warnings=warnings)

    async def _labels(self, request: _Request) -> bytes:
        found = await self._found(request, None)
        return loki.success(sorted({name for labels in found for name in labels.values()}))

    async def _values(self, label: str, request: _Request) -> bytes:
        text = request.parameters.text("query")
        found = await self._found(request, self._parsed(text) if text else None)
        return loki.success(sorted({value for labels in found if (value := labels.values().get(label))}))

    async def _series(self, request: _Request) -> bytes:
        matches = request.parameters.all("match[]") or [request.parameters.required("match[]")]
        queries = [self._parsed(text) for text in matches]
        found: dict[Labels, None] = {}
        for query in queries:
            found |= dict.fromkeys(await self._found(request, query))
        return loki.success([labels.values() for labels in found])

    async def _found(self, request: _Request, query: Query | None) -> Sequence[Labels]:
        start, end = request.parameters.window(request.now, default=_LABELS_WINDOW)
        return await self._source.streams(request.reader, query, start, end)

    def _parsed(self, text: str) -> Query:
        return parse(text, self._filters)

    # Following

    async def _tail(self, plane: str, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        parameters = Parameters.of(scope["query_string"])
        query = self._parsed(parameters.required("query"))
        now = self._now()
        start, limit = parameters.time("start", now, now - HOUR), parameters.limit()
        delay = parameters.delay()
        async with asyncio.timeout(ANSWER_SECONDS):
            reader = await self._access(plane, scope)
            count = await self._count(reader, query)
        check = partial(self._check, plane, scope, reader, query)
        with self._counted(reader.project, count):
            async with AsyncExitStack() as following:
                async with asyncio.timeout(ANSWER_SECONDS):
                    items = await following.enter_async_context(self._source.follow(reader, query, start, limit))
                await Tail(items, self._source.delay if delay is None else delay, check).run(receive, send)

    @contextmanager
    def _counted(self, project: str, count: int) -> Iterator[None]:
        """Counts a tail and its streams while it is open. Raises `TooManyRequests`."""
        tails = self._tails.get(project, 0)
        if tails >= MOST_TAILS:
            raise TooManyRequests(f"{tails} readers follow logs of project {project} already; end one of them first")
        if self._streams + count > MOST_STREAMS_TOGETHER:
            raise TooManyRequests(
                f"{self._streams} containers are followed already, and this query selects {count}; "
                f"at most {MOST_STREAMS_TOGETHER} can be followed at a time: {_NARROWER}, or try again later"
            )
        self._tails[project] = tails + 1
        self._streams += count
        try:
            yield
        finally:
            self._streams -= count
            self._tails[project] -= 1
            if not self._tails[project]:
                del self._tails[project]

    async def _count(self, reader: Reader, query: Query) -> int:
        """The containers that a query selects now. Raises `TooManyRequests` for too many."""
        now = self._now()
        streams = await self._source.streams(reader, query, now, now + SECOND)
        count = len({msgspec.structs.replace(labels, log_iostream="") for labels in streams})
        if count > MOST_STREAMS:
            raise TooManyRequests(
                f"the query selects {count} containers, and at most {MOST_STREAMS} can be followed: {_NARROWER}"
            )
        return count

    async def _check(self, plane: str, scope: Mapping[str, Any], reader: Reader, query: Query) -> bool:
        """Whether a reader may go on. One whose rights changed, or whose query selects too much by now, has to ask
        again, and gets the reason."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._count(reader, query)
                return await self._access(plane, scope) == reader
        except (ApiError, SourceAway, TimeoutError):
            return False


def _refusal(error: Exception, path: str) -> _Answer:
    match error:
        case QueryError() | ParameterError():
            return _Answer(400, loki.bad_data(str(error)))
        case ApiError():
            refused: ApiError = error
        case SourceAway():
            refused = Unavailable(str(error))
        case TimeoutError():
            refused = Timeout(f"the logs could not be read within {ANSWER_SECONDS:g} s; ask for a shorter window")
        case _:
            _log.error("request for logs failed", path=path, error=repr(error), exc_info=error)
            refused = ServerError("an error on the server has prevented the request from succeeding")
    return _Answer(refused.code, encode(refused.status()))


async def _send(send: Send, answer: _Answer) -> None:
    headers = [
        (b"content-type", loki.CONTENT_TYPE.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-cache, private"),
    ]
    if answer.code == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": answer.code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
