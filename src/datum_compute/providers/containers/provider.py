"""Runs Instances as containers of the engine on this machine. Entry point: `ContainersProvider`."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from datum_compute.api import reasons
from datum_compute.api.instance import AVAILABLE, INSTANCE, Instance
from datum_compute.api.labels import CONTAINER_INSTANCE_UID, CONTAINER_NAME
from datum_compute.api.labels import CONTAINERS_FINALIZER as FINALIZER
from datum_compute.federation.identity import Identity
from datum_compute.federation.lines import Sink
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.federation.sessions import Command, Session, Unstartable
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.providers import report
from datum_compute.providers.containers.image_rules import ImageState, Present
from datum_compute.providers.containers.images import Credentials, Images
from datum_compute.providers.containers.logs import ContainerLogs
from datum_compute.providers.containers.memory import Memory
from datum_compute.providers.containers.removal import owned
from datum_compute.providers.containers.runs import RUNNING
from datum_compute.providers.containers.shape import LOOPBACK, Owner, Shape, Unmappable, shape_of
from datum_compute.providers.containers.state import AWAY, MACHINE, View, Wait, is_resuming, next_step, report_of
from datum_compute.providers.containers.steps import is_for_other_processor, remove, take
from datum_compute.providers.containers.strays import Strays, is_released
from datum_compute.providers.engine.interface import (
    Container,
    ContainerEngine,
    EngineAway,
    EngineInfo,
    Event,
    Refused,
    Summary,
)
from datum_compute.providers.engine.link import Connect, EngineLink
from datum_compute.providers.engine.words import Refusal, excerpt
from datum_compute.providers.report import Report, status_with
from datum_compute.runtime import Clock, Fleet, Pass, Plane, Request, Source, Unfinished, itself

BY_UID = "instance-uid"
STEPS_AT_MOST = 50  # in one pass; a container needs three
STEPS_AT_ONCE = 8  # of all Instances; an engine that gets too many answers none in time
REMOVAL_SECONDS = 1.0  # until a container that the engine still removes is looked for again


class ContainersProvider:
    """Runs the Instances of all cells in one engine, which may be away, and come back with less than it had.

    `connect` finds the engine, and raises `EngineAway` while it cannot; `engine` is one that was found before.
    Whatever happens, each pass looks at what is there and takes one step after the other, so that another process can
    go on after any of them.
    """

    name = "containers-provider"

    def __init__(
        self,
        connect: Connect,
        owner: Owner,
        clock: Clock,
        sink: Sink,
        credentials: Credentials,
        engine: ContainerEngine | None = None,
    ) -> None:
        self.owner = owner
        self._clock = clock
        self._sink = sink
        self._link = EngineLink(connect, owner.labels, engine)
        self._images = Images(credentials, self._wake)
        self._logs = ContainerLogs(sink, clock)
        self._strays = Strays(owner)
        self._memories: dict[Request, Memory] = {}
        self._slots = asyncio.Semaphore(STEPS_AT_ONCE)
        self._fleet: Fleet | None = None
        self._enqueue: Callable[[Request], None] | None = None

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(CELL, INSTANCE, itself, {BY_UID: _uid}, scope=CELL_NAMESPACES),
            Source(CELL, NAMESPACE),
        )

    def disengaged(self, plane: Plane) -> None:
        for request in [request for request in self._memories if request.plane == plane.name]:
            self._forget(request)

    # What happens outside the planes

    async def watch(self, fleet: Fleet, enqueue: Callable[[Request], None]) -> None:
        self._fleet, self._enqueue = fleet, enqueue
        try:
            await self._link.run(self)
        finally:
            self._enqueue = None
            await self._logs.close()
            await self._images.close()
            await self._link.close()

    def connected(self) -> None:
        self._images.retry()
        for memory in self._memories.values():
            memory.outage()

    def due(self) -> None:
        self._strays.suspect()
        self._wake_all()

    def lost(self) -> None:
        self._wake_all()

    def happened(self, event: Event) -> None:
        if event.action.startswith("exec_"):
            return
        uid = event.labels.get(CONTAINER_INSTANCE_UID, "")
        requests = list(self._requests(uid))
        if not requests:
            self._strays.suspect()
        for request in requests:
            self._wake(request)

    def silent(self, reason: str) -> None:
        for city in sorted({memory.shape.city for memory in self._memories.values() if memory.shape}):
            self._sink.silent(city, reason)

    async def attend(self, engine: ContainerEngine) -> None:
        assert self._fleet is not None
        await self._strays.run(engine, self._fleet)

    def _wake_all(self) -> None:
        for request in list(self._memories):
            self._wake(request)

    def _wake(self, request: Request) -> None:
        if self._enqueue is not None:
            self._enqueue(request)

    def _requests(self, uid: str) -> Iterable[Request]:
        for plane in self._fleet.of_role(CELL) if self._fleet is not None else ():
            for instance in plane.informer(INSTANCE).by(BY_UID, uid):
                yield Request(plane.name, instance.namespace, instance.name)

    # One Instance

    async def reconcile(self, pass_: Pass) -> None:
        instance = pass_.get(INSTANCE)
        if instance is None:
            self._forget(pass_.request)
            return
        try:
            await self._run(pass_, instance, self._memory(pass_.request, instance.metadata.uid))
        except Refused as error:  # to look; what it refuses to do is noted with the step
            raise Unfinished(f"the container engine cannot be asked: {excerpt(error.message)}") from None

    async def _run(self, pass_: Pass, instance: Instance, memory: Memory) -> None:
        if instance.metadata.deleting:
            await self._tear_down(pass_, instance, memory)
            return
        if instance.spec.controller is not None and instance.spec.controller.scheduling_gates:
            return
        if instance.spec.runtime.sandbox is None:
            await self._report(pass_, instance, memory, MACHINE)
            return
        try:
            await self._bring_up(pass_, instance, memory, self._link.engine)
        except EngineAway as error:
            self._link.lost(error)
            if (patience := self._link.patience) > 0:
                pass_.no_later_than(patience)
            else:
                await self._report(pass_, pass_.get(INSTANCE) or instance, memory, AWAY)

    async def _bring_up(self, pass_: Pass, instance: Instance, memory: Memory, engine: ContainerEngine) -> None:
        namespace = pass_.informer(NAMESPACE).get("", instance.namespace)
        identity = Identity.of(namespace.metadata.labels) if namespace is not None else None
        if identity is None:
            raise Unfinished(f"namespace {instance.namespace} does not say which project it belongs to")
        shape = shape_of(instance, identity, self.owner, engine.info)
        if isinstance(shape, Unmappable):
            await self._report(pass_, instance, memory, _unmappable(shape))
            return
        memory.shape = shape
        instance = await pass_.write.add_finalizer(instance, FINALIZER)
        for _ in range(STEPS_AT_MOST):
            views = await self._look(pass_.request, memory, shape, engine)
            now = asyncio.get_running_loop().time()
            step = next_step(views, now)
            if not (is_resuming(views, now) and _is_available(instance)):
                instance = await self._report(pass_, instance, memory, report_of(views, now), views)
            self._warn_of_old_images(pass_, instance, memory, views)
            if isinstance(step, Wait):
                pass_.no_later_than(step.seconds)
                return
            async with self._slots:
                await take(step, self.owner, memory, shape, views, engine)
        pass_.no_later_than(REMOVAL_SECONDS)

    async def _look(self, request: Request, memory: Memory, shape: Shape, engine: ContainerEngine) -> list[View]:
        """What the engine has for an Instance. Containers that have no place in it are removed."""
        listed = await owned(engine, self.owner, shape.place)
        containers = _chosen(listed, shape)
        chosen = {summary.id for summary in containers.values()}
        if surplus := [summary for summary in listed if summary.id not in chosen]:
            await remove(surplus, engine, self._logs)
        views = []
        for wanted in shape.containers:
            name = wanted.container
            summary = containers.get(name)
            found = await engine.inspect(summary.id) if summary is not None else None
            image: ImageState | None = None
            if found is None:
                self._leave(memory.miss(name))
                image = await self._images.state(engine, wanted.image, memory.uid, request)
            else:
                await self._take_in(memory, name, found, engine)
            runs, trouble = memory.run_of(name), memory.troubles.get(name)
            views.append(View(wanted, found, runs, trouble, image, engine.info.limits_memory))
        return views

    async def _take_in(self, memory: Memory, name: str, found: Container, engine: ContainerEngine) -> None:
        crashes, now = memory.run_of(name).count, asyncio.get_running_loop().time()
        if memory.see(name, found, now, self._now_ns()):
            self._sink.started(memory.origin(name), found.state.started)
            self._logs.follow(engine, found.id, memory.origin(name))
        if memory.run_of(name).count > crashes and await is_for_other_processor(found, engine):
            memory.refuse(name, Refusal.OTHER_PROCESSOR, "", now, anew=True)

    # The end

    async def _tear_down(self, pass_: Pass, instance: Instance, memory: Memory) -> None:
        if is_released(instance):
            self._forget(pass_.request)
            self._strays.suspect()
            return
        instance = await self._report(pass_, instance, memory, report.STOPPING)
        labels = {CONTAINER_INSTANCE_UID: instance.metadata.uid}
        try:
            engine = self._link.engine
            if left := await owned(engine, self.owner, labels):
                await remove(left, engine, self._logs)
                left = await owned(engine, self.owner, labels)
        except EngineAway as error:
            self._link.lost(error)  # the request runs again when it is back
            return
        if left:
            pass_.no_later_than(REMOVAL_SECONDS)
            return
        await pass_.write.remove_finalizers(instance, FINALIZER)
        self._forget(pass_.request)

    # What others ask for

    @property
    def info(self) -> EngineInfo | None:
        """The engine as it described itself; None while it does not answer."""
        try:
            return self._link.engine.info
        except EngineAway:
            return None

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """The ports of running Instances on this machine, such as 37991 for `8080/tcp`, by uid."""
        return {memory.uid: memory.published() for memory in self._memories.values()}

    async def run(self, cell: str, namespace: str, instance: str, uid: str, command: Command) -> Session:
        memory = self._memories.get(Request(cell, namespace, instance))
        if memory is None or memory.shape is None or memory.uid != uid:
            raise Unstartable(f"instance {instance} does not run here")
        names = memory.containers
        if not command.container and len(names) > 1:
            raise Unstartable(f"instance {instance} has several containers; choose one of {', '.join(names)}", 400)
        name = command.container or names[0]
        if name not in names:
            raise Unstartable(f"instance {instance} has no container {name}; it has {', '.join(names)}", 404)
        found = memory.found.get(name)
        if found is None or found.state.status != RUNNING:
            why = memory.report.message if memory.report is not None else "it has not started yet"
            raise Unstartable(f"container {name} of instance {instance} is not running: {why}")
        try:
            return await self._link.engine.exec(found.id, command)
        except EngineAway as error:
            self._link.lost(error)
            raise Unstartable("the container engine does not answer; try again in a moment", 503) from None
        except Refused as error:
            raise Unstartable(f"the container engine refused: {excerpt(error.message)}") from None

    # Memory and reports

    def _memory(self, request: Request, uid: str) -> Memory:
        memory = self._memories.get(request)
        if memory is None or memory.uid != uid:
            self._forget(request)
            memory = self._memories[request] = Memory(uid)
        return memory

    def _forget(self, request: Request) -> None:
        if (memory := self._memories.pop(request, None)) is None:
            return
        self._images.forget(memory.uid)
        for found in memory.found.values():
            self._leave(found)
        for origin in memory.origins:
            self._sink.ended(origin, self._now_ns())

    def _leave(self, found: Container | None) -> None:
        if found is not None:
            self._logs.leave(found.id)

    async def _report(
        self, pass_: Pass, instance: Instance, memory: Memory, state: Report, views: Sequence[View] = ()
    ) -> Instance:
        """The address belongs to the first interface, because containers have only one. Without `views` the addresses
        stay as they are."""
        memory.report = state
        addresses, external = [], None
        if views and (first := views[0].found) is not None and memory.shape is not None:
            own = first.addresses.get(memory.shape.network, "")
            addresses = [own, *[""] * (len(instance.spec.network_interfaces) - 1)]
            external = _external(memory.shape, first)
        elif views:
            external = ""
        return await pass_.write.status(instance, status_with(instance, state, addresses, pass_.now(), external))

    def _warn_of_old_images(self, pass_: Pass, instance: Instance, memory: Memory, views: Sequence[View]) -> None:
        for view in views:
            match view.image:
                case Present(stale=reason) if reason and view.shape.image not in memory.warned:
                    memory.warned.add(view.shape.image)
                    message = f"The image {view.shape.image} of this machine is used; a newer one could not be pulled"
                    pass_.events.warning(instance, reasons.IMAGE_UNAVAILABLE, f"{message}: {reason}")

    def _now_ns(self) -> int:
        return int(self._clock.now().timestamp() * 1_000_000) * 1000


def _uid(instance: Instance) -> Sequence[str]:
    return (instance.metadata.uid,)


def _is_available(instance: Instance) -> bool:
    return conditions.is_true(conditions.of(instance), AVAILABLE)


def _unmappable(obstacle: Unmappable) -> Report:
    return Report("Unknown", reasons.CONFIGURATION_ERROR, obstacle.sentence)


def _chosen(summaries: Iterable[Summary], shape: Shape) -> dict[str, Summary]:
    """The container of each name; of several the oldest."""
    wanted = {container.container for container in shape.containers}
    chosen: dict[str, Summary] = {}
    for summary in sorted(summaries, key=lambda summary: (summary.created, summary.id)):
        name = summary.labels.get(CONTAINER_NAME, "")
        if summary.labels.get(CONTAINER_INSTANCE_UID) == shape.uid and name in wanted:
            chosen.setdefault(name, summary)
    return chosen


def _external(shape: Shape, first: Container) -> str:
    """Where the first TCP port is reached on this machine; empty while it is not."""
    if first.state.status != RUNNING:
        return ""
    ports = (first.ports.get(port) for port in shape.ports if port.endswith("/tcp"))
    number = next((number for number in ports if number), None)
    return f"{LOOPBACK}:{number}" if number is not None else ""
