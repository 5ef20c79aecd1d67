"""A kind as a plane serves it. Entry points: `Served.of`, `served_by`, and the built-in kinds."""

from collections.abc import Sequence
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
        return self._schema.default(self._schema.prune(value))

    def violations(self, value: Json) -> list[Cause]:
        return self._schema.violations(value)


_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _column(name: str, path: str, type_: str = "string", priority: int = 0) -> Json:
    return {"name": name, "type": type_, "jsonPath": path, "priority": priority}


NAMESPACES = Served(
    "",
    "v1",
    {"kind": "Namespace", "plural": "namespaces", "shortNames": ["ns"]},
    namespaced=False,
    schema=_OPEN | {"properties": {"status": _OPEN | {"default": {"phase": "Active"}}}},
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
    schema=_OPEN,
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
    schema=_OPEN,
    status=False,
    builtin=True,
)

SECRETS = Served(
    "",
    "v1",
    {"kind": "Secret", "plural": "secrets"},
    namespaced=True,
    schema=_OPEN | {"properties": {"type": {"type": "string", "default": "Opaque"}}},
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
    schema=_OPEN,
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
