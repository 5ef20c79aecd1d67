"""Unknown fields in a request: refused, reported as warnings, or ignored. Entry point: `Strictness`."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.schemas.structural import EMBEDDED, META, PRESERVE
from datum_compute.kube.errors import Cause, Invalid
from datum_compute.kube.meta import Json

_METADATA = (
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
    "resourceVersion", "selfLink", "uid",
)  # fmt: skip
_METADATA_SCHEMA = {"properties": {name: {PRESERVE: True} for name in _METADATA}}


class Strictness(Enum):
    """The `fieldValidation` of a write; the default is Ignore here, and Warn for clients over HTTPS."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> "Strictness":
        value = query.get("fieldValidation") or "Ignore"
        try:
            return cls(value)
        except ValueError:
            message = f'Unsupported value: "{value}": supported values: "Ignore", "Warn", "Strict"'
            cause = Cause("FieldValueNotSupported", message, "fieldValidation")
            raise Invalid(f"fieldValidation: {message}", causes=[cause]) from None

    def of_object(self, served: ServedKind, body: Json) -> tuple[str, ...]:
        """Warnings for an object in a create or update. Raises `BadRequest` if strict."""
        warnings = self._warnings(served, body)
        if warnings and self is Strictness.STRICT:
            raise served.undecodable(_error(warnings))
        return warnings

    def of_patched(self, served: ServedKind, body: Json) -> tuple[str, ...]:
        """Warnings for the result of a patch. Raises `Invalid` if strict."""
        warnings = self._warnings(served, body)
        if warnings and self is Strictness.STRICT:
            message = f"Invalid value: the patched {served.kind}: {_error(warnings)}"
            raise Invalid(f'"" is invalid: patch: {message}', causes=[Cause("FieldValueInvalid", message, "patch")])
        return warnings

    def _warnings(self, served: ServedKind, body: Json) -> tuple[str, ...]:
        if self is Strictness.IGNORE:
            return ()
        return tuple(f'unknown field "{field}"' for field in unknown_fields(served.openapi, body))


def unknown_fields(schema: Json, value: Json) -> list[str]:
    """The paths of all fields that pruning would remove, such as `spec.ports[0].nmae`."""
    properties = schema.get("properties", {}) | {"metadata": _METADATA_SCHEMA}
    unknown: list[_Path] = []
    _collect(schema | {"properties": properties}, value, None, unknown, META)
    return sorted(map(_text, unknown))


def _collect(
    schema: Json,
    value: Json | list[Any],
    path: "_Path | None",
    unknown: list["_Path"],
    meta: frozenset[str] = frozenset(),
) -> None:
    if isinstance(value, list):
        items = schema.get("items")
        if items is not None:
            items = items | {PRESERVE: True} if schema.get(PRESERVE) else items
            for index, item in enumerate(value):
                if isinstance(item, (dict, list)):
                    _collect(items, item, (path, index), unknown)
        return
    properties, additional = schema.get("properties", {}), schema.get("additionalProperties")
    open_ = schema.get(PRESERVE) or additional
    meta = META if schema.get(EMBEDDED) else meta
    for name, item in value.items():
        below = properties.get(name)
        if below is None and isinstance(additional, dict) and not properties:
            below = additional
        if below is None:
            if not open_ and name not in meta:
                unknown.append((path, name))
        elif isinstance(item, (dict, list)):
            _collect(below, item, (path, name), unknown)


_Path = tuple[Any, str | int]  # the path above, and the last step


def _text(path: _Path) -> str:
    above, last = path
    before = _text(above) if above else ""
    if isinstance(last, int):
        return f"{before}[{last}]"
    return f"{before}.{last}" if before else last


def _error(warnings: tuple[str, ...]) -> str:
    return f"strict decoding error: {', '.join(warnings)}"
