"""A kind as a plane serves it. Entry points: `Served.of`, `served_by`, and the built-in kinds."""

import base64
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec

from datum_compute.api.crd import by_role
from datum_compute.embedded.schema import Schema
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json


class Served:
    """Names, scope and schema of one kind, compiled once and shared by every plane that serves it."""

    def __init__(
        self,
        group: str,
        version: str,
        names: Json,
        *,
        namespaced: bool,
        schema: Json,
        status: bool,
        columns: Sequence[Json] = (),
        selectable: Sequence[str] = (),
        builtin: bool = False,
        prepare: Callable[[Json], Json] = lambda value: value,
    ) -> None:
        self.group = group
        self.version = version
        self.kind: str = names["kind"]
        self.plural: str = names["plural"]
        self.singular: str = names.get("singular", self.kind.lower())
        self.list_kind: str = names.get("listKind", f"{self.kind}List")
        self.short_names: tuple[str, ...] = tuple(names.get("shortNames", ()))
        self.categories: tuple[str, ...] = tuple(names.get("categories", ()))
        self.namespaced = namespaced
        self.has_status = status
        self.columns = tuple(columns)  # additionalPrinterColumns
        self.selectable = tuple(selectable)  # fields a field selector may name besides name and namespace
        self.builtin = builtin
        self.openapi = schema
        self._prepare = prepare
        self._schema = Schema(schema)

    @classmethod
    def of(cls, definition: Json) -> "Served":
        """From a CustomResourceDefinition; its only version is the one served."""
        spec = definition["spec"]
        version = spec["versions"][0]
        return cls(
            spec["group"],
            version["name"],
            spec["names"],
            namespaced=spec["scope"] == "Namespaced",
            schema=version["schema"]["openAPIV3Schema"],
            status="status" in version.get("subresources", {}),
            columns=version.get("additionalPrinterColumns", ()),
            selectable=[field["jsonPath"].lstrip(".") for field in version.get("selectableFields", ())],
        )

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def shaped(self, value: Json) -> Json:
        """The object as the schema allows it: unknown fields pruned, defaults filled in."""
        return self._schema.default(self._schema.prune(self._prepare(value)))

    def violations(self, value: Json) -> list[Cause]:
        return self._schema.violations(value)


_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _column(name: str, path: str, type_: str = "string", priority: int = 0) -> Json:
    return {"name": name, "type": type_, "jsonPath": path, "priority": priority}


def _schema(description: str, **properties: Json) -> Json:
    """Open, with the fields that clients look for when they explain, diff or patch."""
    return _OPEN | {"description": description, "properties": properties}


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


def _texts(description: str) -> Json:
    return {"type": "object", "additionalProperties": {"type": "string"}, "description": description}


_MOMENT = {"type": "string", "format": "date-time", "nullable": True}
_IMMUTABLE = {"type": "boolean", "description": "Accepted and kept; changes are not refused."}

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
)

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
    ),
    status=False,
    columns=(
        _column("Last Seen", ".lastTimestamp", "date"),
        _column("Type", ".type"),
        _column("Reason", ".reason"),
        _column("Kind", ".involvedObject.kind"),
        _column("Object", ".involvedObject.name"),
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
    builtin=True,
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
    columns=(_column("Type", ".type"), _AGE),
    selectable=("type",),
    builtin=True,
)

LEASES = Served(
    "coordination.k8s.io",
    "v1",
    {"kind": "Lease", "plural": "leases"},
    namespaced=True,
    schema=_schema("A claim on a role for a time.", spec=_OPEN | {"description": "Who holds it, and since when."}),
    status=False,
    columns=(_column("Holder", ".spec.holderIdentity"), _AGE),
    builtin=True,
)

_BUILT_IN = (NAMESPACES, EVENTS, CONFIG_MAPS, SECRETS, LEASES)


@cache
def served_by(role: str) -> tuple[Served, ...]:
    """What every plane of a role serves: the built-ins, and the kinds that the API package defines for it."""
    return (*_BUILT_IN, *(_compiled(msgspec.json.encode(definition)) for definition in by_role(role)))


@cache
def _compiled(definition: bytes) -> Served:
    value: dict[str, Any] = msgspec.json.decode(definition)
    return Served.of(value)
