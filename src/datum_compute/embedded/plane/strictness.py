"""Fields that were sent and the schema does not know: refused, told of, or passed over. Entry point: `Strictness`."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from datum_compute.embedded.kinds.served import Served
from datum_compute.embedded.schemas.structural import EMBEDDED, META, PRESERVE
from datum_compute.kube.errors import BadRequest, Cause, Invalid
from datum_compute.kube.meta import Json

_METADATA = (
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
    "resourceVersion", "selfLink", "uid",
)  # fmt: skip
_METADATA_SCHEMA = {"properties": {name: {PRESERVE: True} for name in _METADATA}}


class Strictness(Enum):
    """The `fieldValidation` of a write. Without one it is passed over here; clients over HTTP are told by default."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"

    @classmethod
    def asked(cls, query: Mapping[str, str]) -> "Strictness":
        value = query.get("fieldValidation") or "Ignore"
        try:
            return cls(value)
        except ValueError:
            message = f'Unsupported value: "{value}": supported values: "Ignore", "Warn", "Strict"'
            cause = Cause("FieldValueNotSupported", message, "fieldValidation")
            raise Invalid(f"fieldValidation: {message}", causes=[cause]) from None

    def of_object(self, served: Served, body: Json) -> tuple[str, ...]:
        """The warnings for an object that was sent whole."""
        found = self._found(served, body)
        if found and self is Strictness.STRICT:
            about = f'{served.kind} in version "{served.version}" cannot be handled as a {served.kind}'
            raise BadRequest(f"{about}: {_error(found)}")
        return found

    def of_patched(self, served: Served, body: Json) -> tuple[str, ...]:
        """The warnings for what a patch would make of an object."""
        found = self._found(served, body)
        if found and self is Strictness.STRICT:
            message = f"Invalid value: the patched {served.kind}: {_error(found)}"
            raise Invalid(f'"" is invalid: patch: {message}', causes=[Cause("FieldValueInvalid", message, "patch")])
        return found

    def _found(self, served: Served, body: Json) -> tuple[str, ...]:
        if self is Strictness.IGNORE:
            return ()
        return tuple(f'unknown field "{field}"' for field in unknown_fields(served.openapi, body))


def unknown_fields(schema: Json, value: Json) -> list[str]:
    """The paths of all that pruning would take out, as `spec.ports[0].nmae`."""
    properties = schema.get("properties", {}) | {"metadata": _METADATA_SCHEMA}
    found: list[_Path] = []
    _find(schema | {"properties": properties}, value, None, found, META)
    return sorted(map(_written, found))


def _find(
    schema: Json,
    value: Json | list[Any],
    path: "_Path | None",
    found: list["_Path"],
    meta: frozenset[str] = frozenset(),
) -> None:
    if isinstance(value, list):
        items = schema.get("items")
        if items is not None:
            items = items | {PRESERVE: True} if schema.get(PRESERVE) else items
            for index, item in enumerate(value):
                if isinstance(item, (dict, list)):
                    _find(items, item, (path, index), found)
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
                found.append((path, name))
        elif isinstance(item, (dict, list)):
            _find(below, item, (path, name), found)


_Path = tuple[Any, str | int]  # what is above, and the last step


def _written(path: _Path) -> str:
    above, last = path
    before = _written(above) if above else ""
    if isinstance(last, int):
        return f"{before}[{last}]"
    return f"{before}.{last}" if before else last


def _error(found: tuple[str, ...]) -> str:
    return f"strict decoding error: {', '.join(found)}"
