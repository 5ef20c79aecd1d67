"""The JSON of answers, as clients of Loki read it."""

import msgspec

from datum_compute.telemetry import loki
from datum_compute.telemetry.sources import Dropped, Entry, Labels, Notice

OUT = Labels(datum_workload_name="api", log_iostream="stdout")
ERR = Labels(datum_workload_name="api", log_iostream="stderr")
ENTRIES = [Entry(1_700_000_000_000_000_001, OUT, "a"), Entry(2, ERR, "b"), Entry(3, OUT, "c")]


def test_lines_are_grouped_by_stream_in_the_requested_direction() -> None:
    out = {"datum_workload_name": "api", "log_iostream": "stdout"}
    err = {"datum_workload_name": "api", "log_iostream": "stderr"}
    forward = msgspec.to_builtins(loki.streams(ENTRIES, backward=False))
    assert forward == {
        "resultType": "streams",
        "result": [
            {"stream": out, "values": [("1700000000000000001", "a"), ("3", "c")]},
            {"stream": err, "values": [("2", "b")]},
        ],
    }
    backward = loki.streams(ENTRIES, backward=True)
    assert backward["result"][0] == {"stream": out, "values": [("3", "c"), ("1700000000000000001", "a")]}


def test_an_answer_says_whether_it_succeeded() -> None:
    assert loki.success(["a"]) == b'{"status":"success","data":["a"]}'
    assert loki.bad_data("no") == b'{"status":"error","errorType":"bad_data","error":"no"}'


def test_the_probe_of_grafana_gets_one_sample() -> None:
    assert loki.sample(1_500_000_000, "2") == {"resultType": "vector", "result": [{"metric": {}, "value": [1.5, "2"]}]}


def test_a_frame_is_one_line() -> None:
    line = loki.frame([Entry(1, OUT, "two\nlines")], [Dropped(ERR, 7, 12)])
    assert line.count(b"\n") == 1
    assert msgspec.json.decode(line) == {
        "streams": [{"stream": OUT.values(), "values": [["1", "two\nlines"]]}],
        "dropped_entries": [{"labels": ERR.values(), "timestamp": "7", "count": 12}],
    }
    assert b"dropped_entries" not in loki.frame([])


def test_a_notice_is_one_line() -> None:
    line = loki.notice(Notice("silent", "AMS", "", 5, "AMS does not answer"))
    assert msgspec.json.decode(line) == {
        "notice": {"kind": "silent", "city": "AMS", "instance": "", "time": "5", "message": "AMS does not answer"}
    }
