"""What the controllers of a plane have in common. Entry point: `PlaneController`."""

from abc import abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from datum_compute.embedded.controllers.queue import Queue
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.plane import registry
from datum_compute.embedded.plane.server import PlaneServer, Submit
from datum_compute.embedded.storage.records import Event, Key
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.meta import Json
from datum_compute.runtime import Clock

K = TypeVar("K", bound=Hashable)


class PlaneController(Generic[K]):
    """A loop over the keys that the events of one plane put into its queue."""

    def __init__(self, server: PlaneServer, store: Store, submit: Submit, clock: Clock) -> None:
        self._server = server
        self._store = store
        self._submit = submit
        self._clock = clock
        self._queue: Queue[K] = Queue()
        self._load()
        store.listen(server.plane, self._on_event)

    async def run(self) -> None:
        await self._queue.run(self._reconcile)

    @abstractmethod
    def _load(self) -> None:
        """Queues the keys of the objects there are at the start."""

    @abstractmethod
    def _on_event(self, event: Event) -> None: ...

    @abstractmethod
    async def _reconcile(self, key: K) -> None: ...

    async def _patch(
        self, served: ServedKind, key: Key, change: Callable[[Json], Json], *, subresource: str = ""
    ) -> None:
        author = registry.Author.engine(self._clock.now())
        await self._submit(registry.patch(served, key, change, subresource=subresource, by=author))

    async def _delete(
        self, served: ServedKind, key: Key, *, uid: str, revision: str | None = None, propagation: str = ""
    ) -> None:
        now = self._clock.now()
        await self._submit(registry.delete(served, key, now=now, uid=uid, revision=revision, propagation=propagation))
