"""The writes of an API server. Entry points: `create`, `update`, `patch`, `apply`, `delete`.

Each returns an operation for `Store.apply`, which checks and changes the object inside one transaction, and raises an
`ApiError` that becomes the caller's `Status`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from datum_compute.embedded.apply import ownership
from datum_compute.embedded.kinds.served import ServedKind, listed
from datum_compute.embedded.plane.metadata import LONGEST_NAME, Owner, RequestMetadata
from datum_compute.embedded.plane.metadata import violations as metadata_violations
from datum_compute.embedded.storage.records import Key, Record, record_of
from datum_compute.embedded.storage.store import Operation, Transaction
from datum_compute.kube.errors import (
    AlreadyExists,
    BadRequest,
    Cause,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Subject,
)
from datum_compute.kube.meta import Json, encode, timestamp

_LONGEST_PREFIX = 58  # of a generated name; with the suffix it has the length of the longest label


class Author(Struct, frozen=True):
    """The field manager of a write, and its time."""

    name: str
    now: datetime

    @classmethod
    def engine(cls, now: datetime) -> "Author":
        """The engine itself, as kube-controller-manager would write."""
        return cls("compute-engine", now)


def create(
    served: ServedKind,
    plane: str,
    namespace: str,
    body: Json,
    *,
    now: datetime,
    suffix: Callable[[], str],
    managed: Sequence[Json] = (),
) -> Operation[Record]:
    """A POST. `suffix` completes a generateName; `managed` are the `managedFields` of an object that is applied."""

    def operation(transaction: Transaction) -> Record:
        requested = _request_metadata(served, body)
        _check_request_namespace(requested, namespace)
        prefix = requested.generate_name
        name = requested.name or (f"{prefix[:_LONGEST_PREFIX]}{suffix()}" if prefix else "")
        key = Key(plane, served.resource, namespace, name)
        if served.namespaced:
            _check_namespace(transaction, served, key)
        if not name:
            message = "Required value: name or generateName is required"
            raise invalid(served, "", [Cause("FieldValueRequired", message, "metadata.name")])
        if requested.resource_version:
            raise BadRequest("resourceVersion should not be set on objects to be created")
        metadata: Json = {
            "name": name,
            **({"generateName": prefix} if prefix else {}),
            **({"namespace": namespace} if namespace else {}),
            "uid": transaction.new_uid(key),
            **({"generation": 1} if served.generations else {}),
            "creationTimestamp": timestamp(now),
            **_writable(served, name, requested),
            **({"managedFields": list(managed)} if managed else {}),
        }
        content = {k: v for k, v in body.items() if k != "status" or not served.has_status}
        value = served.shaped(_with_type(served, content) | {"metadata": metadata})
        _check(served, value)
        existing = transaction.get(key)
        if existing is not None:
            prefix = "object is being deleted: " if existing.metadata.deleting else ""
            raise AlreadyExists(f'{prefix}{served.resource} "{name}" already exists', about=_subject(served, name))
        return transaction.put(key, value)

    return operation


def update(served: ServedKind, key: Key, body: Json, *, subresource: str, by: Author) -> Operation[Record]:
    """A PUT: replaces the part of the object that the endpoint writes."""

    def operation(transaction: Transaction) -> Record:
        requested = _request_metadata(served, body)
        if requested.name != key.name:
            raise _name_mismatch(requested.name, key)
        current = _existing(transaction, served, key)
        if requested.uid and requested.uid != current.metadata.uid:
            uids = f"UID in precondition: {requested.uid}, UID in object meta: {current.metadata.uid}"
            raise _conflict(served, key, f"Precondition failed: {uids}")
        return _replace(transaction, served, key, current, body, subresource, by)

    return operation


def patch(
    served: ServedKind, key: Key, change: Callable[[Json], Json], *, subresource: str, by: Author
) -> Operation[Record]:
    """A PATCH: `change` returns the new object for the current one."""

    def operation(transaction: Transaction) -> Record:
        current = _existing(transaction, served, key)
        before = current.object()
        after = change(before)
        if not isinstance(after, dict) or not isinstance(after.get("metadata"), dict):
            raise BadRequest("the result of the patch is not an object")
        if after["metadata"].get("name") != key.name:
            raise _name_mismatch(after["metadata"].get("name"), key)
        if after.get("apiVersion") != served.api_version:
            message = f'Invalid value: "{after.get("apiVersion")}": must be {served.api_version}'
            raise invalid(served, key.name, [Cause("FieldValueInvalid", message, "apiVersion")])
        return _replace(transaction, served, key, current, after, subresource, by)

    return operation


def apply(
    served: ServedKind,
    key: Key,
    config: Json,
    *,
    subresource: str,
    by: Author,
    force: bool,
    create: Callable[[Json, Sequence[Json]], Operation[Record]],
) -> Operation[Record]:
    """A server-side apply: sets the fields of the configuration, and removes those it no longer has.

    `create` creates an object that does not exist, from its configuration and `managedFields`.
    """

    def operation(transaction: Transaction) -> Record:
        metadata = _config_metadata(served, key, config)
        manager = ownership.Manager(by.name, served.api_version, subresource)
        ignored = served.unwritten(subresource)
        current = transaction.get(key)
        if current is None and subresource:
            raise not_found(served, key.name)
        if current is None:
            if metadata.get("uid"):
                absent = f"the provided object specified uid {metadata['uid']}, and no existing object was found"
                raise _conflict(served, key, f"uid mismatch: {absent}")
            managed = ownership.created(served.ownership, config, manager, by.now, ignored)
            new = {name: value for name, value in metadata.items() if name not in ("resourceVersion", "managedFields")}
            return create(config | {"metadata": new}, managed)(transaction)
        after, managed = ownership.apply(
            served.ownership, current.object(), config, manager, by.now, force=force, ignored=ignored
        )
        return _replace(transaction, served, key, current, after, subresource, by, managed)

    return operation


def _config_metadata(served: ServedKind, key: Key, config: Json) -> Json:
    """The metadata of a configuration, once it is known to be one for this object."""
    version, kind = config.get("apiVersion") or "", config.get("kind") or ""
    if (version, kind) != (served.api_version, served.kind):
        group_version = version if "/" in str(version) else f"/{version}"
        raise BadRequest(f"invalid object type: {group_version}, Kind={kind}")
    metadata = config.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise BadRequest(f"the name of the object ({key.name} based on URL) was undeterminable: name must be provided")
    if metadata["name"] != key.name:
        raise _name_mismatch(metadata["name"], key)
    return metadata


ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


def delete(
    served: ServedKind,
    key: Key,
    *,
    now: datetime,
    uid: str | None = None,
    revision: str | None = None,
    propagation: str = "",
) -> Operation[tuple[Record, bool]]:
    """A DELETE: the record, and whether it is gone; an object with finalizers is only marked as being deleted.

    A `propagation` policy is stored as a finalizer, which the collector removes when it has dealt with the dependents.
    """

    def operation(transaction: Transaction) -> tuple[Record, bool]:
        current = _existing(transaction, served, key)
        for expected, actual, field in (
            (uid, current.metadata.uid, "UID"),
            (revision, current.metadata.resource_version, "ResourceVersion"),
        ):
            if expected is not None and expected != actual:
                why = f"the {field} in the precondition ({expected}) does not match the {field} in record ({actual})"
                message = f'Operation cannot be fulfilled on {served.kind_name} "{key.name}": {why}'
                raise Conflict(message, about=Subject(key.name, served.group, served.kind))
        value = current.object()
        metadata = value["metadata"]
        finalizers = _with_propagation(metadata.get("finalizers", []), propagation)
        if served.cleanup and not current.metadata.deleting:
            finalizers = [*finalizers, served.cleanup]
        unchanged = current.metadata.deleting and finalizers == list(current.metadata.finalizers)
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        if not _has_finalizers(served, value):
            return transaction.delete(key), True
        if unchanged:
            return current, False
        if not current.metadata.deleting:
            deletion = {"deletionTimestamp": timestamp(now), "deletionGracePeriodSeconds": 0}
            value["metadata"] = _next_generation(served, metadata) | deletion
        if served.kind == "Namespace":
            value["status"] = value.get("status", {}) | {"phase": "Terminating"}
        return transaction.put(key, value), False

    return operation


def _with_propagation(finalizers: list[str], propagation: str) -> list[str]:
    """The finalizers of an object to delete; without a policy, one that was set before stays."""
    if not propagation:
        return finalizers
    others = [finalizer for finalizer in finalizers if finalizer not in (ORPHAN, FOREGROUND)]
    return others + {"Orphan": [ORPHAN], "Foreground": [FOREGROUND]}.get(propagation, [])


def _replace(
    transaction: Transaction,
    served: ServedKind,
    key: Key,
    current: Record,
    body: Json,
    subresource: str,
    by: Author,
    managed: Sequence[Json] | None = None,
) -> Record:
    requested = _request_metadata(served, body)
    _check_request_namespace(requested, key.namespace)
    if requested.resource_version in (None, "", "0"):
        if served.group:  # built-in kinds may be replaced as they are
            message = "Invalid value: 0: must be specified for an update"
            raise invalid(served, key.name, [Cause("FieldValueInvalid", message, "metadata.resourceVersion")])
    elif requested.resource_version != current.metadata.resource_version:
        changed = "the object has been modified; please apply your changes to the latest version and try again"
        raise _conflict(served, key, changed)
    before = current.object()
    metadata = before["metadata"]
    if subresource == "status":
        content = {k: v for k, v in before.items() if k != "status"} | _only(body, "status")
    else:
        if requested.uid and requested.uid != current.metadata.uid:
            message = f'Invalid value: "{requested.uid}": field is immutable'
            raise invalid(served, key.name, [Cause("FieldValueInvalid", message, "metadata.uid")])
        unwritten = ["status"] if served.has_status else []
        if served.kind == "Namespace" and subresource != "finalize":
            unwritten.append("spec")  # its finalizers keep the namespace until it is empty
        content = {k: v for k, v in _with_type(served, body).items() if k not in unwritten} | _only(before, *unwritten)
        metadata = {k: v for k, v in metadata.items() if k not in _WRITABLE} | _writable(served, key.name, requested)
    after = served.shaped(content | {"metadata": metadata})
    if current.metadata.deleting and subresource != "status":
        added = sorted(set(metadata.get("finalizers", ())) - set(current.metadata.finalizers))
        if added:
            rule = "no new finalizers can be added if the object is being deleted"
            message = f"Forbidden: {rule}, found new finalizers {added}"
            raise invalid(served, key.name, [Cause("FieldValueForbidden", message, "metadata.finalizers")])
    if managed is None and "managedFields" in before["metadata"]:  # the object was applied once
        manager = ownership.Manager(by.name, served.api_version, subresource)
        entries = body["metadata"].get("managedFields") if not subresource else None
        ignored = served.unwritten(subresource)
        managed = ownership.update(served.ownership, before, after, entries, manager, by.now, ignored)
    if managed is not None:
        owned = {"managedFields": list(managed)} if managed else {}
        after["metadata"] = {k: v for k, v in after["metadata"].items() if k != "managedFields"} | owned
    if _same(after, before):
        return current
    if not _same(_content(served, after), _content(served, before)):
        after["metadata"] = _next_generation(served, after["metadata"])
    _check(served, after, before)
    if current.metadata.deleting and not _has_finalizers(served, after):
        transaction.delete(key)
        return record_of(encode(after))
    return transaction.put(key, after)


_WRITABLE = ("labels", "annotations", "finalizers", "ownerReferences")


def _writable(served: ServedKind, name: str, requested: RequestMetadata) -> Json:
    """The metadata that a client writes, without empty fields, as a server prints it."""
    name_label = {"kubernetes.io/metadata.name": name} if served.kind == "Namespace" else {}
    metadata = {
        "labels": {**(requested.labels or {}), **name_label},
        "annotations": requested.annotations,
        "ownerReferences": [_reference(owner) for owner in requested.owner_references or ()],
        "finalizers": list(dict.fromkeys(requested.finalizers or ())),
    }
    return {key: value for key, value in metadata.items() if value}


def _reference(owner: Owner) -> Json:
    reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
    flags = {"controller": owner.controller, "blockOwnerDeletion": owner.block_owner_deletion}
    return reference | {key: value for key, value in flags.items() if value is not None}


def _request_metadata(served: ServedKind, body: Json) -> RequestMetadata:
    typed = _with_type(served, body) if served.builtin else body  # only built-in kinds may omit their type
    version, kind = typed.get("apiVersion"), typed.get("kind")
    if not kind:
        raise BadRequest("Object 'Kind' is missing")
    if version != served.api_version:
        raise BadRequest(
            f"the API version in the data ({version}) does not match the expected API version ({served.api_version})"
        )
    if kind != served.kind and served.builtin:
        raise served.mismatch(kind)
    if kind != served.kind:
        cause = Cause("FieldValueInvalid", f'Invalid value: "{kind}": must be {served.kind}', "kind")
        raise invalid(served, "", [cause])
    try:
        return msgspec.convert(body.get("metadata") or {}, RequestMetadata)
    except msgspec.ValidationError as error:
        raise BadRequest(f"metadata of the {served.kind} cannot be read: {error}") from None


def _check_request_namespace(requested: RequestMetadata, namespace: str) -> None:
    if namespace and (requested.namespace or namespace) != namespace:
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")


def _with_type(served: ServedKind, body: Json) -> Json:
    return {"apiVersion": served.api_version, "kind": served.kind} | body


def _only(value: Mapping[str, object], *keys: str) -> Json:
    return {key: value[key] for key in keys if key in value}


_sorted = msgspec.json.Encoder(order="deterministic").encode


def _same(one: Json, other: Json) -> bool:
    """Whether two objects are the same JSON; in Python alone, true equals 1."""
    return one == other and _sorted(one) == _sorted(other)


def _content(served: ServedKind, value: Json) -> Json:
    """The part whose changes generation counts: no metadata, and no status where it is a subresource."""
    return {k: v for k, v in value.items() if k != "metadata" and (k != "status" or not served.has_status)}


def _next_generation(served: ServedKind, metadata: Json) -> Json:
    return metadata | {"generation": metadata.get("generation", 0) + 1} if served.generations else metadata


def _has_finalizers(served: ServedKind, value: Json) -> bool:
    """Whether a finalizer still keeps the object."""
    if value["metadata"].get("finalizers"):
        return True
    return served.kind == "Namespace" and bool((value.get("spec") or {}).get("finalizers"))


def _existing(transaction: Transaction, served: ServedKind, key: Key) -> Record:
    record = transaction.get(key)
    if record is None:
        raise not_found(served, key.name)
    return record


def _conflict(served: ServedKind, key: Key, why: str) -> Conflict:
    message = f'Operation cannot be fulfilled on {served.resource} "{key.name}": {why}'
    return Conflict(message, about=_subject(served, key.name))


def _name_mismatch(name: object, key: Key) -> BadRequest:
    return BadRequest(f"the name of the object ({name}) does not match the name on the URL ({key.name})")


def not_found(served: ServedKind, name: str) -> NotFound:
    return NotFound(f'{served.resource} "{name}" not found', about=_subject(served, name))


def _subject(served: ServedKind, name: str) -> Subject:
    return Subject(name, served.group, served.plural)


def _check_namespace(transaction: Transaction, served: ServedKind, key: Key) -> None:
    namespace = transaction.get(Key(key.plane, "namespaces", "", key.namespace))
    if namespace is None:
        about = Subject(key.namespace, "", "namespaces")
        raise NotFound(f'namespaces "{key.namespace}" not found', about=about)
    if namespace.metadata.deleting:
        sentence = f"unable to create new content in namespace {key.namespace} because it is being terminated"
        raise Forbidden(
            f'{served.resource} "{key.name}" is forbidden: {sentence}',
            causes=[
                Cause("NamespaceTerminating", f"namespace {key.namespace} is being terminated", "metadata.namespace")
            ],
            about=_subject(served, key.name),
        )


def _check(served: ServedKind, value: Json, before: Json | None = None) -> None:
    metadata = value["metadata"]
    causes = served.violations(value)
    if causes and before is not None:  # violations from before, under another schema, may remain
        earlier = served.violations(before)
        causes = [cause for cause in causes if cause not in earlier]
    causes = [*metadata_violations(served, metadata), *causes]
    if before is not None and not causes:
        causes = served.transition(before, value)
    if served.builtin and any(cause.reason == "FieldValueTypeInvalid" for cause in causes):
        raise served.undecodable(listed(causes))
    if causes:
        raise invalid(served, metadata["name"], causes)


def invalid(served: ServedKind, name: str, causes: list[Cause]) -> Invalid:
    sentences = listed(causes) if len(causes) == 1 else f"[{listed(causes)}]"
    name = name[:LONGEST_NAME]  # one that is too long is not repeated in full
    about = Subject(name, served.group, served.kind)
    return Invalid(f'{served.kind_name} "{name}" is invalid: {sentences}', causes=causes, about=about)
