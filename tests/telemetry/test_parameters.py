"""Times are exact, and what makes no sense is named."""

from datetime import UTC, datetime
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.telemetry.parameters import HOUR, SECOND, ParameterError, Parameters, parse_time

NOW = 1_800_000_000 * SECOND


def parameters(**values: str) -> Parameters:
    return Parameters.of(urlencode(values).encode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000", 1_700_000_000 * SECOND),
        ("1700000000123", 1_700_000_000_123_000_000),
        ("1700000000123456", 1_700_000_000_123_456_000),
        ("1700000000123456789", 1_700_000_000_123_456_789),
        ("2023-11-14T22:13:20Z", 1_700_000_000 * SECOND),
        ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123_456_789),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500_000_000),
        ("1970-01-01T00:00:00Z", 0),
        ("1h", NOW - HOUR),
        ("1h30m", NOW - HOUR - 1800 * SECOND),
        ("7d", NOW - 168 * HOUR),
        ("250ms", NOW - SECOND // 4),
        ("999999d", 0),
        ("0001-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59Z", 2**63 - 1),
    ],
)
def test_a_time_is_exact(text: str, expected: int) -> None:
    assert parse_time("start", text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "170000000",
        "17000000001",
        "yesterday",
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-13-14T22:13:20Z",
        "-1h",
        "1y",
        "1.5",
        "١٢٣٤٥٦٧٨٩٠",
    ],
)
def test_what_is_not_a_time_is_refused_with_the_name_of_the_parameter(text: str) -> None:
    with pytest.raises(ParameterError, match="the parameter since_when is not a time"):
        parse_time("since_when", text, NOW)


@given(st.integers(min_value=0, max_value=4_000_000_000 * SECOND))
def test_any_moment_survives_as_rfc_3339(time: int) -> None:
    seconds, nanoseconds = divmod(time, SECOND)
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"
    assert parse_time("start", text, NOW) == time


@given(st.text(max_size=40) | st.text("0123456789TZ:-+.hm", max_size=40))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        time = parse_time("start", text, NOW)
    except ParameterError:
        return
    assert 0 <= time < 2**63


def test_the_window_is_the_last_hour_unless_named() -> None:
    assert parameters().window(NOW) == (NOW - HOUR, NOW)
    assert parameters(end="1h").window(NOW) == (NOW - 2 * HOUR, NOW - HOUR)
    assert parameters(start="1700000000", end="1700000001").window(NOW) == (
        1_700_000_000 * SECOND,
        1_700_000_001 * SECOND,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 100), ("10", 10), ("5000", 5000), ("9999", 5000), ("0", 100), ("-3", 100), ("many", 100), ("9" * 50, 100)],
)
def test_a_limit_is_cut_and_junk_is_ignored(text: str, expected: int) -> None:
    assert parameters(limit=text).limit() == expected


def test_the_direction_is_backward_unless_forward() -> None:
    assert parameters().backward()
    assert parameters(direction="BACKWARD").backward()
    assert not parameters(direction="forward").backward()
    with pytest.raises(ParameterError, match="direction"):
        parameters(direction="up").backward()


def test_a_delay_is_in_milliseconds() -> None:
    assert parameters().delay() is None
    assert parameters(delay="0").delay() == 0
    assert parameters(delay="250").delay() == 0.25
    for text in ("5001", "-1", "1s"):
        with pytest.raises(ParameterError, match="delay"):
            parameters(delay=text).delay()


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ParameterError, match="the parameter query is missing"):
        parameters(query="").required("query")


def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(ParameterError, match="more than 100"):
        Parameters.of(b"a=1&" * 200)
