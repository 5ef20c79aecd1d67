"""Kinds that come and go while a plane is served. Entry points: `DEFINITIONS`, `Definitions`."""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from datum_compute.embedded.controllers.queue import Due
from datum_compute.embedded.https.table import json_path
from datum_compute.embedded.kinds.served import Served
from datum_compute.embedded.plane import registry
from datum_compute.embedded.plane.server import PlaneServer, Submit
from datum_compute.embedded.storage.records import Event, Key, Record
from datum_compute.embedded.storage.store import Operation, Store
from datum_compute.kube.errors import Cause, Conflict, NotFound
from datum_compute.kube.meta import Json, timestamp
from datum_compute.runtime import Clock

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"

_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_PLURAL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def _completed(definition: Json) -> Json:
    """With what a server fills in: the names derived from the kind, and where objects are stored."""
    spec = definition.get("spec")
    if not isinstance(spec, dict) or not isinstance(names := spec.get("names"), dict):
        return definition
    kind = names.get("kind")
    derived = {"singular": kind.lower(), "listKind": f"{kind}List"} if isinstance(kind, str) else {}
    spec = {"conversion": {"strategy": "None"}} | spec | {"names": derived | names}
    versions: Any = spec.get("versions")
    listed = versions if isinstance(versions, list) else []
    stored = [version.get("name") for version in listed if isinstance(version, dict) and version.get("storage")]
    status = definition.get("status") or {"storedVersions": stored}
    return definition | {"spec": spec, "status": status}


def _violations(definition: Json) -> list[Cause]:
    spec, causes = definition["spec"], []
    wanted = f"{spec['names']['plural']}.{spec['group']}"
    if definition["metadata"]["name"] != wanted:
        causes.append(
            _invalid(definition["metadata"]["name"], "metadata.name", f'must be spec.names.plural+"."+{wanted}')
        )
    if not _PLURAL.fullmatch(spec["names"]["plural"]):
        causes.append(_invalid(spec["names"]["plural"], "spec.names.plural", "must be a lowercase DNS label"))
    served = [version["name"] for version in spec["versions"] if version["served"]]
    if sum(version["storage"] for version in spec["versions"]) != 1:
        causes.append(
            _invalid(str(len(served)), "spec.versions", "must have exactly one version marked as storage version")
        )
    if not served:
        causes.append(_invalid("", "spec.versions", "a version that is served is needed here"))
    if len(served) > 1:
        causes.append(
            _invalid(", ".join(served), "spec.versions", "one version of a kind can be served here, not several")
        )
    for index, version in enumerate(spec["versions"]):
        at = f"spec.versions[{index}].schema.openAPIV3Schema"
        schema = version.get("schema", {}).get("openAPIV3Schema")
        if schema is None:
            causes.append(Cause("FieldValueRequired", "Required value: schemas are required", at))
        elif schema.get("type") != "object":
            causes.append(_invalid(str(schema.get("type", "")), f"{at}.type", "must be object at the root"))
        else:
            rule = "Forbidden: $ref is not supported"
            causes += [Cause("FieldValueForbidden", rule, f"{found}.$ref") for found in _references(schema, at)]
    return causes or _uncompilable(definition)


def _references(schema: Any, at: str) -> Iterator[str]:
    """Where a schema leads elsewhere. What is no schema at all is for the validator to tell."""
    match schema:
        case {"$ref": _}:
            yield at
        case dict():
            for keyword, value in schema.items():
                match keyword, value:
                    case "properties", dict():
                        for name, below in value.items():
                            yield from _references(below, f"{at}.properties[{name}]")
                    case "items" | "additionalProperties" | "not", _:
                        yield from _references(value, f"{at}.{keyword}")
                    case "allOf" | "anyOf" | "oneOf", list():
                        for index, below in enumerate(value):
                            yield from _references(below, f"{at}.{keyword}[{index}]")


def _uncompilable(definition: Json) -> list[Cause]:
    try:
        for column in Served.of(definition).columns:
            json_path(column["jsonPath"])
    except Exception as error:  # whatever the validator says of a schema that is none
        return [_invalid("", "spec.versions", f"the schema cannot be used: {str(error)[:200]}")]
    return []


def _changes(before: Json, after: Json) -> list[Cause]:
    if before["spec"]["scope"] != after["spec"]["scope"]:
        return [_invalid(after["spec"]["scope"], "spec.scope", "field is immutable")]
    return []


def _invalid(value: str, field: str, rule: str) -> Cause:
    return Cause("FieldValueInvalid", f'Invalid value: "{value}": {rule}', field)


def _texts(*required: str) -> Json:
    return {"type": "object", "required": list(required), "x-kubernetes-preserve-unknown-fields": True} | {
        "properties": {name: {"type": "string", "minLength": 1} for name in required}
    }


_VERSION = {
    "type": "object",
    "required": ["name", "served", "storage"],
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "served": {"type": "boolean"},
        "storage": {"type": "boolean"},
        "schema": _OPEN | {"properties": {"openAPIV3Schema": _OPEN}},
    },
}

DEFINITIONS = Served(
    "apiextensions.k8s.io",
    "v1",
    {"kind": "CustomResourceDefinition", "plural": "customresourcedefinitions", "shortNames": ["crd", "crds"]},
    namespaced=False,
    schema=_OPEN
    | {
        "description": "A kind that this plane shall serve.",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["group", "names", "scope", "versions"],
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {
                    "group": {"type": "string", "minLength": 1},
                    "scope": {"type": "string", "enum": ["Cluster", "Namespaced"]},
                    "names": _texts("plural", "kind"),
                    "versions": {"type": "array", "minItems": 1, "items": _VERSION},
                },
            },
            "status": _OPEN
            | {
                "description": "Whether it is served.",
                "properties": {
                    "conditions": {"type": "array", "items": _OPEN},
                    "acceptedNames": _OPEN,
                    "storedVersions": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
    status=True,
    columns=({"name": "Created At", "type": "string", "jsonPath": ".metadata.creationTimestamp"},),
    builtin=True,
    cleanup=CLEANUP,
    prepare=_completed,
    check=_violations,
    transition=_changes,
)


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
            self._server.define(Served.of(definition), terminating=record.metadata.deleting)
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
