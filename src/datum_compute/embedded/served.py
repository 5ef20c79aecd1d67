"""A kind as a plane serves it. Entry points: `Served.of`, `NAMESPACES`."""

from functools import cache
from typing import Any

import msgspec

from datum_compute.api.crd import by_role
from datum_compute.embedded.schema import Schema
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json


class Served:
    """Names, scope and schema of one kind, compiled once and shared by every plane that serves it."""

    def __init__(self, group: str, version: str, names: Json, *, namespaced: bool, schema: Json, status: bool) -> None:
        self.group = group
        self.version = version
        self.kind: str = names["kind"]
        self.plural: str = names["plural"]
        self.list_kind: str = names.get("listKind", f"{self.kind}List")
        self.namespaced = namespaced
        self.has_status = status
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

NAMESPACES = Served(
    "", "v1", {"kind": "Namespace", "plural": "namespaces"}, namespaced=False, schema=_OPEN, status=True
)


@cache
def served_by(role: str) -> tuple[Served, ...]:
    """What every plane of a role serves: the built-ins, and the kinds that the API package defines for it."""
    return (NAMESPACES, *(_compiled(msgspec.json.encode(definition)) for definition in by_role(role)))


@cache
def _compiled(definition: bytes) -> Served:
    value: dict[str, Any] = msgspec.json.decode(definition)
    return Served.of(value)
