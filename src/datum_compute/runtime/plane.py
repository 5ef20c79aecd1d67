"""One plane as a process sees it: a client, and one cache a kind. Entry point: `Plane`."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

from datum_compute.kube.client import Client
from datum_compute.kube.errors import Timeout, Unavailable
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject
from datum_compute.kube.transport import Answer, Call, Transport
from datum_compute.runtime.events import Recorder
from datum_compute.runtime.informer import Informer
from datum_compute.runtime.writes import Writer, Writes

T = TypeVar("T", bound=KubeObject)


class Plane:
    """Its roles say which controllers care for it; `run` keeps its caches current until it is cancelled."""

    def __init__(
        self,
        name: str,
        role: str,
        transport: Transport,
        *,
        writes: Writes,
        generator: random.Random,
        also: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.roles = (role, *also)
        self._reach = _Reach(transport)
        self.client = Client(name, self._reach)
        self.events = Recorder(self.client, writes)
        self._writes = writes
        self._generator = generator
        self._informers: dict[str, Informer[Any]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def informer(self, kind: Kind[T]) -> Informer[T]:
        """The one cache of a kind on this plane; asking for it the first time starts it."""
        informer = self._informers.get(kind.resource)
        if informer is None:
            informer = Informer(self.client, kind, self._generator)
            self._informers[kind.resource] = informer
            if self._tasks is not None:
                self._start(self._tasks, informer)
        return cast(Informer[T], informer)

    def writer(self, controller: str) -> Writer:
        return Writer(self.client, self._informers, controller, self._writes)

    def on_return(self, callback: Callable[[], None]) -> None:
        """Called when the plane answers again after it had not."""
        self._reach.on_return.append(callback)

    async def synced(self) -> None:
        for informer in list(self._informers.values()):
            await informer.synced.wait()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self.events.run(), name=f"events/{self.name}")
            for informer in list(self._informers.values()):
                self._start(tasks, informer)
            await asyncio.get_running_loop().create_future()  # informers may be asked for at any time

    def _start(self, tasks: asyncio.TaskGroup, informer: Informer[Any]) -> None:
        tasks.create_task(informer.run(), name=f"informer/{self.name}/{informer.kind.name}")


_AWAY = frozenset({502, 503, 504})  # what a gateway says for a plane that does not answer it


class _Reach:
    """Passes calls on and notices when the plane goes away and comes back."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._away = False
        self.on_return: list[Callable[[], None]] = []

    async def call(self, call: Call) -> Answer:
        try:
            answer = await self._transport.call(call)
        except (Unavailable, Timeout):
            self._away = True
            raise
        if answer.code in _AWAY:
            self._away = True
        else:
            self._answered()
        return answer

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._streaming(call)

    @asynccontextmanager
    async def _streaming(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with self._transport.stream(call) as lines:
                self._answered()
                yield lines
        except (Unavailable, Timeout):
            self._away = True
            raise

    def _answered(self) -> None:
        if self._away:
            self._away = False
            for callback in self.on_return:
                callback()
