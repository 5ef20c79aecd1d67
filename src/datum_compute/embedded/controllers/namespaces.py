"""Empties namespaces that are being deleted, then lets them go. Entry point: `NamespaceLifecycle`."""

from contextlib import suppress

from datum_compute.embedded.controllers.queue import Due
from datum_compute.embedded.kinds.builtin import NAMESPACES
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.plane import registry
from datum_compute.embedded.plane.server import PlaneServer, Submit
from datum_compute.embedded.storage.records import Event, Key
from datum_compute.embedded.storage.store import Operation, Store
from datum_compute.kube.errors import Conflict, NotFound
from datum_compute.kube.meta import Json
from datum_compute.runtime import Clock


class NamespaceLifecycle:
    """On one plane: deletes everything in a terminating namespace, waits for finalizers, removes the namespace."""

    def __init__(self, server: PlaneServer, store: Store, submit: Submit, clock: Clock) -> None:
        self._server = server
        self._store = store
        self._submit = submit
        self._clock = clock
        self._terminating: dict[str, None] = {}
        self._due: Due[str] = Due()
        for key, record in store.scan(server.plane, NAMESPACES.resource):
            if record.metadata.deleting:
                self._schedule(key.name)
        store.listen(server.plane, self._seen)

    async def run(self) -> None:
        await self._due.run(self._empty)

    def _seen(self, event: Event) -> None:
        key = event.key
        if key.resource == NAMESPACES.resource and event.record.metadata.deleting and event.type != "DELETED":
            self._schedule(key.name)
        elif event.type == "DELETED" and key.namespace in self._terminating:
            self._schedule(key.namespace)

    def _schedule(self, name: str) -> None:
        self._terminating[name] = None
        self._due.add(name)

    async def _empty(self, name: str) -> None:
        place = Key(self._server.plane, NAMESPACES.resource, "", name)
        namespace = self._store.get(place)
        if namespace is None or not namespace.metadata.deleting:
            self._terminating.pop(name, None)  # gone since; what is there now is a new one of its name
            return
        for served, key in self._content(name):
            record = self._store.get(key)
            if record is not None and not record.metadata.deleting:
                await self._try(registry.delete(served, key, now=self._clock.now(), uid=record.metadata.uid))
        if not self._content(name):
            await self._try(
                registry.patch(
                    NAMESPACES, place, _released, subresource="finalize", by=registry.Author.engine(self._clock.now())
                )
            )
            self._terminating.pop(name, None)

    def _content(self, namespace: str) -> list[tuple[ServedKind, Key]]:
        return [
            (served, key)
            for served in self._server.kinds.values()
            if served.namespaced
            for key, _ in self._store.scan(self._server.plane, served.resource, namespace)
        ]

    async def _try(self, operation: Operation[object]) -> None:
        with suppress(NotFound, Conflict):  # somebody else deleted it; the event of that brings us back
            await self._submit(operation)


def _released(namespace: Json) -> Json:
    return {key: value for key, value in namespace.items() if key != "spec"}
