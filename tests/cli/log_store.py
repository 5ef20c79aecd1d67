"""A store of log lines behind the read API, for tests of programs that read it. Entry point: `LogStore`."""

from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

import msgspec

from datum_compute.telemetry.query import QueryError, line_matches, matches, parse

GROUP = "/apis/o11y.miloapis.com/v1alpha1"
SECOND = 1_000_000_000
_ROOT = f"{GROUP}/logs/loki/api/v1/"
_PAGE = 5000

Line = tuple[int, dict[str, str], str]
Step = bytes | Callable[[], object]
"""What a connection that follows does next: it sends a frame, or an action happens."""


class LogStore:
    """Lines are added by tests. Each connection that follows plays one of `tails`; without any left, the server is
    away. With `tails` None, lines cannot be followed."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.tails: list[Sequence[Step]] | None = []
        self.previous: list[Line] | None = None  # lines of earlier runs, where generations are not stored
        self.hidden_labels: set[str] = set()
        self.warnings: list[str] = []  # what lines are missing
        self.queries: list[tuple[str, Mapping[str, str]]] = []
        self.played = False  # whether a connection that follows was made
        self.away = 0  # how many calls get no useful answer

    def add(self, time: int, instance: str, text: str, *, generation: str = "g1", **labels: str) -> None:
        """An instance as its name tells: `shop-default-ams-0`."""
        workload, placement, city, _ = instance.rsplit("-", 3)
        found = {
            "datum_workload_name": workload,
            "datum_instance_name": instance,
            "datum_placement_name": placement,
            "datum_city_code": city.upper(),
            "datum_namespace_name": "default",
            "k8s_container_name": "app",
            "log_iostream": "stdout",
            "k8s_pod_uid": generation,
        } | labels
        visible = {name: value for name, value in found.items() if value and name not in self.hidden_labels}
        self.lines.append((time, visible, text))

    def serve(self, handler: BaseHTTPRequestHandler, path: str, query: Mapping[str, str]) -> None:
        if path == GROUP:
            _answer(handler, 200, {"kind": "APIResourceList", "resources": []})
            return
        name = path.removeprefix(_ROOT)
        self.queries.append((name, query))
        if name == "tail":
            self._tail(handler)
            return
        if self.away:
            self.away -= 1
            _answer(handler, 504, {"kind": "Status", "message": "too slow"})
            return
        try:
            _answer(handler, 200, self._found(name, query))
        except QueryError as error:
            _answer(handler, 400, {"status": "error", "errorType": "bad_data", "error": str(error)})

    def _found(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        start, end = int(query["start"]), int(query.get("end", 2**63))
        lines = self.previous if query.get("previous") and self.previous is not None else self.lines
        lines = sorted((line for line in lines if start <= line[0] < end), key=lambda line: line[0])
        if text := query.get("query") or query.get("match[]"):
            parsed = parse(text)
            lines = [line for line in lines if matches(line[1], parsed) and line_matches(line[2], parsed)]
        answer: dict[str, Any] = {"status": "success"}
        match name.split("/"):
            case ["query_range"]:
                backward, limit = query["direction"] == "backward", min(int(query["limit"]), _PAGE)
                lines = lines[-limit:][::-1] if backward else lines[:limit]
                answer["data"] = {"resultType": "streams", "result": streams(lines)}
                if query.get("previous") and self.previous is not None:
                    answer["previous"] = True
                if self.warnings:
                    answer["warnings"] = self.warnings
            case ["labels"]:
                answer["data"] = sorted({label for _, labels, _ in lines for label in labels})
            case ["label", label, "values"]:
                answer["data"] = sorted({labels[label] for _, labels, _ in lines if label in labels})
            case ["series"]:
                answer["data"] = [dict(pairs) for pairs in {tuple(sorted(labels.items())) for _, labels, _ in lines}]
        return answer

    def _tail(self, handler: BaseHTTPRequestHandler) -> None:
        if self.tails is None:
            _answer(handler, 405, {"message": "no"})
            return
        if not self.tails:
            _answer(handler, 503, {"kind": "Status", "message": "away", "code": 503})
            return
        self.played = True
        steps = self.tails.pop(0)
        handler.send_response(200)
        handler.send_header("Content-Type", "application/x-ndjson")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.close_connection = True
        for step in steps:
            if callable(step):
                step()
            else:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(step), step))


def streams(lines: Sequence[Line]) -> list[dict[str, Any]]:
    found: dict[tuple[tuple[str, str], ...], list[list[str]]] = {}
    for time, labels, text in lines:
        found.setdefault(tuple(sorted(labels.items())), []).append([str(time), text])
    return [{"stream": dict(labels), "values": values} for labels, values in found.items()]


def frame(*lines: Line) -> bytes:
    return msgspec.json.encode({"streams": streams(lines)}) + b"\n"


def notice(kind: str, time: int = 0, *, city: str = "", instance: str = "", message: str = "") -> bytes:
    value = {"kind": kind, "city": city, "instance": instance, "time": str(time), "message": message}
    return msgspec.json.encode({"notice": value}) + b"\n"


def _answer(handler: BaseHTTPRequestHandler, code: int, value: object) -> None:
    body = msgspec.json.encode(value)
    handler.send_response(code)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
