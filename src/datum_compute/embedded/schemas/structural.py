"""Pruning and defaulting by a structural schema. Entry point: `shaper`.

Each node of a schema is compiled once into a function, or into None where nothing below it can ever change. The
function returns its argument when there is nothing to do, and otherwise copies only the containers on the way to the
change; it never changes its argument. A value of the wrong type is left alone: validation refuses it.
"""

from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple

from datum_compute.kube.meta import Json

Rewrite = Callable[[Any], Any]
Make = Callable[[], Any]

META = frozenset({"apiVersion", "kind", "metadata"})
PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
MAX_DEPTH = 200  # far more than any real object has; a deeper one is refused before anything recursive sees it


def shaper(schema: Json, *, root: bool = False) -> Rewrite | None:
    """Removes unknown fields and nulls that mean "not set", then fills in the defaults of absent fields.

    An API server does the first two in one step. A default is set only in parents that exist, and replaces a null that
    is not allowed.
    """
    return _shapes(schema, _Context(root=root))[0]


class _Context(NamedTuple):
    """How a node is treated because of where it is."""

    root: bool = False
    keep: bool = (
        False  # an array around it preserves unknown fields, which its items inherit, unlike those of an object
    )
    prune: bool = True  # false for apiVersion, kind and metadata, which are not the schema's to judge


def _shapes(schema: Json, context: _Context) -> tuple[Rewrite | None, Make | None]:
    """How a value is rewritten, and how a missing one is made."""
    inner = _inner(schema, context)
    default = schema.get("default")
    if default is None:
        return inner, None
    # A default is pruned by its own schema alone, whatever is around it.
    make = _maker(default, inner if context == _Context() else _inner(schema, _Context()))
    if schema.get("nullable"):
        return inner, make

    def instead_of_null(value: Any) -> Any:
        if value is None:
            return make()
        return inner(value) if inner else value

    return instead_of_null, make


def _inner(schema: Json, context: _Context) -> Rewrite | None:
    keep = context.keep or bool(schema.get(PRESERVE))
    if "items" in schema:
        return _each_item(_shapes(schema["items"], _Context(keep=keep, prune=context.prune))[0])
    properties, additional = schema.get("properties", {}), schema.get("additionalProperties")
    if additional and not properties:
        if isinstance(additional, dict):
            return _entries(additional, context.prune)
        # `additionalProperties: true` allows any key, but an object below it has no schema and so no known fields.
        return _each_entry(_emptied) if context.prune else None
    meta = META if context.root or schema.get(EMBEDDED) else frozenset[str]()
    parts = {
        name: _shapes(node, _Context(prune=context.prune and name not in meta)) for name, node in properties.items()
    }
    known = bool(properties) or schema.get("type") == "object"
    prune = _fields_pruner(properties, meta, keep) if context.prune and known else None
    fill = _filler({name: make for name, (_, make) in parts.items() if make})
    return _each_field({name: rewrite for name, (rewrite, _) in parts.items()}, _in_sequence(prune, fill))


def _fields_pruner(properties: dict[str, Json], meta: frozenset[str], keep: bool) -> Rewrite:
    known = meta.union(properties)
    unset_by_null = {name for name, schema in properties.items() if _null_means_unset(schema)} - meta

    def prune(value: Json) -> Json:
        if None in value.values() or not (keep or known.issuperset(value)):
            pruned = {
                name: item
                for name, item in value.items()
                if (keep or name in known) and not (item is None and name in unset_by_null)
            }
            return pruned if len(pruned) < len(value) else value
        return value

    return prune


def _filler(makers: dict[str, Make]) -> Rewrite | None:
    if not makers:
        return None
    absent = tuple(makers.items())

    def fill(value: Json) -> Json:
        added = {name: make() for name, make in absent if name not in value}
        return value | added if added else value

    return fill


def _in_sequence(first: Rewrite | None, second: Rewrite | None) -> Rewrite | None:
    if first is None or second is None:
        return first or second
    return lambda value: second(first(value))


def _entries(schema: Json, prune: bool) -> Rewrite | None:
    rewritten = _each_entry(_shapes(schema, _Context(prune=prune))[0])
    if not prune or not _null_means_unset(schema):
        return rewritten

    def without_nulls(value: Any) -> Any:
        if isinstance(value, dict) and None in value.values():
            value = {key: item for key, item in value.items() if item is not None}
        return rewritten(value) if rewritten else value

    return without_nulls


def _null_means_unset(schema: Json) -> bool:
    return not schema.get("nullable") and schema.get("default") is None


def _emptied(value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict):
        return {} if value else value
    if isinstance(value, list) and depth < MAX_DEPTH:
        return _same_unless_changed([_emptied(item, depth + 1) for item in value], value)
    return value


def _maker(default: Any, inner: Rewrite | None) -> Make:
    """Makes a new copy of the default of a node, complete with the defaults below it."""
    complete = inner(default) if inner else default
    return lambda: _copied(complete)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


def _each_field(rewrites: dict[str, Rewrite | None], first: Callable[[Json], Json] | None) -> Rewrite | None:
    """Rewrites an object by `first`, and then each of its fields."""
    effective = {name: rewrite for name, rewrite in rewrites.items() if rewrite}
    if not effective and first is None:
        return None

    def each(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        result = value = first(value) if first else value
        for name, before in value.items():  # an object has fewer fields than its schema
            rewrite = effective.get(name)
            if rewrite is not None:
                after = rewrite(before)
                if after is not before:
                    result = dict(value) if result is value else result
                    result[name] = after
        return result

    return each


def _each_entry(rewrite: Rewrite | None) -> Rewrite | None:
    if rewrite is None:
        return None

    def each(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        changed = {key: after for key, item in value.items() if (after := rewrite(item)) is not item}
        return value | changed if changed else value

    return each


def _each_item(rewrite: Rewrite | None) -> Rewrite | None:
    if rewrite is None:
        return None
    return lambda value: (
        _same_unless_changed([rewrite(item) for item in value], value) if isinstance(value, list) else value
    )


def _same_unless_changed(rewritten: list[Any], value: list[Any]) -> list[Any]:
    return value if all(map(is_, rewritten, value)) else rewritten
