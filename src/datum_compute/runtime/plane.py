"""One plane as a process sees it: a client, and one cache a kind. Entry point: `Plane`."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from datum_compute.kube.client import Client
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject
from datum_compute.kube.transport import Call, Transport
from datum_compute.runtime.events import Recorder
from datum_compute.runtime.informer import Informer, cache_name
from datum_compute.runtime.reach import FailFast, Reach
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
        self._reach = Reach(transport)
        self._watching = Client(name, self._reach)
        self.client = Client(name, FailFast(self._reach))
        self.events = Recorder(self.client, writes)
        self._writes = writes
        self._generator = generator
        self._informers: dict[str, Informer[Any]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def informer(self, kind: Kind[T]) -> Informer[T]:
        """The one cache of a kind on this plane; asking for it the first time starts it."""
        informer = self._informers.get(cache_name(kind))
        if informer is None:
            informer = Informer(self._watching, kind, self._generator)
            self._informers[cache_name(kind)] = informer
            if self._tasks is not None:
                self._start(self._tasks, informer)
        return cast("Informer[T]", informer)

    def declare(
        self, kind: Kind[T], *, optional: bool = False, transform: Callable[[T], T] | None = None
    ) -> Informer[T]:
        """The cache of a kind, before the plane is followed. It is optional only if nobody needs it."""
        known = cache_name(kind) in self._informers
        informer = self.informer(kind)
        if known and informer.transform is not transform:
            raise ValueError(f"{kind.resource} on plane {self.name} cannot be kept in two forms")
        informer.optional = optional and (informer.optional or not known)
        informer.transform = transform
        return informer

    def serves(self, kind: Kind[Any]) -> bool:
        """Whether the plane has a kind that it need not have; what is not optional is taken for granted."""
        informer = self._informers.get(cache_name(kind))
        return informer is None or informer.served

    def writer(self, controller: str) -> Writer:
        return Writer(self.client, self._informers, controller, self._writes)

    def informers(self) -> list[Informer[Any]]:
        return list(self._informers.values())

    @property
    def answers(self) -> bool:
        """Whether its last call was answered at all."""
        return not self._reach.silent

    def on_return(self, callback: Callable[[], None]) -> None:
        """Called when the plane answers again after it had not."""
        self._reach.on_return.append(callback)

    def guard(self, may: Callable[[Call], None]) -> None:
        """Asked right before each call that writes; when it raises, nothing is sent."""
        self._reach.guards.append(may)

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
