"""An API server of any kind, as any client reaches it. Entry points: `Server`, `until`."""

import http.client
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.meta import Json
from datum_compute.kube.patches import JSON, MERGE

T = TypeVar("T")

_SECONDS = 90.0  # the collector of a real engine takes half a minute to discover a new kind
_POLL_SECONDS = 0.02


class Reply(Struct, frozen=True):
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        value: Json = msgspec.json.decode(self.body)
        return value

    @property
    def failure(self) -> tuple[int, str]:
        """Code and reason of a failure, after checking the Status in its body."""
        status = self.json
        assert {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}.items() <= status.items(), (
            status
        )
        assert status["code"] == self.code, status
        assert status["message"], status
        return self.code, status["reason"]

    @property
    def message(self) -> str:
        message: str = self.json["message"]
        return message

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Reason and field of each violation."""
        return [(cause["reason"], cause.get("field", "")) for cause in self.json["details"].get("causes", ())]


class Watch:
    """The events of one watch, as they arrive."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def next(self) -> tuple[str, Json]:
        line = self._answer.readline()
        assert line, "the watch is over"
        event = msgspec.json.decode(line)
        return event["type"], event["object"]

    def take(self, number: int) -> list[tuple[str, str]]:
        """Types and names."""
        return [(type_, object_["metadata"].get("name", "")) for type_, object_ in (self.next() for _ in range(number))]

    def rest(self) -> list[tuple[str, Json]]:
        """All further events, until the server ends the watch."""
        events = [msgspec.json.decode(line) for line in iter(self._answer.readline, b"")]
        return [(event["type"], event["object"]) for event in events]


class Server:
    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self.name = name
        self.endpoint = endpoint
        self._base = urlsplit(endpoint.server)
        self._tls = endpoint.tls()
        self._connection = self._connect()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        type_: str = "application/json",
        accept: str = "application/json",
        **query: Any,
    ) -> Reply:
        """One request; a body that is not bytes is sent as JSON."""
        sent = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        headers = self._headers(accept) | ({"Content-Type": type_} if sent is not None else {})
        address = self._address(path, query)
        try:
            answer = self._answer(method, address, sent, headers)
        except (http.client.RemoteDisconnected, ConnectionError):  # it was idle too long
            self._connection.close()
            answer = self._answer(method, address, sent, headers)
        headers = {name.lower(): ", ".join(answer.headers.get_all(name, ())) for name in answer.headers}
        return Reply(answer.status, headers, answer.read())

    def _answer(
        self, method: str, address: str, body: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        self._connection.request(method, address, body=body, headers=headers)
        return self._connection.getresponse()

    def get(self, path: str, **query: Any) -> Json:
        return self._good(self.ask("GET", path, **query))

    def create(self, path: str, body: Json, **query: Any) -> Json:
        return self._good(self.ask("POST", path, body, **query), 201)

    def replace(self, path: str, body: Json, **query: Any) -> Json:
        return self._good(self.ask("PUT", path, body, **query))

    def merge(self, path: str, patch: Json, **query: Any) -> Json:
        return self._good(self.ask("PATCH", path, patch, type_=MERGE, **query))

    def edit(self, path: str, *operations: Json, **query: Any) -> Json:
        return self._good(self.ask("PATCH", path, list(operations), type_=JSON, **query))

    def delete(self, path: str, options: Json | None = None, **query: Any) -> Json:
        return self._good(self.ask("DELETE", path, options, **query))

    def gone(self, path: str) -> bool:
        return self.ask("GET", path).code == 404

    def names(self, path: str, **query: Any) -> list[str]:
        return [item["metadata"]["name"] for item in self.get(path, **query)["items"]]

    @contextmanager
    def watch(self, path: str, *, accept: str = "application/json", **query: Any) -> Iterator[Watch]:
        connection = self._connect()
        try:
            query = {"watch": "true", "timeoutSeconds": 300} | query
            connection.request("GET", self._address(path, query), headers=self._headers(accept))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield Watch(answer)
        finally:
            if connection.sock:
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _connect(self) -> http.client.HTTPSConnection:
        assert self._base.hostname
        assert self._base.port
        return http.client.HTTPSConnection(self._base.hostname, self._base.port, context=self._tls, timeout=_SECONDS)

    def _headers(self, accept: str) -> dict[str, str]:
        token = {"Authorization": f"Bearer {self.endpoint.token}"} if self.endpoint.token else {}
        return {"Accept": accept} | token

    def _address(self, path: str, query: Mapping[str, object]) -> str:
        encoded = urlencode({name.rstrip("_"): value for name, value in query.items()})
        return f"{self._base.path.rstrip('/')}{path}{'?' if encoded else ''}{encoded}"

    def _good(self, reply: Reply, code: int = 200) -> Json:
        assert reply.code in (code, 202), f"{self.name}: {reply.code} {reply.body.decode()}"
        return reply.json

    def close(self) -> None:
        self._connection.close()


def until(what: str, check: Callable[[], T | None]) -> T:
    """The first true result of `check`."""
    deadline = time.monotonic() + _SECONDS
    while not (result := check()):
        assert time.monotonic() < deadline, f"{what} did not happen in time"
        time.sleep(_POLL_SECONDS)
    return result
