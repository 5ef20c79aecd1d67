"""Lines of the local federation's log, formatted for people. Entry point: `LogLines`."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from datum_compute.cli.show.lines import NONE, Line, Piece, bad, busy, dim, line

_STANDARD = ("timestamp", "level", "plane", "controller", "event", "namespace", "name", "pass", "request", "exception")
_REDUNDANT_NAMESPACE = re.compile(r"default|ns-[0-9a-f-]{36}")  # those that the plane implies
_LEAST_WIDTHS = {"plane": 10, "controller": 20}


class LogLines:
    """Its columns are as wide as the longest name so far, so that lines that are followed stay aligned."""

    def __init__(self) -> None:
        self._widths = dict(_LEAST_WIDTHS)

    def readable(self, texts: Iterable[str]) -> list[Line]:
        """Time, level, plane, controller, message, object and other fields; lines that are not ours are unchanged.

        Only the last line of a traceback is shown: the JSON has all of it.
        """
        entries = [(text, _entry(text)) for text in texts]
        for key, width in self._widths.items():
            names = [_name(entry, key) for _, entry in entries if entry is not None]
            self._widths[key] = max((width, *map(len, names)))
        return [line(text) if entry is None else self._line(entry) for text, entry in entries]

    def _line(self, entry: dict[str, Any]) -> Line:
        names = [f"{_name(entry, key):<{width}}" for key, width in self._widths.items()]
        return line(
            dim(_time(str(entry.get("timestamp", "")))),
            "  ",
            _level(str(entry.get("level", ""))),
            f"  {'  '.join((*names, *_message(entry)))}",
        )


def _entry(text: str) -> dict[str, Any] | None:
    try:
        entry = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return None
    return entry if isinstance(entry, dict) and "event" in entry else None


def _name(entry: dict[str, Any], key: str) -> str:
    return str(entry.get(key) or NONE)


def _message(entry: dict[str, Any]) -> list[str]:
    rest = [f"{key}={_value(item)}" for key, item in entry.items() if key not in _STANDARD and item not in ("", None)]
    if lines := str(entry.get("exception", "")).strip().splitlines():
        rest.append(f"({lines[-1].strip()})")
    subject = _subject(entry)
    return [str(entry["event"]), *([subject] if subject else []), *rest]


def _subject(entry: dict[str, Any]) -> str:
    """The object that the line is about, if need be from its request, `plane:namespace/name`."""
    namespace, name = str(entry.get("namespace", "")), str(entry.get("name", ""))
    if not name:
        namespace, _, name = str(entry.get("request", "")).partition(":")[2].rpartition("/")
    return name if not namespace or _REDUNDANT_NAMESPACE.fullmatch(namespace) else f"{namespace}/{name}"


def _time(stamp: str) -> str:
    """The time in UTC, to the second."""
    return f"{stamp[:10]} {stamp[11:19]}Z" if len(stamp) > 19 else stamp


def _level(level: str) -> Piece:
    padded = f"{level:<7}"
    return {"error": bad, "critical": bad, "warning": busy}.get(level, dim)(padded)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = " ".join(text.split())
    return f'"{text}"' if " " in text else text
