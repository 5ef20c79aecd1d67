"""All planes of a process over one log. Entry point: `Engine`."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from datum_compute.embedded.controllers.collector import Collector
from datum_compute.embedded.controllers.definitions import Definitions
from datum_compute.embedded.controllers.expiry import delete_expired_events
from datum_compute.embedded.controllers.namespaces import NamespaceLifecycle
from datum_compute.embedded.kinds.catalog import plane_kinds
from datum_compute.embedded.mounts import Mount
from datum_compute.embedded.plane.server import PlaneServer
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.records import Key, RandomUids, Uids
from datum_compute.embedded.storage.store import Operation, Store
from datum_compute.embedded.storage.writer import InlineWriter, Writer
from datum_compute.kube.admission import Admit
from datum_compute.kube.client import Client
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject
from datum_compute.runtime import Clock, SystemClock

_HOUSEKEEPING_SECONDS = 60


class Engine:
    """Serves planes, and does for each the work of a kube-controller-manager.

    `serve` opens a plane and `leave` closes it. `run` does the background work until it is cancelled, and raises when
    nothing can be written any more; `close` is called after the last request.

    `writer` is `WriterThread` in a real process; the default writes inline, as a simulation needs. `definitions`
    returns the CustomResourceDefinitions that planes of a role serve besides the built-in kinds, `mounts` are the
    paths of planes over HTTPS, and `clock_of` returns the clock of a plane, which may differ from that of others.
    Events that last occurred more than `event_ttl` ago are deleted; without one they stay.
    """

    def __init__(
        self,
        log: Log | None = None,
        *,
        definitions: Callable[[str], Iterable[Json]] = lambda role: (),
        mounts: Sequence[Mount] = (),
        clock: Clock | None = None,
        clock_of: Callable[[str], Clock] | None = None,
        uids: Uids | None = None,
        generator: random.Random | None = None,
        writer: Callable[[Store], Writer] = InlineWriter,
        admit: Admit | None = None,
        event_ttl: timedelta | None = None,
    ) -> None:
        self.mounts = tuple(mounts)
        self._definitions = definitions
        self._admit = admit
        self._event_ttl = event_ttl
        self.clock = clock or SystemClock()
        self._clock_of = clock_of or (lambda plane: self.clock)
        self._generator = generator or random.Random()
        self.log = log or Log()
        self.store = Store(self.log, uids or RandomUids())
        self._writer = writer(self.store)
        self._planes: dict[str, PlaneServer] = {}
        self._roles: dict[str, str] = {}
        self._controllers: dict[str, tuple[Collector, NamespaceLifecycle, Definitions]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[str, list[asyncio.Task[None]]] = {}

    def serve(self, plane: str, role: str) -> PlaneServer:
        """Opens a plane with the kinds of its role; the server of a plane that is open already is returned."""
        if plane not in self._planes:
            clock = self._clock_of(plane)
            kinds = plane_kinds(self._definitions(role))
            server = PlaneServer(plane, kinds, self.store, self.submit, clock, self._generator, self._admit, role)
            self._planes[plane] = server
            self._roles[plane] = role
            self._controllers[plane] = (
                Collector(server, self.store, self.submit, clock),
                NamespaceLifecycle(server, self.store, self.submit, clock),
                Definitions(server, self.store, self.submit, clock),
            )
            if self._tasks is not None:
                self._start(self._tasks, plane)
        return self._planes[plane]

    def leave(self, plane: str) -> None:
        """Closes a plane: its watches and its background work end, its objects stay stored."""
        server = self._planes.pop(plane, None)
        if server is None:
            return
        del self._roles[plane], self._controllers[plane]
        for task in self._running.pop(plane, ()):
            task.cancel()
        self.store.leave(plane)
        server.close()

    def plane(self, name: str, role: str = "") -> PlaneServer | None:
        """The plane with this name, and this role if one is given; None when there is none."""
        return self._planes.get(name) if role in ("", self._roles.get(name)) else None

    def client(self, plane: str) -> Client:
        return Client(plane, InProcess(self._planes[plane]))

    def has_deleted(self, plane: str, kind: Kind[Any], copy: KubeObject, uid: str) -> bool:
        """Whether the plane remembers the deletion of the object with this uid and the name of `copy`."""
        return self.store.has_deleted(Key(plane, kind.resource, copy.namespace, copy.name), uid)

    async def submit(self, operation: Operation[Any]) -> Any:
        """Applies one write; when it returns, the log has committed it and watchers have received it."""
        return await self._writer.submit(operation)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._housekeeping(), name="housekeeping")
            if (failure := self._writer.failure()) is not None:
                tasks.create_task(failure, name="writer")
            for plane in self._planes:
                self._start(tasks, plane)

    def _start(self, tasks: asyncio.TaskGroup, plane: str) -> None:
        self._running[plane] = [
            tasks.create_task(controller.run(), name=f"{type(controller).__name__}/{plane}")
            for controller in self._controllers[plane]
        ]

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            for server in self._planes.values():
                server.bookmark()
            if self._event_ttl is None:
                continue
            for plane in list(self._planes):
                now = self._clock_of(plane).now()
                await delete_expired_events(plane, self.store, self.submit, now, self._event_ttl)

    def close(self) -> None:
        self._writer.close()
        self.log.close()
