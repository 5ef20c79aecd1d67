"""Compares the schema that a server has for a kind with ours. Entry point: `missing_fields`."""

from collections.abc import Iterator
from typing import Any

from datum_compute.kube.meta import Json


def missing_fields(ours: Json, theirs: Json, path: str = "") -> Iterator[str]:
    """The fields of our schema that a server would drop, because its own is older."""
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = theirs.get("properties") or {}
    for name, schema in (ours.get("properties") or {}).items():
        inner = f"{path}.{name}".removeprefix(".")
        if name not in known:
            yield inner
        elif inner != "metadata":  # every server knows it
            yield from missing_fields(schema, known[name], inner)
    for key, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(ours.get(key), dict) and isinstance(theirs.get(key), dict):
            yield from missing_fields(ours[key], theirs[key], path + suffix)


def schema_of(document: Json, group: str, version: str, kind: str) -> Json | None:
    """The schema of a kind in an OpenAPI v3 document; None when it has none."""
    wanted = {"group": group, "version": version, "kind": kind}
    schemas: dict[str, Any] = (document.get("components") or {}).get("schemas") or {}
    for schema in schemas.values():
        if wanted in (schema.get("x-kubernetes-group-version-kind") or ()):
            return dict(schema)
    return None
