"""A line of the federation's log as people read it. Entry point: `readable`."""

import re
from typing import Any

import msgspec

from datum_compute.cli.show.lines import NONE, Line, Piece, bad, busy, dim, line

_SHOWN = ("timestamp", "level", "plane", "controller", "event", "namespace", "name", "pass", "request", "exception")
_OF_A_PROJECT = re.compile(r"default|ns-[0-9a-f-]{36}")  # namespaces that say no more than the plane does
_PLANE, _CONTROLLER = 10, 20  # columns; what is longer pushes the rest along


def readable(text: str) -> Line:
    """Time, level, plane, controller, message, object and whatever else was noted; other programs' lines as they are.

    A traceback is told by its last line: the whole of it is in the JSON.
    """
    try:
        entry = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return line(text)
    if not isinstance(entry, dict) or "event" not in entry:
        return line(text)
    plane, controller = (str(entry.get(key) or NONE) for key in ("plane", "controller"))
    rest = [f"{key}={_value(value)}" for key, value in entry.items() if key not in _SHOWN and value not in ("", None)]
    if lines := str(entry.get("exception", "")).strip().splitlines():
        rest.append(f"({lines[-1].strip()})")
    subject = _subject(entry)
    about = [str(entry["event"]), *([subject] if subject else []), *rest]
    return line(
        dim(_time(str(entry.get("timestamp", "")))),
        "  ",
        _level(str(entry.get("level", ""))),
        f"  {plane:<{_PLANE}}  {controller:<{_CONTROLLER}}  {'  '.join(about)}",
    )


def _subject(entry: dict[str, Any]) -> str:
    """The object that the line is about; from a request, which is `plane:namespace/name`, where it is named only so."""
    namespace, name = str(entry.get("namespace", "")), str(entry.get("name", ""))
    if not name:
        namespace, _, name = str(entry.get("request", "")).partition(":")[2].rpartition("/")
    return name if not namespace or _OF_A_PROJECT.fullmatch(namespace) else f"{namespace}/{name}"


def _time(stamp: str) -> str:
    """To the second; the log has UTC."""
    return f"{stamp[:10]} {stamp[11:19]}Z" if len(stamp) > 19 else stamp


def _level(level: str) -> Piece:
    padded = f"{level:<7}"
    return {"error": bad, "critical": bad, "warning": busy}.get(level, dim)(padded)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = " ".join(text.split())
    return f'"{text}"' if " " in text else text
