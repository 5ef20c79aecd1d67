from typing import Any

import msgspec
import pytest

from datum_compute.cli.talk.trace import redacted, trace
from datum_compute.kube.blocking import Exchange
from datum_compute.kube.transport import Call


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"template": {"spec": {"containers": [{"env": [{"name": "KEY", "value": "hush"}]}]}}}},
        {"kind": "Secret", "data": {"key": "hush"}},
        {"kind": "ConfigMap", "data": {"1": '{"spec":"hush"}'}},
        {"kind": "Secret", "stringData": {"key": "hush"}, "metadata": {"name": "s"}},
        {"items": [{"kind": "Secret", "data": {"key": "hush"}}]},
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"env":"hush"}'}}},
    ],
)
def test_values_that_may_be_secret_are_left_out(body: Any) -> None:
    trace = redacted(msgspec.json.encode(body))
    assert "hush" not in trace
    assert "(hidden)" in trace


def test_the_rest_is_shown_as_it_is() -> None:
    body = b'{"kind":"Workload","env":[{"name":"A","valueFrom":{"x":1}}],"data":{"k":"v"}}'
    assert redacted(body) == body.decode()


def test_a_body_that_is_not_json_is_only_counted() -> None:
    assert redacted(b"Bearer abc") == "(10 bytes)"


EXCHANGE = Exchange(Call("GET", "/api/v1/x", {"limit": "500"}, b'{"a":1}'), 200, b'{"b":2}', 0.0123)


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        (1, ["GET /api/v1/x?limit=500 200 12ms"]),
        (2, ["GET /api/v1/x?limit=500 200 12ms", '  > {"a":1}', '  < {"b":2}']),
    ],
)
def test_one_line_per_call_and_bodies_from_level_two(level: int, lines: list[str]) -> None:
    written: list[str] = []
    show = trace(level, written.append)
    assert show is not None
    show(EXCHANGE)
    assert written == lines


def test_nothing_is_traced_unless_asked() -> None:
    assert trace(0, print) is None


def test_a_call_without_an_answer_is_reported_with_the_reason() -> None:
    written: list[str] = []
    show = trace(2, written.append)
    assert show is not None
    show(Exchange(Call("GET", "/api/v1/x"), 0, b"", 0.003, "nothing listens on 127.0.0.1:1"))
    assert written == ["GET /api/v1/x nothing listens on 127.0.0.1:1 3ms"]
