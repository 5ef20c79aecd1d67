"""The built-in kinds of every plane, as far as they are needed here. Entry point: `BUILT_IN`."""

import base64
import re
from collections.abc import Callable

from datum_compute.embedded.kinds.served import Served
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json

_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _column(name: str, path: str, type_: str = "string", priority: int = 0) -> Json:
    return {"name": name, "type": type_, "jsonPath": path, "priority": priority}


def _derived(name: str, type_: str, read: Callable[[Json], object]) -> Json:
    """A column that no path leads to."""
    return {"name": name, "type": type_, "read": read}


def _schema(description: str, **properties: Json) -> Json:
    """All fields the kind has; what is below them is open where nothing here looks at it."""
    return {"type": "object", "description": description, "properties": properties}


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


def _texts(description: str) -> Json:
    return {"type": "object", "additionalProperties": {"type": "string"}, "description": description}


_POSITIVE = {"type": "integer", "minimum": 1, "description": "For how long it is held without being renewed."}
_MOMENT = {"type": "string", "format": "date-time", "nullable": True}
_IMMUTABLE = {"type": "boolean", "description": "Once true, the content cannot be changed any more."}
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_CONTENT = ("data", "binaryData")


def _entries(value: Json) -> int:
    return sum(len(value.get(part) or ()) for part in _CONTENT)


def _wrong_keys(value: Json) -> list[Cause]:
    rule = "a valid config key consists of letters, digits, -, _ or ."
    return [
        Cause("FieldValueInvalid", f'Invalid value: "{key[:80]}": {rule}', f"{part}[{key[:80]}]")
        for part in _CONTENT
        for key in value.get(part) or ()
        if not _KEY.fullmatch(key)
    ]


def _wrong_bytes(value: Json) -> list[Cause]:
    for part in _CONTENT:
        for key, text in (value.get(part) or {}).items():
            try:
                base64.b64decode(text, validate=True)
            except ValueError:
                return [Cause("FieldValueTypeInvalid", "Invalid value: illegal base64 data", f"{part}.{key[:80]}")]
    return []


def _frozen(before: Json, after: Json) -> list[Cause]:
    """What changed of an object that is immutable."""
    if not before.get("immutable"):
        return []
    changed = [part for part in (*_CONTENT, "immutable") if before.get(part) != after.get(part)]
    return [Cause("FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set", p) for p in changed]


def _secret_changes(before: Json, after: Json) -> list[Cause]:
    if before.get("type") != after.get("type"):
        return [Cause("FieldValueInvalid", f'Invalid value: "{after.get("type")}": field is immutable', "type")]
    return _frozen(before, after)


NAMESPACES = Served(
    "",
    "v1",
    {"kind": "Namespace", "plural": "namespaces", "shortNames": ["ns"]},
    namespaced=False,
    schema=_schema(
        "A scope for names.",
        spec=_OPEN | {"description": "What holds the namespace until it is empty."},
        status=_OPEN | {"default": {"phase": "Active"}, "description": "Whether the namespace is on its way out."},
    ),
    status=True,
    columns=(_column("Status", ".status.phase"), _AGE),
    selectable=("status.phase",),
    builtin=True,
    generations=False,
)


def _about(event: Json) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


EVENTS = Served(
    "",
    "v1",
    {"kind": "Event", "plural": "events", "shortNames": ["ev"]},
    namespaced=True,
    schema=_schema(
        "Something that happened to an object.",
        involvedObject=_OPEN | {"description": "The object that this is about."},
        reason=_text("Why, in one word, for programs."),
        message=_text("What happened, for people."),
        type=_text("Normal or Warning."),
        source=_OPEN | {"description": "The component that saw it."},
        firstTimestamp=_MOMENT | {"description": "When it was first seen."},
        lastTimestamp=_MOMENT | {"description": "When it was last seen."},
        count={"type": "integer", "format": "int32", "description": "How often it was seen."},
        eventTime=_MOMENT | {"description": "When it was first seen, to the microsecond."},
        series=_OPEN | {"nullable": True, "description": "How it went on."},
        action=_text("What was done."),
        related=_OPEN | {"nullable": True, "description": "Another object that has to do with it."},
        reportingComponent=_text("The controller that tells."),
        reportingInstance=_text("The process that tells."),
    ),
    status=False,
    columns=(
        _column("Last Seen", ".lastTimestamp", "date"),
        _column("Type", ".type"),
        _column("Reason", ".reason"),
        _derived("Object", "string", _about),
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

CONFIG_MAPS = Served(
    "",
    "v1",
    {"kind": "ConfigMap", "plural": "configmaps", "shortNames": ["cm"]},
    namespaced=True,
    schema=_schema(
        "Configuration for programs to read.",
        data=_texts("Texts by key."),
        binaryData=_texts("Bytes by key, in base64."),
        immutable=_IMMUTABLE,
    ),
    status=False,
    columns=(_derived("Data", "integer", _entries), _AGE),
    check=lambda value: _wrong_keys(value) or _wrong_bytes({"data": value.get("binaryData")}),
    transition=_frozen,
    builtin=True,
    generations=False,
)


def _without_plain_text(secret: Json) -> Json:
    plain = secret.get("stringData")
    if not isinstance(plain, dict) or not all(isinstance(value, str) for value in plain.values()):
        return secret
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
    kept = {key: value for key, value in secret.items() if key != "stringData"}
    return kept | {"data": {**(secret.get("data") or {}), **encoded}}


SECRETS = Served(
    "",
    "v1",
    {"kind": "Secret", "plural": "secrets"},
    namespaced=True,
    schema=_schema(
        "Confidential data for programs to read; here it is stored as it is.",
        data=_texts("Bytes by key, in base64."),
        stringData=_texts("Texts by key; only for writing, they become data."),
        type=_text("What the data is meant for.") | {"default": "Opaque"},
        immutable=_IMMUTABLE,
    ),
    prepare=_without_plain_text,
    status=False,
    columns=(_column("Type", ".type"), _derived("Data", "integer", _entries), _AGE),
    selectable=("type",),
    check=lambda value: _wrong_keys(value) or _wrong_bytes(value),
    transition=_secret_changes,
    builtin=True,
    generations=False,
)

LEASES = Served(
    "coordination.k8s.io",
    "v1",
    {"kind": "Lease", "plural": "leases"},
    namespaced=True,
    schema=_schema(
        "A claim on a role for a time.",
        spec=_OPEN
        | {"description": "Who holds it, and since when.", "properties": {"leaseDurationSeconds": _POSITIVE}},
    ),
    status=False,
    columns=(_column("Holder", ".spec.holderIdentity"), _AGE),
    builtin=True,
    generations=False,
)

BUILT_IN = (NAMESPACES, EVENTS, CONFIG_MAPS, SECRETS, LEASES)
