"""Fragments of which the schemas of built-in kinds are made."""

from datum_compute.embedded.schemas.structural import PRESERVE
from datum_compute.kube.meta import Json

OPEN = {"type": "object", PRESERVE: True}  # any fields, kept as they are


def object_of(description: str, **properties: Json) -> Json:
    return {"type": "object", "description": description, "properties": properties}


def string(description: str) -> Json:
    return {"type": "string", "description": description}


def strings(description: str) -> Json:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def string_map(description: str) -> Json:
    return {"type": "object", "additionalProperties": {"type": "string"}, "description": description}
