"""Serves the kinds that are defined on a plane. Entry point: `Definitions`."""

from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from datum_compute.embedded.controllers.controller import PlaneController
from datum_compute.embedded.kinds.definitions import CLEANUP, DEFINITIONS
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.plane.server import PlaneServer, Submit
from datum_compute.embedded.storage.records import Event, Key, Record
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.errors import Conflict, NotFound
from datum_compute.kube.meta import Json, timestamp
from datum_compute.runtime import Clock


class Definitions(PlaneController[str]):
    """On one plane: serves the kinds that are defined there, and deletes their objects with the definition."""

    def __init__(self, server: PlaneServer, store: Store, submit: Submit, clock: Clock) -> None:
        self._fixed = frozenset(server.kinds)
        super().__init__(server, store, submit, clock)

    def _load(self) -> None:
        for key, record in self._store.scan(self._server.plane, DEFINITIONS.resource):
            self._define(key.name, record)

    def _on_event(self, event: Event) -> None:
        name = event.key.name
        if event.key.resource != DEFINITIONS.resource:
            if event.type == "DELETED" and event.key.resource in self._server.terminating:
                self._queue.add(event.key.resource)
        elif event.type == "DELETED":
            if name not in self._fixed:
                self._server.undefine(name)
            for key, _ in self._store.scan(self._server.plane, DEFINITIONS.resource):
                self._queue.add(key.name)  # another definition may have been waiting for this kind
        else:
            self._define(name, event.record)

    def _define(self, name: str, record: Record) -> None:
        """Serves a kind from the moment its definition is established, which is what its author waits for."""
        definition = record.object()
        if name not in self._fixed and _has_condition(definition, "Established", "True"):
            self._server.define(ServedKind.of(definition), terminating=record.metadata.deleting)
        self._queue.add(name)

    async def _reconcile(self, name: str) -> None:
        key = Key(self._server.plane, DEFINITIONS.resource, "", name)
        record = self._store.get(key)
        if record is None:
            return
        with suppress(NotFound, Conflict):  # somebody else changed it, which queues it again
            if not record.metadata.deleting:
                await self._accept(key, record.object())
            elif CLEANUP in record.metadata.finalizers:
                await self._clean_up(key)

    async def _accept(self, key: Key, definition: Json) -> None:
        names = definition["spec"]["names"]
        taken = key.name in self._fixed or any(
            served.kind == names["kind"] and served.group == definition["spec"]["group"] and served.resource != key.name
            for served in self._server.kinds.values()
        )
        conditions = _refusal(names["kind"]) if taken else _ACCEPTANCE
        accepted = {} if taken else names
        status = definition.get("status") or {}
        if status.get("acceptedNames") == accepted and all(
            _has_condition(definition, condition.type, condition.status) for condition in conditions
        ):
            return
        now = self._clock.now()

        def change(current: Json) -> Json:
            status = {"conditions": [_updated(current, condition, now) for condition in conditions]}
            return current | {"status": current.get("status", {}) | status | {"acceptedNames": accepted}}

        await self._patch(DEFINITIONS, key, change, subresource="status")

    async def _clean_up(self, key: Key) -> None:
        served = self._server.kinds.get(key.name) if key.name not in self._fixed else None
        if served:
            for object_key, record in self._store.scan(self._server.plane, served.resource):
                if not record.metadata.deleting:
                    with suppress(NotFound, Conflict):
                        await self._delete(served, object_key, uid=record.metadata.uid)
        if not served or not self._store.scan(self._server.plane, served.resource):
            await self._patch(DEFINITIONS, key, _without_cleanup)


class _Condition(NamedTuple):
    type: str
    status: str
    reason: str
    message: str


_ACCEPTANCE = (
    _Condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
    _Condition("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
)


def _refusal(kind: str) -> tuple[_Condition, ...]:
    return (
        _Condition("NamesAccepted", "False", "KindConflict", f'"{kind}" is already in use'),
        _Condition("Established", "False", "NotAccepted", "not all names are accepted"),
    )


def _conditions(definition: Json) -> list[Json]:
    return (definition.get("status") or {}).get("conditions") or []


def _has_condition(definition: Json, type_: str, status: str) -> bool:
    return any(
        condition.get("type") == type_ and condition.get("status") == status for condition in _conditions(definition)
    )


def _updated(definition: Json, condition: _Condition, now: datetime) -> Json:
    """The condition as the definition has it, or as a new one when its status changes."""
    for current in _conditions(definition):
        if current.get("type") == condition.type and current.get("status") == condition.status:
            return {**current}
    return {**condition._asdict(), "lastTransitionTime": timestamp(now)}


def _without_cleanup(definition: Json) -> Json:
    finalizers = [name for name in definition["metadata"].get("finalizers", ()) if name != CLEANUP]
    return definition | {"metadata": definition["metadata"] | {"finalizers": finalizers}}
