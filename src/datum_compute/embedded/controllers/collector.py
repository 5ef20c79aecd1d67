"""Collects objects whose owners are gone, also those created for an owner that never was. Entry point: `Collector`."""

from collections.abc import Callable, Collection

from datum_compute.embedded.controllers.queue import Due
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.plane import registry
from datum_compute.embedded.plane.server import PlaneServer, Submit
from datum_compute.embedded.storage.records import Event, Key, Record
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.meta import Json, OwnerReference
from datum_compute.runtime import Clock


class Collector:
    """Collection on one plane: an object with owners, none of which exists, is deleted.

    An owner deleted with `Orphan` waits until its dependents have forgotten it, one deleted with `Foreground` until
    those that block it are gone.
    """

    def __init__(self, server: PlaneServer, store: Store, submit: Submit, clock: Clock) -> None:
        self._server = server
        self._store = store
        self._submit = submit
        self._clock = clock
        self._dependents: dict[str, dict[Key, None]] = {}  # by owner uid
        self._waiting: dict[str, Key] = {}  # owners that go after their dependents, by uid
        self._due: Due[Key] = Due()
        for resource in store.resources(server.plane):
            for key, record in store.scan(server.plane, resource):
                self._note(key, record)
        store.listen(server.plane, self._seen)

    async def run(self) -> None:
        await self._due.run(self._examine)

    def _seen(self, event: Event) -> None:
        before = event.previous.metadata.owner_references if event.previous else ()
        now = event.record.metadata.owner_references if event.type != "DELETED" else ()
        for owner in before:
            if owner.uid in self._waiting:
                self._due.add(self._waiting[owner.uid])
        for uid in {owner.uid for owner in before} - {owner.uid for owner in now}:
            dependents = self._dependents.get(uid, {})
            dependents.pop(event.key, None)
            if not dependents:
                self._dependents.pop(uid, None)
        if event.type != "DELETED":
            self._note(event.key, event.record)
            return
        self._waiting.pop(event.record.metadata.uid, None)
        for dependent in self._dependents.pop(event.record.metadata.uid, {}):
            self._due.add(dependent)

    def _note(self, key: Key, record: Record) -> None:
        for owner in record.metadata.owner_references:
            self._dependents.setdefault(owner.uid, {})[key] = None
        if _waits(record) and registry.ORPHAN not in record.metadata.finalizers:
            self._waiting[record.metadata.uid] = key
        else:
            self._waiting.pop(record.metadata.uid, None)
        if record.metadata.owner_references or _waits(record):
            self._due.add(key)

    async def _examine(self, key: Key) -> None:
        record = self._store.get(key)
        served = self._server.kinds.get(key.resource)
        if record is None or served is None:
            return
        if _waits(record):
            await self._let_go(served, key, record)
        elif record.metadata.owner_references and not record.metadata.deleting:
            await self._collect(served, key, record)

    async def _collect(self, served: ServedKind, key: Key, record: Record) -> None:
        owners = record.metadata.owner_references
        going = {owner.uid for owner in owners if owner.uid in self._waiting}
        if any(self._may_exist(owner, key.namespace) for owner in owners if owner.uid not in going):
            if going:
                await self._submit(
                    registry.patch(
                        served,
                        key,
                        _without_owners(going),
                        subresource="",
                        by=registry.Author.engine(self._clock.now()),
                    )
                )
            return
        delete = registry.delete(
            served,
            key,
            now=self._clock.now(),
            uid=record.metadata.uid,
            revision=record.metadata.resource_version,
            propagation="Foreground" if going and self._dependents.get(record.metadata.uid) else "",
        )
        await self._submit(delete)

    async def _let_go(self, served: ServedKind, key: Key, record: Record) -> None:
        """Does what the owner waits for, then lets it go."""
        uid = record.metadata.uid
        dependents = [
            (dependent, found)
            for dependent in self._dependents.get(uid, ())
            if dependent.resource in self._server.kinds
            and (found := self._store.get(dependent)) is not None
            and _refers(found, uid)
        ]
        if registry.ORPHAN in record.metadata.finalizers:
            for dependent, _ in dependents:
                kind = self._server.kinds[dependent.resource]
                await self._submit(
                    registry.patch(
                        kind,
                        dependent,
                        _without_owners({uid}),
                        subresource="",
                        by=registry.Author.engine(self._clock.now()),
                    )
                )
        else:
            for dependent, _ in dependents:
                self._due.add(dependent)
            if any(_blocks(found, uid) for _, found in dependents):
                return  # the events of their end bring us back
        await self._submit(
            registry.patch(served, key, _released, subresource="", by=registry.Author.engine(self._clock.now()))
        )

    def _may_exist(self, owner: OwnerReference, namespace: str) -> bool:
        for served in self._server.kinds.values():
            if served.kind == owner.kind and served.group == owner.api_version.rpartition("/")[0]:
                if served.namespaced and not namespace:
                    return True  # without a namespace there is no saying which one is meant
                place = namespace if served.namespaced else ""
                found = self._store.get(Key(self._server.plane, served.resource, place, owner.name))
                return found is not None and found.metadata.uid == owner.uid
        return True  # a kind this plane does not serve says nothing about its objects


def _waits(record: Record) -> bool:
    """Whether an object that is being deleted still waits for something to happen to its dependents."""
    held = (registry.ORPHAN, registry.FOREGROUND)
    return record.metadata.deleting and any(finalizer in held for finalizer in record.metadata.finalizers)


def _refers(record: Record, uid: str) -> bool:
    return any(owner.uid == uid for owner in record.metadata.owner_references)


def _blocks(record: Record, uid: str) -> bool:
    return any(owner.uid == uid and owner.block_owner_deletion for owner in record.metadata.owner_references)


def _without_owners(uids: Collection[str]) -> Callable[[Json], Json]:
    def change(value: Json) -> Json:
        metadata = value["metadata"]
        kept = [owner for owner in metadata.get("ownerReferences", ()) if owner["uid"] not in uids]
        return value | {"metadata": metadata | {"ownerReferences": kept}}

    return change


def _released(value: Json) -> Json:
    metadata = value["metadata"]
    held = (registry.ORPHAN, registry.FOREGROUND)
    kept = [finalizer for finalizer in metadata.get("finalizers", ()) if finalizer not in held]
    return value | {"metadata": metadata | {"finalizers": kept}}
