"""The digest that identifies the template of an Instance. Entry point: `template_hash`."""

import json
from hashlib import sha256
from typing import Any

from msgspec import Raw

from datum_compute.kube.meta import decode


def template_hash(template_json: bytes | Raw) -> str:
    """Ten hex digits over the whole template. Key order does not matter, and an empty value equals an absent one.

    The algorithm may never change: Instances carry the digest of their template, so a release with another algorithm
    would consider all of them outdated, and replace them.
    """
    template = _compact(decode(template_json, object))
    text = json.dumps(template, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()[:10]


def _compact(value: Any, *path: str) -> Any:
    match value:
        case dict() if path[-2:] in _FREE_MAPS:
            return {key: item for key, item in value.items() if item is not None}
        case dict():
            compacted = {key: _compact(item, *path, key) for key, item in value.items()}
            return {key: item for key, item in compacted.items() if not _is_empty(item)}
        case list():
            return [_compact(item, *path) for item in value]
    return value


# A label with an empty value is not the same as no label.
_FREE_MAPS = (("metadata", "labels"), ("metadata", "annotations"))


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})
