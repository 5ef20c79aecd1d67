"""Fields that were sent and the schema does not know: refused, told of, or passed over. Entry point: `Strictness`."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from datum_compute.embedded.served import Served
from datum_compute.embedded.structural import EMBEDDED, META, PRESERVE
from datum_compute.kube.errors import BadRequest, Cause, Invalid
from datum_compute.kube.meta import Json

_METADATA = (
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
    "resourceVersion", "selfLink", "uid",
)  # fmt: skip


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
    """The paths of all that pruning would take out, as `spec.placements[0].nmae`."""
    metadata = {"properties": {name: {PRESERVE: True} for name in _METADATA}}
    properties = schema.get("properties", {}) | {"metadata": metadata}
    return sorted(_unknown(schema | {"properties": properties}, value, "", META))


def _unknown(schema: Json, value: Any, path: str, meta: frozenset[str] = frozenset()) -> Iterator[str]:
    match value:
        case list() if "items" in schema:
            items = schema["items"] | ({PRESERVE: True} if schema.get(PRESERVE) else {})
            for index, item in enumerate(value):
                yield from _unknown(items, item, f"{path}[{index}]")
        case dict():
            properties, additional = schema.get("properties", {}), schema.get("additionalProperties")
            open_ = schema.get(PRESERVE) or additional
            meta = META if schema.get(EMBEDDED) else meta
            for name, item in value.items():
                at = f"{path}.{name}" if path else name
                if name in properties:
                    yield from _unknown(properties[name], item, at)
                elif isinstance(additional, dict) and not properties:
                    yield from _unknown(additional, item, at)
                elif not open_ and name not in meta:
                    yield at


def _error(found: tuple[str, ...]) -> str:
    return f"strict decoding error: {', '.join(found)}"
