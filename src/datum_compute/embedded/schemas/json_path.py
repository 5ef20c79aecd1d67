"""JSONPath, as far as printer columns use it. Entry point: `json_path`."""

import re
from collections.abc import Callable
from typing import Any

Read = Callable[[Any], list[Any]]

_STEP = re.compile(
    r"""
      \.(?P<field>(?:[^.\[\]\\]|\\.)+)
    | \[(?P<index>-?\d+)\]
    | \[(?P<q1>['"])(?P<key>.*?)(?P=q1)\]
    | \[\?\(\s*@(?P<where>[^=\s]+)\s*==\s*(?P<q2>['"])(?P<value>.*?)(?P=q2)\s*\)\]
    | \[(?P<all>\*)\]
    """,
    re.VERBOSE,
)


def json_path(text: str) -> Read:
    """Reads all values at a path made of `.a.b`, `[0]`, `['a']`, `[*]` and `[?(@.type=="Ready")]`."""
    steps: list[Read] = []
    position = 0
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            raise ValueError(f"{text!r} is not a supported JSON path from {text[position:]!r} on")
        steps.append(_step(step))
        position = step.end()

    def read(value: Any) -> list[Any]:
        values = [value]
        for step in steps:
            values = [inner for item in values for inner in step(item)]
        return values

    return read


def _step(step: re.Match[str]) -> Read:
    group = step.groupdict()
    if group["index"]:
        return _at(int(group["index"]))
    if group["where"]:
        return _where(json_path(group["where"]), group["value"])
    if group["all"]:
        return lambda value: list(value.values()) if isinstance(value, dict) else _items(value)
    name = re.sub(r"\\(.)", r"\1", group["field"]) if group["field"] else group["key"]
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _at(index: int) -> Read:
    return lambda value: _items(value)[index : index + 1 or None]


def _where(read: Read, wanted: str) -> Read:
    return lambda value: [item for item in _items(value) if wanted in read(item)]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
