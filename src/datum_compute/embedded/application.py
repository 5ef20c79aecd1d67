"""The planes of an engine as one ASGI application. Entry point: `Application`.

Who may call, which plane is meant, and in what form the answer is wanted; what the answer is, the plane decides.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import structlog
from msgspec import Struct

from datum_compute import __version__
from datum_compute.embedded import forms, openapi
from datum_compute.embedded.discovery import aggregated, discovered
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.pages import number
from datum_compute.embedded.server import DEFAULT_WATCH_SECONDS, PlaneServer
from datum_compute.embedded.watches import Watch
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.errors import (
    ApiError,
    BadRequest,
    MethodNotAllowed,
    NotFound,
    ServerError,
    Timeout,
    TooLarge,
    Unauthorized,
)
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime.clock import Clock

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ROOT_PLANE = "root"
MILO = "/apis/resourcemanager.miloapis.com/v1alpha1"  # below it, projects/<name>/control-plane is an API root

_BODY_LIMIT = 3 * 1024 * 1024
_READ_ANYWAY = 10 * _BODY_LIMIT  # read and thrown away, so that the client gets to see why it was refused
_BODY_SECONDS = 60.0
_WATCH_GRACE_SECONDS = 5.0  # for what is on its way when a watch should have ended
_WATCH_STALL_SECONDS = 20.0  # for a watcher to take the next events
_WATCH_BYTES = 64 * 1024  # sent at once to a watcher that has not kept up
_VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": f"v1.35.0+datum-compute-{__version__}",
    "platform": "embedded",
}

_log = structlog.get_logger(__name__)


class _Request(Struct, frozen=True):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> "_Request":
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        return cls(scope["method"], scope["path"], query, headers)

    @property
    def watches(self) -> bool:
        return self.method == "GET" and self.query.get("watch") in ("true", "1")


class Application:
    """`/` is the root plane, project planes are where Milo has them, and any plane is at `/planes/<name>`.

    Everything but health and version needs the bearer token. `stop` ends the watches, which otherwise last.
    """

    def __init__(self, engine: Engine, token: str, clock: Clock, ready: Callable[[], bool]) -> None:
        self._engine = engine
        self._token = token.encode()
        self._clock = clock
        self._ready = ready
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        request = _Request.of(scope)
        try:
            answer = await self._answer(request, receive, send)
        except ApiError as error:
            answer = _refusal(error)
        except Exception as error:
            _log.error("request failed", method=request.method, path=request.path, error=repr(error), exc_info=error)
            answer = _refusal(ServerError("an error on the server has prevented the request from succeeding"))
        if answer is not None:
            await _send(send, answer)

    async def _answer(self, request: _Request, receive: Receive, send: Send) -> Answer | None:
        """The answer, or None when it was a watch, which answers for itself."""
        server, path = self._plane(request.path)
        match path:
            case "/healthz" | "/livez":
                return Answer(200, b"ok")
            case "/readyz":
                return Answer(200, b"ok") if self._ready() else Answer(503, b"not ready")
            case "/version":
                return Answer(200, encode(_VERSION))
        self._authenticate(request)
        if isinstance(server, ApiError):
            raise server
        accept = request.headers.get("accept", "")
        described = _described(server, path, request.path.removesuffix(path), accept)
        if described is not None:
            if request.method != "GET":
                raise MethodNotAllowed(f"the server does not allow {request.method} on {request.path}")
            return described
        served = server.target(path).served
        form, include = forms.asked(accept), forms.included(request.query)
        if request.watches:
            call = Call("GET", path, request.query)

            def shown(line: bytes) -> bytes:
                return form.event(served, line, self._clock.now(), include)

            await self._watch(server, call, shown, receive, send)
            return None
        body = await _body(request, receive)
        query = request.query
        if request.method in ("POST", "PUT", "PATCH"):
            query = {"fieldValidation": "Warn"} | query
        content_type = request.headers.get("content-type", "")
        answer = await server.answer(Call(request.method, path, query, body, content_type))
        if answer.code >= 300 or form is forms.Form.WHOLE or (form is forms.Form.TABLE and request.method != "GET"):
            return answer
        body = form.shown(served, answer.body, self._clock.now(), include)
        return msgspec.structs.replace(answer, body=body)

    def _authenticate(self, request: _Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._token)
        if not known or scheme.lower() != "bearer":
            raise Unauthorized("Unauthorized")

    def _plane(self, path: str) -> tuple[PlaneServer | ApiError, str]:
        """The plane a path is about, or the error that it is not served, and the path below its API root."""
        match path.removeprefix(MILO).split("/"):
            case ["", "projects", name, "control-plane", *rest]:
                server = self._engine.plane(name, role=PROJECT)
                missing = f'project "{name}" has no control plane here'
                return server or NotFound(missing), f"/{'/'.join(rest)}"
        match path.split("/"):
            case ["", "planes", name, *rest]:
                pass
            case _:
                name, rest = ROOT_PLANE, [path.removeprefix("/")]
        return self._engine.plane(name) or NotFound(f'plane "{name}" is not served here'), f"/{'/'.join(rest)}"

    async def _watch(
        self, server: PlaneServer, call: Call, shown: Callable[[bytes], bytes], receive: Receive, send: Send
    ) -> None:
        """Sends events until the watch is over, the client is gone or takes nothing any more, or the server stops."""
        seconds = number(call.query.get("timeoutSeconds"), "timeoutSeconds", 0) or DEFAULT_WATCH_SECONDS
        async with server.watch(call) as lines:
            await send(_head(200, ()))
            copying = asyncio.create_task(_copy(lines, shown, send), name=f"watch {server.plane}{call.path}")
            tasks = [copying, asyncio.create_task(_left(receive)), asyncio.create_task(self._stopping.wait())]
            try:
                limit = seconds + _WATCH_GRACE_SECONDS
                await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        if not copying.cancelled() and (error := copying.exception()):
            _log.error("watch failed", plane=server.plane, path=call.path, error=repr(error), exc_info=error)


def _described(server: PlaneServer, path: str, base: str, accept: str) -> Answer | None:
    """Discovery and OpenAPI; None for the path of a resource."""
    kinds = tuple(server.kinds.values())
    if path == "/openapi/v3":
        return Answer(200, openapi.index(kinds, base))
    if path.startswith("/openapi/v3/"):
        document = openapi.document(kinds, path.removeprefix("/openapi/v3/"))
        return Answer(200, document) if document else None
    if forms.aggregated(accept) and (whole := aggregated(kinds, path)) is not None:
        return Answer(200, encode(whole), content_type=forms.AGGREGATED)
    found = discovered(kinds, path)
    return Answer(200, encode(found)) if found is not None else None


async def _copy(lines: Watch, shown: Callable[[bytes], bytes], send: Send) -> None:
    async for line in lines:
        together = b"".join([shown(one) + b"\n" for one in (line, *lines.ready(_WATCH_BYTES))])
        try:
            async with asyncio.timeout(_WATCH_STALL_SECONDS):
                await send({"type": "http.response.body", "body": together, "more_body": True})
        except TimeoutError:
            return  # it takes nothing; without the end of the answer its connection is closed
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(request: _Request, receive: Receive) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > _READ_ANYWAY:
        raise _too_large()
    deadline = asyncio.get_running_loop().time() + _BODY_SECONDS
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise Timeout(f"the body of the request did not arrive within {_BODY_SECONDS:.0f} s") from None
        if message["type"] == "http.disconnect":
            raise BadRequest("the client went away before its request was complete")
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
        if size > _READ_ANYWAY:
            break
        if size <= _BODY_LIMIT:
            parts.append(message.get("body", b""))
    if size > _BODY_LIMIT:
        raise _too_large()
    return b"".join(parts)


def _too_large() -> TooLarge:
    return TooLarge(f"Request entity too large: limit is {_BODY_LIMIT}")


def _refusal(error: ApiError) -> Answer:
    return Answer(error.code, encode(error.status()))


async def _send(send: Send, answer: Answer) -> None:
    headers = [(b"content-length", str(len(answer.body)).encode())]
    headers += [(b"warning", _warning(text)) for text in answer.warnings]
    if answer.code == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if answer.code in (413, 504):
        headers.append((b"connection", b"close"))  # what was not read would be taken for the next request
    looks = "application/json" if answer.body[:1] == b"{" else "text/plain; charset=utf-8"
    await send(_head(answer.code, headers, answer.content_type or looks))
    await send({"type": "http.response.body", "body": answer.body})


def _head(code: int, headers: Iterable[tuple[bytes, bytes]], content_type: str = "application/json") -> Message:
    common = [(b"content-type", content_type.encode()), (b"cache-control", b"no-cache, private")]
    return {"type": "http.response.start", "status": code, "headers": [*common, *headers]}


def _warning(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{"".join(filter(str.isprintable, quoted))}"'.encode("latin-1", "replace")
