"""Runs a reconciler over a fleet: events become requests, requests become passes. Entry point: `Controller`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable
from zlib import crc32

import msgspec
import structlog
from msgspec import Struct

from datum_compute.kube.errors import AlreadyExists, ApiError, Conflict, NamespaceTerminating, NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind, Namespace
from datum_compute.kube.meta import KubeObject
from datum_compute.kube.tracing import Tracer
from datum_compute.runtime.caches.informer import RELIST_SECONDS, Change
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.damping import Author, Damped, author
from datum_compute.runtime.fleet import Fleet, NotEngaged
from datum_compute.runtime.missed import Missed
from datum_compute.runtime.once import Once
from datum_compute.runtime.pace import LONGEST_PAUSE, Paced
from datum_compute.runtime.passes import Pass, Signature
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.problems import worst
from datum_compute.runtime.queue import WorkQueue
from datum_compute.runtime.requests import Drop, Request, Unfinished
from datum_compute.runtime.sources import Scope, Source, itself
from datum_compute.runtime.telemetry import logs, tracing
from datum_compute.runtime.telemetry.histogram import PASS_SECONDS, Histogram

T = TypeVar("T", bound=KubeObject)

PER_GROUP = 32  # passes at once on one plane
RESERVED = 2  # of them guaranteed to every plane
SHARED = 512  # passes beyond `RESERVED`, on all planes together
SPARE = 32  # idle workers that stay
_SOON = 0.01  # after a conflict: the newer object is already under way
_SOON_AT_MOST = 1.0
_ENDING = 5.0  # before a terminating namespace is looked at again, in case no event reports its end
# AlreadyExists and NotFound may only mean that a cache is behind: for about 2 s they are treated so.
LAG_TRIES = 9
CRASHES_KEPT = 20
_FIRST_PAUSE = 1.0  # before a watch that ended is begun again
SEVERAL_CONFLICTS = 4  # in a row: more than a cache that was a moment behind
MANY_CONFLICTS = 20  # in a row, about 15 s: no coincidence any more
STANDBY_AT_MOST = 10_000  # requests that a replica remembers while it does not lead

_log = structlog.get_logger(__name__)


class Reconciler(Protocol):
    """Brings the state of the world closer to what an object asks for. A pass that raises is retried later.

    Writes are counted under its name. Events show its `component`, or its name where it has none.
    """

    @property
    def name(self) -> str: ...

    def sources(self) -> Sequence[Source[Any]]: ...

    async def reconcile(self, pass_: Pass) -> None: ...


@runtime_checkable
class Sweeper(Protocol):
    """A reconciler that also looks for what no event reports: when a plane of the role is engaged, and regularly."""

    sweep_role: str
    sweep_seconds: float

    def sweep(self, plane: Plane) -> Iterable[Request | Drop]: ...


@runtime_checkable
class Grouping(Protocol):
    """A reconciler whose passes wait for something other than the plane of their request."""

    def group(self, request: Request) -> Hashable: ...


@runtime_checkable
class Remembering(Protocol):
    """A reconciler that keeps state about planes; called for each that leaves, also if it was never engaged.

    Called again when a pass ends that was under way when its plane left.
    """

    def disengaged(self, plane: Plane) -> None: ...


@runtime_checkable
class Watching(Protocol):
    """A reconciler that also learns of changes outside all planes, or has other work to do between passes.

    `watch` runs while passes may run, and is cancelled with them; `enqueue` adds a request. If it ends, it is called
    again after a pause.
    """

    async def watch(self, fleet: Fleet, enqueue: Callable[[Request], None]) -> None: ...


def _by_plane(request: Request) -> Hashable:
    return request.plane


class OnPlane(Struct, frozen=True):
    name: str


class OfRole(Struct, frozen=True):
    role: str


Target = OnPlane | OfRole  # where a pass failed; a plane may have the name of a role


class Controller:
    """One queue and its workers. `run` never returns: a pass that fails is retried."""

    def __init__(self, reconciler: Reconciler, fleet: Fleet, clock: Clock, tracer: Tracer | None = None) -> None:
        self.name = reconciler.name
        self.dropped: Counter[str] = Counter()  # events without a request, by reason
        self.passes = 0
        self.panics = 0
        self.results: Counter[str] = Counter()  # how passes ended: success, requeue, requeue_after, error
        self.pass_seconds = Histogram(PASS_SECONDS)
        self.crashes: list[Exception] = []  # defects, for tests to find
        self._reconciler = reconciler
        self._fleet = fleet
        self._tracer = tracer
        self._clock = clock
        self._signature = Signature(self.name, getattr(reconciler, "component", self.name), clock)
        self._named = [source for source in reconciler.sources() if source.map is itself]
        self._scoped = [(source.role, source.scope) for source in reconciler.sources() if source.scope is not None]
        self._hired = 0
        self._idle = 0
        group = reconciler.group if isinstance(reconciler, Grouping) else _by_plane
        self.queue: WorkQueue[Request] = WorkQueue(group, PER_GROUP, reserved=RESERVED, shared=SHARED)
        self._conflicts: dict[Request, int] = {}
        self._failed_on: dict[Request, Target] = {}
        self._returns: dict[Target, int] = {}  # number of passes when each was last found to be back
        self._missed = Missed()
        self._logged: Once[tuple[str, str, str, str, str]] = Once()  # drops: plane, kind, namespace, name, reason
        self._working = False
        self._forgot = False  # whether requests were dropped before this replica led
        self._subscriptions: dict[str, list[Callable[[], None]]] = {}
        fleet.join(self)

    # As a member of the fleet

    def prepare(self, plane: Plane) -> None:
        for source in self._reconciler.sources():
            if source.role in plane.roles:
                informer = plane.declare(
                    source.kind,
                    optional=source.optional,
                    best_effort=source.best_effort,
                    selection=source.selection,
                )
                for name, values in source.indexes.items():
                    informer.index(name, values, self._index_crashed)
                if source.scope is not None:
                    plane.declare(NAMESPACE)

    def engaged(self, plane: Plane) -> None:
        ends = self._subscriptions.setdefault(plane.name, [])
        for source in self._reconciler.sources():
            if source.role in plane.roles and source.map is not None:
                ends.append(plane.informer(source.kind, source.selection).subscribe(self._handler(plane, source)))
            if source.role in plane.roles and source.scope is not None:
                ends.append(plane.informer(NAMESPACE).subscribe(self._scope_handler(plane, source, source.scope)))
            if source.role in plane.roles and source.optional:
                informer = plane.informer(source.kind, source.selection)
                ends.append(informer.on_served(lambda: self._look_at_all_on(plane)))
        if isinstance(self._reconciler, Sweeper) and self._reconciler.sweep_role in plane.roles:
            ends.append(self._sweeping(self._reconciler, plane))
        ends.append(plane.on_return(lambda: self._returned(OnPlane(plane.name))))
        self._returned(OnPlane(plane.name))
        for role in plane.roles:
            self._returned(OfRole(role))
        self._logged.forget(lambda drop: drop[0] == plane.name)
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
        self._logged.forget(lambda drop: drop[0] == plane.name)
        for role in plane.roles:
            self._returned(OfRole(role))  # there may have been one too many
        if isinstance(self._reconciler, Remembering):
            self._reconciler.disengaged(plane)

    def _handler(self, plane: Plane, source: Source[T]) -> Callable[[Change[T]], None]:
        def handle(change: Change[T]) -> None:
            requests = self._mapped(plane, source, change)
            for drop in requests:
                if isinstance(drop, Drop):
                    self._log_dropped(drop, plane, source.kind, change)
            self._ask(requests, initial=change.initial)

        return handle

    def _scope_handler(self, plane: Plane, source: Source[T], scope: Scope) -> Callable[[Change[Namespace]], None]:
        def handle(change: Change[Namespace]) -> None:
            if scope.admits(plane, change):
                for object_ in plane.informer(source.kind, source.selection).all(change.object.name):
                    self._ask(self._mapped(plane, source, Change(None, object_, initial=True)), initial=False)

        return handle

    def _mapped(self, plane: Plane, source: Source[T], change: Change[T]) -> list[Request | Drop]:
        try:
            if source.map is None or (source.when is not None and not source.when(change)):
                return []
            return list(source.map(plane, change))
        except msgspec.MsgspecError:
            return [Drop("unreadable")]
        except Exception as error:
            # A defect that one object reveals; the cache must go on for all others.
            self._crashed(error)
            _log.error("map crashed", controller=self.name, plane=plane.name, exc_info=error)
            return [Drop("crashed")]

    def _index_crashed(self, error: Exception) -> None:
        """An object that is not indexed is missed like one that was not mapped."""
        self._crashed(error)
        self.dropped["crashed"] += 1

    def _ask(self, requests: Iterable[Request | Drop], *, initial: bool) -> None:
        for request in requests:
            if isinstance(request, Drop):
                self.dropped[request.reason] += 1
            elif self._fleet.has(request.plane):
                self._make_room()
                self.queue.add(request, initial=initial)
            else:
                # Engaging the plane lists its objects; a request for one that is missing there would be lost.
                self.dropped["plane_not_engaged"] += 1
                self._missed.add(request)
                if self._logged.first((request.plane, "", "", "", "plane_not_engaged")):
                    _log.info("events wait for their plane", controller=self.name, plane=request.plane)

    def _log_dropped(self, drop: Drop, plane: Plane, kind: Kind[Any], change: Change[Any]) -> None:
        object_ = change.object
        log = _log.bind(controller=self.name, plane=plane.name, kind=kind.name, reason=drop.reason)
        log = log.bind(object=f"{object_.namespace}/{object_.name}")
        first = self._logged.first((plane.name, kind.resource, object_.namespace, object_.name, drop.reason))
        if first and not drop.ordinary and change.after is not None:
            log.warning("event dropped")
        else:
            log.debug("event dropped")

    def _look_at_all_on(self, plane: Plane) -> None:
        """Runs all passes that did without a kind that is served now: no event reports an empty kind."""
        for source in self._reconciler.sources():
            if source.role in plane.roles:
                for object_ in plane.informer(source.kind, source.selection).all():
                    self._ask(self._mapped(plane, source, Change(None, object_, initial=True)), initial=True)

    def _make_room(self) -> None:
        """While this replica does not lead, requests for short-lived objects must not pile up."""
        if not self._working and len(self.queue) >= STANDBY_AT_MOST:
            self.queue.drop(lambda request: True)
            self._forgot = True

    def _remember(self) -> None:
        """Requests everything, as a process that has just started does."""
        self._forgot = False
        for request in self._everything():
            if self._fleet.has(request.plane):
                self.queue.add(request, initial=True)
        if isinstance(self._reconciler, Sweeper):
            for plane in self._fleet.of_role(self._reconciler.sweep_role):
                self._sweep(self._reconciler, plane)

    def _everything_for(self, name: str) -> Iterable[Request]:
        """The requests on a plane for all objects in all caches."""
        return (request for request in self._everything() if request.plane == name)

    def _everything(self) -> Iterable[Request]:
        for source in self._reconciler.sources():
            for plane in self._fleet.of_role(source.role):
                for object_ in plane.informer(source.kind, source.selection).all():
                    for request in self._mapped(plane, source, Change(None, object_, initial=True)):
                        if isinstance(request, Request):
                            yield request

    def _sweeping(self, sweeper: Sweeper, plane: Plane) -> Callable[[], None]:
        """Sweeps now and regularly, until the returned function is called."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def sweep() -> None:
            nonlocal timer
            timer = loop.call_later(sweeper.sweep_seconds, sweep)
            self._sweep(sweeper, plane)

        sweep()
        return lambda: timer.cancel()

    def _sweep(self, sweeper: Sweeper, plane: Plane) -> None:
        try:
            requests = list(sweeper.sweep(plane))
        except Exception as error:
            self._crashed(error)
            _log.error("sweep crashed", controller=self.name, plane=plane.name, exc_info=error)
            return
        self._ask(requests, initial=True)

    def _returned(self, target: Target) -> None:
        self._returns[target] = self.passes
        for request in [request for request, failed in self._failed_on.items() if failed == target]:
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
        self._working = True
        if self._forgot:
            self._remember()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._hired, self._idle = 0, 0
                self._hire(tasks)
                if isinstance(self._reconciler, Watching):
                    tasks.create_task(self._watch(self._reconciler), name=f"{self.name}/watch")
        finally:
            self._working = False

    async def _watch(self, reconciler: Watching) -> None:
        """Whatever happens to the watch, passes go on."""
        for pause in _pauses():
            try:
                await reconciler.watch(self._fleet, lambda request: self._ask([request], initial=False))
            except Exception as error:
                self._crashed(error)
                _log.error("watch crashed", controller=self.name, again_in=pause, exc_info=error)
            await asyncio.sleep(pause)

    def _hire(self, tasks: asyncio.TaskGroup) -> None:
        self._hired += 1
        tasks.create_task(self._work(tasks), name=f"{self.name}/{self._hired}")

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while self._idle < SPARE:
            self._idle += 1
            request = await self.queue.get()
            self._idle -= 1
            if not self._idle:
                self._hire(tasks)  # one worker always waits for the next request
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
            if _is_cancelled():
                # The pass answered its cancellation with another error, such as a failed clean-up.
                raise asyncio.CancelledError

    async def _pass(self, request: Request) -> None:
        pass_ = self.new_pass(request, self.queue.since(request))
        self.passes += 1
        number = self.passes
        logs.about(self.name, request, number)
        author.set(Author(request, self._desired(request)))
        self._failed_on.pop(request, None)
        loop = asyncio.get_running_loop()
        began = loop.time()
        trace = tracing.begin(self.name, request, number, self._clock.now()) if self._tracer is not None else None
        failure: Exception | None = None
        try:
            if not self._scoped or await self._in_scope(pass_):
                await self._reconciler.reconcile(pass_)
        except Exception as error:
            match failure := worst_of(error):
                case Conflict():
                    self._again_soon(request, pass_)
                case NamespaceTerminating():
                    self._after_termination(request, pass_)
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
        if trace is not None:
            self._end_trace(trace, pass_, failure)
        if not self._fleet.knows(request.plane):
            self._forget(pass_.plane)

    def _forget(self, plane: Plane) -> None:
        """Called once more for a plane that left during a pass, which may have remembered something since."""
        if isinstance(self._reconciler, Remembering):
            try:
                self._reconciler.disengaged(plane)
            except Exception as error:
                plane.failures.crashed("", "disengage", error)

    async def _in_scope(self, pass_: Pass) -> bool:
        for role, scope in self._scoped:
            if role in pass_.plane.roles and not await scope.includes(pass_.plane, pass_.request.namespace):
                return False
        return True

    def _end_trace(self, trace: tracing.PassTrace, pass_: Pass, failure: Exception | None) -> None:
        assert self._tracer is not None
        try:
            trace.end(self._tracer, pass_.subject, self._clock.now(), failure)
        except Exception as error:  # whatever is wrong with spans, the work goes on
            self._crashed(error)
            _log.error("span crashed", controller=self.name, exc_info=error)

    def new_pass(self, request: Request, since: float = 0.0) -> Pass:
        """A pass as a reconciler gets it; also for tests that call `reconcile` themselves."""
        return Pass(request, self._fleet, self._signature, since)

    def _desired(self, request: Request) -> tuple[str, int | None] | None:
        """The uid and generation of the object that a request names, where a source maps objects to themselves."""
        plane = self._fleet.plane(request.plane)
        for source in self._named:
            if source.role in plane.roles:
                named = plane.informer(source.kind, source.selection).get(request.namespace, request.name)
                return (named.metadata.uid, named.metadata.generation) if named is not None else None
        return None

    def _again_soon(self, request: Request, pass_: Pass) -> None:
        """A conflict is not a failure: the cache is about to receive the newer object."""
        self.results["requeue"] += 1
        earlier = self._conflicts.get(request, 0)
        self._conflicts[request] = earlier + 1
        soon = min(_SOON * 2 ** min(earlier, 10), _SOON_AT_MOST)
        delay = soon if pass_.floor is None else min(soon, pass_.floor)
        log = _log.bind(controller=self.name, request=str(request), seconds=delay, conflicts=earlier + 1)
        if earlier + 1 == MANY_CONFLICTS:
            log.warning("repeated conflicts: somebody else keeps changing what this pass writes")
        elif earlier + 1 == SEVERAL_CONFLICTS:
            log.info("conflict, requeue after")
        else:
            log.debug("conflict, requeue after")
        self.queue.add_retry(request, delay)

    def _after_termination(self, request: Request, pass_: Pass) -> None:
        """A terminating namespace is not a failure: its objects go with it, and new ones wait for its end."""
        self.results["requeue_after"] += 1
        self.queue.forget_failures(request)
        delay = _ENDING if pass_.floor is None else min(_ENDING, pass_.floor)
        _log.debug("namespace terminates, requeue after", controller=self.name, request=str(request), seconds=delay)
        self.queue.add_retry(request, delay)

    def _failed(self, request: Request, pass_: Pass, error: Exception, number: int) -> None:
        is_expected = isinstance(error, NotEngaged) and error.coming  # its plane is a moment away
        self.results["requeue" if is_expected else "error"] += 1
        target = _target(error)
        if target is not None and self._returns.get(target, 0) >= number:
            self.queue.forget_failures(request)  # it came back during this pass
        elif target is not None:
            self._failed_on[request] = target
        delay = self._again_after(request, pass_, error)
        log = _log.bind(controller=self.name, request=str(request), again_in=delay)
        if is_expected or isinstance(error, Damped | Paced):
            log.debug("pass waits", error=str(error))  # the cause was logged when it began
        elif isinstance(error, ApiError):
            log.warning("pass failed", plane=error.plane, error=str(error))
        elif isinstance(error, Unfinished | msgspec.MsgspecError):
            log.warning("pass unfinished", error=str(error))
        else:
            self._crashed(error)
            log.error("pass crashed", exc_info=error)

    def _again_after(self, request: Request, pass_: Pass, error: Exception) -> float:
        """Queues a request whose pass failed for when a retry can help; returns the delay."""
        match error:
            case Damped(retry_after=seconds):
                delay = seconds if pass_.floor is None else min(seconds, pass_.floor)
            case ApiError(retry_after=seconds) if seconds > 0:
                # Also when the floor is sooner: until then no call goes out on its plane.
                delay = min(seconds, LONGEST_PAUSE)
            case AlreadyExists() | NotFound() if self.queue.failures(request) < LAG_TRIES:
                return self.queue.add_failed(request, no_later_than=pass_.floor)
            case ApiError(retryable=False):
                pace = RELIST_SECONDS * _spread(request)
                delay = pace if pass_.floor is None else min(pace, pass_.floor)
            case _:
                return self.queue.add_failed(request, no_later_than=pass_.floor)
        self.queue.add_retry(request, delay)
        return delay

    def _crashed(self, error: Exception) -> None:
        self.panics += 1
        if len(self.crashes) < CRASHES_KEPT:
            self.crashes.append(error)


def _pauses() -> Iterator[float]:
    """How long to wait after each end of a watch in a row."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)


def _target(error: Exception) -> Target | None:
    match error:
        case NotEngaged(role=role) if role:
            return OfRole(role)
        case ApiError(plane=plane) if plane:
            return OnPlane(plane)
    return None


def _spread(request: Request) -> float:
    """From 0.9 to 1.1, constant per request, so that requests refused together are not retried together."""
    return 0.9 + 0.2 * crc32(str(request).encode()) / 2**32


def worst_of(error: Exception) -> Exception:
    """The error to act on, of a group that was raised by concurrent work."""
    if not isinstance(error, ExceptionGroup):
        return error
    return worst(map(worst_of, error.exceptions))


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
