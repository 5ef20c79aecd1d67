"""Collects objects whose owners are gone, also those created for an owner that never was. Entry point: `Collector`."""

import asyncio

from datum_compute.embedded import registry
from datum_compute.embedded.server import PlaneServer, Submit
from datum_compute.embedded.store import Event, Key, Record, Store
from datum_compute.kube.errors import ApiError
from datum_compute.kube.meta import OwnerReference
from datum_compute.runtime.clock import Clock


class Collector:
    """Background collection on one plane: an object with owners, none of which exists, is deleted."""

    def __init__(self, server: PlaneServer, store: Store, submit: Submit, clock: Clock) -> None:
        self._server = server
        self._store = store
        self._submit = submit
        self._clock = clock
        self._dependents: dict[str, dict[Key, None]] = {}  # by owner uid
        self._due: dict[Key, None] = {}
        self._wake = asyncio.Event()
        for resource in store.resources(server.plane):
            for key, record in store.scan(server.plane, resource):
                self._note(key, record)
        store.listen(server.plane, self._seen)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                key = next(iter(self._due))
                del self._due[key]
                await self._examine(key)
                await asyncio.sleep(0)

    def _seen(self, event: Event) -> None:
        if event.type != "DELETED":
            self._note(event.key, event.record)
            return
        for owner in event.record.metadata.owner_references:
            self._dependents.get(owner.uid, {}).pop(event.key, None)
        for dependent in self._dependents.pop(event.record.metadata.uid, {}):
            self._schedule(dependent)

    def _note(self, key: Key, record: Record) -> None:
        for owner in record.metadata.owner_references:
            self._dependents.setdefault(owner.uid, {})[key] = None
        if record.metadata.owner_references:
            self._schedule(key)

    def _schedule(self, key: Key) -> None:
        self._due[key] = None
        self._wake.set()

    async def _examine(self, key: Key) -> None:
        record = self._store.get(key)
        served = self._server.kinds.get(key.resource)
        if record is None or served is None or record.metadata.deleting or not record.metadata.owner_references:
            return
        if any(self._may_exist(owner, key.namespace) for owner in record.metadata.owner_references):
            return
        uid = record.metadata.uid
        try:
            await self._submit(registry.delete(served, key, now=self._clock.now(), uid=uid))
        except ApiError:
            self._schedule(key)  # changed or gone in between; look again

    def _may_exist(self, owner: OwnerReference, namespace: str) -> bool:
        for served in self._server.kinds.values():
            if served.kind == owner.kind and served.group == owner.api_version.rpartition("/")[0]:
                if served.namespaced and not namespace:
                    return True  # without a namespace there is no saying which one is meant
                place = namespace if served.namespaced else ""
                found = self._store.get(Key(self._server.plane, served.resource, place, owner.name))
                return found is not None and found.metadata.uid == owner.uid
        return True  # a kind this plane does not serve says nothing about its objects
