"""The built-in kinds of every plane, as far as they are needed here. Entry point: `BUILT_IN`.

Their schemas name all fields of a kind; fields that nothing here reads are open below.
"""

import base64
import re
from collections.abc import Callable

from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.schemas.fragments import OPEN, object_of, string, string_map
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json

_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _column(name: str, path: str, type_: str = "string", priority: int = 0) -> Json:
    return {"name": name, "type": type_, "jsonPath": path, "priority": priority}


def _derived(name: str, type_: str, read: Callable[[Json], object]) -> Json:
    """A column whose value is computed, not read at a path."""
    return {"name": name, "type": type_, "read": read}


_DURATION = {"type": "integer", "minimum": 1, "description": "Seconds for which the lease is held after a renewal."}
_TIME = {"type": "string", "format": "date-time", "nullable": True}
_IMMUTABLE = {"type": "boolean", "description": "If true, the data cannot be changed any more."}
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_CONTENT = ("data", "binaryData")


def _entries(value: Json) -> int:
    return sum(len(value.get(part) or ()) for part in _CONTENT)


def _key_problems(value: Json) -> list[Cause]:
    rule = "a valid config key consists of letters, digits, -, _ or ."
    return [
        Cause("FieldValueInvalid", f'Invalid value: "{key[:80]}": {rule}', f"{part}[{key[:80]}]")
        for part in _CONTENT
        for key in value.get(part) or ()
        if not _KEY.fullmatch(key)
    ]


def _base64_problems(value: Json) -> list[Cause]:
    for part in _CONTENT:
        for key, text in (value.get(part) or {}).items():
            try:
                base64.b64decode(text, validate=True)
            except ValueError:
                return [Cause("FieldValueTypeInvalid", "Invalid value: illegal base64 data", f"{part}.{key[:80]}")]
    return []


def _immutability_problems(before: Json, after: Json) -> list[Cause]:
    """The changes to an object that is immutable."""
    if not before.get("immutable"):
        return []
    changed = [part for part in (*_CONTENT, "immutable") if before.get(part) != after.get(part)]
    return [Cause("FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set", p) for p in changed]


def _secret_change_problems(before: Json, after: Json) -> list[Cause]:
    if before.get("type") != after.get("type"):
        return [Cause("FieldValueInvalid", f'Invalid value: "{after.get("type")}": field is immutable', "type")]
    return _immutability_problems(before, after)


NAMESPACES = ServedKind(
    "",
    "v1",
    {"kind": "Namespace", "plural": "namespaces", "shortNames": ["ns"]},
    namespaced=False,
    schema=object_of(
        "A scope for the names of objects.",
        spec=OPEN | {"description": "Finalizers that keep the namespace until it is empty."},
        status=OPEN
        | {"default": {"phase": "Active"}, "description": "Whether the namespace is active or being deleted."},
    ),
    status=True,
    columns=(_column("Status", ".status.phase"), _AGE),
    selectable=("status.phase",),
    builtin=True,
    generations=False,
)


def _involved_object(event: Json) -> str:
    reference = event.get("involvedObject") or {}
    return f"{str(reference.get('kind', '')).lower()}/{reference.get('name', '')}"


EVENTS = ServedKind(
    "",
    "v1",
    {"kind": "Event", "plural": "events", "shortNames": ["ev"]},
    namespaced=True,
    schema=object_of(
        "A report of something that happened to an object.",
        involvedObject=OPEN | {"description": "The object that the event is about."},
        reason=string("Reason for the event in one word, for programs."),
        message=string("Description of what happened, for people."),
        type=string("Normal or Warning."),
        source=OPEN | {"description": "The component that reported the event."},
        firstTimestamp=_TIME | {"description": "When the event first occurred."},
        lastTimestamp=_TIME | {"description": "When the event last occurred."},
        count={"type": "integer", "format": "int32", "description": "How many times the event has occurred."},
        eventTime=_TIME | {"description": "When the event first occurred, with microseconds."},
        series=OPEN | {"nullable": True, "description": "Later occurrences of the event."},
        action=string("The action that was taken."),
        related=OPEN | {"nullable": True, "description": "Another object that the event concerns."},
        reportingComponent=string("The controller that reported the event."),
        reportingInstance=string("The process that reported the event."),
    ),
    status=False,
    columns=(
        _column("Last Seen", ".lastTimestamp", "date"),
        _column("Type", ".type"),
        _column("Reason", ".reason"),
        _derived("Object", "string", _involved_object),
        _column("Message", ".message"),
        _column("Source", ".source.component", priority=1),
        _column("First Seen", ".firstTimestamp", "date", priority=1),
        _column("Count", ".count", "integer", priority=1),
    ),
    selectable=(
        *(f"involvedObject.{field}" for field in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")),
        *("involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"),
    ),
    builtin=True,
    generations=False,
)

CONFIG_MAPS = ServedKind(
    "",
    "v1",
    {"kind": "ConfigMap", "plural": "configmaps", "shortNames": ["cm"]},
    namespaced=True,
    schema=object_of(
        "Configuration for programs to read.",
        data=string_map("Text by key."),
        binaryData=string_map("Bytes by key, in base64."),
        immutable=_IMMUTABLE,
    ),
    status=False,
    columns=(_derived("Data", "integer", _entries), _AGE),
    check=lambda value: _key_problems(value) or _base64_problems({"data": value.get("binaryData")}),
    transition=_immutability_problems,
    builtin=True,
    generations=False,
)


def _with_encoded_string_data(secret: Json) -> Json:
    plain = secret.get("stringData")
    if not isinstance(plain, dict) or not all(isinstance(value, str) for value in plain.values()):
        return secret
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
    rest = {key: value for key, value in secret.items() if key != "stringData"}
    return rest | {"data": {**(secret.get("data") or {}), **encoded}}


SECRETS = ServedKind(
    "",
    "v1",
    {"kind": "Secret", "plural": "secrets"},
    namespaced=True,
    schema=object_of(
        "Confidential data for programs to read; it is stored unencrypted.",
        data=string_map("Bytes by key, in base64."),
        stringData=string_map("Text by key; write-only, and merged into data."),
        type=string("The purpose of the data.") | {"default": "Opaque"},
        immutable=_IMMUTABLE,
    ),
    prepare=_with_encoded_string_data,
    status=False,
    columns=(_column("Type", ".type"), _derived("Data", "integer", _entries), _AGE),
    selectable=("type",),
    check=lambda value: _key_problems(value) or _base64_problems(value),
    transition=_secret_change_problems,
    builtin=True,
    generations=False,
)

LEASES = ServedKind(
    "coordination.k8s.io",
    "v1",
    {"kind": "Lease", "plural": "leases"},
    namespaced=True,
    schema=object_of(
        "A claim on a role for a limited time.",
        spec=OPEN
        | {
            "description": "The holder of the lease, and since when.",
            "properties": {"leaseDurationSeconds": _DURATION},
        },
    ),
    status=False,
    columns=(_column("Holder", ".spec.holderIdentity"), _AGE),
    builtin=True,
    generations=False,
)

BUILT_IN = (NAMESPACES, EVENTS, CONFIG_MAPS, SECRETS, LEASES)
