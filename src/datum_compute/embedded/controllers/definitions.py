"""Kinds that come and go while a plane is served. Entry points: `DEFINITIONS`, `Definitions`."""

from contextlib import suppress
from datetime import datetime

from datum_compute.embedded.controllers.queue import Due
from datum_compute.embedded.kinds.definitions import CLEANUP, DEFINITIONS
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.plane import registry
from datum_compute.embedded.plane.server import PlaneServer, Submit
from datum_compute.embedded.storage.records import Event, Key, Record
from datum_compute.embedded.storage.store import Operation, Store
from datum_compute.kube.errors import Conflict, NotFound
from datum_compute.kube.meta import Json, timestamp
from datum_compute.runtime import Clock


class Definitions:
    """On one plane: serves the kinds that are defined there, and deletes their objects when a definition goes."""

    def __init__(self, server: PlaneServer, store: Store, submit: Submit, clock: Clock) -> None:
        self._server = server
        self._store = store
        self._submit = submit
        self._clock = clock
        self._fixed = frozenset(server.kinds)
        self._due: Due[str] = Due()
        for key, record in store.scan(server.plane, DEFINITIONS.resource):
            self._changed(key.name, record)
        store.listen(server.plane, self._seen)

    async def run(self) -> None:
        await self._due.run(self._examine)

    def _seen(self, event: Event) -> None:
        name = event.key.name
        if event.key.resource != DEFINITIONS.resource:
            if event.type == "DELETED" and event.key.resource in self._server.terminating:
                self._due.add(event.key.resource)
        elif event.type == "DELETED":
            if name not in self._fixed:
                self._server.undefine(name)
            for key, _ in self._store.scan(self._server.plane, DEFINITIONS.resource):
                self._due.add(key.name)  # one that waited for this kind can have it now
        else:
            self._changed(name, event.record)

    def _changed(self, name: str, record: Record) -> None:
        """Serves an established kind from the moment its definition says so, which is what its author waits for."""
        definition = record.object()
        if name not in self._fixed and _says(definition, "Established"):
            self._server.define(ServedKind.of(definition), terminating=record.metadata.deleting)
        self._due.add(name)

    async def _examine(self, name: str) -> None:
        key = Key(self._server.plane, DEFINITIONS.resource, "", name)
        record = self._store.get(key)
        if record is None:
            return
        if not record.metadata.deleting:
            await self._accept(key, record.object())
        elif CLEANUP in record.metadata.finalizers:
            await self._empty(key)

    async def _accept(self, key: Key, definition: Json) -> None:
        names = definition["spec"]["names"]
        taken = key.name in self._fixed or any(
            served.kind == names["kind"] and served.group == definition["spec"]["group"] and served.resource != key.name
            for served in self._server.kinds.values()
        )
        conditions = _refused(names["kind"]) if taken else _ACCEPTED
        accepted = {} if taken else names
        status = definition.get("status") or {}
        if status.get("acceptedNames") == accepted and all(_says(definition, *said[:2]) for said in conditions):
            return
        now = self._clock.now()

        def change(current: Json) -> Json:
            told = [_condition(current, *said, now=now) for said in conditions]
            return current | {"status": current.get("status", {}) | {"conditions": told, "acceptedNames": accepted}}

        await self._try(
            registry.patch(DEFINITIONS, key, change, subresource="status", by=registry.Author.engine(self._clock.now()))
        )

    async def _empty(self, key: Key) -> None:
        served = self._server.kinds.get(key.name) if key.name not in self._fixed else None
        left = self._store.scan(self._server.plane, served.resource) if served else []
        for place, record in left:
            if served and not record.metadata.deleting:
                await self._try(registry.delete(served, place, now=self._clock.now(), uid=record.metadata.uid))
        if not served or not self._store.scan(self._server.plane, served.resource):
            await self._try(
                registry.patch(
                    DEFINITIONS, key, _released, subresource="", by=registry.Author.engine(self._clock.now())
                )
            )

    async def _try(self, operation: Operation[object]) -> None:
        with suppress(NotFound, Conflict):  # somebody was faster; the event of that brings us back
            await self._submit(operation)


Said = tuple[str, str, str, str]  # type, status, reason, message

_ACCEPTED: tuple[Said, ...] = (
    ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
    ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
)


def _refused(kind: str) -> tuple[Said, ...]:
    return (
        ("NamesAccepted", "False", "KindConflict", f'"{kind}" is already in use'),
        ("Established", "False", "NotAccepted", "not all names are accepted"),
    )


def _says(definition: Json, type_: str, status: str = "True") -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(found.get("type") == type_ and found.get("status") == status for found in conditions)


def _condition(definition: Json, type_: str, status: str, reason: str, message: str, *, now: datetime) -> Json:
    for found in (definition.get("status") or {}).get("conditions") or ():
        if found.get("type") == type_ and found.get("status") == status:
            return {**found}
    told = {"type": type_, "status": status, "reason": reason, "message": message}
    return told | {"lastTransitionTime": timestamp(now)}


def _released(definition: Json) -> Json:
    kept = [held for held in definition["metadata"].get("finalizers", ()) if held != CLEANUP]
    return definition | {"metadata": definition["metadata"] | {"finalizers": kept}}
