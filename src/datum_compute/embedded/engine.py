"""All planes of this process over one log. Entry point: `Engine`."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from datum_compute.embedded.collector import Collector
from datum_compute.embedded.definitions import DEFINITIONS, Definitions
from datum_compute.embedded.kinds import served_by
from datum_compute.embedded.log import Log
from datum_compute.embedded.namespaces import NamespaceLifecycle
from datum_compute.embedded.server import PlaneServer
from datum_compute.embedded.store import Operation, RandomUids, Store, Uids
from datum_compute.embedded.writer import InlineWriter, Writer
from datum_compute.kube.admission import Admit
from datum_compute.kube.client import Client
from datum_compute.kube.inprocess import InProcess
from datum_compute.runtime.clock import Clock, SystemClock

_BOOKMARK_SECONDS = 60


class Engine:
    """Serves planes and does for each what kube-controller-manager would: collect orphans, empty namespaces.

    `serve` opens a plane, `leave` closes it; `run` does the background work until it is cancelled; `close` when nothing
    is asked any more.
    A process that lives gives `WriterThread` as its writer; the default writes inline, which a simulation needs.
    """

    def __init__(
        self,
        log: Log | None = None,
        *,
        clock: Clock | None = None,
        uids: Uids | None = None,
        generator: random.Random | None = None,
        writer: Callable[[Store], Writer] = InlineWriter,
        admit: Admit | None = None,
    ) -> None:
        self._admit = admit
        self.clock = clock or SystemClock()
        self._generator = generator or random.Random()
        self.log = log or Log()
        self.store = Store(self.log, uids or RandomUids())
        self._writer = writer(self.store)
        self._planes: dict[str, PlaneServer] = {}
        self._roles: dict[str, str] = {}
        self._workers: dict[str, tuple[Collector, NamespaceLifecycle, Definitions]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[str, list[asyncio.Task[None]]] = {}

    def serve(self, plane: str, role: str) -> PlaneServer:
        """Opens a plane with the kinds of its role; the same plane again is the same server."""
        if plane not in self._planes:
            kinds = (*served_by(role), DEFINITIONS)
            server = PlaneServer(plane, kinds, self.store, self.submit, self.clock, self._generator, self._admit)
            self._planes[plane] = server
            self._roles[plane] = role
            self._workers[plane] = (
                Collector(server, self.store, self.submit, self.clock),
                NamespaceLifecycle(server, self.store, self.submit, self.clock),
                Definitions(server, self.store, self.submit, self.clock),
            )
            if self._tasks is not None:
                self._start(self._tasks, plane)
        return self._planes[plane]

    def leave(self, plane: str) -> None:
        """Serves a plane no longer: its watches and its background work end. What is stored there stays."""
        server = self._planes.pop(plane, None)
        if server is None:
            return
        del self._roles[plane], self._workers[plane]
        for task in self._running.pop(plane, ()):
            task.cancel()
        self.store.leave(plane)
        server.close()

    def plane(self, name: str, role: str = "") -> PlaneServer | None:
        """The plane of that name, of that role when one is given; None when there is none."""
        return self._planes.get(name) if role in ("", self._roles.get(name)) else None

    def client(self, plane: str) -> Client:
        return Client(plane, InProcess(self._planes[plane]))

    async def submit(self, operation: Operation[Any]) -> Any:
        """Applies one write; when it returns, the log has committed it and watchers have been told."""
        return await self._writer.submit(operation)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._bookmarks(), name="bookmarks")
            for plane in self._planes:
                self._start(tasks, plane)

    def _start(self, tasks: asyncio.TaskGroup, plane: str) -> None:
        self._running[plane] = [
            tasks.create_task(worker.run(), name=f"{type(worker).__name__}/{plane}") for worker in self._workers[plane]
        ]

    async def _bookmarks(self) -> None:
        while True:
            await asyncio.sleep(_BOOKMARK_SECONDS)
            for server in self._planes.values():
                server.bookmark()

    def close(self) -> None:
        self._writer.close()
        self.log.close()
