"""Runs a reconciler over a fleet: events become requests, requests become passes. Entry point: `Controller`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Struct

from datum_compute.kube.errors import ApiError, Conflict
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.queue import WorkQueue
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished

T = TypeVar("T", bound=KubeObject)

WORKERS = 64
PER_PLANE = 8
_SOON = 0.01  # after a conflict: the newer object is already on its way
_SOON_AT_MOST = 1.0
CRASHES_KEPT = 20

_log = structlog.get_logger(__name__)


class Source(Struct, Generic[T], frozen=True):
    """A kind to watch on every plane of a role. Without a map it is only cached, for passes to read."""

    role: str
    kind: Kind[T]
    map: Callable[[Plane, Change[T]], Iterable[Request | Drop]] | None = None
    indexes: dict[str, Callable[[T], Iterable[str]]] = {}


class Reconciler(Protocol):
    """Brings the world closer to what an object asks for. Raising means: again, later."""

    @property
    def name(self) -> str: ...

    def sources(self) -> Sequence[Source[Any]]: ...

    async def reconcile(self, request: Request, pass_: Pass) -> None: ...


def itself(plane: Plane, change: Change[Any]) -> Iterable[Request | Drop]:
    """The usual map: the object that changed is the one to look at."""
    yield Request(plane.name, change.object.namespace, change.object.name)


def controller_of(kind: Kind[Any]) -> Callable[[Plane, Change[Any]], Iterable[Request | Drop]]:
    """Maps an object to the object of `kind` that controls it, or did."""

    def owners(plane: Plane, change: Change[Any]) -> Iterable[Request | Drop]:
        for object_ in (change.before, change.after):
            if object_ is None:
                continue
            owner = object_.metadata.controller
            if owner is not None and owner.kind == kind.name and owner.api_version == kind.api_version:
                yield Request(plane.name, object_.namespace, owner.name)

    return owners


class Controller:
    """One queue and its workers. `run` never returns; a pass that fails is tried again, the process goes on."""

    def __init__(self, reconciler: Reconciler, fleet: Fleet, *, workers: int = WORKERS) -> None:
        self.name = reconciler.name
        self.dropped: Counter[str] = Counter()  # events without a request, by reason
        self.passes = 0
        self.crashes: list[Exception] = []  # what was no API error: defects, for tests to find
        self._reconciler = reconciler
        self._fleet = fleet
        self._workers = workers
        self._hired = 0
        self._idle = 0
        self._queue: WorkQueue[Request] = WorkQueue(lambda request: request.plane, PER_PLANE)
        self._conflicts: dict[Request, int] = {}
        self._failed_on: dict[Request, str] = {}  # the plane that did not do as it was asked
        self._missed: dict[str, dict[Request, None]] = {}  # by the plane that was not engaged
        self._subscriptions: dict[str, list[Callable[[], None]]] = {}
        fleet.join(self)

    # As a member of the fleet

    def prepare(self, plane: Plane) -> None:
        for source in self._reconciler.sources():
            if source.role in plane.roles:
                informer = plane.informer(source.kind)
                for name, values in source.indexes.items():
                    informer.index(name, values)

    def engaged(self, plane: Plane) -> None:
        ends = self._subscriptions.setdefault(plane.name, [])
        for source in self._reconciler.sources():
            if source.role in plane.roles and source.map is not None:
                ends.append(plane.informer(source.kind).subscribe(self._handler(plane, source.map)))
        plane.on_return(lambda: self._returned(plane.name))
        for name in (plane.name, *plane.roles):
            self._returned(name)
        for request in self._missed.pop(plane.name, {}):
            self._queue.add(request, initial=True)

    def disengaged(self, plane: Plane) -> None:
        for end in self._subscriptions.pop(plane.name, []):
            end()
        self._queue.drop(plane.name)
        for memory in (self._failed_on, self._conflicts):
            for request in [request for request in memory if request.plane == plane.name]:
                del memory[request]

    def _handler(
        self, plane: Plane, map_: Callable[[Plane, Change[T]], Iterable[Request | Drop]]
    ) -> Callable[[Change[T]], None]:
        def handle(change: Change[T]) -> None:
            try:
                requests = list(map_(plane, change))
            except msgspec.MsgspecError:
                requests = [Drop("unreadable")]
            except Exception as error:
                # A defect, found by one object; the cache that called must go on for all the others.
                self._crashed(error)
                _log.error("map crashed", controller=self.name, plane=plane.name, exc_info=error)
                requests = [Drop("crashed")]
            for request in requests:
                if isinstance(request, Drop):
                    self.dropped[request.reason] += 1
                elif self._fleet.has(request.plane):
                    self._queue.add(request, initial=change.initial)
                else:
                    # Engaging the plane lists what is on it; an object that is only missing there would be overlooked.
                    self.dropped["plane_not_engaged"] += 1
                    self._missed.setdefault(request.plane, {})[request] = None

        return handle

    def _returned(self, plane: str) -> None:
        for request in [request for request, failed in self._failed_on.items() if failed == plane]:
            del self._failed_on[request]
            self._queue.forget_failures(request)
            self._queue.add(request)

    # The work

    def enqueue(self, request: Request) -> None:
        self._queue.add(request)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._hired, self._idle = 0, 0
            self._hire(tasks)

    def _hire(self, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(self._work(tasks), name=f"{self.name}/{self._hired}")
        self._hired += 1

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._idle += 1
            request = await self._queue.get()
            self._idle -= 1
            if not self._idle and self._hired < self._workers:
                self._hire(tasks)  # somebody is always there for the next request
            try:
                if self._fleet.has(request.plane):
                    await self._pass(request)
                else:
                    self.dropped["plane_not_engaged"] += 1
            finally:
                self._queue.done(request)

    async def _pass(self, request: Request) -> None:
        pass_ = Pass(request)
        self.passes += 1
        try:
            await self._reconciler.reconcile(request, pass_)
        except Conflict:
            self._again_soon(request, pass_)
        except Exception as error:
            self._failed(request, pass_, error)
        else:
            self._queue.forget_failures(request)
            self._conflicts.pop(request, None)
            self._failed_on.pop(request, None)
            if pass_.floor is not None:
                _log.debug("requeue after", controller=self.name, request=str(request), seconds=pass_.floor)
                self._queue.add_after(request, pass_.floor)

    def _again_soon(self, request: Request, pass_: Pass) -> None:
        """A conflict is no failure: the cache is about to hear of the newer object."""
        seen = self._conflicts.get(request, 0)
        self._conflicts[request] = seen + 1
        soon = min(_SOON * 2 ** min(seen, 10), _SOON_AT_MOST)
        delay = soon if pass_.floor is None else min(soon, pass_.floor)
        _log.debug("conflict, requeue after", controller=self.name, request=str(request), seconds=delay)
        self._queue.add_after(request, delay)

    def _failed(self, request: Request, pass_: Pass, error: Exception) -> None:
        delay = self._queue.add_failed(request, no_later_than=pass_.floor)
        log = _log.bind(controller=self.name, request=str(request), again_in=delay)
        if isinstance(error, ApiError):
            if error.plane:
                self._failed_on[request] = error.plane
            log.warning("pass failed", plane=error.plane, error=str(error))
        elif isinstance(error, Unfinished | msgspec.MsgspecError):
            log.warning("pass unfinished", error=str(error))
        else:
            self._crashed(error)
            log.error("pass crashed", exc_info=error)

    def _crashed(self, error: Exception) -> None:
        if len(self.crashes) < CRASHES_KEPT:
            self.crashes.append(error)
