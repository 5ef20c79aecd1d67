"""What each write does to an object, as an API server does it. Entry points: `create`, `update`, `patch`, `apply`,
`delete`.

Each returns an operation for `Store.apply`: it checks and changes inside one transaction, and raises an `ApiError`
that becomes the caller's `Status`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from datum_compute.embedded.apply import ownership
from datum_compute.embedded.kinds.served import Served
from datum_compute.embedded.plane.metadata import Owner, Said
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

_LONGEST_NAME = 253
_LONGEST_PREFIX = 58  # of a generated name; with the suffix it is as long as a label may be


class Author(Struct, frozen=True):
    """In whose name something is written, and when."""

    name: str
    now: datetime

    @classmethod
    def engine(cls, now: datetime) -> "Author":
        """The engine itself, where a kube-controller-manager would write."""
        return cls("compute-engine", now)


def create(
    served: Served,
    plane: str,
    namespace: str,
    body: Json,
    *,
    now: datetime,
    suffix: Callable[[], str],
    managed: Sequence[Json] = (),
) -> Operation[Record]:
    """`suffix` makes what completes a generateName; `managed` says who owns the fields when the object is applied."""

    def operation(transaction: Transaction) -> Record:
        said = _said(served, body)
        _check_place(said, namespace)
        name = said.name or (f"{said.generate_name[:_LONGEST_PREFIX]}{suffix()}" if said.generate_name else "")
        key = Key(plane, served.resource, namespace, name)
        if served.namespaced:
            _check_namespace(transaction, served, key)
        if not name:
            message = "Required value: name or generateName is required"
            raise invalid(served, "", [Cause("FieldValueRequired", message, "metadata.name")])
        if said.resource_version:
            raise BadRequest("resourceVersion should not be set on objects to be created")
        metadata: Json = {
            "name": name,
            **({"generateName": said.generate_name} if said.generate_name else {}),
            **({"namespace": namespace} if namespace else {}),
            "uid": transaction.new_uid(key),
            **({"generation": 1} if served.generations else {}),
            "creationTimestamp": timestamp(now),
            **_writable(served, name, said),
            **({"managedFields": list(managed)} if managed else {}),
        }
        fresh = {k: v for k, v in body.items() if k != "status" or not served.has_status}
        value = served.shaped(_with_type(served, fresh) | {"metadata": metadata})
        _check(served, value)
        existing = transaction.get(key)
        if existing is not None:
            waiting = "object is being deleted: " if existing.metadata.deleting else ""
            raise AlreadyExists(f'{waiting}{served.resource} "{name}" already exists', about=_subject(served, name))
        return transaction.put(key, value)

    return operation


def update(served: Served, key: Key, body: Json, *, subresource: str, by: Author) -> Operation[Record]:
    """A PUT: the object becomes what was sent, as far as this endpoint owns it."""

    def operation(transaction: Transaction) -> Record:
        said = _said(served, body)
        if said.name != key.name:
            raise _other_name(said.name, key)
        current = _existing(transaction, served, key)
        if said.uid and said.uid != current.metadata.uid:
            told = f"UID in precondition: {said.uid}, UID in object meta: {current.metadata.uid}"
            raise _conflict(served, key, f"Precondition failed: {told}")
        return _replace(transaction, served, key, current, body, subresource, by)

    return operation


def patch(
    served: Served, key: Key, change: Callable[[Json], Json], *, subresource: str, by: Author
) -> Operation[Record]:
    """A PATCH: `change` makes the new object from the current one."""

    def operation(transaction: Transaction) -> Record:
        current = _existing(transaction, served, key)
        before = current.object()
        after = change(before)
        if not isinstance(after, dict) or not isinstance(after.get("metadata"), dict):
            raise BadRequest("the patch does not leave an object behind")
        if after["metadata"].get("name") != key.name:
            raise _other_name(after["metadata"].get("name"), key)
        if after.get("apiVersion") != served.api_version:
            message = f'Invalid value: "{after.get("apiVersion")}": must be {served.api_version}'
            raise invalid(served, key.name, [Cause("FieldValueInvalid", message, "apiVersion")])
        return _replace(transaction, served, key, current, after, subresource, by)

    return operation


def apply(
    served: Served,
    key: Key,
    config: Json,
    *,
    subresource: str,
    by: Author,
    force: bool,
    create: Callable[[Json, Sequence[Json]], Operation[Record]],
) -> Operation[Record]:
    """An apply: the object gets what the configuration says, and loses what it said last time and does no longer.

    `create` makes the object, owned as told, where there is none.
    """

    def operation(transaction: Transaction) -> Record:
        metadata = _applicable(served, key, config)
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


def _applicable(served: Served, key: Key, config: Json) -> Json:
    """The metadata of a configuration that is one of this object."""
    version, kind = config.get("apiVersion") or "", config.get("kind") or ""
    if (version, kind) != (served.api_version, served.kind):
        named = version if "/" in str(version) else f"/{version}"
        raise BadRequest(f"invalid object type: {named}, Kind={kind}")
    metadata = config.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise BadRequest(f"the name of the object ({key.name} based on URL) was undeterminable: name must be provided")
    if metadata["name"] != key.name:
        raise _other_name(metadata["name"], key)
    return metadata


ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


def delete(
    served: Served,
    key: Key,
    *,
    now: datetime,
    uid: str | None = None,
    revision: str | None = None,
    propagation: str = "",
) -> Operation[tuple[Record, bool]]:
    """The record, and whether it is gone; with finalizers left it only starts to go.

    What `propagation` says of its dependents is noted as a finalizer, which the collector takes off when it is done.
    """

    def operation(transaction: Transaction) -> tuple[Record, bool]:
        current = _existing(transaction, served, key)
        for given, actual, what in (
            (uid, current.metadata.uid, "UID"),
            (revision, current.metadata.resource_version, "ResourceVersion"),
        ):
            if given is not None and given != actual:
                why = f"the {what} in the precondition ({given}) does not match the {what} in record ({actual})"
                message = f'Operation cannot be fulfilled on {served.kind_name} "{key.name}": {why}'
                raise Conflict(message, about=Subject(key.name, served.group, served.kind))
        value = current.object()
        metadata = value["metadata"]
        finalizers = _propagated(metadata.get("finalizers", []), propagation)
        if served.cleanup and not current.metadata.deleting:
            finalizers = [*finalizers, served.cleanup]
        asked_before = current.metadata.deleting and finalizers == list(current.metadata.finalizers)
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        if not _held(served, value):
            return transaction.delete(key), True
        if asked_before:
            return current, False
        if not current.metadata.deleting:
            going = {"deletionTimestamp": timestamp(now), "deletionGracePeriodSeconds": 0}
            value["metadata"] = _next_generation(served, metadata) | going
        if served.kind == "Namespace":
            value["status"] = value.get("status", {}) | {"phase": "Terminating"}
        return transaction.put(key, value), False

    return operation


def _propagated(finalizers: list[str], propagation: str) -> list[str]:
    """The finalizers of an object to delete; one that an earlier delete or its author set stays unless one is named."""
    if not propagation:
        return finalizers
    others = [finalizer for finalizer in finalizers if finalizer not in (ORPHAN, FOREGROUND)]
    return others + {"Orphan": [ORPHAN], "Foreground": [FOREGROUND]}.get(propagation, [])


def _replace(
    transaction: Transaction,
    served: Served,
    key: Key,
    current: Record,
    body: Json,
    subresource: str,
    by: Author,
    managed: Sequence[Json] | None = None,
) -> Record:
    said = _said(served, body)
    _check_place(said, key.namespace)
    if said.resource_version in (None, "", "0"):
        if served.group:  # built-in kinds may be replaced as they are
            message = "Invalid value: 0: must be specified for an update"
            raise invalid(served, key.name, [Cause("FieldValueInvalid", message, "metadata.resourceVersion")])
    elif said.resource_version != current.metadata.resource_version:
        changed = "the object has been modified; please apply your changes to the latest version and try again"
        raise _conflict(served, key, changed)
    before = current.object()
    metadata = before["metadata"]
    if subresource == "status":
        content = {k: v for k, v in before.items() if k != "status"} | _only(body, "status")
    else:
        if said.uid and said.uid != current.metadata.uid:
            message = f'Invalid value: "{said.uid}": field is immutable'
            raise invalid(served, key.name, [Cause("FieldValueInvalid", message, "metadata.uid")])
        kept = ["status"] if served.has_status else []
        if served.kind == "Namespace" and subresource != "finalize":
            kept.append("spec")  # it holds the namespace until it is empty
        content = {k: v for k, v in _with_type(served, body).items() if k not in kept} | _only(before, *kept)
        metadata = {k: v for k, v in metadata.items() if k not in _WRITABLE} | _writable(served, key.name, said)
    after = served.shaped(content | {"metadata": metadata})
    if current.metadata.deleting and subresource != "status":
        added = sorted(set(metadata.get("finalizers", ())) - set(current.metadata.finalizers))
        if added:
            rule = "no new finalizers can be added if the object is being deleted"
            message = f"Forbidden: {rule}, found new finalizers {added}"
            raise invalid(served, key.name, [Cause("FieldValueForbidden", message, "metadata.finalizers")])
    if managed is None and "managedFields" in before["metadata"]:  # it was applied once
        manager = ownership.Manager(by.name, served.api_version, subresource)
        given = body["metadata"].get("managedFields") if not subresource else None
        ignored = served.unwritten(subresource)
        managed = ownership.update(served.ownership, before, after, given, manager, by.now, ignored)
    if managed is not None:
        owned = {"managedFields": list(managed)} if managed else {}
        after["metadata"] = {k: v for k, v in after["metadata"].items() if k != "managedFields"} | owned
    if _same(after, before):
        return current
    if not _same(_content(served, after), _content(served, before)):
        after["metadata"] = _next_generation(served, after["metadata"])
    _check(served, after, before)
    if current.metadata.deleting and not _held(served, after):
        transaction.delete(key)
        return record_of(encode(after))
    return transaction.put(key, after)


_WRITABLE = ("labels", "annotations", "finalizers", "ownerReferences")


def _writable(served: Served, name: str, said: Said) -> Json:
    """The metadata a client owns; what is empty is left out, as a server prints it."""
    own = {"kubernetes.io/metadata.name": name} if served.kind == "Namespace" else {}
    given = {
        "labels": {**(said.labels or {}), **own},
        "annotations": said.annotations,
        "ownerReferences": [_reference(owner) for owner in said.owner_references or ()],
        "finalizers": list(dict.fromkeys(said.finalizers or ())),
    }
    return {key: value for key, value in given.items() if value}


def _reference(owner: Owner) -> Json:
    reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
    flags = {"controller": owner.controller, "blockOwnerDeletion": owner.block_owner_deletion}
    return reference | {key: value for key, value in flags.items() if value is not None}


def _said(served: Served, body: Json) -> Said:
    given = _with_type(served, body) if served.builtin else body  # only built-in kinds may leave their type out
    version, kind = given.get("apiVersion"), given.get("kind")
    if not kind:
        raise BadRequest("Object 'Kind' is missing")
    if version != served.api_version:
        raise BadRequest(
            f"the API version in the data ({version}) does not match the expected API version ({served.api_version})"
        )
    if kind != served.kind and served.builtin:
        raise BadRequest(f'{kind} in version "{served.version}" cannot be handled as a {served.kind}')
    if kind != served.kind:
        cause = Cause("FieldValueInvalid", f'Invalid value: "{kind}": must be {served.kind}', "kind")
        raise invalid(served, "", [cause])
    try:
        return msgspec.convert(body.get("metadata") or {}, Said)
    except msgspec.ValidationError as error:
        raise BadRequest(f"metadata of the {served.kind} cannot be read: {error}") from None


def _check_place(said: Said, namespace: str) -> None:
    if namespace and (said.namespace or namespace) != namespace:
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")


def _with_type(served: Served, body: Json) -> Json:
    return {"apiVersion": served.api_version, "kind": served.kind} | body


def _only(value: Mapping[str, object], *keys: str) -> Json:
    return {key: value[key] for key in keys if key in value}


_sorted = msgspec.json.Encoder(order="deterministic").encode


def _same(one: Json, other: Json) -> bool:
    """Whether two objects are the same as JSON; Python alone would take true for 1."""
    return one == other and _sorted(one) == _sorted(other)


def _content(served: Served, value: Json) -> Json:
    """What generation counts: everything but metadata, and but status where it has an endpoint of its own."""
    return {k: v for k, v in value.items() if k != "metadata" and (k != "status" or not served.has_status)}


def _next_generation(served: Served, metadata: Json) -> Json:
    return metadata | {"generation": metadata.get("generation", 0) + 1} if served.generations else metadata


def _held(served: Served, value: Json) -> bool:
    """Whether something still has to happen before the object may go."""
    if value["metadata"].get("finalizers"):
        return True
    return served.kind == "Namespace" and bool((value.get("spec") or {}).get("finalizers"))


def _existing(transaction: Transaction, served: Served, key: Key) -> Record:
    record = transaction.get(key)
    if record is None:
        raise not_found(served, key.name)
    return record


def _conflict(served: Served, key: Key, why: str) -> Conflict:
    message = f'Operation cannot be fulfilled on {served.resource} "{key.name}": {why}'
    return Conflict(message, about=_subject(served, key.name))


def _other_name(given: object, key: Key) -> BadRequest:
    return BadRequest(f"the name of the object ({given}) does not match the name on the URL ({key.name})")


def not_found(served: Served, name: str) -> NotFound:
    return NotFound(f'{served.resource} "{name}" not found', about=_subject(served, name))


def _subject(served: Served, name: str) -> Subject:
    return Subject(name, served.group, served.plural)


def _check_namespace(transaction: Transaction, served: Served, key: Key) -> None:
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


def _check(served: Served, value: Json, before: Json | None = None) -> None:
    metadata = value["metadata"]
    causes = served.violations(value)
    if causes and before is not None:  # what was wrong before, under another schema, may stay so
        known = served.violations(before)
        causes = [cause for cause in causes if cause not in known]
    causes = [*metadata_violations(served, metadata), *causes]
    if before is not None and not causes:
        causes = served.transition(before, value)
    if served.builtin and any(cause.reason == "FieldValueTypeInvalid" for cause in causes):  # it could not be read
        told = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
        raise BadRequest(f'{served.kind} in version "{served.version}" cannot be handled as a {served.kind}: {told}')
    if causes:
        raise invalid(served, metadata["name"], causes)


def invalid(served: Served, name: str, causes: list[Cause]) -> Invalid:
    sentences = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    name = name[:_LONGEST_NAME]  # nobody reads more of one that is too long
    about = Subject(name, served.group, served.kind)
    return Invalid(f'{served.kind_name} "{name}" is invalid: {listed}', causes=causes, about=about)
