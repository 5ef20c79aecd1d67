"""The state of all planes in a form that can be compared between runs and processes."""

from typing import Any

from datum_compute.embedded.store import Store

_VARYING = {"resourceVersion", "creationTimestamp", "lastTransitionTime", "deletionTimestamp"}


def snapshot(store: Store, planes: list[str]) -> dict[str, Any]:
    """Every object by plane, kind, namespace and name, without resourceVersion and times."""
    return {
        "/".join((key.plane, key.resource, key.namespace, key.name)): _timeless(record.object())
        for plane in planes
        for resource in store.resources(plane)
        for key, record in store.scan(plane, resource)
    }


def _timeless(value: Any) -> Any:
    match value:
        case dict():
            return {key: _timeless(item) for key, item in value.items() if key not in _VARYING}
        case list():
            return [_timeless(item) for item in value]
    return value
