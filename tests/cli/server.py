"""The API of embedded planes over plain HTTP, for tests of programs that talk to it. Entry point: `ApiServer`.

Real store, real HTTP, one event loop in a thread. Faults and other writers can be put in the way of single calls.
"""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

from datum_compute.embedded.engine import Engine
from datum_compute.embedded.plane.server import PlaneServer
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, KubeObject, encode
from datum_compute.kube.transport import Answer, Call
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.clock import Clock
from tests.cli.log_store import GROUP, LogStore

T = TypeVar("T")
K = TypeVar("K", bound=KubeObject)

PROJECTS = "/apis/resourcemanager.miloapis.com/v1alpha1/projects/"


class Seen(NamedTuple):
    """A request that reached the server."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str


class Rule(NamedTuple):
    method: str
    part: str
    action: Callable[[], Answer | None]


class ApiServer:
    """Serves project planes below Milo's path, and the root plane below none. Closed by leaving it."""

    def __init__(self, clock: Clock, projects: tuple[str, ...] = ("demo",)) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        self.engine = self.do(self._open(clock, projects))
        self._http = _listening(self)
        self._http_thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="http", daemon=True)
        self._http_thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self.requests: list[Seen] = []
        self.rules: list[Rule] = []
        self.logs: LogStore | None = None  # where the project's logs are read; None if they are not served
        self.watching = 0
        self.served = threading.Event()  # set when a watch has begun

    async def _open(self, clock: Clock, projects: tuple[str, ...]) -> Engine:
        engine = compute_engine(clock=clock, uids=CountedUids())
        engine.serve("root", "root")
        for project in projects:
            engine.serve(project, "project")
            for namespace in ("default", "milo-system"):
                await engine.client(project).create(NAMESPACE, NAMESPACE.body(namespace))
        return engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._http_thread.join()
        self._loop.close()
        self.engine.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    def project_url(self, project: str = "demo") -> str:
        return f"{self.url}{PROJECTS}{project}/control-plane"

    def client(self, plane: str = "demo") -> Client:
        return self.engine.client(plane)

    # What tests do to the store.

    def create(self, kind: Kind[K], body: Json, plane: str = "demo") -> K:
        return self.do(self.client(plane).create(kind, body))

    def get(self, kind: Kind[K], name: str, namespace: str = "default", plane: str = "demo") -> K:
        return self.do(self.client(plane).get(kind, name, namespace if kind.namespaced else ""))

    def all(self, kind: Kind[K], plane: str = "demo") -> list[K]:
        return self.do(self.client(plane).list(kind)).items

    def patch(self, kind: Kind[K], name: str, patch: Json, subresource: str = "", namespace: str = "default") -> K:
        place = namespace if kind.namespaced else ""
        return self.do(self.client().merge_patch(kind, name, place, patch, subresource))

    def set_status(self, kind: Kind[K], name: str, status: Json, namespace: str = "default") -> K:
        return self.patch(kind, name, {"status": status}, "status", namespace)

    def delete(self, kind: Kind[K], name: str) -> None:
        self.do(self.client().delete(kind, name, "default" if kind.namespaced else ""))

    # What tests put in the way.

    def answer(self, method: str, part: str, code: int, message: str = "no", times: int = 1, **status: Any) -> None:
        """The next calls of this method whose path holds this part are answered so, and do nothing."""
        body = encode({"kind": "Status", "status": "Failure", "message": message, "code": code} | status)
        self.rules += [Rule(method, part, lambda: Answer(code, body))] * times

    def before(self, method: str, part: str, action: Callable[[], object], times: int = 1) -> None:
        """Runs an action of somebody else just before the next such calls are handled."""

        def act() -> None:
            action()

        self.rules += [Rule(method, part, act)] * times

    def intercepted(self, method: str, path: str) -> Answer | None:
        for rule in self.rules:
            if rule.method == method and rule.part in path:
                self.rules.remove(rule)
                return rule.action()
        return None

    def plane(self, path: str) -> tuple[PlaneServer | None, str]:
        prefix = next((prefix for prefix in (PROJECTS, "/projects/") if path.startswith(prefix)), "")
        if not prefix:
            return self.engine._planes["root"], path
        project, _, rest = path.removeprefix(prefix).partition("/control-plane")
        return self.engine._planes.get(project), rest

    def writes(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.method != "GET"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no news here."""


def _listening(api: ApiServer, attempts: int = 3) -> _Server:
    """A server to which a connection was made: some machines have refused all connections to a few new listeners."""
    for _ in range(attempts):
        server = _Server(("127.0.0.1", 0), _handler(api))
        try:
            socket.create_connection(("127.0.0.1", server.server_port), timeout=30).close()
        except ConnectionRefusedError:
            server.server_close()
        else:
            return server
    raise AssertionError(f"{attempts} new listeners refused connections")


def _handler(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's acknowledgement

        def handle_any(self) -> None:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            authorization = self.headers.get("Authorization", "")
            api.requests.append(Seen(self.command, url.path, query, authorization))
            answer = api.intercepted(self.command, url.path)
            plane, path = api.plane(url.path)
            if answer is not None:
                self.send(answer)
            elif plane is None:
                self.send(Answer(404, json.dumps({"kind": "Status", "message": "no such project"}).encode()))
            else:
                if api.logs is not None and path.startswith(GROUP):
                    api.logs.serve(self, path, query)
                    return
                content_type = self.headers.get("Content-Type", "application/json")
                call = Call(self.command, path, query, body, content_type)
                if query.get("watch") == "true":
                    self.watch(plane, call)
                else:
                    self.send(api.do(plane.answer(call)))

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def send(self, answer: Answer) -> None:
            self.send_response(answer.code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer.body)))
            for warning in answer.warnings:
                self.send_header("Warning", f'299 - "{warning}"')
            if answer.retry_after:
                self.send_header("Retry-After", str(answer.retry_after))
            self.end_headers()
            self.wfile.write(answer.body)

        def watch(self, plane: PlaneServer, call: Call) -> None:
            watch = plane.watch(call)
            try:
                lines = api.do(_entered(watch))
            except ApiError as error:
                self.send(Answer(error.code, encode(error.status())))
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            api.watching += 1
            api.served.set()
            pending: Future[bytes | None] | None = None
            try:
                while True:
                    pending = asyncio.run_coroutine_threadsafe(_next(lines), api._loop)
                    line = pending.result()
                    if line is None:
                        self.wfile.write(b"0\r\n\r\n")
                        return
                    self.wfile.write(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))
            finally:
                api.watching -= 1
                self.close_connection = True

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(api.engine.clock.now().timestamp() if timestamp is None else timestamp)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


async def _entered(watch: AbstractAsyncContextManager[AsyncIterator[bytes]]) -> AsyncIterator[bytes]:
    return await watch.__aenter__()


async def _next(lines: AsyncIterator[bytes]) -> bytes | None:
    return await anext(lines, None)
