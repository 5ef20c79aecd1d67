"""Deletes objects whose owners are gone, even if they never existed. Entry point: `Collector`."""

from collections.abc import Callable, Collection

from datum_compute.embedded.controllers.controller import PlaneController
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.plane.registry import FOREGROUND, ORPHAN
from datum_compute.embedded.plane.server import PlaneServer, Submit
from datum_compute.embedded.storage.records import Event, Key, Record
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.meta import Json, OwnerReference
from datum_compute.runtime import Clock


class Collector(PlaneController[Key]):
    """Garbage collection on one plane: deletes objects that have owners, none of which exists.

    An owner deleted with `Orphan` waits until its dependents no longer refer to it, one deleted with `Foreground`
    until the dependents that block it are gone.
    """

    def __init__(self, server: PlaneServer, store: Store, submit: Submit, clock: Clock) -> None:
        self._dependents: dict[str, dict[Key, None]] = {}  # by owner uid
        self._waiting: dict[str, Key] = {}  # owners that are deleted after their dependents, by uid
        super().__init__(server, store, submit, clock)

    def _load(self) -> None:
        for resource in self._store.resources(self._server.plane):
            for key, record in self._store.scan(self._server.plane, resource):
                self._track(key, record)

    def _on_event(self, event: Event) -> None:
        before = event.previous.metadata.owner_references if event.previous else ()
        now = event.record.metadata.owner_references if event.type != "DELETED" else ()
        for owner in before:
            if owner.uid in self._waiting:
                self._queue.add(self._waiting[owner.uid])
        for uid in {owner.uid for owner in before} - {owner.uid for owner in now}:
            dependents = self._dependents.get(uid, {})
            dependents.pop(event.key, None)
            if not dependents:
                self._dependents.pop(uid, None)
        if event.type != "DELETED":
            self._track(event.key, event.record)
            return
        self._waiting.pop(event.record.metadata.uid, None)
        for dependent in self._dependents.pop(event.record.metadata.uid, {}):
            self._queue.add(dependent)

    def _track(self, key: Key, record: Record) -> None:
        for owner in record.metadata.owner_references:
            self._dependents.setdefault(owner.uid, {})[key] = None
        if _waits(record) and ORPHAN not in record.metadata.finalizers:
            self._waiting[record.metadata.uid] = key
        else:
            self._waiting.pop(record.metadata.uid, None)
        if record.metadata.owner_references or _waits(record):
            self._queue.add(key)

    async def _reconcile(self, key: Key) -> None:
        record = self._store.get(key)
        served = self._server.kinds.get(key.resource)
        if record is None or served is None:
            return
        if _waits(record):
            await self._release(served, key, record)
        elif record.metadata.owner_references and not record.metadata.deleting:
            await self._collect(served, key, record)

    async def _collect(self, served: ServedKind, key: Key, record: Record) -> None:
        owners = record.metadata.owner_references
        waiting = {owner.uid for owner in owners if owner.uid in self._waiting}
        if any(self._may_exist(owner, key.namespace) for owner in owners if owner.uid not in waiting):
            if waiting:
                await self._patch(served, key, _without_owners(waiting))
            return
        await self._delete(
            served,
            key,
            uid=record.metadata.uid,
            revision=record.metadata.resource_version,
            propagation="Foreground" if waiting and self._dependents.get(record.metadata.uid) else "",
        )

    async def _release(self, served: ServedKind, key: Key, owner: Record) -> None:
        """Does what the owner waits for, then removes the finalizer that keeps it."""
        uid = owner.metadata.uid
        dependents = [
            (dependent, record)
            for dependent in self._dependents.get(uid, ())
            if dependent.resource in self._server.kinds
            and (record := self._store.get(dependent)) is not None
            and _refers(record, uid)
        ]
        if ORPHAN in owner.metadata.finalizers:
            for dependent, _ in dependents:
                await self._patch(self._server.kinds[dependent.resource], dependent, _without_owners({uid}))
        else:
            for dependent, _ in dependents:
                self._queue.add(dependent)
            if any(_blocks(record, uid) for _, record in dependents):
                return  # their deletion queues the owner again
        await self._patch(served, key, _without_propagation)

    def _may_exist(self, owner: OwnerReference, namespace: str) -> bool:
        for served in self._server.kinds.values():
            if served.kind == owner.kind and served.group == owner.api_version.rpartition("/")[0]:
                if served.namespaced and not namespace:
                    return True  # a cluster-scoped dependent does not say in which namespace its owner is
                place = namespace if served.namespaced else ""
                record = self._store.get(Key(self._server.plane, served.resource, place, owner.name))
                return record is not None and record.metadata.uid == owner.uid
        return True  # nothing is known of objects of a kind that this plane does not serve


def _waits(record: Record) -> bool:
    """Whether an object that is being deleted waits for its dependents."""
    return record.metadata.deleting and any(name in (ORPHAN, FOREGROUND) for name in record.metadata.finalizers)


def _refers(record: Record, uid: str) -> bool:
    return any(owner.uid == uid for owner in record.metadata.owner_references)


def _blocks(record: Record, uid: str) -> bool:
    return any(owner.uid == uid and owner.block_owner_deletion for owner in record.metadata.owner_references)


def _without_owners(uids: Collection[str]) -> Callable[[Json], Json]:
    def change(value: Json) -> Json:
        metadata = value["metadata"]
        owners = [owner for owner in metadata.get("ownerReferences", ()) if owner["uid"] not in uids]
        return value | {"metadata": metadata | {"ownerReferences": owners}}

    return change


def _without_propagation(value: Json) -> Json:
    metadata = value["metadata"]
    finalizers = [name for name in metadata.get("finalizers", ()) if name not in (ORPHAN, FOREGROUND)]
    return value | {"metadata": metadata | {"finalizers": finalizers}}
