"""Field ownership and server-side apply. Entry points: `Manager`, `apply`, `update`, `created`.

Ownership is tracked from the first apply on. Until then nobody owns anything and ordinary writes have nothing to
update; fields set before belong to a manager named before-first-apply, exactly as on a kube-apiserver for objects
whose ownership it did not track.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from datum_compute.embedded.apply.fieldsets import (
    NOTHING,
    Comparison,
    FieldSet,
    Path,
    Type,
    Unreadable,
    compare,
    decoded,
    encoded,
    fields_of,
    merged,
    misfits,
    outside,
    printed,
    with_named,
    without,
)
from datum_compute.kube.errors import ApiError, BadRequest, Cause, Conflict
from datum_compute.kube.meta import Json, timestamp

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_APPLY, _UPDATE = "Apply", "Update"
_BEFORE_FIRST_APPLY = "before-first-apply"
_ANCIENT = "ancient-changes"
_KUBECTL = "kubectl"
_MOST_UPDATERS = 10

# Fields that the server sets or that identify the object, which nobody owns.
_UNOWNABLE: FieldSet = frozenset(
    [("f:apiVersion",), ("f:kind",), ("f:metadata",)]
    + [
        ("f:metadata", f"f:{name}")
        for name in (
            *("name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation"),
            *("managedFields", "resourceVersion"),
        )
    ]
)


class Manager(Struct, frozen=True):
    """A writer, with the version and subresource it writes through."""

    name: str
    version: str  # apiVersion
    subresource: str = ""


class _Owner(Struct, frozen=True, order=True):
    """The identity of an entry of `managedFields`."""

    operation: str
    name: str
    version: str  # empty for appliers, which are the same across versions
    subresource: str

    def __str__(self) -> str:
        through = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.name}"{through}{f" using {self.version}" if self.operation == _UPDATE else ""}'


class _Owned(Struct, frozen=True):
    fields: FieldSet
    version: str
    time: str = ""


_Owners = dict[_Owner, _Owned]


class DoesNotFit(ApiError):
    """A configuration that does not fit the schema. A kube-apiserver answers 500 to it, so this does too."""

    code, reason = 500, ""


def created(type_: Type, config: Json, by: Manager, now: datetime, ignored: Sequence[Path]) -> list[Json]:
    """The `managedFields` of an object that is created by applying it."""
    _check(type_, config)
    owned = outside(fields_of(type_, config), ignored) - _UNOWNABLE
    return _entries({_applier(by): _Owned(owned, by.version, timestamp(now))} if owned else {})


def apply(
    type_: Type, live: Json, config: Json, by: Manager, now: datetime, *, force: bool, ignored: Sequence[Path]
) -> tuple[Json, list[Json]]:
    """The live object with the configuration applied, and its new `managedFields`. Raises `Conflict`.

    Fields that the applier applied last time, omits now and shares with nobody are removed. `ignored` are fields that
    this endpoint does not write, with all below them.
    """
    _check(type_, config)
    config = without(type_, config, frozenset(ignored))
    owners = _owners(live["metadata"].get("managedFields"))
    live = _unmanaged(live)
    if not owners:
        before = replace(by, name=_BEFORE_FIRST_APPLY)
        owners = _updated(type_, {}, live, {}, before, now, ignored)
    applier = _applier(by)
    last = owners[applier].fields if applier in owners else NOTHING
    owners[applier] = _Owned(fields_of(type_, config), by.version, owners[applier].time if applier in owners else "")
    result = _pruned(type_, merged(type_, live, config), last, owners.values())
    change = compare(type_, live, result).outside(ignored)
    conflicts = _conflicts(owners, applier, change)
    if conflicts and by.name == _KUBECTL:
        allowed = _applied_by_client(type_, live)
        conflicts = {owner: rest for owner, fields in conflicts.items() if (rest := fields - allowed)}
    if conflicts and not force:
        raise _conflict(conflicts)
    owners = _without_changed(owners, applier, change)
    mine = owners.pop(applier, None)
    if mine is not None and (fields := mine.fields - _UNOWNABLE):
        owners[applier] = replace(mine, fields=fields, time=timestamp(now) if result != live else mine.time)
    if by.name == _KUBECTL:
        result = _with_last_applied(result, config)
    return result, _entries(owners)


def update(
    type_: Type, before: Json, after: Json, requested: Any, by: Manager, now: datetime, ignored: Sequence[Path]
) -> list[Json]:
    """The `managedFields` of an object that was applied once and is now written in another way.

    `requested` are the entries in the request: none, all of them to set the owners, or one empty entry to stop
    tracking ownership.
    """
    if requested == [] or requested == [{}]:
        return []
    owners = (_owners(requested) if requested else {}) or _owners(before["metadata"].get("managedFields"))
    if not owners:
        return []
    return _entries(_updated(type_, _unmanaged(before), _unmanaged(after), owners, by, now, ignored))


def _updated(
    type_: Type, before: Json, after: Json, owners: _Owners, by: Manager, now: datetime, ignored: Sequence[Path]
) -> _Owners:
    change = compare(type_, before, after).outside(ignored)
    owners = _without_changed(owners, None, change)
    taken = change.changed - _UNOWNABLE
    if not taken:
        return owners
    updater = _Owner(_UPDATE, by.name, by.version, by.subresource)
    fields = owners[updater].fields if updater in owners else NOTHING
    owners[updater] = _Owned(fields | taken, by.version, timestamp(now))
    return _capped(owners)


def _applier(by: Manager) -> _Owner:
    return _Owner(_APPLY, by.name, "", by.subresource)


def _check(type_: Type, config: Json) -> None:
    metadata = config.get("metadata") or {}
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        raise BadRequest("metadata.managedFields must be nil")
    if reasons := misfits(type_, config):
        about = metadata if isinstance(metadata, dict) else {}
        version = config.get("apiVersion", "")
        whole = f"{version if '/' in str(version) else f'/{version}'}, Kind={config.get('kind', '')}"
        listed = reasons[0] if len(reasons) == 1 else "errors:\n  " + "\n  ".join(reasons)
        place = f"{about.get('namespace', '')}/{about.get('name', '')}"
        raise DoesNotFit(f"failed to create typed patch object ({place}; {whole}): {listed}")


def _pruned(type_: Type, value: Json, last: FieldSet, owners: Iterable[_Owned]) -> Json:
    """The value without the fields that the applier gave up and nobody else owns.

    Removing a field removes all below it, so fields that others own, or nobody, are restored in two further steps.
    """
    if not last:
        return value
    last = with_named(type_, last)
    present = with_named(type_, fields_of(type_, value))
    owned = with_named(type_, frozenset().union(*(owner.fields for owner in owners)))
    remaining = with_named(type_, fields_of(type_, without(type_, value, last)))
    result = without(type_, value, present - (remaining | owned))
    remaining = with_named(type_, fields_of(type_, result))
    # A container that lost its last item still has an owner; a kube-apiserver makes it null, which no schema allows.
    return without(type_, value, (present - remaining) & last, lambda emptied: type(emptied)())


def _conflicts(owners: Mapping[_Owner, _Owned], applier: _Owner, change: Comparison) -> dict[_Owner, FieldSet]:
    return {
        owner: fields
        for owner, owned in owners.items()
        if owner != applier and (fields := owned.fields & change.changed)
    }


def _without_changed(owners: Mapping[_Owner, _Owned], writer: _Owner | None, change: Comparison) -> _Owners:
    """The owners after a change: all but the writer lose the fields that were changed or removed."""
    after: _Owners = {}
    for owner, owned in owners.items():
        fields = owned.fields if owner == writer else owned.fields - change.changed - change.removed
        if fields:
            after[owner] = replace(owned, fields=fields)
    return after


def _conflict(conflicts: Mapping[_Owner, FieldSet]) -> Conflict:
    listed = [
        (o, printed(path)) for o in sorted(conflicts, key=str) for path in sorted(conflicts[o], key=_reading_order)
    ]
    causes = [Cause("FieldManagerConflict", f"conflict with {owner}", field) for owner, field in listed]
    if len(listed) == 1:
        [(owner, field)] = listed
        return Conflict(f"Apply failed with 1 conflict: conflict with {owner}: {field}", causes=causes)
    lines = []
    for owner in sorted(conflicts, key=str):
        lines += [f"conflicts with {owner}:", *(f"- {field}" for other, field in listed if other == owner)]
    return Conflict(f"Apply failed with {len(listed)} conflicts: {chr(10).join(lines)}", causes=causes)


def _reading_order(path: Path) -> tuple[tuple[bool, str], ...]:
    """Sorts the fields of an object itself before those below its fields, as a kube-apiserver does."""
    return tuple((depth < len(path), element) for depth, element in enumerate(path, start=1))


def _capped(owners: _Owners) -> _Owners:
    """Limits the updaters to ten by merging the oldest."""
    updaters = sorted(
        (owner for owner in owners if owner.operation == _UPDATE), key=lambda owner: (owners[owner].time, owner)
    )
    surplus = updaters[: max(0, len(updaters) - _MOST_UPDATERS)]
    if not surplus:
        return owners
    capped = {owner: owned for owner, owned in owners.items() if owner not in surplus}
    for owner in updaters[: len(surplus) + 1]:
        ancient = _Owner(_UPDATE, _ANCIENT, owner.version, "")
        capped.pop(owner, None)
        before = capped.get(ancient)
        fields = owners[owner].fields | (before.fields if before else NOTHING)
        capped[ancient] = _Owned(fields, owner.version, owners[owner].time)
    return capped


# kubectl apply without and with --server-side


def _applied_by_client(type_: Type, live: Json) -> FieldSet:
    """The unchanged fields that kubectl applied client-side, by its annotation; it may take them without a conflict."""
    annotation = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    try:
        config = msgspec.json.decode(annotation) if annotation else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NOTHING
    if not isinstance(config, dict):
        return NOTHING
    change = compare(type_, config, live)
    return fields_of(type_, config) - change.modified - change.removed


def _with_last_applied(result: Json, config: Json) -> Json:
    """The result with its annotation updated if it has one, so that kubectl can return to client-side apply."""
    metadata = result["metadata"]
    if not (metadata.get("annotations") or {}).get(LAST_APPLIED):
        return result
    about = dict(config.get("metadata") or {})
    about.pop("managedFields", None)
    if annotations := {
        key: text for key, text in (about.pop("annotations", None) or {}).items() if key != LAST_APPLIED
    }:
        about["annotations"] = annotations
    text = msgspec.json.encode(config | {"metadata": about}, order="deterministic").decode() + "\n"
    return result | {"metadata": metadata | {"annotations": metadata["annotations"] | {LAST_APPLIED: text}}}


# As the API writes them


def _unmanaged(value: Json) -> Json:
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return value
    return value | {"metadata": {key: item for key, item in metadata.items() if key != "managedFields"}}


def _owners(entries: Any) -> _Owners:
    """The owners in `managedFields`; none when any entry is unreadable."""
    owners: _Owners = {}
    try:
        for entry in msgspec.convert(entries or [], list[_Entry]):
            version = "" if entry.operation == _APPLY else entry.api_version
            owner = _Owner(entry.operation, entry.manager, version, entry.subresource)
            if entry.operation not in (_APPLY, _UPDATE) or entry.fields_type != "FieldsV1":
                return {}
            fields = decoded(entry.fields)
            if fields:
                owners[owner] = _Owned(fields, entry.api_version, entry.time or "")
    except (msgspec.ValidationError, Unreadable, RecursionError):
        return {}
    return owners


class _Entry(Struct, frozen=True, rename="camel"):
    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: str | None = None
    fields_type: str = ""
    fields: Any = msgspec.field(name="fieldsV1", default=None)
    subresource: str = ""


def _entries(owners: Mapping[_Owner, _Owned]) -> list[Json]:
    order = sorted(owners.items(), key=lambda item: (item[0].operation, item[1].time, item[0].name, item[0]))
    return [
        {
            "manager": owner.name,
            "operation": owner.operation,
            "apiVersion": owned.version,
            **({"time": owned.time} if owned.time else {}),
            "fieldsType": "FieldsV1",
            "fieldsV1": encoded(owned.fields),
            **({"subresource": owner.subresource} if owner.subresource else {}),
        }
        for owner, owned in order
    ]
