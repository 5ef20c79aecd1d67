"""The planes of an engine as one ASGI application. Entry point: `Application`.

It authenticates a request, finds its plane and presents the plane's answer in the form that was requested.
"""

import asyncio
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import structlog
from msgspec import Struct

from datum_compute import PRODUCT, __version__
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.https import forms, openapi
from datum_compute.embedded.https.discovery import aggregated, discovered
from datum_compute.embedded.https.extensions import Extension, Message, Receive, Send, handle
from datum_compute.embedded.plane.bodies import flag
from datum_compute.embedded.plane.pages import number
from datum_compute.embedded.plane.reviews import REVIEWS, review_at
from datum_compute.embedded.plane.server import DEFAULT_WATCH_SECONDS, PlaneServer, method_not_allowed
from datum_compute.embedded.plane.watches import Watch
from datum_compute.kube.admission import User
from datum_compute.kube.errors import (
    ApiError,
    NotFound,
    ServerError,
    Unauthorized,
)
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime import Clock
from datum_compute.runtime.serving.bodies import Bodies
from datum_compute.runtime.serving.connections import Limits
from datum_compute.runtime.tasks import first

ROOT_PLANE = "root"

BEARER = User("compute-local", ("system:authenticated",))
"""Whoever holds the token. They own the machine, but objects that controllers write are not theirs to edit."""

_BODY_BYTES = 3 * 1024 * 1024
_BODY_BYTES_TOGETHER = 128 * 1024 * 1024
_WATCH_GRACE_SECONDS = 5.0  # for the last events after a watch should have ended
_WATCH_STALL_SECONDS = 20.0  # for a watcher to take the next events
_WATCH_BYTES = 64 * 1024  # sent at once to a watcher that is behind
_VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": f"v1.35.0+{PRODUCT}-{__version__}",
    # Clients insist on all of these, although they mean little for a program in Python.
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
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
        return cls(scope.get("method", "GET"), scope["path"], query, headers)  # a WebSocket begins with GET

    @property
    def watches(self) -> bool:
        return self.method == "GET" and flag(self.query, "watch")


class Application:
    """Serves the root plane at `/`, every plane at `/planes/<name>`, and some at the paths of their mounts as well.

    Everything but health and version needs the bearer token. API groups of `extensions` are answered by their handlers.
    `documents` are JSON by path, built for each request: what the program around the engine has to say about itself.
    `stop` ends the watches, and tells handlers that their clients have gone.
    """

    def __init__(
        self,
        engine: Engine,
        token: str,
        clock: Clock,
        ready: Callable[[], bool],
        limits: Limits,
        extensions: Sequence[Extension] = (),
        documents: Mapping[str, Callable[[], Any]] = {},
    ) -> None:
        self._engine = engine
        self._extensions = tuple(extensions)
        self._documents = dict(documents)
        self._token = token.encode()
        self._clock = clock
        self._ready = ready
        self._bodies = Bodies(_BODY_BYTES, seconds=limits.body_seconds, together=_BODY_BYTES_TOGETHER)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    def has_websocket(self, path: str) -> bool:
        server, below = self._plane(path)
        return isinstance(server, PlaneServer) and any(
            extension.websockets and extension.serves(below) for extension in self._of_plane(server)
        )

    def _of_plane(self, server: PlaneServer) -> list[Extension]:
        return [entry for entry in self._extensions if self._engine.plane(server.plane, role=entry.role)]

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        request = _Request.of(scope)
        try:
            answer = await self._answer(request, scope, receive, send)
        except ApiError as error:
            answer = _refusal(error)
        except Exception as error:
            _log.error("request failed", method=request.method, path=request.path, error=repr(error), exc_info=error)
            answer = _refusal(ServerError("an error on the server has prevented the request from succeeding"))
        if answer is not None:
            await _send(send, answer)

    async def _answer(self, request: _Request, scope: Mapping[str, Any], receive: Receive, send: Send) -> Answer | None:
        """The answer, or None for a watch and for what a handler answers, which send their own."""
        server, path = self._plane(request.path)
        match path:
            case "/healthz" | "/livez":
                return Answer(200, b"ok")
            case "/readyz":
                return Answer(200, b"ok") if self._ready() else Answer(503, b"not ready")
            case "/version" | "/version/":  # some clients add the slash
                return Answer(200, encode(_VERSION))
        self._authenticate(request)
        if (document := self._documents.get(request.path)) is not None:
            if request.method != "GET":
                raise method_not_allowed(request.method, request.path)
            return Answer(200, encode(document()))
        if isinstance(server, ApiError):
            raise server
        found = self._of_plane(server)
        for extension in found:
            if extension.serves(path):
                await handle(extension.handler, server.plane, path, scope, receive, send, stopping=self._stopping)
                return None
        if scope["type"] == "websocket":
            raise NotFound(f"no WebSocket is served at {request.path}")
        accept = request.headers.get("accept", "")
        description = _description(server, found, path, request.path.removesuffix(path), accept)
        if description is not None:
            if request.method != "GET":
                raise method_not_allowed(request.method, request.path)
            return description
        served = review_at(path) or server.target(path).served
        form, include = forms.accepted(accept), forms.included(request.query)
        if request.watches:
            call = Call("GET", path, request.query)

            def present(line: bytes) -> bytes:
                return form.event(served, line, self._clock.now(), include)

            await self._watch(server, call, present, receive, send)
            return None
        body = await self._bodies.read(scope, receive)
        query = request.query
        if request.method in ("POST", "PUT", "PATCH"):
            query = {"fieldValidation": "Warn"} | query
        content_type = request.headers.get("content-type", "")
        agent = request.headers.get("user-agent", "")
        answer = await server.answer(Call(request.method, path, query, body, content_type), BEARER, agent)
        if answer.code >= 300 or form is forms.Form.WHOLE or (form is forms.Form.TABLE and request.method != "GET"):
            return answer
        body = form.answer(served, answer.body, self._clock.now(), include)
        return msgspec.structs.replace(answer, body=body)

    def _authenticate(self, request: _Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        valid = hmac.compare_digest(token.strip().encode("latin-1", "replace"), self._token)
        if not valid or scheme.lower() != "bearer":
            raise Unauthorized("Unauthorized")

    def _plane(self, path: str) -> tuple[PlaneServer | ApiError, str]:
        """The plane that a path names, or the error that it is not served, and the path below its API root."""
        for mount in self._engine.mounts:
            if (parts := mount.split(path)) is not None:
                name, below = parts
                missing = f'{mount.noun} "{name}" has no control plane here'
                return self._engine.plane(name, role=mount.role) or NotFound(missing), below
        match path.split("/"):
            case ["", "planes", name, *rest]:
                pass
            case _:
                name, rest = ROOT_PLANE, [path.removeprefix("/")]
        return self._engine.plane(name) or NotFound(f'plane "{name}" is not served here'), f"/{'/'.join(rest)}"

    async def _watch(
        self, server: PlaneServer, call: Call, present: Callable[[bytes], bytes], receive: Receive, send: Send
    ) -> None:
        """Sends events until the watch ends, the client disconnects or stops reading, or the server stops."""
        seconds = number(call.query.get("timeoutSeconds"), "timeoutSeconds", 0) or DEFAULT_WATCH_SECONDS
        async with server.watch(call) as watch:
            await send(_head(200, ()))
            try:
                async with asyncio.timeout(seconds + _WATCH_GRACE_SECONDS):
                    await first(_copy(watch, present, send), _disconnected(receive), self._stopping.wait())
            except TimeoutError:
                pass
            except Exception as error:  # too late for an error answer
                _log.error("watch failed", plane=server.plane, path=call.path, error=repr(error), exc_info=error)


def _description(
    server: PlaneServer, extensions: Sequence[Extension], path: str, base: str, accept: str
) -> Answer | None:
    """Discovery and OpenAPI; None for the path of a resource."""
    kinds = (*server.kinds.values(), *REVIEWS)
    bare = [(extension.group, extension.version) for extension in extensions]
    if path == "/openapi/v3":
        return Answer(200, openapi.index(kinds, base))
    if path.startswith("/openapi/v3/"):
        document = openapi.document(kinds, path.removeprefix("/openapi/v3/"))
        return Answer(200, document) if document else None
    if forms.aggregated(accept) and (whole := aggregated(kinds, path, bare)) is not None:
        return Answer(200, encode(whole), content_type=forms.AGGREGATED)
    discovery = discovered(kinds, path, bare)
    return Answer(200, encode(discovery)) if discovery is not None else None


async def _copy(watch: Watch, present: Callable[[bytes], bytes], send: Send) -> None:
    async for first_line in watch:
        lines = b"".join([present(line) + b"\n" for line in (first_line, *watch.ready(_WATCH_BYTES))])
        try:
            async with asyncio.timeout(_WATCH_STALL_SECONDS):
                await send({"type": "http.response.body", "body": lines, "more_body": True})
        except TimeoutError:
            return  # it does not read; without the end of the answer its connection is closed
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refusal(error: ApiError) -> Answer:
    return Answer(error.code, encode(error.status()))


async def _send(send: Send, answer: Answer) -> None:
    headers = [(b"content-length", str(len(answer.body)).encode())]
    headers += [(b"warning", _warning(text)) for text in answer.warnings]
    if answer.code == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if answer.code in (413, 429, 504):
        headers.append((b"connection", b"close"))  # the unread body would be taken for the next request
    guessed = "application/json" if answer.body[:1] == b"{" else "text/plain; charset=utf-8"
    await send(_head(answer.code, headers, answer.content_type or guessed))
    await send({"type": "http.response.body", "body": answer.body})


def _head(code: int, headers: Iterable[tuple[bytes, bytes]], content_type: str = "application/json") -> Message:
    common = [(b"content-type", content_type.encode()), (b"cache-control", b"no-cache, private")]
    return {"type": "http.response.start", "status": code, "headers": [*common, *headers]}


def _warning(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{"".join(filter(str.isprintable, quoted))}"'.encode("latin-1", "replace")
