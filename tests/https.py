"""A real server on loopback for tests, on a loop and a thread of its own."""

import asyncio
import http.client
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from datum_compute.embedded.certificates import Credentials
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.http import HttpsServer
from datum_compute.embedded.log import Log
from datum_compute.embedded.writer import WriterThread
from datum_compute.federation.roles import CELL, HUB, PROJECT, ROOT
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json

T = TypeVar("T")

PLANES = {"root": ROOT, "demo": PROJECT, "hub": HUB, "cell-dfw": CELL}
DEMO = "/apis/resourcemanager.miloapis.com/v1alpha1/projects/demo/control-plane"


class Reply(Struct, frozen=True):
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        value: Json = msgspec.json.decode(self.body)
        return value


class Background:
    """An engine with one plane of each role, its background work, and the server; `close` ends all three."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="https-under-test")
        self._thread.start()
        self.credentials = Credentials.ensure(directory / "credentials")
        self.do(self._start(directory))

    async def _start(self, directory: Path) -> None:
        self.engine = Engine(Log(directory / "log.db"), writer=WriterThread)
        for plane, role in PLANES.items():
            self.engine.serve(plane, role)
        self._work = asyncio.create_task(self.engine.run())
        self.server = HttpsServer(self.engine, self.credentials)
        await self.server.start()
        await self.engine.client("demo").create(NAMESPACE, NAMESPACE.body("default"))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something on the loop of the server."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=30)

    def read(self, look: Callable[[], T]) -> T:
        """Looks at something of the engine, where nothing else runs meanwhile."""

        async def looked() -> T:
            return look()

        return self.do(looked())

    def until(self, condition: Callable[[], bool], within: float = 10.0) -> None:
        deadline = time.monotonic() + within
        while not self.read(condition):
            assert time.monotonic() < deadline, "it did not come true in time"

    @property
    def revision(self) -> int:
        return self.read(lambda: self.engine.store.revision)

    def watches(self) -> int:
        """How many watches the planes have; only to be called on the loop."""
        servers = [self.engine.plane(plane) for plane in PLANES]
        return sum(len(server._watches) for server in servers if server)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Json = b"",
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> Reply:
        """One request as any client would make it; `token` replaces the right one, "" sends none."""
        sent = {"Authorization": f"Bearer {self.credentials.token if token is None else token}"}
        if token == "":
            sent = {}
        if isinstance(body, dict):
            body, sent["Content-Type"] = msgspec.json.encode(body), "application/json"
        tls = self.server.endpoint("root").tls()
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, context=tls, timeout=20)
        try:
            connection.request(method, path, body=body or None, headers=sent | dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def close(self) -> None:
        self.do(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _stop(self) -> None:
        await self.server.stop()
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        self.engine.close()
