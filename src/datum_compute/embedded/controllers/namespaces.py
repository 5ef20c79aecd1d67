"""Empties namespaces that are being deleted, then deletes them. Entry point: `NamespaceLifecycle`."""

from contextlib import suppress

from datum_compute.embedded.controllers.controller import PlaneController
from datum_compute.embedded.kinds.builtin import NAMESPACES
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.plane.server import PlaneServer, Submit
from datum_compute.embedded.storage.records import Event, Key
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.errors import Conflict, NotFound
from datum_compute.kube.meta import Json
from datum_compute.runtime import Clock


class NamespaceLifecycle(PlaneController[str]):
    """On one plane: deletes everything in a terminating namespace, waits for finalizers, removes the namespace."""

    def __init__(self, server: PlaneServer, store: Store, submit: Submit, clock: Clock) -> None:
        self._terminating: dict[str, None] = {}
        super().__init__(server, store, submit, clock)

    def _load(self) -> None:
        for key, record in self._store.scan(self._server.plane, NAMESPACES.resource):
            if record.metadata.deleting:
                self._schedule(key.name)

    def _on_event(self, event: Event) -> None:
        key = event.key
        if key.resource == NAMESPACES.resource and event.record.metadata.deleting and event.type != "DELETED":
            self._schedule(key.name)
        elif event.type == "DELETED" and key.namespace in self._terminating:
            self._schedule(key.namespace)

    def _schedule(self, name: str) -> None:
        self._terminating[name] = None
        self._queue.add(name)

    async def _reconcile(self, name: str) -> None:
        namespace_key = Key(self._server.plane, NAMESPACES.resource, "", name)
        namespace = self._store.get(namespace_key)
        if namespace is None or not namespace.metadata.deleting:
            self._terminating.pop(name, None)  # deleted meanwhile; one that exists now is new
            return
        for served, key in self._content(name):
            record = self._store.get(key)
            if record is not None and not record.metadata.deleting:
                with suppress(NotFound, Conflict):  # somebody else deleted it, which queues the namespace again
                    await self._delete(served, key, uid=record.metadata.uid)
        if not self._content(name):
            with suppress(NotFound, Conflict):
                await self._patch(NAMESPACES, namespace_key, _without_spec, subresource="finalize")
            self._terminating.pop(name, None)

    def _content(self, namespace: str) -> list[tuple[ServedKind, Key]]:
        return [
            (served, key)
            for served in self._server.kinds.values()
            if served.namespaced
            for key, _ in self._store.scan(self._server.plane, served.resource, namespace)
        ]


def _without_spec(namespace: Json) -> Json:
    return {key: value for key, value in namespace.items() if key != "spec"}
