"""Tables, the form in which kubectl requests objects to print. Entry points: `table_of`, `table_event`, `age`."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

import msgspec

from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.schemas.json_path import Read, json_path
from datum_compute.kube.meta import Json, encode

Include = Literal["None", "Metadata", "Object"]  # the part of the object that its row includes

_NAME = {
    "name": "Name",
    "type": "string",
    "format": "name",
    "description": "Name must be unique within a namespace.",
    "priority": 0,
}
_AGE_ONLY = ({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},)
_META = "meta.k8s.io/v1"


def table_of(served: ServedKind, body: bytes, now: datetime, include: Include) -> bytes:
    """The table for an answer, which is one object or a list."""
    value: Json = msgspec.json.decode(body)
    if value.get("kind") == served.list_kind and "items" in value:
        return encode(_table(served, value["metadata"], value["items"], now, include))
    revision = {"resourceVersion": value["metadata"]["resourceVersion"]}
    return encode(_table(served, revision, [value], now, include))


def table_event(served: ServedKind, line: bytes, now: datetime, include: Include) -> bytes:
    """The table for one event of a watch."""
    event: Json = msgspec.json.decode(line)
    match event["type"]:
        case "ERROR":
            return line
        case "BOOKMARK":
            table = _table(served, event["object"]["metadata"], [], now, include)
        case _:
            revision = {"resourceVersion": event["object"]["metadata"]["resourceVersion"]}
            table = _table(served, revision, [event["object"]], now, include)
    return encode({"type": event["type"], "object": table})


def _table(served: ServedKind, metadata: Json, objects: Iterable[Json], now: datetime, include: Include) -> Json:
    values = _values(served)
    return {
        "kind": "Table",
        "apiVersion": _META,
        "metadata": metadata,
        "columnDefinitions": [_NAME, *(_definition(column) for column in _columns(served))],
        "rows": [
            {"cells": [object_["metadata"]["name"], *(value(object_, now) for value in values)]}
            | _included(object_, include)
            for object_ in objects
        ],
    }


def _columns(served: ServedKind) -> tuple[Json, ...]:
    return served.columns or _AGE_ONLY


def _definition(column: Json) -> Json:
    return {
        "name": column["name"],
        "type": column["type"],
        "format": column.get("format", ""),
        "description": column.get("description", f"Column in JSONPath format: {column.get('jsonPath', '')}"),
        "priority": column.get("priority", 0),
    }


def _included(object_: Json, include: Include) -> Json:
    match include:
        case "Object":
            return {"object": object_}
        case "Metadata":
            head = {"kind": "PartialObjectMetadata", "apiVersion": _META}
            return {"object": head | {"metadata": object_["metadata"]}}
    return {}


@lru_cache(maxsize=256)
def _values(served: ServedKind) -> tuple[Callable[[Json, datetime], Any], ...]:
    return tuple(_value(column["type"], _reader(column)) for column in _columns(served))


def _reader(column: Json) -> Read:
    if "read" in column:  # of a built-in kind
        return lambda value: [column["read"](value)]
    return json_path(column["jsonPath"])


def _value(type_: str, read: Read) -> Callable[[Json, datetime], Any]:
    def value(object_: Json, now: datetime) -> Any:
        values = read(object_)
        if not values or values[0] is None:
            return None
        return _printed(type_, values[0], now)

    return value


def _printed(type_: str, value: Any, now: datetime) -> Any:
    match type_, value:
        case "date", str():
            return _age_of(value, now)
        case "integer", int() | float() if not isinstance(value, bool):
            return int(value)
        case "number", int() | float() if not isinstance(value, bool):
            return value
        case "boolean", bool():
            return value
        case "string", str():
            return value
        case "string", _:
            return encode(value).decode()
    return None  # a value that does not fit the column


def _age_of(text: str, now: datetime) -> str:
    try:
        return age(now - datetime.fromisoformat(text))
    except (ValueError, TypeError):
        return "<invalid>"


def age(duration: timedelta) -> str:
    """A duration as kubectl prints it: two units at most, the coarser the older."""
    seconds = int(duration.total_seconds())
    if seconds < -1:
        return "<invalid>"
    if seconds < 120:
        return f"{max(seconds, 0)}s"
    minutes, hours = seconds // 60, seconds // 3600
    days, years = hours // 24, hours // 24 // 365
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if years < 2:
        return f"{days}d"
    if years < 8:
        return _two(years, "y", days % 365, "d")
    return f"{years}y"


def _two(coarse: int, unit: str, fine: int, fine_unit: str) -> str:
    return f"{coarse}{unit}{fine}{fine_unit}" if fine else f"{coarse}{unit}"
