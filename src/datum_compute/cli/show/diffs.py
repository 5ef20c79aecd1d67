"""The difference between two workloads as a diff of YAML. Entry point: `diff_lines`.

Values of variables are hidden, but not that a value changed.
"""

from typing import Any

from datum_compute.cli.show.documents import yaml_text
from datum_compute.cli.show.lines import Line, Piece, bad, dim, good, line
from datum_compute.cli.workload.manifest import manifest_of
from datum_compute.kube.meta import Json

_HIDDEN = "(hidden)"
_CHANGED = "(hidden, changed)"


def diff_lines(before: Json | None, after: Json) -> list[Line]:
    """A unified diff of the manifests; without `before` everything is new."""
    from difflib import unified_diff

    old = without_values(manifest_of(before), None) if before is not None else None
    new = without_values(manifest_of(after), manifest_of(before) if before is not None else None)
    lines = unified_diff(_yaml(old), _yaml(new), "live" if old is not None else "nothing", "wanted", lineterm="")
    return [line(_toned(text)) for text in lines]


def without_values(value: Any, other: Any) -> Any:
    """JSON without the values of variables; values that differ from those in `other` are marked as changed."""
    match value:
        case dict():
            return {key: _field(key, item, _inside(other, key)) for key, item in value.items()}
        case list():
            return [without_values(item, _counterpart(item, index, other)) for index, item in enumerate(value)]
    return value


def _field(key: str, item: Any, other: Any) -> Any:
    if key != "env" or not isinstance(item, list):
        return without_values(item, other)
    return [_variable(variable, _counterpart(variable, index, other)) for index, variable in enumerate(item)]


def _variable(variable: Any, other: Any) -> Any:
    if not isinstance(variable, dict) or "value" not in variable:
        return variable
    changed = isinstance(other, dict) and "value" in other and other["value"] != variable["value"]
    return variable | {"value": _CHANGED if changed else _HIDDEN}


def _inside(other: Any, key: str) -> Any:
    return other.get(key) if isinstance(other, dict) else None


def _counterpart(item: Any, index: int, other: Any) -> Any:
    """The item of the other list with the same name, or with the same index if it has no name."""
    if not isinstance(other, list):
        return None
    name = item.get("name") if isinstance(item, dict) else None
    if name is None:
        return other[index] if index < len(other) else None
    return next((entry for entry in other if isinstance(entry, dict) and entry.get("name") == name), None)


def _yaml(value: Json | None) -> list[str]:
    return yaml_text(value).splitlines() if value is not None else []


def _toned(text: str) -> Piece:
    if text.startswith("+"):
        return good(text)
    if text.startswith("-"):
        return bad(text)
    return dim(text) if text.startswith("@@") else text
