"""The differences between two specs of a workload, one line per change. Entry points: `change_lines`,
`object_change_lines`.

Lines never contain values of variables.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from datum_compute.cli.workload.edits import city_text, first_container, instance_type, placements
from datum_compute.kube.meta import Json
from datum_compute.kube.tracing import without_mark


def change_lines(before: Json, after: Json) -> list[str]:
    """The changes of a spec in a fixed order; changes without a line of their own are counted."""
    return _lines(before, after, 0)


def object_change_lines(before: Json, after: Json) -> list[str]:
    """The changes of a whole workload; labels and annotations count as other fields, the note of a trace as none."""
    old, new = (_metadata(body["metadata"]) for body in (before, after))
    return _lines(before["spec"], after["spec"], len(_different(old, new)))


def _metadata(metadata: Json) -> Json:
    return {"labels": metadata.get("labels"), "annotations": without_mark(metadata.get("annotations") or {})}


def _lines(before: Json, after: Json, others: int) -> list[str]:
    return [
        *_changed("image", first_container(before).get("image"), first_container(after).get("image")),
        *_changed("instance type", instance_type(before), instance_type(after)),
        *_placements(before, after),
        *_ports(before, after),
        *_env(before, after),
        *_others(before, after, others),
    ]


def _placements(before: Json, after: Json) -> Iterator[str]:
    old, new = _by_name(placements(before)), _by_name(placements(after))
    for name, placement in new.items():
        if name not in old:
            yield f'+ new placement "{name}": cities=[{city_text(placement)}]'
            continue
        label = f'placement "{name}"'
        was, is_ = old[name].get("scaleSettings") or {}, placement.get("scaleSettings") or {}
        yield from _changed(f"{label} min replicas", was.get("minReplicas"), is_.get("minReplicas"))
        yield from _changed(f"{label} max replicas", was.get("maxReplicas"), is_.get("maxReplicas"))
        yield from _changed(f"{label} cities", city_text(old[name]), city_text(placement))
    for name in old:
        if name not in new:
            yield f'- removed placement "{name}"'


def _ports(before: Json, after: Json) -> Iterator[str]:
    old, new = (_by_name(first_container(spec).get("ports") or []) for spec in (before, after))
    for name in dict.fromkeys((*old, *new)):
        yield from _changed(f"port {name}", old.get(name, {}).get("port"), new.get(name, {}).get("port"))


def _env(before: Json, after: Json) -> Iterator[str]:
    old, new = (_by_name(first_container(spec).get("env") or []) for spec in (before, after))
    for name in dict.fromkeys((*old, *new)):
        if name not in old:
            yield f"env {name}: set"
        elif name not in new:
            yield f"env {name}: removed"
        elif old[name] != new[name]:
            yield f"env {name}: changed"


def _others(before: Json, after: Json, others: int) -> Iterator[str]:
    old, new = _prefixes(before), _prefixes(after)
    first = {str(first_container(spec).get("name")) for spec in (before, after)}
    number = others + sum(not _has_line(path, old & new, first) for path in _different(before, after))
    if number:
        yield f"{number} other field(s) changed"


def _different(before: Json, after: Json) -> list["_Path"]:
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [path for path in dict.fromkeys((*old, *new)) if old.get(path, _ABSENT) != new.get(path, _ABSENT)]


def _prefixes(spec: Json) -> set["_Path"]:
    return {path[:length] for path, _ in _leaves(spec) for length in range(len(path) + 1)}


_ABSENT = object()
_Path = tuple[str, ...]


def _has_line(path: _Path, shared: set[_Path], first: set[str]) -> bool:
    """Whether a difference at this path has a line; everything in a placement or port that is new or removed has."""
    match path:
        case ("placements", _, *_) if path[:2] not in shared:
            return True
        case ("placements", _, "cityCodes", *_):
            return True
        case ("placements", _, "scaleSettings", "minReplicas" | "maxReplicas"):
            return True
        case ("template", "spec", "runtime", "resources", "instanceType"):
            return True
        case ("template", "spec", "runtime", "sandbox", "containers", name, *field) if name in first:
            match field:
                case ["image"] | ["env", *_] | ["ports", _, "port"]:
                    return True
                case ["ports", _, *_]:
                    return path[:8] not in shared
    return False


def _leaves(value: Any, *path: str) -> Iterator[tuple[_Path, Any]]:
    """Every value with its path. Items are identified by their names, if they have one, so that order does not count.

    Empty maps and lists yield nothing, as if they were absent: the template hash does not distinguish them either.
    """
    match value:
        case dict():
            for key, item in value.items():
                yield from _leaves(item, *path, str(key))
        case list():
            for index, item in enumerate(value):
                name = item.get("name") if isinstance(item, dict) else None
                yield from _leaves(item, *path, str(index if name is None else name))
        case _:
            yield path, value


def _changed(label: str, before: Any, after: Any) -> Iterator[str]:
    if before != after:
        yield f"{label}: {_text(before)} → {_text(after)}"


def _text(value: Any) -> str:
    return "none" if value in (None, "") else str(value)


def _by_name(items: Iterable[Json]) -> dict[str, Json]:
    return {str(item.get("name")): item for item in items}
