"""The difference between two workloads as YAML, for people to read before they agree. Entry point: `diff_lines`.

Values of variables are hidden; that one differs can still be seen.
"""

from typing import Any

from datum_compute.cli.show.documents import yaml_text
from datum_compute.cli.show.lines import Line, Piece, bad, dim, good, line
from datum_compute.cli.workload.manifest import asked_for
from datum_compute.kube.meta import Json

_HIDDEN = "(hidden)"
_CHANGED = "(hidden, changed)"


def diff_lines(before: Json | None, after: Json) -> list[Line]:
    """A unified diff of what is asked for; without `before` everything is new."""
    from difflib import unified_diff

    old = masked(asked_for(before), None) if before is not None else None
    new = masked(asked_for(after), asked_for(before) if before is not None else None)
    lines = unified_diff(_yaml(old), _yaml(new), "live" if old is not None else "nothing", "wanted", lineterm="")
    return [line(_toned(text)) for text in lines]


def masked(value: Any, other: Any) -> Any:
    """Without the values of variables; one that `other` has as well, and differently, says so."""
    match value:
        case dict():
            return {key: _field(key, item, _inside(other, key)) for key, item in value.items()}
        case list():
            return [masked(item, _counterpart(item, index, other)) for index, item in enumerate(value)]
    return value


def _field(key: str, item: Any, other: Any) -> Any:
    if key != "env" or not isinstance(item, list):
        return masked(item, other)
    return [_variable(one, _counterpart(one, index, other)) for index, one in enumerate(item)]


def _variable(one: Any, other: Any) -> Any:
    if not isinstance(one, dict) or "value" not in one:
        return one
    changed = isinstance(other, dict) and "value" in other and other["value"] != one["value"]
    return one | {"value": _CHANGED if changed else _HIDDEN}


def _inside(other: Any, key: str) -> Any:
    return other.get(key) if isinstance(other, dict) else None


def _counterpart(item: Any, index: int, other: Any) -> Any:
    """The item of the other list with the same name; the one in the same place when it has none."""
    if not isinstance(other, list):
        return None
    name = item.get("name") if isinstance(item, dict) else None
    if name is None:
        return other[index] if index < len(other) else None
    return next((one for one in other if isinstance(one, dict) and one.get("name") == name), None)


def _yaml(value: Json | None) -> list[str]:
    return yaml_text(value).splitlines() if value is not None else []


def _toned(text: str) -> Piece:
    if text.startswith("+"):
        return good(text)
    if text.startswith("-"):
        return bad(text)
    return dim(text) if text.startswith("@@") else text
