"""One plane in this process: a client, and one cache per kind. Entry point: `Plane`."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from datum_compute.kube.client import Client
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject
from datum_compute.kube.transport import Call, Transport
from datum_compute.runtime.caches.failures import Failures
from datum_compute.runtime.caches.informer import Informer, cache_name
from datum_compute.runtime.caches.selection import EVERYTHING, Selection
from datum_compute.runtime.events import Recorder
from datum_compute.runtime.pace import Pace, Patient
from datum_compute.runtime.reach import FailFast, Reach
from datum_compute.runtime.writes import PlaneWrites, Writer, Writes

T = TypeVar("T", bound=KubeObject)


class Plane:
    """A plane with the roles by which controllers choose it; `run` keeps its caches current until cancelled."""

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
        pace = Pace(name, transport)
        self._reach = Reach(pace)
        self._watching = Client(name, Patient(self._reach, pace))
        self.client = Client(name, FailFast(self._reach))
        self.unguarded = Client(name, pace)  # for calls that every replica makes, leading or not
        self._writes = PlaneWrites(name, writes)
        self.events = Recorder(self.client, self._writes)
        self.failures = Failures(name, self._reach.served_again)
        self._generator = generator
        self._informers: dict[str, Informer[Any]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self.on_return(self._look_again)

    def informer(self, kind: Kind[T], selection: Selection = EVERYTHING) -> Informer[T]:
        """The cache of a kind, or of a selection of its objects; it starts on first use."""
        name = cache_name(kind, selection)
        informer = self._informers.get(name)
        if informer is None:
            informer = Informer(self._watching, kind, self._generator, selection=selection, failures=self.failures)
            self._informers[name] = informer
            if self._tasks is not None:
                self._start(self._tasks, informer)
        return cast("Informer[T]", informer)

    def declare(
        self,
        kind: Kind[T],
        *,
        optional: bool = False,
        best_effort: bool = False,
        selection: Selection = EVERYTHING,
    ) -> Informer[T]:
        """Declares the cache of a kind before the plane runs. It is optional, or best effort, only if all its users say
        so."""
        known = cache_name(kind, selection) in self._informers
        informer = self.informer(kind, selection)
        informer.optional = (optional or best_effort) and (informer.optional or not known)
        informer.best_effort = best_effort and (informer.best_effort or not known)
        return informer

    def serves(self, kind: Kind[Any]) -> bool:
        """Whether the plane serves an optional kind; others are always assumed to be served.

        A kind that is installed while the plane is engaged is found within a few minutes.
        """
        return all(informer.served for informer in self._informers.values() if informer.kind.resource == kind.resource)

    def writer(self, controller: str) -> Writer:
        def warn(object_: KubeObject, reason: str, message: str) -> None:
            self.events.warning(controller, object_, reason, message, now=self._writes.clock.now())

        return Writer(self.client, self._informers, controller, self._writes, warn)

    def informers(self) -> list[Informer[Any]]:
        return list(self._informers.values())

    @property
    def answers(self) -> bool:
        """Whether its last call was answered at all."""
        return not self._reach.silent

    @property
    def follows(self) -> bool:
        """Whether it answers and none of its caches fails."""
        return self.answers and self.failures.phase is None

    def on_return(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when the plane answers again, or lets its caches follow again after refusing them; the returned
        function unsubscribes."""

        def returned() -> None:
            try:
                callback()
            except Exception as error:  # the call that found the plane back must not fail
                self.failures.crashed("", "return", error)

        self._reach.on_return.append(returned)
        return lambda: self._reach.on_return.remove(returned)

    def _look_again(self) -> None:
        for informer in self._informers.values():
            informer.look_again()

    def guard(self, may: Callable[[Call], None]) -> None:
        """Adds a check that runs right before each write; when it raises, nothing is sent."""
        if may not in self._reach.guards:
            self._reach.guards.append(may)

    def leave(self) -> None:
        """Forgets what was counted under its name: this process no longer works on the plane."""
        self._writes.leave()

    async def synced(self) -> None:
        for informer in list(self._informers.values()):
            await informer.synced.wait()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self.events.run(), name=f"events/{self.name}")
            for informer in list(self._informers.values()):
                self._start(tasks, informer)
            await asyncio.get_running_loop().create_future()  # informers may be added at any time

    def _start(self, tasks: asyncio.TaskGroup, informer: Informer[Any]) -> None:
        tasks.create_task(informer.run(), name=f"informer/{self.name}/{informer.kind.name}")
