"""Answers in the JSON of Loki. Entry points: `streams`, `success`, `bad_data`, `frame`, `notice`."""

from collections.abc import Iterable, Sequence

import msgspec

from datum_compute.kube.meta import Json
from datum_compute.telemetry.sources import Dropped, Entry, Labels, Notice

CONTENT_TYPE = "application/json"
FRAMES_TYPE = "application/x-ndjson"
HEARTBEAT = b"{}\n"

_encode = msgspec.json.Encoder().encode


def success(data: object, *, previous: bool = False, warnings: Sequence[str] = ()) -> bytes:
    """`previous` says that the lines are those of earlier runs, which Loki does not know."""
    answer: Json = {"status": "success", "data": data}
    if previous:
        answer["previous"] = True
    if warnings:
        answer["warnings"] = warnings
    return _encode(answer)


def bad_data(sentence: str) -> bytes:
    return failure("bad_data", sentence)


def failure(type_: str, sentence: str) -> bytes:
    return _encode({"status": "error", "errorType": type_, "error": sentence})


def streams(entries: Sequence[Entry], *, backward: bool) -> Json:
    """The result of a query. Entries are in order of time; within each stream they come in the requested direction."""
    return {"resultType": "streams", "result": _streams(reversed(entries) if backward else entries)}


def sample(time: int, value: str) -> Json:
    """The result of a query for a number, such as the probe of Grafana."""
    return {"resultType": "vector", "result": [{"metric": {}, "value": [time / 1e9, value]}]}


def frame(entries: Iterable[Entry], dropped: Iterable[Dropped] = ()) -> bytes:
    """One line of an answer that is followed. `count` in a dropped entry is ours: how many lines it stands for."""
    value: Json = {"streams": _streams(entries)}
    if left_out := [_dropped(entry) for entry in dropped]:
        value["dropped_entries"] = left_out
    return _encode(value) + b"\n"


def notice(notice: Notice) -> bytes:
    value = {
        "kind": notice.kind,
        "city": notice.city,
        "instance": notice.instance,
        "time": str(notice.time),
        "message": notice.message,
    }
    return _encode({"notice": value}) + b"\n"


def _streams(entries: Iterable[Entry]) -> list[Json]:
    values: dict[Labels, list[tuple[str, str]]] = {}
    for entry in entries:
        values.setdefault(entry.labels, []).append((str(entry.time), entry.text))
    return [{"stream": labels.values(), "values": lines} for labels, lines in values.items()]


def _dropped(entry: Dropped) -> Json:
    return {"labels": entry.labels.values(), "timestamp": str(entry.time), "count": entry.count}
