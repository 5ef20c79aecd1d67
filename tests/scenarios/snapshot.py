"""The state of all planes in a form that can be compared between runs and processes."""

from typing import Any

import msgspec

from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import WITHDRAWN, WITHDRAWN_UIDS
from datum_compute.embedded.storage.records import Key
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.kinds import EVENT

_TIMES = {"creationTimestamp", "lastTransitionTime", "deletionTimestamp", "lastReconciliation", "entitledAt"}
_UNORDERED = (WITHDRAWN, WITHDRAWN_UIDS)
_VARYING = {"resourceVersion", *_TIMES}


def snapshot(store: Store, planes: list[str]) -> dict[str, Any]:
    """Every object by plane, kind, namespace and name, without resourceVersion and times.

    Events tell what happened on the way, and ways differ; they are no part of the state.
    """
    return {
        "/".join((key.plane, key.resource, key.namespace, key.name)): _comparable(key, record.object())
        for plane in planes
        for resource in store.resources(plane)
        if resource != EVENT.resource
        for key, record in store.scan(plane, resource)
    }


def _comparable(key: Key, value: Any) -> Any:
    result = _timeless(value)
    for name, text in (result["metadata"].get("annotations") or {}).items():
        if name in _UNORDERED:  # lists in the order in which things happened to be withdrawn
            result["metadata"]["annotations"][name] = sorted(msgspec.json.decode(text), key=msgspec.json.encode)
    if key.resource == INSTANCE.resource and not key.plane.startswith("cell-"):
        # A copy counts the changes it saw; one made later saw fewer, and is the same copy.
        del result["metadata"]["generation"]
    return result


def _timeless(value: Any) -> Any:
    match value:
        case dict():
            return {key: _timeless(item) for key, item in value.items() if key not in _VARYING}
        case list():
            return [_timeless(item) for item in value]
    return value
