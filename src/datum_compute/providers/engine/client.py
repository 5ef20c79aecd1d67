"""The Docker Engine API over a unix socket, as Docker and Podman serve it. Entry point: `EngineClient.connect`.

The two answer the same situation with different codes, so after a refusal the client looks at what is there.
"""

import asyncio
import errno
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from math import ceil
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from datum_compute.federation.sessions import Command
from datum_compute.kube.meta import Json, decode, encode
from datum_compute.providers.engine import answers
from datum_compute.providers.engine.exec import ExecSession, start_exec
from datum_compute.providers.engine.interface import (
    Container,
    EngineAway,
    EngineInfo,
    Event,
    PullProgress,
    Refused,
    Summary,
)
from datum_compute.providers.engine.streams import Documents, document

_LARGEST_ANSWER = 64 << 20


class Limits(Struct, frozen=True):
    """Seconds."""

    hello: float = 2
    answer: float = 10
    start: float = 60
    pull_silence: float = 60
    event_silence: float = 10  # then the engine is asked whether it is there


class Answer(Struct, frozen=True):
    code: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Json:
        return document(self.body)

    def array(self) -> list[Any]:
        try:
            return decode(self.body, list) if self.body.strip() not in (b"", b"null") else []
        except msgspec.MsgspecError:
            raise EngineAway("the container engine sent something that cannot be read") from None

    def refusal(self) -> Refused:
        try:
            message = answers.message_of(decode(self.body, dict))
        except msgspec.MsgspecError:
            message = " ".join(self.body[:200].decode(errors="replace").split())
        return Refused(self.code, message)


class EngineClient:
    """One engine, on one event loop; its creator closes it. Connections are opened as needed, so it survives a restart
    of the engine."""

    def __init__(self, path: str, limits: Limits | None = None) -> None:
        self.path = path
        self._limits = limits or Limits()
        self._info: EngineInfo | None = None
        self._root = ""
        # No bound: each follower of a log has a connection of its own.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )

    @classmethod
    async def connect(cls, path: str, limits: Limits | None = None) -> "EngineClient":
        """The engine behind a socket. Raises `EngineError` with what it said, or why it said nothing."""
        client = cls(path, limits)
        try:
            await client._negotiate()
        except BaseException:
            await client.close()
            raise
        return client

    async def _negotiate(self) -> None:
        ping = await self._call("GET", "/_ping", seconds=self._limits.hello)
        if ping.code != 200:
            raise ping.refusal()
        # Each takes Podman the better part of a second.
        version, info = [
            answer.json()
            for answer in await asyncio.gather(self._expect("GET", "/version"), self._expect("GET", "/info"))
        ]
        offered = ping.headers.get("Api-Version", "") or str(version.get("ApiVersion", ""))
        api = answers.api_version(offered, str(version.get("MinAPIVersion", "")))
        self._root = f"/v{api}"
        self._info = answers.info_of(version, info, api, f"unix://{self.path}")

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "connect first"
        return self._info

    # Containers

    async def containers(self, labels: Mapping[str, str]) -> Sequence[Summary]:
        query = {"all": "true", "filters": _filters(labels)}
        return answers.summaries_of((await self._expect("GET", "/containers/json", query)).array())

    async def inspect(self, id: str) -> Container | None:
        answer = await self._call("GET", f"/containers/{_segment(id)}/json")
        if answer.code == 404:
            return None
        return answers.container_of(_good(answer).json())

    async def create(self, name: str, body: Json) -> str:
        answer = await self._call("POST", "/containers/create", {"name": name}, body, self._limits.start)
        id = _good(answer).json().get("Id")
        if not isinstance(id, str) or not id:
            raise EngineAway("the container engine does not say which container it created")
        return id

    async def start(self, id: str) -> None:
        answer = await self._call("POST", f"/containers/{_segment(id)}/start", seconds=self._limits.start)
        if answer.code >= 300 and answer.code != 304:
            found = await self.inspect(id)
            if found is None or found.state.status != "running":
                raise answer.refusal()

    async def stop(self, id: str, grace: float) -> None:
        seconds = grace + self._limits.answer
        answer = await self._call("POST", f"/containers/{_segment(id)}/stop", {"t": str(ceil(grace))}, seconds=seconds)
        if answer.code >= 300 and answer.code != 304:
            found = await self.inspect(id)
            if found is not None and found.state.status in ("running", "paused", "restarting"):
                raise answer.refusal()

    async def remove(self, id: str) -> None:
        query = {"force": "true", "v": "true"}
        answer = await self._call("DELETE", f"/containers/{_segment(id)}", query, seconds=self._limits.start)
        if answer.code >= 300 and await self.inspect(id) is not None:
            raise answer.refusal()

    # Images

    async def has_image(self, reference: str) -> bool:
        answer = await self._call("GET", f"/images/{quote(reference, safe='/:@')}/json")
        if answer.code >= 500:
            raise answer.refusal()
        return answer.code == 200  # a name that is not valid has no image either; pulling says what is wrong with it

    async def pull(self, reference: str, credentials: str) -> AsyncGenerator[PullProgress, None]:
        repository, tag = answers.repository_and_tag(reference)
        headers = {"X-Registry-Auth": credentials} if credentials else {}
        query = {"fromImage": repository, "tag": tag}
        silence = self._limits.pull_silence
        async with self._stream("POST", "/images/create", query, headers, silence=silence) as response:
            if response.status >= 300:
                yield PullProgress(error=(await self._answer(response)).refusal().message or f"code {response.status}")
                return
            pull, documents = answers.Pull(), Documents()
            async for chunk in response.content.iter_any():
                for entry in documents.feed(chunk):
                    yield pull.add(entry)
            for entry in documents.finish():
                yield pull.add(entry)

    # Networks

    async def networks(self, labels: Mapping[str, str]) -> Sequence[str]:
        found = (await self._expect("GET", "/networks", {"filters": _filters(labels)})).array()
        return answers.networks_of(found, labels)

    async def create_network(self, name: str, labels: Mapping[str, str]) -> None:
        body = {"Name": name, "Driver": "bridge", "CheckDuplicate": True, "Labels": dict(labels)}
        answer = await self._call("POST", "/networks/create", None, body)
        if answer.code >= 300 and not await self._has_network(name):
            raise answer.refusal()

    async def remove_network(self, name: str) -> None:
        answer = await self._call("DELETE", f"/networks/{_segment(name)}")
        if answer.code >= 300 and await self._has_network(name):
            raise answer.refusal()

    async def _has_network(self, name: str) -> bool:
        return (await self._call("GET", f"/networks/{_segment(name)}")).code == 200

    # Streams

    @asynccontextmanager
    async def events(self, labels: Mapping[str, str]) -> AsyncIterator[AsyncIterator[Event]]:
        # Podman sends no head before the first event, so only a time shows from when on events are seen. It is the
        # engine's own: its clock may differ from ours.
        since = _date(await self._expect("GET", "/_ping", versioned=False))
        query = {"since": str(since), "filters": _filters(labels, type=["container"])}
        stream = self._events(query)
        try:
            yield stream
        finally:
            await stream.aclose()

    async def _events(self, query: Mapping[str, str]) -> AsyncGenerator[Event, None]:
        documents = Documents()
        async with self._stream("GET", "/events", query, check=True) as response:
            if response.status >= 300:
                raise (await self._answer(response)).refusal()
            async for chunk in self._watched(response):
                for entry in documents.feed(chunk):
                    yield answers.event_of(entry)
        raise EngineAway("the container engine ended the stream of events")

    async def _watched(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """The chunks of a stream that may be silent for hours, and fails when the engine stops answering."""
        while True:
            reading = asyncio.ensure_future(response.content.readany())
            try:
                await self._while_answering(reading)
                chunk = reading.result()
            finally:
                reading.cancel()
            if not chunk:
                return
            yield chunk

    async def _while_answering(self, waiting: "asyncio.Future[Any]") -> None:
        while not (await asyncio.wait([waiting], timeout=self._limits.event_silence))[0]:
            await self._expect("GET", "/_ping", versioned=False)

    async def logs(self, id: str, tail: int | None) -> AsyncGenerator[bytes, None]:
        newest = "all" if tail is None else str(tail)
        query = {"follow": "1", "stdout": "1", "stderr": "1", "timestamps": "1", "tail": newest}
        async with self._stream("GET", f"/containers/{_segment(id)}/logs", query) as response:
            if response.status >= 300:
                raise (await self._answer(response)).refusal()
            async for chunk in response.content.iter_any():
                yield chunk

    async def exec(self, id: str, command: Command) -> ExecSession:
        return await start_exec(self, id, command)

    async def close(self) -> None:
        await self._session.close()
        await asyncio.sleep(0)  # lets the sockets of streams close

    # Calls

    async def post(self, path: str, query: Mapping[str, str] | None = None, body: Json | None = None) -> Answer:
        return await self._call("POST", path, query, body)

    async def get(self, path: str) -> Answer:
        return await self._call("GET", path)

    @property
    def root(self) -> str:
        """What precedes the path of a call, for connections that are upgraded."""
        return self._root

    @property
    def limits(self) -> Limits:
        return self._limits

    async def _expect(
        self, method: str, path: str, query: Mapping[str, str] | None = None, *, versioned: bool = True
    ) -> Answer:
        return _good(await self._call(method, path, query, versioned=versioned))

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        seconds: float | None = None,
        *,
        versioned: bool = True,
    ) -> Answer:
        with self._translated():
            async with asyncio.timeout(seconds or self._limits.answer):
                async with await self._request(method, path, query or {}, {}, body, versioned) as response:
                    return await self._answer(response)

    @asynccontextmanager
    async def _stream(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        *,
        silence: float | None = None,
        check: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        with self._translated():
            opening = asyncio.ensure_future(self._request(method, path, query, headers or {}, silence=silence))
            try:
                if check:
                    await self._while_answering(opening)
                response = await opening
            except BaseException:
                opening.cancel()
                raise
            try:
                yield response
            finally:
                response.close()  # what has not been read is of no use to anybody

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Json | None = None,
        versioned: bool = True,
        silence: float | None = None,
    ) -> aiohttp.ClientResponse:
        if self._session.closed:
            raise EngineAway("the connection to the container engine was given up")
        target = f"http://engine{self._root if versioned else ''}{path}" + (f"?{urlencode(query)}" if query else "")
        return await self._session.request(
            method,
            URL(target, encoded=True),  # as it is: a name that contains ".." must not lead elsewhere
            data=encode(body) if body is not None else None,
            headers={**headers, **({"Content-Type": "application/json"} if body is not None else {})},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.answer, sock_read=silence),
        )

    async def _answer(self, response: aiohttp.ClientResponse) -> Answer:
        async with asyncio.timeout(self._limits.start):
            body = await response.content.read(_LARGEST_ANSWER)
            while piece := await response.content.read(_LARGEST_ANSWER - len(body)):
                body += piece
        return Answer(response.status, body, response.headers)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except aiohttp.ClientConnectorError as error:
            raise EngineAway(connection_problem(error.os_error)) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineAway("the container engine closed the connection") from error
        except TimeoutError as error:
            raise EngineAway("the container engine does not answer") from error


def connection_problem(error: OSError) -> str:
    """Why nobody is reached at a socket."""
    match error.errno:
        case errno.ENOENT:
            return "there is no such socket"
        case errno.EACCES | errno.EPERM:
            return "this user may not use the socket"
        case errno.ECONNREFUSED:
            return "no container engine listens there"
        case errno.ENOTSOCK:
            return "it is not a socket"
        case _:
            return f"it cannot be reached: {error.strerror or error}"


def _good(answer: Answer) -> Answer:
    if answer.code >= 300:
        raise answer.refusal()
    return answer


def _filters(labels: Mapping[str, str], **more: list[str]) -> str:
    wanted = [f"{key}={value}" if value else key for key, value in labels.items()]
    return encode({**more, **({"label": wanted} if wanted else {})}).decode()


def _segment(name: str) -> str:
    return quote(name, safe="")


def _date(answer: Answer) -> int:
    """The engine's own time, in seconds; 1 if it does not say, so that no event can be missed."""
    try:
        return int(parsedate_to_datetime(answer.headers.get("Date", "")).timestamp())
    except ValueError:
        return 1
