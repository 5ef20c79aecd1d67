import asyncio
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog

from datum_compute.runtime.requests import Request
from datum_compute.runtime.telemetry import logs

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    before = structlog.get_config()
    stream = io.StringIO()
    yield stream
    structlog.configure(**before)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


def test_json_logs_are_one_object_per_line(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)
    structlog.get_logger().info("first", number=1)
    structlog.get_logger().warning("second", text="a\nb")
    first, second = lines(stream)
    assert (first["event"], first["number"], first["level"]) == ("first", 1, "info")
    assert (second["text"], second["level"]) == ("a\nb", "warning")
    assert first["timestamp"].endswith("Z")


def test_console_logs_are_for_people(stream: io.StringIO) -> None:
    logs.configure("info", "console", stream)
    structlog.get_logger().info("started", port=8081)
    assert "started" in stream.getvalue()
    assert "port=8081" in stream.getvalue()


def test_a_level_hides_lower_ones(stream: io.StringIO) -> None:
    logs.configure("warning", "json", stream)
    structlog.get_logger().info("hidden")
    structlog.get_logger().error("shown")
    assert [line["event"] for line in lines(stream)] == ["shown"]


@pytest.mark.parametrize(("level", "encoder"), [("loud", "json"), ("info", "xml")])
def test_an_unknown_setting_is_refused_with_a_sentence(level: str, encoder: str) -> None:
    with pytest.raises(ValueError, match="is unknown; choose one of"):
        logs.configure(level, encoder)


def test_lines_of_a_pass_name_its_request_and_others_do_not(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)

    async def pass_(number: int) -> None:
        logs.about("signer", Request("east", "default", f"w-{number}"), number)
        await asyncio.sleep(0)
        structlog.get_logger().info("working")

    async def both() -> None:
        await asyncio.gather(pass_(1), pass_(2))
        structlog.get_logger().info("outside")

    asyncio.run(both())
    first, second, outside = lines(stream)
    for number, line in ((1, first), (2, second)):
        about = {key: line[key] for key in ("controller", "plane", "namespace", "name", "pass")}
        expected = {"controller": "signer", "plane": "east", "namespace": "default", "name": f"w-{number}"}
        assert about == expected | {"pass": number}
    assert "pass" not in outside


def test_fields_of_a_line_win_over_those_of_its_pass(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)

    async def pass_() -> None:
        logs.about("signer", Request("east", "default", "w"), 1)
        structlog.get_logger().info("working", plane="west")

    asyncio.run(pass_())
    assert lines(stream)[0]["plane"] == "west"


@pytest.mark.parametrize("encoder", logs.ENCODERS)
@pytest.mark.parametrize(
    "fields",
    [
        {"token": "hunter2-hunter2"},
        {"client_key": "hunter2-hunter2"},
        {"headers": {"Authorization": "hunter2-hunter2"}},
        {"error": "401 for Bearer hunter2-hunter2"},
        {"error": ValueError("Authorization: bearer hunter2-hunter2")},
        {"command": ["login", {"password": "hunter2-hunter2"}]},
        {"url": "https://user:hunter2-hunter2@example.test/path"},
        {"body": b"Basic hunter2-hunter2"},
        {"pem": "-----BEGIN EC PRIVATE KEY-----\nhunter2-hunter2\n-----END EC PRIVATE KEY-----"},
    ],
)
def test_secrets_are_never_written(stream: io.StringIO, encoder: str, fields: dict[str, Any]) -> None:
    logs.configure("info", encoder, stream)
    structlog.get_logger().info("called", **fields)
    assert "hunter2" not in stream.getvalue()
    assert logs.HIDDEN in stream.getvalue()


@pytest.mark.parametrize("encoder", logs.ENCODERS)
def test_secrets_in_tracebacks_and_messages_are_not_written_either(stream: io.StringIO, encoder: str) -> None:
    logs.configure("info", encoder, stream)
    try:
        raise RuntimeError(f"the server said no to {JWT}")
    except RuntimeError as error:
        structlog.get_logger().error(f"failed with {JWT}", exc_info=error)
    assert JWT not in stream.getvalue()
    assert "RuntimeError: the server said no" in stream.getvalue()


def test_ordinary_words_are_left_alone(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)
    structlog.get_logger().info("the token was refreshed", key="a/b", monkey=1, tokens_left=None)
    [line] = lines(stream)
    assert (line["event"], line["key"], line["monkey"]) == ("the token was refreshed", "a/b", 1)
