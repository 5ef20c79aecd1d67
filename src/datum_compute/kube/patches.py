"""Patches of plain JSON values; arguments are never modified.

Entry points: `merge`, `difference`, `changes`, `apply_json_patch`, `strategic`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from datum_compute.kube.errors import BadRequest, Invalid, TooLarge
from datum_compute.kube.meta import Json, KubeObject, as_dict, encode, missing_or_different, same_json, same_value

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

_MOST_OPERATIONS = 10_000
_MOST_COPIED = 3 * 1024 * 1024


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: objects are merged key by key, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def changes(
    object_: KubeObject,
    *,
    labels: Mapping[str, str | None] = {},
    annotations: Mapping[str, str | None] = {},
    owners: Sequence[Json] = (),
    spec: Raw | None = None,
) -> Json:
    """The merge patch that gives an object these labels, annotations, owners and spec; empty when it has them.

    A label or annotation of None is removed; those that are not named stay. Owners, if any are given, replace all.
    """
    metadata: Json = {
        "labels": missing_or_different(labels, object_.metadata.labels),
        "annotations": missing_or_different(annotations, object_.metadata.annotations),
    }
    if owners and [owner["uid"] for owner in owners] != [owner.uid for owner in object_.metadata.owner_references]:
        metadata["ownerReferences"] = list(owners)
    changed: Json = {"metadata": {key: value for key, value in metadata.items() if value}}
    if spec is not None and not same_json(object_.spec_json, spec):
        changed["spec"] = difference(as_dict(object_.spec_json), as_dict(spec))
    return {key: value for key, value in changed.items() if value}


def strategic(target: Any, patch: Any) -> Any:
    """A strategic merge patch for kinds whose only mergeable lists are in metadata, such as ConfigMap."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") in ("replace", "delete"):
        return {key: value for key, value in patch.items() if key != "$patch"} if patch["$patch"] == "replace" else {}
    result = dict(target) if isinstance(target, dict) else {}
    if isinstance(patch.get("$retainKeys"), list):
        result = {key: value for key, value in result.items() if key in patch["$retainKeys"]}
    for key, value in patch.items():
        directive, _, field = key.partition("/")
        if directive == "$deleteFromPrimitiveList":
            result[field] = [item for item in _items(result.get(field)) if item not in _listed(key, value)]
        elif key.startswith("$"):
            continue  # the order of elements, which does not matter here
        elif value is None:
            result.pop(key, None)
        elif key == "finalizers":
            present = _items(result.get(key))
            result[key] = present + [item for item in _listed(key, value) if item not in present]
        elif key == "ownerReferences":
            result[key] = _merged_by("uid", _items(result.get(key)), _listed(key, value))
        else:
            result[key] = strategic(result.get(key), value)
    return result


def _merged_by(key: str, items: list[Any], patches: list[Any]) -> list[Any]:
    by_key = {item[key]: item for item in items if isinstance(item, dict) and isinstance(item.get(key), str)}
    for patch in patches:
        if not isinstance(patch, dict) or not isinstance(patch.get(key), str):
            raise BadRequest(f'an element of the patch has no "{key}", so it is not known which it changes')
        if patch.get("$patch") == "delete":
            by_key.pop(patch[key], None)
        else:
            by_key[patch[key]] = strategic(by_key.get(patch[key]), patch)
    return list(by_key.values())


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _listed(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest(f'"{key}" of the patch is not a list')
    return value


def apply_json_patch(target: Any, operations: Sequence[Json]) -> Any:
    """RFC 6902. A patch with an operation that does not fit the object is refused as a whole, as API servers do.

    So is a small patch with a huge result: copies of copies double with every operation.
    """
    if len(operations) > _MOST_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {_MOST_OPERATIONS}, got {len(operations)}"
        raise TooLarge(message)
    copied = 0
    for operation in operations:
        if not isinstance(operation, dict):
            raise BadRequest("a JSON patch is a list of operations, each an object with op and path")
        if operation.get("op") == "copy":
            copied += len(encode(_read(target, _tokens(operation.get("from")))))
            if copied > _MOST_COPIED:
                raise TooLarge(f"the copies of a JSON patch may have {_MOST_COPIED} bytes in all")
        target = _apply(target, operation)
    return target


def _apply(target: Any, operation: Json) -> Any:
    path = _tokens(operation.get("path"))
    match operation.get("op"):
        case "add":
            return _edit(
                target, path, lambda container, key: _add(container, key, _value(operation)), _value(operation)
            )
        case "replace":  # sets a field that is missing, as API servers do
            return _edit(
                target, path, lambda container, key: _set(container, key, _value(operation)), _value(operation)
            )
        case "remove":
            _read(target, path)
            return _edit(target, path, _remove, None)
        case "test":
            if not same_value(_value_at(target, path), _value(operation)):
                raise Invalid(f"the server rejected our request: testing path {operation['path']} failed")
            return target
        case "move" | "copy" as op:
            source = _tokens(operation.get("from"))
            value = _read(target, source)
            if op == "move":
                if len(path) > len(source) and path[: len(source)] == source:
                    raise Invalid(f"the server rejected our request: {operation['from']} cannot move into itself")
                target = _edit(target, source, _remove, None)
            return _edit(target, path, lambda container, key: _add(container, key, value), value)
        case other:
            raise BadRequest(f'"{other}" is not a JSON patch operation; use add, remove, replace, move, copy or test')


def _value(operation: Json) -> Any:
    if "value" not in operation:
        raise BadRequest(f'JSON patch operation "{operation.get("op")}" needs a value')
    return operation["value"]


def _tokens(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise BadRequest(f"{pointer!r} is not a JSON pointer; it starts with /")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


_INDEX = re.compile("0|[1-9][0-9]{0,9}")


def _index(container: list[Any], token: str, *, adding: bool) -> int:
    if adding and token == "-":
        return len(container)
    last = len(container) if adding else len(container) - 1
    if not _INDEX.fullmatch(token) or int(token) > last:
        raise Invalid(f'the server rejected our request: "{token}" is not an index of a list of {len(container)}')
    return int(token)


def _read(target: Any, path: list[str]) -> Any:
    for token in path:
        if isinstance(target, dict) and token in target:
            target = target[token]
        elif isinstance(target, list):
            target = target[_index(target, token, adding=False)]
        else:
            raise Invalid(f"the server rejected our request: there is nothing at path /{'/'.join(path)}")
    return target


def _value_at(target: Any, path: list[str]) -> Any:
    """As `_read`, with null for a missing field."""
    container = _read(target, path[:-1])
    return container.get(path[-1]) if path and isinstance(container, dict) else _read(target, path)


def _edit(target: Any, path: list[str], change: Any, root: Any) -> Any:
    """Copies the containers along the path and applies `change` to the last one. An empty path gives `root`."""
    if not path:
        return root
    token, rest = path[0], path[1:]
    if isinstance(target, dict):
        copy: Any = dict(target)
    elif isinstance(target, list):
        copy = list(target)
    else:
        raise Invalid(f'the server rejected our request: "{token}" has no container in the object')
    if not rest:
        change(copy, token)
        return copy
    key: Any = _index(copy, token, adding=False) if isinstance(copy, list) else token
    if isinstance(copy, dict) and key not in copy:
        raise Invalid(f'the server rejected our request: there is nothing at "{token}"')
    copy[key] = _edit(copy[key], rest, change, root)
    return copy


def _add(container: Any, token: str, value: Any) -> None:
    if isinstance(container, list):
        container.insert(_index(container, token, adding=True), value)
    else:
        container[token] = value


def _set(container: Any, token: str, value: Any) -> None:
    container[_index(container, token, adding=False) if isinstance(container, list) else token] = value


def _remove(container: Any, token: str) -> None:
    del container[_index(container, token, adding=False) if isinstance(container, list) else token]


def difference(before: Any, after: Any) -> Any:
    """The merge patch that turns `before` into `after`; {} when there is nothing to change."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    removed: Json = {key: None for key in before if key not in after}
    changed = {
        key: difference(before.get(key), value)
        for key, value in after.items()
        if not same_value(before.get(key), value)
    }
    return removed | changed
