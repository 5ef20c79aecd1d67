"""Runs a reconciler over a fleet: events become requests, requests become passes. Entry point: `Controller`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec
import structlog
from msgspec import Struct

from datum_compute.kube.errors import ApiError, Conflict
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject
from datum_compute.runtime import logs
from datum_compute.runtime.fleet import Fleet, NotEngaged
from datum_compute.runtime.histogram import PASS_SECONDS, Histogram
from datum_compute.runtime.informer import Change
from datum_compute.runtime.missed import Missed
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.queue import WorkQueue
from datum_compute.runtime.requests import Drop, Pass, Request, Unfinished

T = TypeVar("T", bound=KubeObject)

WORKERS = 64
PER_GROUP = 8
_SOON = 0.01  # after a conflict: the newer object is already on its way
_SOON_AT_MOST = 1.0
CRASHES_KEPT = 20

_log = structlog.get_logger(__name__)


class Source(Struct, Generic[T], frozen=True):
    """A kind to watch on every plane of a role. Without a map it is only cached, for passes to read.

    An optional kind is watched only where the plane serves it, which is looked at again every few minutes. Changes for
    which `when` is false are ignored. A transform keeps less of each object; all who watch the kind share it.
    """

    role: str
    kind: Kind[T]
    map: Callable[[Plane, Change[T]], Iterable[Request | Drop]] | None = None
    indexes: dict[str, Callable[[T], Iterable[str]]] = {}
    optional: bool = False
    when: Callable[[Change[T]], bool] | None = None
    transform: Callable[[T], T] | None = None


class Reconciler(Protocol):
    """Brings the world closer to what an object asks for. Raising means: again, later."""

    @property
    def name(self) -> str: ...

    def sources(self) -> Sequence[Source[Any]]: ...

    async def reconcile(self, request: Request, pass_: Pass) -> None: ...


@runtime_checkable
class Sweeper(Protocol):
    """A reconciler that also looks for what no event tells of, on planes of one role: when they come, and regularly."""

    sweep_role: str
    sweep_seconds: float

    def sweep(self, plane: Plane) -> Iterable[Request | Drop]: ...


@runtime_checkable
class Grouping(Protocol):
    """A reconciler whose requests are held up by something else than the plane that they name."""

    def group(self, request: Request) -> Hashable: ...


def _by_plane(request: Request) -> Hashable:
    return request.plane


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


class OnPlane(Struct, frozen=True):
    name: str


class OfRole(Struct, frozen=True):
    role: str


Place = OnPlane | OfRole  # where a pass failed; a plane may be called like a role


class Controller:
    """One queue and its workers. `run` never returns; a pass that fails is tried again, the process goes on."""

    def __init__(self, reconciler: Reconciler, fleet: Fleet, *, workers: int = WORKERS) -> None:
        self.name = reconciler.name
        self.dropped: Counter[str] = Counter()  # events without a request, by reason
        self.passes = 0
        self.panics = 0
        self.results: Counter[str] = Counter()  # how passes ended: success, requeue, requeue_after, error
        self.pass_seconds = Histogram(PASS_SECONDS)
        self.workers = workers
        self.crashes: list[Exception] = []  # what was no API error: defects, for tests to find
        self._reconciler = reconciler
        self._fleet = fleet
        self._hired = 0
        self._idle = 0
        group = reconciler.group if isinstance(reconciler, Grouping) else _by_plane
        self.queue: WorkQueue[Request] = WorkQueue(group, PER_GROUP)
        self._conflicts: dict[Request, int] = {}
        self._failed_on: dict[Request, Place] = {}  # what did not do as it was asked
        self._returns: dict[Place, int] = {}  # the pass, by number, in which it was last found to be back
        self._missed = Missed()
        self._subscriptions: dict[str, list[Callable[[], None]]] = {}
        fleet.join(self)

    # As a member of the fleet

    def prepare(self, plane: Plane) -> None:
        for source in self._reconciler.sources():
            if source.role in plane.roles:
                informer = plane.declare(source.kind, optional=source.optional, transform=source.transform)
                for name, values in source.indexes.items():
                    informer.index(name, values)

    def engaged(self, plane: Plane) -> None:
        ends = self._subscriptions.setdefault(plane.name, [])
        for source in self._reconciler.sources():
            if source.role in plane.roles and source.map is not None:
                ends.append(plane.informer(source.kind).subscribe(self._handler(plane, source)))
        if isinstance(self._reconciler, Sweeper) and self._reconciler.sweep_role in plane.roles:
            ends.append(self._sweeping(self._reconciler, plane))
        plane.on_return(lambda: self._returned(OnPlane(plane.name)))
        self._returned(OnPlane(plane.name))
        for role in plane.roles:
            self._returned(OfRole(role))
        missed = self._missed.take(plane.name)
        for request in self._everything_for(plane.name) if missed is None else missed:
            self.queue.add(request, initial=True)

    def disengaged(self, plane: Plane) -> None:
        for end in self._subscriptions.pop(plane.name, []):
            end()
        self.queue.drop(lambda request: request.plane == plane.name)
        for memory in (self._failed_on, self._conflicts):
            for request in [request for request in memory if request.plane == plane.name]:
                del memory[request]
        self._returns.pop(OnPlane(plane.name), None)
        for role in plane.roles:
            self._returned(OfRole(role))  # there may have been one too many

    def _handler(self, plane: Plane, source: Source[T]) -> Callable[[Change[T]], None]:
        def handle(change: Change[T]) -> None:
            self._ask(self._mapped(plane, source, change), initial=change.initial)

        return handle

    def _mapped(self, plane: Plane, source: Source[T], change: Change[T]) -> list[Request | Drop]:
        try:
            if source.map is None or (source.when is not None and not source.when(change)):
                return []
            return list(source.map(plane, change))
        except msgspec.MsgspecError:
            return [Drop("unreadable")]
        except Exception as error:
            # A defect, found by one object; the cache that called must go on for all the others.
            self._crashed(error)
            _log.error("map crashed", controller=self.name, plane=plane.name, exc_info=error)
            return [Drop("crashed")]

    def _ask(self, requests: Iterable[Request | Drop], *, initial: bool) -> None:
        for request in requests:
            if isinstance(request, Drop):
                self.dropped[request.reason] += 1
            elif self._fleet.has(request.plane):
                self.queue.add(request, initial=initial)
            else:
                # Engaging the plane lists what is on it; an object that is only missing there would be overlooked.
                self.dropped["plane_not_engaged"] += 1
                self._missed.add(request)

    def _everything_for(self, name: str) -> Iterable[Request]:
        """What every object in every cache asks for on a plane."""
        for source in self._reconciler.sources():
            for plane in self._fleet.of_role(source.role):
                for object_ in plane.informer(source.kind).all():
                    for request in self._mapped(plane, source, Change(None, object_, initial=True)):
                        if isinstance(request, Request) and request.plane == name:
                            yield request

    def _sweeping(self, sweeper: Sweeper, plane: Plane) -> Callable[[], None]:
        """Sweeps now and regularly, until the returned function is called."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def sweep() -> None:
            nonlocal timer
            timer = loop.call_later(sweeper.sweep_seconds, sweep)
            try:
                found = list(sweeper.sweep(plane))
            except Exception as error:
                self._crashed(error)
                _log.error("sweep crashed", controller=self.name, plane=plane.name, exc_info=error)
                return
            self._ask(found, initial=True)

        sweep()
        return lambda: timer.cancel()

    def _returned(self, place: Place) -> None:
        self._returns[place] = self.passes
        for request in [request for request, failed in self._failed_on.items() if failed == place]:
            del self._failed_on[request]
            self.queue.forget_failures(request)
            self.queue.add(request)

    # The work

    def enqueue(self, request: Request) -> None:
        self.queue.add(request)

    async def drain(self) -> None:
        """Starts no more passes, and returns when none is running."""
        self.queue.close()
        await self.queue.drained()

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
            request = await self.queue.get()
            self._idle -= 1
            if not self._idle and self._hired < self.workers:
                self._hire(tasks)  # somebody is always there for the next request
            try:
                if self._fleet.has(request.plane):
                    await self._pass(request)
                else:
                    self.dropped["plane_not_engaged"] += 1
                    self.queue.forget_failures(request)
                    for memory in (self._failed_on, self._conflicts):
                        memory.pop(request, None)
            finally:
                self.queue.done(request)
            if _told_to_end():
                # The pass met its cancellation with an error of its own, as a clean-up that fails does.
                raise asyncio.CancelledError

    async def _pass(self, request: Request) -> None:
        pass_ = Pass(request, self.queue.since(request))
        self.passes += 1
        number = self.passes
        logs.about(self.name, request, number)
        self._failed_on.pop(request, None)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._reconciler.reconcile(request, pass_)
        except Exception as error:
            match worst_of(error):
                case Conflict():
                    self._again_soon(request, pass_)
                case worst:
                    self._failed(request, pass_, worst, number)
        else:
            self.queue.forget_failures(request)
            self._conflicts.pop(request, None)
            self.results["success" if pass_.floor is None else "requeue_after"] += 1
            if pass_.floor is not None:
                _log.debug("requeue after", controller=self.name, request=str(request), seconds=pass_.floor)
                self.queue.add_after(request, pass_.floor)
        self.pass_seconds.observe(loop.time() - began)

    def _again_soon(self, request: Request, pass_: Pass) -> None:
        """A conflict is no failure: the cache is about to hear of the newer object."""
        self.results["requeue"] += 1
        seen = self._conflicts.get(request, 0)
        self._conflicts[request] = seen + 1
        soon = min(_SOON * 2 ** min(seen, 10), _SOON_AT_MOST)
        delay = soon if pass_.floor is None else min(soon, pass_.floor)
        _log.debug("conflict, requeue after", controller=self.name, request=str(request), seconds=delay)
        self.queue.add_retry(request, delay)

    def _failed(self, request: Request, pass_: Pass, error: Exception, number: int) -> None:
        self.results["error"] += 1
        place = _place(error)
        if place is not None and self._returns.get(place, 0) >= number:
            self.queue.forget_failures(request)  # it came back while this pass was still at it
        elif place is not None:
            self._failed_on[request] = place
        delay = self.queue.add_failed(request, no_later_than=pass_.floor)
        log = _log.bind(controller=self.name, request=str(request), again_in=delay)
        if isinstance(error, ApiError):
            log.warning("pass failed", plane=error.plane, error=str(error))
        elif isinstance(error, Unfinished | msgspec.MsgspecError):
            log.warning("pass unfinished", error=str(error))
        else:
            self._crashed(error)
            log.error("pass crashed", exc_info=error)

    def _crashed(self, error: Exception) -> None:
        self.panics += 1
        if len(self.crashes) < CRASHES_KEPT:
            self.crashes.append(error)


def _place(error: Exception) -> Place | None:
    match error:
        case NotEngaged(role=role) if role:
            return OfRole(role)
        case ApiError(plane=plane) if plane:
            return OnPlane(plane)
    return None


def worst_of(error: Exception) -> Exception:
    """The one error to act on when several things were done at once: a defect, else a failure, else a conflict."""
    if not isinstance(error, ExceptionGroup):
        return error
    return min(map(worst_of, error.exceptions), key=lambda one: (isinstance(one, ApiError), isinstance(one, Conflict)))


def _told_to_end() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
