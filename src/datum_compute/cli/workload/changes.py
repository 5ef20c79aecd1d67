"""What differs between two specs of a workload, a line each. Entry points: `change_lines`, `object_change_lines`.

Values of variables are never part of a line.
"""

from collections.abc import Iterator
from typing import Any

from datum_compute.cli.workload.edits import containers, placements
from datum_compute.kube.meta import Json


def change_lines(before: Json, after: Json) -> list[str]:
    """The changes of a spec in a fixed order; what has no line of its own is counted."""
    return _lines(before, after, 0)


def object_change_lines(before: Json, after: Json) -> list[str]:
    """The same of whole workloads: labels and annotations count as other fields."""
    marks = ("labels", "annotations")
    old, new = ({key: body["metadata"].get(key) for key in marks} for body in (before, after))
    return _lines(before["spec"], after["spec"], len(_different(old, new)))


def _lines(before: Json, after: Json, others: int) -> list[str]:
    return [
        *_image(before, after),
        *_instance_type(before, after),
        *_placements(before, after),
        *_ports(before, after),
        *_env(before, after),
        *_others(before, after, others),
    ]


def _image(before: Json, after: Json) -> Iterator[str]:
    yield from _changed("image", _first(before).get("image"), _first(after).get("image"))


def _instance_type(before: Json, after: Json) -> Iterator[str]:
    yield from _changed("instance type", _type(before), _type(after))


def _placements(before: Json, after: Json) -> Iterator[str]:
    old = {str(one.get("name")): one for one in placements(before)}
    new = {str(one.get("name")): one for one in placements(after)}
    for name, one in new.items():
        if name not in old:
            yield f'+ new placement "{name}": cities=[{_cities(one)}]'
            continue
        label = f'placement "{name}"'
        was, is_ = old[name].get("scaleSettings") or {}, one.get("scaleSettings") or {}
        yield from _changed(f"{label} min replicas", was.get("minReplicas"), is_.get("minReplicas"))
        yield from _changed(f"{label} max replicas", was.get("maxReplicas"), is_.get("maxReplicas"))
        yield from _changed(f"{label} cities", _cities(old[name]), _cities(one))
    for name in old:
        if name not in new:
            yield f'- removed placement "{name}"'


def _ports(before: Json, after: Json) -> Iterator[str]:
    old = {str(one.get("name")): one.get("port") for one in _first(before).get("ports") or []}
    new = {str(one.get("name")): one.get("port") for one in _first(after).get("ports") or []}
    for name in dict.fromkeys((*old, *new)):
        yield from _changed(f"port {name}", old.get(name), new.get(name))


def _env(before: Json, after: Json) -> Iterator[str]:
    old = {str(one.get("name")): one for one in _first(before).get("env") or []}
    new = {str(one.get("name")): one for one in _first(after).get("env") or []}
    for name in dict.fromkeys((*old, *new)):
        if name not in old:
            yield f"env {name}: set"
        elif name not in new:
            yield f"env {name}: removed"
        elif old[name] != new[name]:
            yield f"env {name}: changed"


def _others(before: Json, after: Json, others: int) -> Iterator[str]:
    old, new = _prefixes(before), _prefixes(after)
    first = {str(_first(before).get("name")), str(_first(after).get("name"))}
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
    """Whether a difference here is told already; of a placement or port that is new or gone, everything is."""
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
    """Every value with its path; items that have a name go by it, so that order alone is no change.

    What is empty has none, like what is absent: the template's digest does not tell them apart either.
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
        yield f"{label}: {_shown(before)} → {_shown(after)}"


def _shown(value: Any) -> str:
    return "none" if value in (None, "") else str(value)


def _first(spec: Json) -> Json:
    found = containers(spec)
    return found[0] if found else {}


def _type(spec: Json) -> Any:
    runtime = ((spec.get("template") or {}).get("spec") or {}).get("runtime") or {}
    return (runtime.get("resources") or {}).get("instanceType")


def _cities(placement: Json) -> str:
    return ", ".join(placement.get("cityCodes") or [])
